"""A run without a step, in every chapter and each of its cases: with --steps 0, and with --load at its last step. Then
the model can still be sampled, saved and exported. All ranks are in one process."""

from functools import cache
from pathlib import Path
from unittest import mock

import pytest

from cases import status_of
from minidist.claims.audit import fill_line
from minidist.programs.chapter import find, find_all
from minidist.text import data
from sampling import shard_of_this_run

SMALL = "--width {width} --heads {n} --context {width} --batch {batch} --precision fp32"
CASES = [
    (name, case, options)
    for name, chapter in find_all().items()
    for case, options in (chapter.cases or {"": ""}).items()
    if chapter.trains
]
WITHOUT_FILES = ("local_sgd",)  # its ranks differ: it can neither save nor load
# Those with experts count what their routers did. Of the others a few in each run.
ALWAYS = [of for of in CASES if "expert" in f"{of}" and "parallel3d" not in of]
IN_THIS_RUN = {of[:2] for of in ALWAYS + shard_of_this_run(CASES, 24)}


def status(name: str, options: str) -> int:
    n = 1 if name == "train" else max(find(name).ranks or (4,))
    return status_of(fill_line(name, f"{SMALL} {options}", n), n)


@pytest.mark.parametrize(
    ("name", "case", "options"),
    [pytest.param(*of, marks=[] if of[:2] in IN_THIS_RUN else pytest.mark.slow) for of in CASES],
)
def test_a_run_without_a_step_samples_and_exports(
    name: str, case: str, options: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, file = tmp_path / "run", tmp_path / "model.safetensors"
    # The kernel's account of a process that has done other things before has bytes that no rank has read.
    without_kernel = mock.patch("minidist.memory.kernel.PROCESS", str(tmp_path / "none"))
    with mock.patch("minidist.text.data.load", cache(data.load)), without_kernel:
        assert status(name, f"{options} --steps 0 --sample 3") == 0
        assert "The model writes:" in capsys.readouterr().out
        if name in WITHOUT_FILES:
            return
        assert status(name, f"{options} --steps 1 --save {run}") == 0
        capsys.readouterr()
        assert status(name, f"{options} --steps 1 --load {run} --sample 3 --export {file}") == 0
        assert "The model writes:" in capsys.readouterr().out
        assert file.exists()

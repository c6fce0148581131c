"""As many ranks as one process holds, in float64, next to serial training; and every claim of the chapter."""

import json
from functools import cache
from typing import Any

import pytest

from cases import printed_by
from sampling import shard_of_this_run

SMALL = "--steps 2 --warmup 1 --lr 0.01 --precision fp64 --layers 1 --validate 1 --json -"
OF_BATCH = "--width 16 --heads 2 --context 4 --batch {n}"
CHAPTERS = {
    "data_parallel": OF_BATCH,
    "zero1": OF_BATCH,
    "zero2": OF_BATCH,
    "zero3": OF_BATCH,
    "fsdp": OF_BATCH,
    "tensor_parallel": "--width {n} --heads {n} --context 4 --batch 2",
    "context_parallel": "--width 8 --heads 2 --batch 1 --context {twice} --validate 0",  # N² blocks in each pass
    "expert_parallel": f"{OF_BATCH} --experts {{n}}",
}


@cache
def report(name: str, line: str, n: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(printed_by(f"{name} {line}", n))
    return found


EVERY = [(n, name) for n in (64, 256) for name in CHAPTERS]
IN_EVERY_RUN = shard_of_this_run([of for of in EVERY if of[0] == 64], 8)


@pytest.mark.parametrize(
    ("n", "name"), [pytest.param(*of, marks=[pytest.mark.slow] * (of not in IN_EVERY_RUN)) for of in EVERY]
)
def test_many_ranks_train_as_one(n: int, name: str) -> None:
    line = f"{SMALL} {CHAPTERS[name].format(n=n, twice=2 * n)}"
    alone = report("expert_parallel" if name == "expert_parallel" else "train", line, 1)
    together = report(name, line, n)
    assert together["ranks"] == n
    assert together["loss"] == pytest.approx(alone["loss"], rel=1e-12)
    if alone["validation_loss"] is not None:
        assert together["validation_loss"] == pytest.approx(alone["validation_loss"], rel=1e-12)
    assert together["loss"][0] != together["loss"][1]
    assert len(together["claims"]) > 5
    assert all(claim["holds"] for claim in together["claims"])

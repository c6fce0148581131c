"""Tables that name chapters are complete: a new chapter that one of them forgets is named here."""

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from minidist import contents
from minidist.deepspeed import plan
from minidist.programs.chapter import Chapter, find_all

ROOT = Path(__file__).parents[1]
CHAPTERS = find_all()
TRAIN = {name for name, chapter in CHAPTERS.items() if chapter.trains} - {"train"}  # on ranks
WITHOUT_A_KEY = {
    "parameter_server",
    "local_sgd",
    "tensor_parallel",
    "context_parallel",
    "expert_parallel",
    "pipeline",
    "parallel3d",
}  # none asks


def names(lines: Any) -> set[str]:
    """The chapters of some command lines."""
    return {line.split()[0] for line in lines}


def table_of(file: str) -> dict[str, Any]:
    """What stands in a file of tests."""
    return runpy.run_path(str(ROOT / "tests" / file))


def test_the_readme_has_a_row_for_each_chapter_and_starts_it_as_its_own_line_does() -> None:
    rows = re.findall(r"^\| \[`(\w+)`\]\((.+?)\) \| .+ \| `(.+)` \|$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert [name for name, _, _ in rows] == [entry.name for entry in contents.CHAPTERS]
    for (name, file, launch), entry in zip(rows, contents.CHAPTERS, strict=True):
        assert file == f"minidist/{name}.py"
        start, _, _ = entry.launch.partition(" FILE")
        assert launch.startswith(start.removesuffix(" --tp 2")), name


def test_the_house_says_where_each_chapter_stands_and_when_to_read_it() -> None:
    house = (ROOT / "minidist/README.md").read_text()
    drawing, order = house.split("```")[1], house.split("## In which order to read")[1].split("\n## ")[0]
    for name in CHAPTERS:
        assert f"{name}.py" in drawing, name
        assert f"`{name}.py`" in order or name == "train", name


def test_a_configuration_of_deepspeed_asks_for_each_chapter_or_has_no_key_for_it() -> None:
    zero: list[dict[str, Any]] = [{"stage": stage} for stage in range(4)]
    zero += [{"stage": 2, "offload_optimizer": {"device": device, "nvme_path": "."}} for device in ("cpu", "nvme")]
    checkpoints = {"cpu_checkpointing": True}
    more: list[dict[str, Any]] = [{"zero_optimization": of} for of in zero]
    more += [{"activation_checkpointing": checkpoints, "zero_optimization": {"stage": 2}}]
    found = {plan.make({"train_batch_size": 8, **config}, 2).chapter for config in more}
    found.add(plan.make({"train_batch_size": 8}, 2, fsdp=["--strategy", "full_shard"]).chapter)
    assert found | WITHOUT_A_KEY == TRAIN
    assert not found & WITHOUT_A_KEY


def test_every_chapter_is_held_against_serial_training_in_all_precisions() -> None:
    found = table_of("test_precisions.py")
    assert names([*found["SYNCHRONOUS"], *found["WITH_A_SERVER"], *found["ASYNCHRONOUS"]]) == TRAIN


def test_of_every_chapter_with_an_estimate_it_is_held_against_what_ranks_hold() -> None:
    found = table_of("claims/test_needs.py")
    estimated = {name for name in TRAIN if isinstance(CHAPTERS[name], Chapter) and CHAPTERS[name].needs}
    tables = ("LADDER", "ON_FOUR", "CUT", "STAGED", "ELSEWHERE")
    assert names([line for table in tables for line in found[table]]) == estimated
    for name, file in found["ELSEWHERE"].items():
        assert "needs(" in (ROOT / "tests" / file).read_text(), name


def test_every_chapter_that_has_pools_is_witnessed() -> None:
    lines = table_of("memory/test_witness.py")["lines"]
    assert names(line for n in range(1, 5) for line in lines(n)) == {name for name in TRAIN if CHAPTERS[name].pooled}


@pytest.mark.parametrize(("table", "refuse"), [("test_layouts.py", set()), ("test_checkpoint.py", {"local_sgd"})])
def test_every_chapter_is_met(table: str, refuse: set[str]) -> None:
    """In lines that are made in several ways. refuse: chapters that cannot be asked for what the table is about."""
    text = (ROOT / "tests" / table).read_text()
    assert {name for name in TRAIN if not re.search(rf"\b{name}\b", text)} == refuse

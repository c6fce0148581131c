"""Tables that name chapters are complete: a new chapter that one of them forgets is named here."""

import re
from pathlib import Path
from typing import Any

from minidist import contents
from minidist.deepspeed import plan
from minidist.programs.chapter import find_all

ROOT = Path(__file__).parents[1]
CHAPTERS = find_all()
WITH_A_KEY = {"data_parallel", "zero1", "zero2", "zero3", "offload", "infinity", "zero_r", "fsdp"}  # of DeepSpeed's


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


def test_a_configuration_of_deepspeed_asks_for_each_chapter_that_it_has_keys_for() -> None:
    zero: list[dict[str, Any]] = [{"stage": stage} for stage in range(4)]
    zero += [{"stage": 2, "offload_optimizer": {"device": device, "nvme_path": "."}} for device in ("cpu", "nvme")]
    checkpoints = {"cpu_checkpointing": True}
    more: list[dict[str, Any]] = [{"zero_optimization": of} for of in zero]
    more += [{"activation_checkpointing": checkpoints, "zero_optimization": {"stage": 2}}]
    found = {plan.make({"train_batch_size": 8, **config}, 2).chapter for config in more}
    found.add(plan.make({"train_batch_size": 8}, 2, fsdp=["--strategy", "full_shard"]).chapter)
    assert found == WITH_A_KEY

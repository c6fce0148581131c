"""`--device-memory`: a rank that holds more than its device is out of memory, as on a GPU, and the job ends."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from minidist import UsageError
from minidist.cli.options import Parser, memory_size
from minidist.launch.job import JobFailed
from programs import run_chapter, run_python
from ranks import launch

AT = r"at (receive \w+ \d+|send \w+ \d+|[FBW]\d+|update)"  # of a schedule
SHAPE = "--steps 3 --layers 2 --width 16 --context 16 --batch 8"


def run(n: int, line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return run_chapter(f"{line} {SHAPE}", n, cwd=folder)


def needs(n: int, line: str, pool: str, folder: Path) -> int:
    """The most that any rank held there, by the report of a run without a limit."""
    done = run(n, f"{line} --json report", folder)
    assert done.returncode == 0, done.stderr
    report = json.loads((folder / "report").read_text())
    held = report["memory"] if pool == "device" else [rank[pool] for rank in report["below"]]
    return max(rank["all but workspace"] for rank in held)


SLOW = [
    (3, "offload --zero 3 --accumulate 2", "device", "offload"),
    (4, "zero2", "device", "zero1"),
    (4, "fsdp --backward-prefetch post", "device", "fsdp --strategy shard_grad_op"),
    (4, "offload", "device", "zero2"),
    (2, "infinity --accumulate 2", "device", "offload --zero 3"),
    (2, "infinity", "host", None),
    (2, "infinity", "disk", None),
]


@pytest.mark.parametrize(
    ("n", "line", "pool", "more"),
    [
        (0, "train", "device", None),
        (4, "zero3", "device", "zero2"),
        (2, "offload --zero 3", "host", None),
        (2, "pipeline --schedule 1f1b", "device", "pipeline --schedule gpipe"),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW),
    ],
)
def test_what_is_needed_is_enough_and_a_byte_less_is_not(
    n: int, line: str, pool: str, more: str | None, tmp_path: Path
) -> None:
    """And what needs more by the papers (a lower stage, all micro-batches in flight) does not fit into the same."""
    most = needs(n, line, pool, tmp_path)
    assert run(n, f"{line} --{pool}-memory {most}", tmp_path).returncode == 0
    for failing, capacity in ((line, most - 1), (more, most)):
        if failing:
            done = run(n, f"{failing} --{pool}-memory {capacity}", tmp_path)
            assert done.returncode == 1
            who = r"rank \d is " if n else ""
            where = rf"(in \w+, (forward|backward|again|weights)|{AT}|in the update|while the model is made)"
            assert re.fullmatch(
                rf"minidist: error: {who}out of memory {where}: [\d,]+ bytes of \w+ do not fit on the {pool}, which has"
                rf" {capacity:,} and holds (\w+ [\d,]+(, )?)+\n",
                done.stderr,
            ), done.stderr


ON_ONE_RANK = """
from minidist.programs.chapter import find, start

chapter = find("{chapter}")
made_right = chapter.make

def make(job, comm):
    if comm.rank == 2:
        job.settings.{capacity} = {nbytes}
    return made_right(job, comm)

chapter.make = make
start(chapter)
"""


@pytest.mark.parametrize(
    ("chapter", "pool", "nbytes"),
    [
        ("offload", "device", 20_000),
        ("offload", "host", 15_000),  # of the 18,000 that it needs
        ("infinity", "host", 9000),
        pytest.param("infinity", "device", 9000, marks=pytest.mark.slow),
        pytest.param("infinity", "disk", 9000, marks=pytest.mark.slow),
    ],
)
def test_one_rank_that_is_out_of_memory_ends_the_job(chapter: str, pool: str, nbytes: int, tmp_path: Path) -> None:
    capacity = "capacity" if pool == "device" else f"{pool}_capacity"
    program = ON_ONE_RANK.format(chapter=chapter, capacity=capacity, nbytes=nbytes)
    (tmp_path / "one.py").write_text(program)
    done = run_python("one.py", *SHAPE.split(), ranks=4, cwd=tmp_path)
    assert done.returncode == 1
    assert re.fullmatch(
        rf"minidist: error: rank 2 is out of memory .*: [\d,]+ bytes of \w+ do not fit on the {pool}, which has"
        rf" {nbytes:,} and holds \w+ [\d,]+.*\n",
        done.stderr,
    ), done.stderr


def test_where_a_pipeline_has_no_room_for_a_message_it_says_so() -> None:
    """And not what the engine did last, the update or a unit of another micro-batch."""
    job = launch("jobs.memories:full_between_units", n=2)
    with pytest.raises(
        JobFailed, match=r"rank 1 failed:\nout of memory at receive activations 0: 256 bytes of messages"
    ):
        _ = job.values


@pytest.mark.parametrize(
    ("text", "size"), [("1500KB", 1_500_000), ("1.5MB", 1_500_000), ("2 gb", 2 * 10**9), ("7", 7), ("7B", 7), ("0", 0)]
)
def test_sizes_are_in_thousands(text: str, size: int) -> None:
    assert memory_size(text) == size


@pytest.mark.parametrize("text", ["1000000001GB", 309 * "9", f"{309 * '9'}GB", f"1{308 * '0'}.5MB"])
def test_a_size_of_any_length_is_one_line(text: str) -> None:
    parser = Parser("zero3", "")
    parser.add_argument("--device-memory", type=memory_size)
    with pytest.raises(UsageError, match=r"must be at most 1e\+18 bytes, not [19]"):
        parser.parse_args([f"--device-memory={text}"])


@pytest.mark.parametrize("text", ["", "KB", "1XB", "-1", "1,5MB", "1KiB", "nan"])
def test_what_is_no_size_is_one_line(text: str) -> None:
    parser = Parser("zero3", "")
    parser.add_argument("--device-memory", type=memory_size)
    with pytest.raises(UsageError, match=r"must be bytes, such as 1500KB or 1\.5MB, not"):
        parser.parse_args([f"--device-memory={text}"])

"""Slips in lessons 16, 17, 18 and 20: each loses its own part and no other, and the message is that part's. They are
the mutants of these lessons, graded in all parts on ranks of this process; test_grades.py has the processes."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from classroom.grading import ANSWERS, LESSONS
from classroom.mistakes import MUTANTS, Mistake
from classroom.quick import QuickGrader
from sampling import shard_of_this_run

# One keeps an array in a function, which the ranks of one process share: test_grades.py has it, in processes.
SLIPS = [
    mutant
    for number in ("16", "17", "18", "20")
    for mutant in MUTANTS[number].values()
    if mutant.name != "forgets_the_first_rows"
]
OF_THIS_RUN = shard_of_this_run([slip for slip in SLIPS if slip.lesson != "18"], 10)  # 18's train systems


def test_there_are_enough_and_each_has_one_part() -> None:
    assert len(SLIPS) >= 60
    assert len({(slip.lesson, slip.name) for slip in SLIPS}) == len(SLIPS)
    assert all(len(slip.loses) == 1 for slip in SLIPS)


@pytest.fixture(scope="module")
def graders() -> Iterator[dict[str, QuickGrader]]:
    made = {number: QuickGrader(number) for number in ("16", "17", "18", "20")}
    yield made
    for each in made.values():
        each.close()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    "slip",
    [
        pytest.param(slip, marks=[pytest.mark.slow] * (slip not in OF_THIS_RUN), id=f"{slip.lesson} {slip.name}")
        for slip in SLIPS
    ],
)
def test_a_slip_loses_its_own_part(graders: dict[str, QuickGrader], tmp_path: Path, slip: Mistake) -> None:
    made, [part] = graders[slip.lesson], slip.loses
    graded = made.grade(slip.write_to(tmp_path))
    assert graded.lost == {part}, graded.messages
    for pattern in slip.says:
        assert re.search(pattern, graded.messages[part]), graded.messages


@pytest.mark.parametrize("number", ["16", "17", "20"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_ranks_of_one_process_give_the_grade_of_processes(graders: dict[str, QuickGrader], number: str) -> None:
    """Skeletons and right answers; for wrong ones see test_grades.py, which has the same table."""
    skeleton = graders[number].grade(LESSONS[number] / "exercise.py")
    assert skeleton.earned == 0
    assert all("is not written yet" in message for message in skeleton.messages.values())
    for seed in range(2):
        assert graders[number].grade(ANSWERS[number], seed=seed).messages == {}

"""Points by cause: the skeleton earns nothing, a right answer everything, and each mistake loses the parts that are
named beside it and no others. Mistakes are patches of the right answer (mutants/) and programs as people write them
(submissions/)."""

import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from classroom.grading import ANSWERS, LESSONS, ROOT, Graded, Grader, grader
from classroom.mistakes import BASES, MUTANTS, SUBMISSIONS, Mistake
from sampling import shard_of_this_run

# Of the mistakes those that between them bring about every kind of message, and of every lesson a mutant and a file;
# mutants in the parts that they lose. Each run grades those of half of the lessons, and of the others a part: both
# differ from commit to commit. All of them, and mutants in all parts, are graded with -m slow.
FIRST = {
    "01": {"all_send_first", "from_the_notebook", "hash_and_append"},
    "02": {
        *("stores", "adds_in_place", "divides_by_sequences", "constant_variance", "writes_into_prob"),
        *("imports_the_operations", "trains_with_the_package"),
    },
    "03": {"one_too_stale", "half_finished"},
    "04": {
        *("forgets_its_own_part", "averages", "never_alone", "adds_up_in_x", "widens", "blocking_sends", "never_waits"),
        *("chunks_of_its_own", "holds_a_copy", "half_finished", "no_python"),
    },
    "05": {"means_of_means", "half_finished"},
    "06": {"squares_in_float16", "looks_at_its_own", "imports_the_package"},
    "07": {"its_own_norm", "half_finished"},
    "08": {"gathers_every_micro_batch", "half_finished"},
    "09": {"without_padding", "never_forgets", "half_finished"},
    "10": {"keeps_every_tape", "one_stream", "a_view", "from_the_notebook"},
    "11": {"all_that_send_least", "reads_over_a_write", "always_late", "one_room"},
    "12": {"own_dx", "imports_the_group"},
    "13": {"one_buffer", "half_finished"},
    "14": {"counts_t_times", "from_the_notebook"},
    "15": {"never_runs_again", "switch_by_switch", "asserts", "imports_the_formulas"},
    "16": {"local_mask", "shapes_alone"},
    "17": {"rank_by_rank", "imports_the_lesson"},
    "18": {"one_norm", "last_weeks_loss"},
    "19": {"any_mixture", "never_alarms", "half_finished"},
    "20": {"momentum_not_masked", "dense"},
}


OF_THIS_RUN = shard_of_this_run([*LESSONS], 2)  # lessons: each has a process of its own to fork ranks from
RIGHT_IN_THIS_RUN = shard_of_this_run(OF_THIS_RUN, 2)
OTHERS = shard_of_this_run(
    [
        mistake
        for of_lessons in (MUTANTS, SUBMISSIONS)
        for number in OF_THIS_RUN
        for mistake in of_lessons[number].values()
        if mistake.name not in FIRST[number]
    ],
    40,
)
EVERY_BASE = [base for bases in BASES.values() for base in bases.values()]
BASES_OF_THIS_RUN = shard_of_this_run([base for base in EVERY_BASE if base.lesson in OF_THIS_RUN], 6)


def in_this_run(mistake: Mistake) -> bool:
    return (mistake.lesson in OF_THIS_RUN and mistake.name in FIRST[mistake.lesson]) or mistake in OTHERS


@pytest.fixture(scope="module")
def graders() -> Iterator[dict[str, Grader]]:
    with ExitStack() as stack:
        yield {number: stack.enter_context(grader(number)) for number in LESSONS}


def check_messages(graded: Graded, patterns: Iterable[str]) -> None:
    messages = "\n".join(graded.messages.values())
    for pattern in patterns:
        assert re.search(pattern, messages), f"{pattern}\n\n{messages}"
    for ours in ("minidist/classroom", "on_ranks.py", "site-packages", "Traceback"):  # says nothing to a student
        assert ours not in messages, messages
    assert not re.search(r"^AssertionError$", messages, re.MULTILINE)


@pytest.mark.parametrize(
    "number",
    [pytest.param(number, marks=[pytest.mark.slow] * (number not in RIGHT_IN_THIS_RUN)) for number in LESSONS],
)
def test_the_skeleton_earns_nothing_and_a_right_answer_everything(graders: dict[str, Grader], number: str) -> None:
    skeleton = graders[number].grade(LESSONS[number] / "exercise.py")
    right = graders[number].grade(ANSWERS[number])
    assert (skeleton.earned, sum(skeleton.points.values())) == (0, 20)
    assert all("is not written yet" in message for message in skeleton.messages.values())
    assert not any("During handling" in message for message in skeleton.messages.values())
    assert (right.messages, right.earned) == ({}, 20)
    assert not [note for note in right.notes if "statements" in note]


@pytest.mark.parametrize(
    "only", [{"reduce_scatter", "all_gather", "all_reduce"}, pytest.param(None, marks=pytest.mark.slow, id="all")]
)
def test_the_chapter_earns_everything_and_is_recognized(graders: dict[str, Grader], only: set[str] | None) -> None:
    graded = graders["04"].grade(ROOT / "minidist" / "ring.py", only=only)
    assert graded.messages == {}
    same = [note for note in graded.notes if "statements of the chapter's" in note]
    assert [note.partition(":")[0] for note in same] == ["reduce_scatter", "all_reduce"]


@pytest.mark.parametrize(
    ("mutant", "whole"),
    [
        pytest.param(mutant, whole, marks=marks, id=f"{number} {mutant.name}{whole * ' in all parts'}")
        for number, mutants in MUTANTS.items()
        for mutant in mutants.values()
        for whole, marks in [(False, []), (True, [pytest.mark.slow])]
        if whole or in_this_run(mutant)
    ],
)
def test_a_mutant_loses_the_part_that_its_demand_is_graded_in(
    graders: dict[str, Grader], tmp_path: Path, mutant: Mistake, whole: bool
) -> None:
    graded = graders[mutant.lesson].grade(mutant.write_to(tmp_path), only=None if whole else set(mutant.loses))
    assert graded.lost == set(mutant.loses), graded.messages
    check_messages(graded, mutant.says)


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(wrong, marks=[pytest.mark.slow] * (not in_this_run(wrong)), id=f"{number} {wrong.name}")
        for number, submissions in SUBMISSIONS.items()
        for wrong in submissions.values()
    ],
)
def test_a_wrong_submission_loses_just_its_parts(graders: dict[str, Grader], tmp_path: Path, wrong: Mistake) -> None:
    graded = graders[wrong.lesson].grade(wrong.write_to(tmp_path), wrong.patience)
    assert graded.lost == wrong.lost_of(graded.points), graded.messages
    check_messages(graded, wrong.says)


@pytest.mark.parametrize(
    "base",
    [
        pytest.param(base, marks=[pytest.mark.slow] * (base not in BASES_OF_THIS_RUN), id=f"{base.lesson} {base.name}")
        for base in EVERY_BASE
    ],
)
def test_another_right_answer_earns_everything(graders: dict[str, Grader], tmp_path: Path, base: Mistake) -> None:
    graded = graders[base.lesson].grade(base.write_to(tmp_path))
    assert (graded.messages, graded.earned) == ({}, 20)
    assert not [note for note in graded.notes if "statements" in note]


@pytest.mark.parametrize("number", LESSONS)
def test_every_demand_has_a_mutant_and_every_part_a_demand(number: str) -> None:
    demands = [mutant.demand for mutant in MUTANTS[number].values()]
    with grader(number) as made:
        parts = {name for name, _, _ in made.parts()}
    alone = {part for mutant in MUTANTS[number].values() if len(mutant.loses) == 1 for part in mutant.loses}
    named = {part for mutant in MUTANTS[number].values() for part in mutant.loses}
    assert len(set(demands)) >= len(parts)
    assert named | {"meaning"} >= parts >= named  # of messages that mean nothing see test_tricks.py
    assert parts - alone <= {"meaning"}


def test_names_of_those_that_come_first_exist() -> None:
    for number, names in FIRST.items():
        files, mutants = set(SUBMISSIONS[number]), set(MUTANTS[number])
        assert names <= files | mutants
        assert names & files
        assert names & mutants


@pytest.mark.slow
@pytest.mark.parametrize("number", LESSONS)
def test_over_mpi_the_same_points_but_for_what_only_the_router_sees(tmp_path: Path, number: str) -> None:
    only_router = {"timing", "meaning", "messages"}
    with grader(number, wire="mpi") as over_mpi:
        assert over_mpi.grade(ANSWERS[number]).messages == {}
        for name in FIRST[number] & set(MUTANTS[number]):
            mutant = MUTANTS[number][name]
            graded = over_mpi.grade(mutant.write_to(tmp_path))
            assert graded.lost - only_router == set(mutant.loses) - only_router, (name, graded.messages)


@pytest.mark.slow
def test_the_same_points_every_time(graders: dict[str, Grader], tmp_path: Path) -> None:
    """While everything here is kept busy."""
    mutants = [MUTANTS["04"][name] for name in ("reuses_a_buffer", "blocking_sends", "averages")]
    for number in range(51):
        mutant = mutants[number % len(mutants)]
        assert graders["04"].grade(mutant.write_to(tmp_path), seed=number).lost == set(mutant.loses)


def test_a_seed_repeats_a_grade(graders: dict[str, Grader], tmp_path: Path) -> None:
    """To the last number in a message; another seed has other numbers."""
    file = SUBMISSIONS["04"]["sends_the_total"].write_to(tmp_path)
    parts = {"all_reduce", "timing"}
    one, again, other = (graders["04"].grade(file, seed=seed, only=parts) for seed in (1, 1, 2))
    assert one == again
    assert one.lost == other.lost

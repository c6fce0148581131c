"""Points by cause: the skeleton earns nothing, a right answer everything, and each mistake loses the parts that are
named beside it and no others. Mistakes are patches of the right answer (mutants/) and files as people write them."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from classroom.grading import ANSWERS, LESSONS, ROOT, SUBMISSIONS, Graded, Grader, grader, head
from classroom.mutants import MUTANTS, Mutant

# Of the mistakes those that between them bring about every kind of message, and of every lesson a mutant and a file;
# mutants in the parts that they lose. The others, and mutants in all parts, are graded with -m slow.
IN_EVERY_RUN = {
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
}


@pytest.fixture(scope="module")
def graders() -> Iterator[dict[str, Grader]]:
    with ExitStack() as stack:
        yield {number: stack.enter_context(grader(number)) for number in LESSONS}


def check_messages(graded: Graded, patterns: list[str]) -> None:
    messages = "\n".join(graded.messages.values())
    for pattern in patterns:
        assert re.search(pattern, messages), f"{pattern}\n\n{messages}"
    for ours in ("minidist/classroom", "on_ranks.py", "site-packages", "Traceback"):  # says nothing to a student
        assert ours not in messages, messages
    assert not re.search(r"^AssertionError$", messages, re.MULTILINE)


@pytest.mark.parametrize("number", LESSONS)
def test_the_skeleton_earns_nothing_and_a_right_answer_everything(graders: dict[str, Grader], number: str) -> None:
    skeleton = graders[number].grade(LESSONS[number] / "exercise.py")
    right = graders[number].grade(ANSWERS[number])
    assert (skeleton.earned, sum(skeleton.points.values())) == (0, 20)
    assert all("is not written yet" in message for message in skeleton.messages.values())
    assert not any("During handling" in message for message in skeleton.messages.values())
    assert (right.messages, right.earned) == ({}, 20)
    assert not [note for note in right.notes if "syntax tree" in note]


@pytest.mark.parametrize(
    "only", [{"reduce_scatter", "all_gather", "all_reduce"}, pytest.param(None, marks=pytest.mark.slow, id="all")]
)
def test_the_chapter_earns_everything_and_is_recognized(graders: dict[str, Grader], only: set[str] | None) -> None:
    graded = graders["04"].grade(ROOT / "minidist" / "ring.py", only=only)
    assert graded.messages == {}
    same = [note for note in graded.notes if "has, but for names, the syntax tree of the chapter's" in note]
    assert [note.split()[0] for note in same] == ["reduce_scatter", "all_reduce"]


@pytest.mark.parametrize(
    ("number", "mutant", "whole"),
    [
        pytest.param(number, mutant, whole, marks=marks, id=f"{number} {mutant.name}{whole * ' in all parts'}")
        for number, mutants in MUTANTS.items()
        for mutant in mutants
        for whole, marks in [(False, []), (True, [pytest.mark.slow])]
        if whole or mutant.name in IN_EVERY_RUN[number]
    ],
)
def test_a_mutant_loses_the_part_that_its_demand_is_graded_in(
    graders: dict[str, Grader], tmp_path: Path, number: str, mutant: Mutant, whole: bool
) -> None:
    program = tmp_path / f"{mutant.name}.py"
    program.write_text(mutant.text(ANSWERS[number]))
    graded = graders[number].grade(program, only=None if whole else set(mutant.loses))
    assert graded.lost == set(mutant.loses), graded.messages
    check_messages(graded, [mutant.says])


@pytest.mark.parametrize(
    ("number", "file"),
    [
        pytest.param(
            number,
            file,
            marks=[pytest.mark.slow] * (file.stem not in IN_EVERY_RUN[number]),
            id=f"{number} {file.stem}",
        )
        for number, lesson in LESSONS.items()
        for file in sorted((SUBMISSIONS / lesson.name).glob("*.py"))
    ],
)
def test_a_wrong_submission_loses_just_its_parts(graders: dict[str, Grader], number: str, file: Path) -> None:
    patience = head(file, "patience")
    graded = graders[number].grade(file, float(patience[0]) if patience else 10)
    everything = set(graded.points)
    keeps, loses = (set(", ".join(head(file, name)).split(", ")) - {"", "nothing"} for name in ("keeps", "loses"))
    assert keeps | loses <= everything
    assert graded.lost == (loses or everything - keeps), graded.messages
    check_messages(graded, head(file, "says"))


@pytest.mark.parametrize("number", LESSONS)
def test_every_demand_has_a_mutant_and_every_part_a_demand(number: str) -> None:
    demands = [mutant.demand for mutant in MUTANTS[number]]
    with grader(number, isolate=False) as made:
        parts = {name for name, _, _ in made.parts()}
    alone = {part for mutant in MUTANTS[number] if len(mutant.loses) == 1 for part in mutant.loses}
    named = {part for mutant in MUTANTS[number] for part in mutant.loses}
    assert len(set(demands)) >= len(parts)
    assert named | {"meaning"} >= parts >= named  # of messages that mean nothing see test_tricks.py
    assert parts - alone <= {"meaning"}


def test_names_of_every_run_exist() -> None:
    for number, names in IN_EVERY_RUN.items():
        files = {file.stem for file in (SUBMISSIONS / LESSONS[number].name).glob("*.py")}
        mutants = {mutant.name for mutant in MUTANTS[number]}
        assert names <= files | mutants
        assert names & files
        assert names & mutants


@pytest.mark.slow
@pytest.mark.parametrize("number", LESSONS)
def test_over_mpi_the_same_points_but_for_what_only_the_router_sees(tmp_path: Path, number: str) -> None:
    only_router = {"timing", "meaning", "messages"}
    with grader(number, wire="mpi") as over_mpi:
        assert over_mpi.grade(ANSWERS[number]).messages == {}
        for mutant in MUTANTS[number]:
            if mutant.name in IN_EVERY_RUN[number]:
                program = tmp_path / f"{mutant.name}.py"
                program.write_text(mutant.text(ANSWERS[number]))
                lost = over_mpi.grade(program).lost
                assert lost - only_router == set(mutant.loses) - only_router, mutant.name


@pytest.mark.slow
def test_the_same_points_every_time(graders: dict[str, Grader], tmp_path: Path) -> None:
    """While everything here is kept busy."""
    program = tmp_path / "program.py"
    mutants = [mutant for mutant in MUTANTS["04"] if mutant.name in ("reuses_a_buffer", "blocking_sends", "averages")]
    for number in range(51):
        mutant = mutants[number % len(mutants)]
        program.write_text(mutant.text(ANSWERS["04"]))
        assert graders["04"].grade(program, seed=number).lost == set(mutant.loses)


def test_a_seed_repeats_a_grade(graders: dict[str, Grader]) -> None:
    """To the last number in a message; another seed has other numbers."""
    file = SUBMISSIONS / LESSONS["04"].name / "sends_the_total.py"
    parts = {"all_reduce", "timing"}
    one, again, other = (graders["04"].grade(file, seed=seed, only=parts) for seed in (1, 1, 2))
    assert one == again
    assert one.lost == other.lost

"""What the graded parts do with a student's functions, in a process of its own. No points are given here."""

from collections.abc import Sequence
from functools import partial
from types import ModuleType
from typing import Any

from minidist.classroom.grading import ranks
from minidist.classroom.grading.chapter import functions
from minidist.classroom.grading.ranks import told
from minidist.mpi.comm import Comm

# The chapter's rules take the place of what a student's types_of and first_alarm call.
rules = functions("minidist.spmd_types", ("join", "through"))
WHOLE = ("types_of", "first_alarm")
answers = ranks.answers(told=partial(told, texts=True), raises="Mismatch")


def call(comm: Comm, exercise: ModuleType, mine: list[Any], function: str) -> list[Any]:
    """What a function returned for each list of arguments; "Mismatch" if it raised one."""
    if function in WHOLE:
        vars(exercise).update(join=partial(join, exercise), collective=partial(collective, exercise))
    return answers(comm, exercise, mine, function)


def join(exercise: ModuleType, types: Sequence[str], operation: str) -> str:
    return ruled(exercise, "join", types, operation)


def collective(exercise: ModuleType, forward: str, backward: str, operand: str) -> str:
    return ruled(exercise, "through", forward, backward, operand) if forward or backward else operand


def ruled(exercise: ModuleType, rule: str, *arguments: Any) -> str:
    try:
        return str(rules[rule](*arguments))
    except Exception as mismatch:
        raise exercise.Mismatch(str(mismatch)) from None

"""What lesson 18's notebook starts from, runs and counts. The answers to its gaps are in answers.py."""

from functools import cache

import numpy as np

from minidist.bugs import command
from minidist.bugs.checks import CHECKS
from minidist.bugs.handle import Handle
from minidist.bugs.systems import KINDS, System, Systems, draw, read_bugs, system_of

Array = np.ndarray
ASKED = ("check_gradients", "check_norms", "check_sizes", "check_memory", "check_precision", "check_checkpoint")
OF_LESSON = {check.short: check for check in CHECKS if check.short not in ("proof", "types")}


@cache
def systems() -> Systems:
    return Systems()


def system(name: str, broken: bool = True, seed: int = 5) -> Handle:
    """A handle on the system with this bug, or on the healthy one that it was made of."""
    return handle_of(system_of(read_bugs()[name], seed, broken))


def drawn(kind: str, seed: int, number: int = 0) -> Handle:
    """A handle on a system that a grade with this seed meets in check_<kind>: first come the broken ones, 0 and 1, or
    also 2, then the healthy ones. What a grade says of a lost part names it. Raises ValueError if there is no such
    system."""
    systems_of_kind = draw(seed).get(kind, ())
    if number not in range(len(systems_of_kind)):
        last = max(len(systems_of_kind), 5) - 1
        raise ValueError(
            f"drawn({kind!r}, {seed}, {number}): the kind is one of {', '.join(KINDS)}, the number from 0 to {last}"
        )
    return handle_of(systems_of_kind[number])


def handle_of(made: System) -> Handle:
    return Handle(made.facts, lambda asked: systems().perform([(made, asked)])[0])


def read_table() -> dict[str, dict[str, str]]:
    """The counted table, as far as the lesson has it: for each bug of record, what each check says: "x", it notices the
    bug, "." it does not, "-" it was not asked."""
    bugs = read_bugs()
    return {
        name: {short: command.letter(bugs[name], row, check) for short, check in OF_LESSON.items()}
        for name, row in command.kept().items()
        if bugs[name].room == 1
    }


def titles() -> dict[str, str]:
    """What the short names stand for."""
    return {short: check.title for short, check in OF_LESSON.items()}

"""What the graded parts do with a student's checks, in a process of its own. No points are given here.

Here is no system: only its facts, and what runs that were asked for before have counted. A check that asks for another
one ends there. The process that grades makes this run, and the check begins anew.
"""

import traceback
from types import ModuleType
from typing import Any

from minidist.bugs.handle import Handle
from minidist.classroom.grading.ranks import returned
from minidist.mpi.comm import Comm


class Asks(BaseException):
    """A check wants a run that nobody has made yet. It is no Exception, so that no check takes it for one."""


def find(comm: Comm, exercise: ModuleType, mine: list[Any], function: str) -> dict[str, Any]:
    """What a check says of a system: the run that it still asks for, or whether it alarms. mine: facts, known runs."""
    facts, known = mine
    answers = {repr(asked): counted for asked, counted in known}

    def answer(asked: dict[str, Any]) -> dict[str, Any]:
        if repr(asked) not in answers:
            raise Asks(asked)
        return dict(answers[repr(asked)])

    run = Handle(facts, answer)
    try:
        getattr(exercise, function)(run)
    except Asks as asks:
        return {"asks": asks.args[0]}
    except AssertionError as alarm:
        return {"alarm": True, "said": str(alarm)[:200] or line_of(alarm)}
    return {"alarm": False, "said": ""}


def line_of(alarm: BaseException) -> str:
    """The line that alarmed without a word."""
    return traceback.extract_tb(alarm.__traceback__)[-1].line or ""


def gap(comm: Comm, exercise: ModuleType, mine: list[Any], function: str) -> Any:
    """What a gap's function returned: a number as it is, NumPy's as Python's, of a list the numbers."""
    value = getattr(exercise, function)(*mine)
    if getattr(value, "ndim", None) == 0:
        return value.item()
    return value if isinstance(value, bool | int | float | str | list) else returned(value)

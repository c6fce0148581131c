"""Checks by a grader that stands between the ranks: does a program depend on luck, and do its messages mean anything?
Used by lessons' tests; over MPI they check only what MPI shows."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pytest

from minidist.classroom.grading.checks import is_right
from minidist.classroom.grading.router import Message, Seen
from minidist.classroom.grading.submission import STRICT, Case, Lost, Outcome, Submission, lose
from minidist.exchange.marks import arrays_in
from minidist.exchange.rules import Rules

Working = Iterator[tuple[str, list[list[Outcome]]]]
SPOILED = np.uint8(0b0001_0001)  # the bits that are flipped in every byte
LONG = 16  # bytes: with drawn inputs, two messages of this size differ
Enough = Callable[[Case, Sequence[Outcome]], None]  # loses the part if a function has not even tried


def check_worked(run: Case, outcomes: Sequence[Outcome]) -> None:
    """Lose the part if a function that must send has not sent anything."""
    if run.n > 1 and not any(outcome.messages for outcome in outcomes):
        lose(f"On {run.label}: nothing was sent, and without messages it cannot be done.")


def working(
    submission: Submission,
    target: str,
    cases: Mapping[str, Sequence[Case]],
    enough: Enough,
    right: Enough | None = None,
) -> Working:
    """The functions that work under lenient rules, next to the lesson's own others, each with its outcomes. One that
    fails even so is left out: another part asks for it. The part is lost if one is not written, or if none works.
    right: what says whether results are right. If those of one function are, the others are left out in the same way.
    """
    why, found, wrong = "", False, list[tuple[str, list[list[Outcome]]]]()
    for function, theirs in cases.items():
        try:
            runs = submission.attempt(target, theirs, [function])
            for case, outcomes in zip(theirs, runs, strict=True):
                enough(case, outcomes)
        except (Lost, pytest.fail.Exception) as lost:
            why = str(lost)
            if "is not written yet" in why or submission.in_every_part:
                lose(why)
            continue
        if right and not all(is_right(right, case, outcomes) for case, outcomes in zip(theirs, runs, strict=True)):
            wrong.append((function, runs))
            continue
        found = True
        yield function, runs
    if not found and not wrong:
        lose(why)
    yield from [] if found else wrong


def run_together(
    submission: Submission, target: str, cases: Mapping[str, Sequence[Case]], enough: Enough
) -> tuple[list[str], list[list[Outcome]]]:
    """The functions that work, and the outcomes of all their cases in one run. Mostly all work: that is tried first."""
    try:
        everything = [case for theirs in cases.values() for case in theirs]
        plain = submission.attempt(target, everything, [*cases])
        for case, outcomes in zip(everything, plain, strict=True):
            enough(case, outcomes)
        return [*cases], plain
    except (Lost, pytest.fail.Exception):
        names = [name for name, _ in working(submission, target, cases, enough)]
        return names, submission.run(target, [case for name in names for case in cases[name]], names)


def check_timing(submission: Submission, target: str, cases: Mapping[str, Sequence[Case]], enough: Enough) -> None:
    """The results must stay the same if sends wait for their receivers, if the memory of requests is guarded, and if
    messages arrive in another order, or in one drawn from the seed."""
    names, plain = run_together(submission, target, cases, enough)
    together = [case for name in names for case in cases[name]]
    for rules in (STRICT, Rules("drawn", "drawn", submission.seed)):
        again = submission.run(target, together, names, rules=rules, guarded=True)
        for case, before, now in zip(together, plain, again, strict=True):
            for rank, (one, other) in enumerate(zip(before, now, strict=True)):
                if not same(one, other):
                    lose(
                        f"On {case.label}: rank {rank} returns something else when messages arrive in another order."
                        " What does it take for granted?"
                    )


def check_meaning(
    submission: Submission, target: str, cases: Mapping[str, Case], enough: Enough, right: Enough | None = None
) -> None:
    """Change one message after the other on its way: flip its bits, or replace it by another one. Each time, some
    result must change. right: as in `working`."""
    several = {name: [case] for name, case in cases.items()}
    for function, [before] in working(submission, target, several, enough, right):
        case = cases[function]
        if not submission.messages and submission.wire.spoils:
            lose(f"On {case.label}: no message is sent.")
        changes = [*noise(submission.messages), *swaps(submission.messages, submission.random)]
        check_changes(submission, target, function, case, before, changes)


def check_changes(
    submission: Submission,
    target: str,
    function: str,
    case: Case,
    before: Sequence[Outcome],
    changes: Sequence["Change"],
) -> None:
    """Make each change in a run of its own, all in one job. If the program notices one and fails, try each half."""
    renamed = {
        (comm.replace("world/0.0", f"world/{number}.0"), rank, which): content
        for number, ((comm, rank, which), _, content) in enumerate(changes)
    }
    try:
        runs = submission.attempt(target, [case] * len(changes), [function], spoiled=renamed) if changes else []
    except Lost:
        half = len(changes) // 2
        for part in (changes[:half], changes[half:]) if half else ():
            check_changes(submission, target, function, case, before, part)
        return
    judge(case, before, runs, changes)


def check_heard(submission: Submission, target: str, function: str, case: Case) -> None:
    """Even a wrong result must depend on the messages: if all of them carry something else, it must change. A program
    whose messages and results mean nothing has not begun."""
    if not submission.wire.spoils or case.n == 1:
        return
    [before] = submission.run(target, [case], [function])
    spoiled = {change.message: change.content for change in noise(submission.messages)}
    try:
        [now] = submission.attempt(target, [case], [function], spoiled=spoiled)
    except Lost:  # the program has noticed
        return
    if all(same(one, other) for one, other in zip(before, now, strict=True)):
        lose(f"On {case.label}: whatever is in the messages, the results are the same, and they are wrong.")


class Change(NamedTuple):
    """A change of a message: which message, the line that sends it, and the bytes with which it arrives."""

    message: Message
    where: str
    content: bytes


def noise(messages: Mapping[Message, Seen]) -> Iterator[Change]:
    """Each message, with bits flipped in every byte."""
    for message, seen in messages.items():
        yield Change(message, seen.where, (np.frombuffer(seen.content, np.uint8) ^ SPOILED).tobytes())


def swaps(messages: Mapping[Message, Seen], random: np.random.Generator) -> Iterator[Change]:
    """Each message, with the content of another one of its size, drawn: it does not look odd to its receiver. If all
    messages of a size are equal, they stay so if they are long, and are skipped if short: short ones may be equal."""
    for message, seen in messages.items():
        others = [other.content for other in messages.values() if len(other.content) == len(seen.content)]
        different = [content for content in others if content != seen.content]
        if different or (len(others) > 1 and len(seen.content) >= LONG):
            yield Change(message, seen.where, different[random.integers(len(different))] if different else seen.content)


def judge(case: Case, before: Sequence[Outcome], runs: Sequence[Sequence[Outcome]], changes: Sequence[Change]) -> None:
    for now, change in zip(runs, changes, strict=True):
        if all(same(one, other) for one, other in zip(before, now, strict=True)):
            lose(
                f"On {case.label}: whatever is in a message that rank {change.message[1]} sends at {change.where}, the"
                " results are the same. What is it for?"
            )


def same(one: Outcome, other: Outcome) -> bool:
    """Whether two outcomes have the same arrays, bit for bit."""
    arrays, others = list(arrays_in(one.value)), list(arrays_in(other.value))
    return len(arrays) == len(others) and all(
        a.shape == b.shape and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
        for a, b in zip(arrays, others, strict=True)
    )

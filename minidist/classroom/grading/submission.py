"""In the process that grades: run a student's program on ranks, and say in words what went wrong there.

If a part is lost, it ends in `lose(message)`; the message is for the student, and names one thing to look at next.
"""

import ast
import re
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

import minidist
from minidist import UsageError
from minidist.classroom.grading import likeness
from minidist.classroom.grading.grade import read_program
from minidist.classroom.grading.router import NOTHING, Message, Seen
from minidist.classroom.grading.wires import WIRES, Ran, Sent, Wire
from minidist.exchange.rules import Rules
from minidist.mpi.words import name_ranks

WHOLE = 15  # times the patience: what all ranks use in all parts; four ranks that hang use four patiences, in one part
AFTER_A_HANG = 1.0  # seconds of patience with the next parts, once a part has been ended for taking too long
TOO_LONG, PROCESSOR_TIME = "had not ended", "processor time"  # in reports of jobs that may only be slow
LONGEST_FILE = 1_000_000  # bytes of a submission

PROMISE = (  # what grading without namespaces cannot promise
    "So a program could read what its user can read, write to /tmp, use the network, and talk past the wire (README.md)"
)
PACKAGE = Path(minidist.__file__).parent
LENIENT = Rules("eager")  # sends do not wait for a receiver; special parts check programs that rely on more
STRICT = Rules("synchronous", "contrary")


def lose(message: str) -> NoReturn:
    """End this part without points."""
    raise pytest.fail.Exception(message, pytrace=False) from None  # its cause is in the message


@dataclass
class Case:
    """One run of a part: on `n` ranks, each with its own input and all with the same arguments."""

    n: int
    label: str  # as messages name it: "3 ranks, 7 elements"
    inputs: Sequence[Any]  # one for each rank
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass
class Outcome:
    """What one rank of a case returned, and what it sent."""

    value: Any
    sent: Sent  # (phase, peer, line) -> (bytes, messages)

    @property
    def nbytes(self) -> int:
        return sum(nbytes for nbytes, _ in self.sent.values())

    @property
    def messages(self) -> int:
        return sum(messages for _, messages in self.sent.values())


class Lost(Exception):
    """A run that did not end well, and what to say of it."""


class Submission:
    """A student's file, run on ranks by functions of the lesson's on_ranks.py.

    asked: all functions that the lesson asks for. hidden: the modules that have them, which ranks cannot import:
    chapters, or a module next to on_ranks.py, whose name has no dot.
    """

    def __init__(
        self,
        program: Path,
        on_ranks: Path,
        patience: float,
        wire: str = "router",
        seed: int = 0,
        asked: Sequence[str] = (),
        hidden: Sequence[str] = (),
        made: Wire | None = None,
    ) -> None:
        self.program, self.on_ranks = program.resolve(), on_ranks.resolve()
        self.patience = patience  # seconds of processor time for a rank's part; a right one takes less than one
        self.whole, self.used = WHOLE * patience, 0.0  # seconds for all parts, and how many have been used or slept
        self.seed, self.asked, self.hidden = seed, list(asked), list(hidden)
        self.begin("")
        self.in_every_part = ""  # why no part can be run, once that is known
        self.refused: dict[str, str] = {}  # functions that use what they must not -> message
        self.copied: dict[str, tuple[int, int]] = {}  # the chapter's functions -> how many statements, of how many
        self.forms = likeness.Forms()  # of its statements
        self.hidden_code = ""  # where it runs code that is not in its text
        self.messages: dict[Message, Seen] = {}  # of the last run, as the router has seen it
        if not self.program.is_file():
            raise UsageError(f"there is no file {program}")
        self.wire: Wire = made or WIRES[wire](self.on_ranks, hidden)
        self.look()

    def begin(self, part: str) -> None:
        """From now on, draw numbers that depend only on the seed and this part's name."""
        self.random = np.random.default_rng([self.seed, zlib.crc32(part.encode())])

    def close(self) -> None:
        """End the process from which ranks come."""
        self.wire.close()

    def look(self) -> None:
        """Read the program, and check all that can be checked before it runs."""
        self.source = read_program(self.program)
        name = self.program.name
        if len(self.source) > LONGEST_FILE:
            self.in_every_part = f"{name} has {len(self.source):,} bytes; nobody writes more than {LONGEST_FILE:,}."
            return
        seen = self.wire.examine(name, self.source, self.asked)
        if seen is None:
            self.in_every_part = f"{name} is no Python: to read it ended the process that tried."
        elif seen["unreadable"]:
            self.in_every_part = seen["unreadable"]
        else:
            self.refused, self.hidden_code = seen["refused"], seen["hidden code"]
            self.wire.keep_hashes_apart(seen["hashes"])
            chapters = forms_of_chapters(self.hidden, self.asked, self.on_ranks.parent)
            self.forms = likeness.Forms(seen["forms"])
            self.copied = likeness.find_alike(chapters, self.forms)

    def notes(self) -> list[str]:
        """Notes for the instructor, which change no points."""
        said = [
            f"{name}: {found} of {every} statements of the chapter's {name} are in {self.program.name}. Statements were"
            " compared as syntax trees, whatever their names and order, and whatever else is there"
            for name, (found, every) in self.copied.items()
        ]
        if self.hidden_code:
            said.append(f"{self.program.name}, {self.hidden_code}: this runs code that is not in the text; read it")
        return said + (
            [f"ranks had limits, but no namespaces: {why}. {PROMISE}"] if (why := self.wire.isolation) else []
        )

    # ---- running it --------------------------------------------------------------------------------------------------

    def run(self, function: str, cases: Sequence[Case], asked: Sequence[str] = (), **how: Any) -> list[list[Outcome]]:
        """`attempt`; a run that does not end well loses the part."""
        try:
            return self.attempt(function, cases, asked, **how)
        except Lost as lost:
            lose(str(lost))

    def attempt(
        self,
        function: str,
        cases: Sequence[Case],
        asked: Sequence[str] = (),
        rules: Rules = LENIENT,
        guarded: bool = False,
        spoiled: Mapping[Message, bytes] = NOTHING,
        memory: int = 0,
    ) -> list[list[Outcome]]:
        """For each case the outcome of each of its ranks, from one run of the program. asked: the functions that the
        part is about. Raises Lost if the run does not end well.

        rules: of messages. guarded: whether it is a mistake to touch the memory of a request before its wait(), or to
        omit the wait(). spoiled: messages that arrive with these bytes. memory: bytes that a rank may take; 0: any.
        """
        for name in ("", *asked):
            if name in self.refused:
                raise Lost(f"{self.refused[name]}.")
        if self.in_every_part:
            raise Lost(self.in_every_part)
        n = max(case.n for case in cases)
        job = {
            "program": str(self.program),
            "source": self.source,
            "target": f"{self.on_ranks}:{function}",
            "asked": list(asked),
            "hidden": self.hidden,
            "cases": [(case.n, case.arguments) for case in cases],
            "guarded": guarded,
            "memory": memory,
        }
        inputs = [[case.inputs[rank] if rank < case.n else None for case in cases] for rank in range(n)]
        together = min(n * (self.patience + 1), self.whole - self.used)
        begin = time.process_time()
        ran = self.wire.run(job, inputs, self.patience, rules, spoiled, together)
        self.messages = ran.messages
        self.used += ran.used + time.process_time() - begin  # of ranks, and of this process, which hears them
        if self.used >= self.whole:
            self.in_every_part = (
                f"its ranks, with all that they have started and said, had used {self.used:.0f} s of processor time, or"
                f" slept; in all parts together they may use {self.whole:.0f} s."
            )
        if ran.status != "ok":
            raise Lost(self.explain(ran, cases))
        return self.outcomes(ran, cases)

    def outcomes(self, ran: Ran, cases: Sequence[Case]) -> list[list[Outcome]]:
        try:
            if changed := [str(name).removesuffix(".__code__") for value in ran.values for name in value["changed"]]:
                names = ", ".join(list(dict.fromkeys(changed))[:3])
                raise Lost(f"{self.program.name} changes {names}, by which it is tested. Leave that as it is.")
            return [
                [Outcome(ran.values[rank]["values"][k], ran.sent[rank][k]) for rank in range(case.n)]
                for k, case in enumerate(cases)
            ]
        except (KeyError, IndexError, TypeError) as error:
            raise Lost(f"what the ranks brought back makes no sense ({error!r}).") from None

    # ---- what became of a job that did not end well -----------------------------------------------------------------

    def explain(self, ran: Ran, cases: Sequence[Case]) -> str:
        """For the student: what happened, in which case, at which of their lines."""
        if TOO_LONG in ran.report or PROCESSOR_TIME in ran.report:
            self.patience = min(self.patience, AFTER_A_HANG)
        if ran.status == "hung":
            return self.explain_hang(ran, cases)
        failed = next((rank for rank in range(len(ran.ranks)) if ran.ranks[rank].error), None)
        if failed is None:
            return ran.report
        result = ran.ranks[failed]
        error = str(result.error)
        if result.error_type == "NotImplementedError":
            return f"{self.innermost(error)} is not written yet: it raises NotImplementedError."
        if result.error_type == "NotTheirs":
            return f"{self.program.name} {error.rpartition('NotTheirs: ')[2]}."
        verb = "disappeared" if ran.status == "killed" else "failed"
        alone = all(case.n == 1 for case in cases)  # a lesson without ranks does not mention them
        who = "it" if alone else f"rank {failed}"
        trace = self.students_part(error)
        return self.located(ran, cases, f", {who} {verb}{at(ran.places[failed])}:\n{trace}")

    def explain_hang(self, ran: Ran, cases: Sequence[Case]) -> str:
        """Which rank waits for which, among the ranks that are in the student's program."""
        numbers = range(cases[ran.case].n) if ran.case >= 0 else range(len(ran.ranks))
        inside = [rank for rank in numbers if str(self.program) in ran.ranks[rank].stack]
        lines = [f": {self.why_hung(ran, inside)}"]
        for rank in numbers:
            result = ran.ranks[rank]
            if rank in inside:
                state = result.state.replace(result.where, self.innermost(result.stack)) + at(ran.places[rank])
            else:
                state = "has come out of the function and waits for the others"
            lines.append(f"rank {rank}: {state}")
        lines += [
            line for line in ran.report.splitlines() if re.match(r"A cycle of waits|Rank \d+ waits for itself", line)
        ]
        return self.located(ran, cases, "\n".join(lines))

    def why_hung(self, ran: Ran, inside: Sequence[int]) -> str:
        """The cause, in one line. inside: the ranks that are in the student's program; the others have left it."""
        said = ran.report.splitlines()[0].removeprefix("The job ")
        for rank in inside if TOO_LONG not in said and PROCESSOR_TIME not in said else []:
            if left := set(ran.ranks[rank].awaited).difference(inside):
                has = "has" if len(left) == 1 else "have"
                return f"hung: {name_ranks(left)} {has} left without what rank {rank} waits for."
        return said

    def located(self, ran: Ran, cases: Sequence[Case], what: str) -> str:
        """What happened, and in which case. A failure before the first case will happen in every part."""
        if ran.case >= 0:
            return f"On {cases[ran.case].label}{what}"
        self.in_every_part = f"While {self.program.name} was being imported{what}"
        return self.in_every_part

    def innermost(self, trace: str) -> str:
        """ "exercise.py:31 in exchange": the innermost of the student's lines in a traceback or stack."""
        places = re.findall(rf'File "{re.escape(str(self.program))}", line (\d+),? in (.+)', trace)
        innermost_first = trace.startswith("Current thread") or "most recent call first" in trace
        place = places[0 if innermost_first else -1] if places else None
        return f"{self.program.name}:{place[0]} in {place[1]}" if place else self.program.name

    def students_part(self, trace: str) -> str:
        """A traceback from the student's first frame on, without frames that say nothing to a student: those in this
        project, in the tests, and in libraries through which the project calls itself."""
        kept, reached, ours, last = [], False, False, ""
        for line in trace.splitlines():
            if line.startswith('  File "'):
                reached = reached or line.startswith(f'  File "{self.program}"')
                ours = line.startswith((f'  File "{PACKAGE}', f'  File "{self.on_ranks}"', '  File "<frozen '))
                ours = ours or not reached or "site-packages" in line
            elif not line.startswith("   "):
                ours = line.startswith("Traceback")
                reached = reached and not ours  # each of several exceptions has a traceback of its own
            elif not line.strip().startswith("^"):
                last = line.strip()
            if not ours:
                bare = line == "AssertionError" and last.startswith("assert ")
                kept.append(f"{line}: `{last}` does not hold" if bare else line)
        text = "\n".join(kept).replace(f'"{self.program}"', self.program.name)
        return text.replace("minidist.mpi.comm.CommError: ", "CommError: ")


def at(place: str) -> str:
    return f" {place}" if place else ""


def forms_of_chapters(modules: Sequence[str], asked: Sequence[str], lesson: Path) -> dict[str, likeness.Forms]:
    """The forms of what a lesson asks for, from its chapters, or from its own module, whose name has no dot."""
    own = [lesson / f"{module}.py" for module in modules if "." not in module]
    specs = [find_spec(module) for module in modules if "." in module]
    files = own + [Path(spec.origin) for spec in specs if spec and spec.origin]
    trees: list[ast.AST] = [ast.parse(file.read_bytes()) for file in files]
    holder = next((name.partition(".")[0] for name in asked if "." in name), "")
    for tree in trees:  # a chapter builds on another, whose class has another name
        classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        if holder and classes:
            classes[0].name = holder
    return likeness.forms_by_name(trees, asked)

"""In the process that grades: run a student's program on ranks, and say in words what went wrong there.

A part that is lost ends in `lose(message)`; the message is for the student, and names one thing to look at next.
"""

import re
import secrets
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

import minidist
from minidist import UsageError
from minidist.classroom.grade import MachineFault
from minidist.mpi import encode
from minidist.mpi.launch import Job, Running, started

AFTER_A_HANG = 8.0  # seconds of patience with the next parts, once a part has been ended for taking too long
START_LIMIT = 60.0  # seconds for ranks to start, before any part

PACKAGE = Path(minidist.__file__).parent

Transfer = tuple[str, int, int]  # (phase, peer, line of the student's file)


def lose(message: str) -> NoReturn:
    """This part earns no points."""
    pytest.fail(message, pytrace=False)


def secret() -> np.random.Generator:
    """Random numbers for inputs that no program can know beforehand."""
    return np.random.default_rng(secrets.randbits(128))


@dataclass
class Case:
    """One run of a part: on `n` ranks, each with its own input and all with the same arguments."""

    n: int
    label: str  # as messages name it: "3 ranks, 7 elements"
    inputs: Sequence[Any]  # one for each rank
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass
class Outcome:
    """What one rank of a case returned, and what it sent: counted on the wire, and at the other end too."""

    value: Any
    sent: dict[Transfer, tuple[int, int]]  # (phase, peer, line) -> (bytes, messages)

    @property
    def nbytes(self) -> int:
        return sum(nbytes for nbytes, _ in self.sent.values())

    @property
    def messages(self) -> int:
        return sum(messages for _, messages in self.sent.values())


class Submission:
    """A student's file, run on ranks by functions of the lesson's on_ranks.py."""

    def __init__(self, program: Path, on_ranks: Path, patience: float) -> None:
        self.program, self.on_ranks = program.resolve(), on_ranks.resolve()
        self.patience = patience  # seconds for a part; a correct one takes less than one
        self.in_every_part = ""  # why no part can be run, once that is known
        self.ranks: Running | None = None  # a job that runs part after part: see `ranks.serve`
        self.opened = ExitStack()  # the job, and the folder in which it is asked and answers
        self.parts = 0  # that this job has been asked for
        if not self.program.is_file():
            raise UsageError(f"there is no file {program}")

    def run(self, function: str, cases: Sequence[Case]) -> list[list[Outcome]]:
        """For each case the outcome of each of its ranks, from one run of the program. Loses the part if that does not
        end well, and then the next part gets new ranks."""
        if self.in_every_part:
            lose(self.in_every_part)
        stay = False
        try:
            answers = self.ask(function, cases)
            self.check_untouched(answers)
            clean = not any(answer["left"] for answer in answers)
            for answer in answers:
                if answer["not written"]:
                    stay = clean
                    lose(self.not_written(answer["not written"]))
            outcomes = [self.outcomes(answers, number, case) for number, case in enumerate(cases)]
            stay = clean
        except (MachineFault, OSError):
            raise
        except Exception as error:
            lose(f"what the ranks brought back cannot be read ({error!r}): were the tests' own modules changed?")
        finally:
            if not stay:
                self.close()
        return outcomes

    def ask(self, function: str, cases: Sequence[Case]) -> list[dict[str, Any]]:
        """What `ranks.run_cases` returns, on each rank."""
        needed = max(case.n for case in cases)
        if self.ranks is None or self.ranks.n < needed:
            self.close()
            self.open(needed)
        assert self.ranks is not None
        ranks = range(self.ranks.n)
        for rank in ranks:
            for record in ("case", "at", "not written"):
                (self.folder / str(rank) / record).unlink(missing_ok=True)
        for rank in ranks:
            mine = [case.inputs[rank] if rank < case.n else None for case in cases]
            part = (f"{self.on_ranks}:{function}", [(case.n, case.arguments) for case in cases], mine)
            encode.save(self.folder / str(rank) / f"part.{self.parts}", part)
        answers = [self.folder / str(rank) / f"outcome.{self.parts}" for rank in ranks]
        self.parts += 1
        job = self.ranks.wait_until(lambda: all(answer.exists() for answer in answers), self.patience)
        if job:
            if job.status == "hung" and "had not ended" in job.report:
                self.patience = min(self.patience, AFTER_A_HANG)
            files = [self.folder / str(rank) / "case" for rank in ranks]
            reached = [file.read_text() if file.exists() else "" for file in files]  # "": or it was ended as it wrote
            lose(self.explain(job, cases, [int(number) if number else -1 for number in reached]))
        return [encode.load(answer) for answer in answers]

    def open(self, n: int) -> None:
        """Start n ranks, and return when they are there."""
        target, self.parts = "minidist.classroom.ranks:serve", 0
        try:
            self.folder = Path(self.opened.enter_context(tempfile.TemporaryDirectory(prefix="minidist-")))
            for rank in range(n):
                (self.folder / str(rank)).mkdir()
            self.ranks = self.opened.enter_context(started(target, n, str(self.program), str(self.folder)))
        except (UsageError, OSError) as error:
            raise MachineFault(str(error)) from None
        ready = [self.folder / str(rank) / "ready" for rank in range(n)]
        job = self.ranks.wait_until(lambda: all(file.exists() for file in ready), START_LIMIT)
        if job:  # the program has not been loaded yet
            raise MachineFault(job.report)

    def close(self) -> None:
        """End the ranks, if there are any."""
        self.opened.close()
        self.ranks = None

    def check_untouched(self, answers: Sequence[dict[str, Any]]) -> None:
        """Loses the part unless the program has left the modules alone by which it is tested."""
        for answer in answers:
            if answer["changed"]:
                names = ", ".join(map(str, answer["changed"][:3]))
                message = f"{self.program.name} changes {names}, by which it is tested. Leave that as it is."
                if answer["changed at once"]:
                    self.in_every_part = message
                lose(message)

    def outcomes(self, answers: Sequence[dict[str, Any]], number: int, case: Case) -> list[Outcome]:
        """The outcomes of a case, if its ranks agree about what was sent."""
        found = [answer["outcomes"][number] for answer in answers[: case.n]]
        for rank, here in enumerate(found):
            wired = sum(nbytes for nbytes, _ in here["sent"].values())
            if here["told"] != wired:
                lose(
                    f"On {case.label}, comm.ledger of rank {rank} says that {here['told']:,} bytes were sent; {wired:,}"
                    f" went over the wire. {self.program.name} must leave the ledger alone."
                )
            for peer, there in enumerate(found):
                sent = sum(messages for (_, dest, _), (_, messages) in here["sent"].items() if dest == peer)
                arrived = there["received"].get(rank, (0, 0))[1]
                if sent != arrived:
                    lose(f"On {case.label}, rank {rank} sent {sent} messages to rank {peer}, which received {arrived}.")
        return [Outcome(here["value"], {key: tuple(counts) for key, counts in here["sent"].items()}) for here in found]

    def at(self, line: int) -> str:
        """A line of the student's file, as messages name it."""
        return f"{self.program.name}:{line}"

    # ---- what became of a job that did not end well -----------------------------------------------------------------

    def explain(self, job: Job, cases: Sequence[Case], reached: list[int]) -> str:
        """For the student: what happened, in which case, at which of their lines."""
        if job.status == "hung":
            return self.explain_hang(job, cases, reached)
        failed = next((rank for rank in range(len(job.ranks)) if job.ranks[rank].error), None)
        if failed is None:
            return job.report
        result = job.ranks[failed]
        number = reached[failed]
        if result.error_type == "NotImplementedError":
            return self.not_written(str(result.error))
        verb = "disappeared" if job.status == "killed" else "failed"
        trace = self.students_part(str(result.error))
        return self.located(number, cases, f", rank {failed} {verb}{self.noted(failed)}:\n{trace}")

    def explain_hang(self, job: Job, cases: Sequence[Case], reached: list[int]) -> str:
        """Who waits for whom, among the ranks that are in the student's program."""
        for rank in range(len(job.ranks)):
            file = self.folder / str(rank) / "not written"
            if file.exists():  # on this rank alone, or the others would not wait
                return self.not_written(file.read_text())
        busy = [rank for rank, result in enumerate(job.ranks) if str(self.program) in result.stack]
        number = max((reached[rank] for rank in busy), default=-1)
        lines = [f": {job.report.splitlines()[0].removeprefix('The job ')}"]
        for rank in range(cases[number].n) if number >= 0 else range(len(job.ranks)):
            result = job.ranks[rank]
            state = result.state.replace(result.where, self.innermost(result.stack)) if rank in busy else ""
            state = state + self.noted(rank) if state else "has come out of the function and waits for the others"
            lines.append(f"rank {rank}: {state}")
        lines += [
            line for line in job.report.splitlines() if re.match(r"A cycle of waits|Rank \d+ waits for itself", line)
        ]
        return self.located(number, cases, "\n".join(lines))

    def not_written(self, trace: str) -> str:
        return f"{self.innermost(trace)} is not written yet: it raises NotImplementedError."

    def located(self, number: int, cases: Sequence[Case], what: str) -> str:
        """What happened, with the case in which it did. What happens before the first will happen in every part."""
        if number >= 0:
            return f"On {cases[number].label}{what}"
        self.in_every_part = f"While {self.program.name} was being imported{what}"
        return self.in_every_part

    def noted(self, rank: int) -> str:
        """ " at block0 in the forward": where the rank said that it was, if it did."""
        file = self.folder / str(rank) / "at"
        return f" {file.read_text()}".rstrip() if file.exists() else ""

    def innermost(self, trace: str) -> str:
        """ "exercise.py:31 in exchange": the last place in the student's file that a traceback or stack names."""
        places = re.findall(rf'File "{re.escape(str(self.program))}", line (\d+), in (.+)', trace)
        return f"{self.at(int(places[-1][0]))} in {places[-1][1]}" if places else self.program.name

    def students_part(self, trace: str) -> str:
        """A traceback from the student's first frame on, without the frames of this project and of the tests: they say
        nothing to a student, nor does a library through which the project calls itself."""
        kept, reached, ours = [], False, False
        for line in trace.splitlines():
            if line.startswith('  File "'):
                reached = reached or line.startswith(f'  File "{self.program}"')
                ours = line.startswith((f'  File "{PACKAGE}', f'  File "{self.on_ranks}"', '  File "<frozen '))
                ours = ours or not reached
            elif not line.startswith("   "):
                ours = line.startswith("Traceback")
                reached = reached and not ours  # of several exceptions each has its own
            if not ours:
                kept.append(line.replace(f'"{self.program}"', self.program.name))
        return "\n".join(kept)

"""In the process that grades: run a student's program on ranks, and say in words what went wrong there.

A part that is lost ends in `lose(message)`; the message is for the student, and names one thing to look at next.
"""

import re
import secrets
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

import minidist
from minidist import UsageError
from minidist.mpi import encode
from minidist.mpi.launch import Job, launch

AFTER_A_HANG = 8.0  # seconds of patience with the next parts, once a part has been ended for taking too long

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
        self.patience = patience  # seconds for a part's job; a correct one takes one or two
        if not self.program.is_file():
            raise UsageError(f"there is no file {program}")

    def run(self, function: str, cases: Sequence[Case]) -> list[list[Outcome]]:
        """For each case the outcome of each of its ranks, from one job. Loses the part if the job does not end well."""
        ranks = max(case.n for case in cases)
        with tempfile.TemporaryDirectory(prefix="minidist-") as folder:
            for rank in range(ranks):
                (Path(folder) / str(rank)).mkdir()
                mine = [case.inputs[rank] if rank < case.n else None for case in cases]
                encode.save(Path(folder) / str(rank) / "inputs", mine)
            job = launch(
                "minidist.classroom.ranks:run_cases",
                ranks,
                str(self.program),
                f"{self.on_ranks}:{function}",
                folder,
                [(case.n, case.arguments) for case in cases],
                timeout=self.patience,
            )
            if job.status != "ok":
                if job.status == "hung" and "had not ended" in job.report:
                    self.patience = min(self.patience, AFTER_A_HANG)
                reached = [Path(folder) / str(rank) / "case" for rank in range(ranks)]
                lose(self.explain(job, cases, [int(file.read_text()) if file.exists() else -1 for file in reached]))
        try:
            outcomes = [self.outcomes(job, number, case) for number, case in enumerate(cases)]
        except (TypeError, KeyError, ValueError, IndexError, AttributeError) as error:
            lose(f"what the ranks brought back cannot be read ({error!r}): were the tests' own modules changed?")
        return outcomes

    def outcomes(self, job: Job, number: int, case: Case) -> list[Outcome]:
        """The outcomes of a case, if its ranks have left the tests alone and agree about what was sent."""
        for result in job.ranks:
            if result.value["changed"]:
                names = ", ".join(map(str, result.value["changed"][:3]))
                lose(f"{self.program.name} changes {names}, by which it is tested. Leave that as it is.")
        found = [rank.value["outcomes"][number] for rank in job.ranks[: case.n]]
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
        place = f"On {cases[number].label}" if number >= 0 else f"While {self.program.name} was being imported"
        if result.error_type == "NotImplementedError":
            return f"{self.innermost(str(result.error))} is not written yet: it raises NotImplementedError."
        verb = "disappeared" if job.status == "killed" else "failed"
        return f"{place}, rank {failed} {verb}:\n{self.students_part(str(result.error))}"

    def explain_hang(self, job: Job, cases: Sequence[Case], reached: list[int]) -> str:
        """Who waits for whom, among the ranks that are in the student's program."""
        busy = [rank for rank, result in enumerate(job.ranks) if str(self.program) in result.stack]
        number = max((reached[rank] for rank in busy), default=-1)
        place = f"On {cases[number].label}" if number >= 0 else f"While {self.program.name} was being imported"
        lines = [f"{place}: {job.report.splitlines()[0].removeprefix('The job ')}"]
        for rank in range(cases[number].n) if number >= 0 else range(len(job.ranks)):
            result = job.ranks[rank]
            state = result.state.replace(result.where, self.innermost(result.stack)) if rank in busy else ""
            lines.append(f"rank {rank}: {state or 'has come out of the function and waits for the others'}")
        lines += [
            line for line in job.report.splitlines() if re.match(r"A cycle of waits|Rank \d+ waits for itself", line)
        ]
        return "\n".join(lines)

    def innermost(self, trace: str) -> str:
        """ "exercise.py:31 in exchange": the last place in the student's file that a traceback or stack names."""
        places = re.findall(rf'File "{re.escape(str(self.program))}", line (\d+), in (.+)', trace)
        return f"{self.at(int(places[-1][0]))} in {places[-1][1]}" if places else self.program.name

    def students_part(self, trace: str) -> str:
        """A traceback without the frames of this project and of the tests: they say nothing to a student."""
        kept, ours = [], False
        for line in trace.splitlines():
            if line.startswith('  File "'):
                ours = line.startswith((f'  File "{PACKAGE}', f'  File "{self.on_ranks}"'))
            elif not line.startswith("   "):
                ours = line.startswith("Traceback")
            if not ours:
                kept.append(line.replace(f'"{self.program}"', self.program.name))
        return "\n".join(kept)

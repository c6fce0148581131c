"""What a submission runs on: the router, or MPI. Either lets ranks run a part's cases, and says how that ended."""

import ast
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minidist import UsageError
from minidist.classroom.grading import limits
from minidist.classroom.grading.nursery import Nursery, own_environment
from minidist.classroom.grading.router import NOTHING, Message, Routed, Seen, route
from minidist.exchange.rules import Rules
from minidist.launch import encode
from minidist.launch.job import JobOutcome, RankResult
from minidist.launch.launcher import launch
from minidist.system.files import temporary_folder

Transfer = tuple[str, int, str]  # (phase, peer, line of the student's file: "exercise.py:31"; "" if none)
Sent = dict[Transfer, tuple[int, int]]  # -> (bytes, messages)
WALL = 12  # seconds of patience for each second of processor time: ranks share the machine
IDLE = 3  # the same where the kernel says whether ranks wait for a processor, and they do not
BUSY = 60  # the same while they do


class MachineFault(Exception):
    """Ranks could not be run: that says nothing about the student's program, so there is no grade."""


@dataclass
class Ran:
    """How a job ended. `status` as in Job."""

    status: str
    report: str
    ranks: list[RankResult]
    case: int  # the last one that it reached; -1: none
    places: list[str]  # where in the case each rank said that it is
    values: list[Any] = field(default_factory=list)  # of each rank
    sent: list[list[Sent]] = field(default_factory=list)  # of each rank, in each case
    messages: dict[Message, Seen] = field(default_factory=dict)  # what the router has seen, and from which line
    used: float = 0.0  # seconds of processor time, and of sleep, as far as they are known


class RouterWire:
    """Processes without MPI: see router.py."""

    name = "router"
    spoils = True  # and has rules for order and sends, and guards the memory of requests

    def __init__(self, on_ranks: Path, hidden: Sequence[str], isolate: bool = True) -> None:
        try:
            modules = modules_in(on_ranks.with_name("exercise.py"))
            self.nursery = Nursery(on_ranks, hidden, isolate, modules, environment=own_environment())
        except (RuntimeError, OSError) as error:
            raise MachineFault(f"no ranks can be started: {error}") from None

    @property
    def isolation(self) -> str:
        """Why ranks have no namespaces of their own; "" if they have."""
        return self.nursery.isolation

    def close(self) -> None:
        self.nursery.close()

    def keep_hashes_apart(self, apart: bool) -> None:
        """Let each rank hash strings in its own way, as separately started processes do."""
        self.nursery.apart = apart

    def run(
        self,
        job: dict[str, Any],
        inputs: Sequence[Sequence[Any]],
        patience: float,
        rules: Rules,
        spoiled: Mapping[Message, bytes] = NOTHING,
        together: float = 0.0,
    ) -> Ran:
        """Let ranks run a job of `ranks.run_cases`, each with its inputs. patience: seconds of processor time of each,
        and `together` of all, with all that they start; 0: no limit."""
        arguments = [(job, mine) for mine in inputs]
        routed = self.route(
            "minidist.classroom.grading.ranks:run_cases", arguments, patience, rules, job, spoiled, together
        )
        ran = Ran(routed.status, routed.report, routed.ranks, routed.splits - 1, routed.places)
        ran.messages, ran.used = routed.messages, routed.used + routed.idle
        if routed.status == "ok":
            ran.values = routed.values
        ran.sent = sent_in_cases(routed.groups, job)
        return ran

    def route(
        self,
        target: str,
        arguments: Sequence[Sequence[Any]],
        patience: float,
        rules: Rules = Rules("eager"),  # noqa: B008  (frozen)
        job: dict[str, Any] | None = None,
        spoiled: Mapping[Message, bytes] = NOTHING,
        together: float = 0.0,
    ) -> Routed:
        """Run a job without objects. Raises MachineFault if its end says nothing about the program."""
        job = job or {"program": "", "guarded": False}
        options: dict[str, Any] = {"guarded": job["guarded"], "objects": False, "spoiled": spoiled, "seconds": patience}
        options |= {"memory": limits.MEMORY, "cases": len(job.get("cases", ())), "longest": patience * BUSY}
        options["together"] = together
        wall = patience * (IDLE if limits.waiting_time(os.getpid()) else WALL)
        try:
            routed = route(self.nursery, target, arguments, rules, wall, job["program"], **options)
        except (RuntimeError, OSError) as error:
            raise MachineFault(f"ranks cannot be run: {error}") from None
        if routed.fault:
            raise MachineFault(routed.fault)
        return routed

    def examine(self, *arguments: Any) -> Any:
        """What `source.examine` returns; None if that has ended its process."""
        routed = self.route("minidist.classroom.grading.source:examine", [arguments], 20)
        return routed.values[0] if routed.status == "ok" else None


def modules_in(skeleton: Path) -> list[str]:
    """The modules that every answer to this skeleton imports. A name in a package may be a module, too: if it is not,
    it is not imported."""
    found = []
    for node in ast.walk(ast.parse(skeleton.read_bytes())) if skeleton.is_file() else ():
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return found


def sent_in_cases(groups: Sequence[Mapping[str, dict[Transfer, list[int]]]], job: dict[str, Any]) -> list[list[Sent]]:
    """What each rank sent in each case, by line of the program; lines elsewhere become ""."""
    program, cases = f"{Path(job['program']).name}:", range(len(job["cases"]))
    found = []
    for of_rank in groups:
        found.append([Sent() for _ in cases])
        for number in cases:
            for (phase, peer, line), (nbytes, messages) in of_rank.get(f"world/{number}.0", {}).items():
                transfer = phase, peer, line if line.startswith(program) else ""
                before = found[-1][number].get(transfer, (0, 0))
                found[-1][number][transfer] = before[0] + nbytes, before[1] + messages
    return found


class MPIWire:
    """MPI: mpiexec runs every job. The grader cannot decide the order of messages there, nor spoil them."""

    name = "mpi"
    spoils = False
    isolation = "over MPI there are none"

    def __init__(self, on_ranks: Path, hidden: Sequence[str], isolate: bool = True) -> None:
        self.looks = RouterWire(on_ranks, hidden, isolate=False)  # it examines the program's text, which needs no MPI

    def close(self) -> None:
        self.looks.close()

    def keep_hashes_apart(self, apart: bool) -> None:
        """Do nothing: mpiexec starts its processes separately."""

    def examine(self, *arguments: Any) -> Any:
        return self.looks.examine(*arguments)

    def run(
        self,
        job: dict[str, Any],
        inputs: Sequence[Sequence[Any]],
        patience: float,
        rules: Rules,
        spoiled: Mapping[Message, bytes] = NOTHING,
        together: float = 0.0,
    ) -> Ran:
        n = len(inputs)
        with ExitStack() as opened:
            folder = opened.enter_context(temporary_folder())
            for rank, mine in enumerate(inputs):
                encode.save(folder / f"{rank}.inputs", mine)
            target = "minidist.classroom.grading.ranks_mpi:run_cases"
            try:
                done = launch(target, n, job, str(folder), timeout=patience * WALL)
            except (UsageError, OSError) as error:
                raise MachineFault(str(error)) from None
            if done.status == "machine":
                raise MachineFault(done.report)
            progress = [folder / f"{rank}.at" for rank in range(n)]
            said = [file.read_text().splitlines() if file.exists() else [] for file in progress]
        ran = Ran(done.status, done.report, done.ranks, -1, [lines[-1] if lines else "" for lines in said])
        ran.places = ["" if place == "case" else place for place in ran.places]
        counts = [lines.count("case") for lines in said]
        taking = [[k for k, (m, _) in enumerate(job["cases"]) if rank < m] for rank in range(n)]
        ran.case = max(cases[count - 1] if count else -1 for cases, count in zip(taking, counts, strict=True))
        if done.status == "ok":
            ran.values = done.values
            self.add_sent(ran, done, job, taking)
        return ran

    def add_sent(self, ran: Ran, done: JobOutcome, job: dict[str, Any], taking: list[list[int]]) -> None:
        """Add what each rank says that it sent; the job fails if the others did not receive as many messages."""
        name = Path(job["program"]).name
        ran.sent = [[{} for _ in job["cases"]] for _ in done.ranks]
        received: dict[tuple[int, int, int], int] = {}
        for rank, (value, cases) in enumerate(zip(done.values, taking, strict=True)):
            for number, (sent, got) in zip(cases, value["seen"], strict=True):
                of_case = ran.sent[rank][number]
                for (phase, peer, line), (nbytes, messages) in sent.items():
                    of_case[phase, peer, f"{name}:{line}" if line else ""] = nbytes, messages
                received |= {(number, source, rank): messages for source, (_, messages) in got.items()}
        for rank, of_rank in enumerate(ran.sent):
            for number, of_case in enumerate(of_rank):
                for peer in {peer for _, peer, _ in of_case}:
                    sent_there = sum(messages for (_, to, _), (_, messages) in of_case.items() if to == peer)
                    arrived = received.get((number, rank, peer), 0)
                    if sent_there != arrived:
                        ran.status = "failed"
                        ran.report = f"rank {rank} sent {sent_there} messages to rank {peer}, which received {arrived}"


Wire = RouterWire | MPIWire
WIRES: dict[str, type[Wire]] = {"router": RouterWire, "mpi": MPIWire}

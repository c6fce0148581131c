"""Grades of programs that mean no harm, in this process: ranks are greenlets over the grader's own exchange, with its
rules and counts. There are no limits, no namespaces and no hidden modules, so a grade takes a fraction of the time.
"""

import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from classroom.grading import LESSONS, Grader, load
from minidist.classroom.grading import ranks, source
from minidist.classroom.grading.process import RouterLine, fields
from minidist.classroom.grading.router import NOTHING, Message, Router
from minidist.classroom.grading.wires import Ran, sent_in_cases
from minidist.exchange.by_rules import ExchangeTurns
from minidist.exchange.operations import Start
from minidist.exchange.port import Desk, ExchangePort
from minidist.exchange.rules import Deadlock, Rules
from minidist.mpi.comm import Comm, Ledger
from minidist.mpi.rank import explain


@contextmanager
def on_path(folder: Path) -> Iterator[None]:
    """Import modules next to a lesson's on_ranks.py, which have the same names in every lesson."""
    names = [file.stem for file in folder.glob("*.py")]
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in names:
            sys.modules.pop(name, None)


class QuickWire:
    """Ranks of this process."""

    name = "router"
    spoils = True
    isolation = ""

    def __init__(self, on_ranks: Path) -> None:
        with on_path(on_ranks.parent):
            self.on_ranks = load(on_ranks)
        self.given = dict(vars(self.on_ranks).get("given", {}))

    def close(self) -> None:
        """Do nothing: no process was started."""

    def keep_hashes_apart(self, apart: bool) -> None:
        """Do nothing: ranks share this process."""

    def examine(self, *arguments: Any) -> Any:
        return source.examine(None, *arguments)  # type: ignore[arg-type]

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
        router = Router(n, rules, objects=False, spoiled=spoiled, program=job["program"])
        exchange, turns = router.exchange, QuickTurns(router)
        vars(self.on_ranks)["given"] = dict(self.given)
        given = ranks.stand_ins(self.on_ranks, job["asked"])
        run = getattr(self.on_ranks, job["target"].rpartition(":")[2])

        def be_rank(rank: int) -> list[Any]:
            ledger = Ledger()
            desk = Desk(QuickLine(turns, rank), ledger, job["guarded"])
            world = Comm(ExchangePort(desk, "world", range(n), rank), ledger)
            student = ranks.load(job["program"], job["source"], job["asked"])
            functions = {name: value for name, value in given.items() if "." not in value.__qualname__}
            vars(student).update({name: value for name, value in functions.items() if name in vars(student)})
            values: list[Any] = []
            for number, (of_case, arguments) in enumerate(job["cases"]):
                group = world.split(int(rank >= of_case), rank)
                values.append(None)
                if rank < of_case:
                    ledger.phase = "main"
                    values[-1] = run(group, student, inputs[rank][number], **arguments)
                    if job["guarded"]:
                        ledger.check_requests()
                    ledger.open_requests.clear()
            desk.finish()
            exchange.finish(rank)
            return values

        ran = Ran("ok", "", router.ranks, -1, [""] * n, messages=router.messages)
        try:
            ran.values = [
                {"values": values, "changed": []} for values in turns.run(be_rank, exchange.in_order(range(n)))
            ]
        except Deadlock as hung:
            ran.status, ran.report = "hung", router.explain(hung)
        except Exception as error:
            failed = router.ranks[max(turns.running, 0)]
            below = error.__traceback__
            while below and below.tb_frame.f_code.co_filename != str(Path(job["target"].rpartition(":")[0])):
                below = below.tb_next
            ran.status, failed.error_type, failed.error = (
                "failed",
                type(error).__name__,
                explain(error.with_traceback(below)),
            )
        finally:
            router.close()
        ran.case = exchange.met["world"] - 1
        ran.sent = sent_in_cases(router.groups, job)
        return ran


class QuickTurns(ExchangeTurns[list[Any]]):
    """Ranks that take turns, and where each of them is when none can go on."""

    def __init__(self, router: Router) -> None:
        super().__init__(router.exchange)
        self.router = router

    def take_answers(self) -> None:
        try:
            super().take_answers()
        except Deadlock:
            for rank, outcome in enumerate(self.router.ranks):
                frame = self.frame(rank)
                outcome.stack = "".join(traceback.format_stack(frame)) if frame else ""
            raise


class QuickLine(RouterLine):
    """A rank's connection to the router, whose methods it calls directly."""

    def __init__(self, turns: QuickTurns, rank: int) -> None:
        self.turns, self.rank, self.program = turns, rank, turns.router.program

    def ask(self, starts: list[Start], question: str, *arguments: Any) -> Any:
        self.tell(starts)
        return self.turns.ask(self.rank, question, *arguments)

    def tell(self, starts: list[Start]) -> None:
        self.turns.router.start(self.rank, [fields(start) for start in starts])


class QuickGrader(Grader):
    """A lesson's parts, on ranks of this process."""

    def __init__(self, number: str) -> None:
        super().__init__(LESSONS[number])
        self.make_wire = lambda: QuickWire(self.on_ranks)  # type: ignore[assignment]

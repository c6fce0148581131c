"""Ranks of one process over an exchange: to test what a program does under any order that MPI allows.

    from minidist.exchange.by_rules import run_by_rules
    from minidist.exchange.rules import Rules

    run_by_rules(lambda comm: ring.all_reduce(comm, np.ones(10)), 64, Rules("synchronous", "contrary"))

One rank runs at a time, until it waits, and the exchange says which is next. So runs can be repeated exactly. A program
that only has to run needs no exchange: `one_process.py` is five times as fast.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from minidist.exchange import marks
from minidist.exchange.greenlets import Turns
from minidist.exchange.operations import Start
from minidist.exchange.port import Desk, ExchangePort
from minidist.exchange.rules import Exchange, Rules
from minidist.mpi.comm import Comm, CommError, Ledger, caller

T = TypeVar("T")


def run_by_rules(function: Callable[[Comm], T], n: int, rules: Rules) -> list[T]:
    """Call `function(comm)` on n ranks; return their results, in order of rank.

    An exception on one rank ends all ranks, and is raised here, with a note that names the rank; so is a Deadlock. A
    CommError is raised if a request's array is read or written before its wait(), if a request is never waited for, and
    if a message is never received. An endless loop without messages is not ended: use `minidist.launch` for programs
    that may have one.
    """
    exchange = Exchange(n, rules)

    def be_rank(rank: int) -> T:
        ledger = Ledger()
        desk = Desk(GreenletLine(turns, rank), ledger)
        value = function(Comm(ExchangePort(desk, "world", range(n), rank), ledger))
        ledger.check_requests()
        desk.finish()
        for array in marks.arrays_in(value):
            desk.check_marks(array, f"what rank {rank} returned")
        exchange.finish(rank)
        return value

    turns: ExchangeTurns[T] = ExchangeTurns(exchange)
    results = turns.run_named(be_rank, exchange.in_order(range(n)))
    if lost := exchange.unreceived():
        raise CommError(f"{len(lost)} messages were not received; one is that of {lost[0].call} at {lost[0].where}")
    return results


class ExchangeTurns(Turns[T]):
    """Turns of ranks: each runs until it asks the exchange, and goes on when that has answered."""

    def __init__(self, exchange: Exchange) -> None:
        super().__init__(exchange.n, self.take_answers)
        self.exchange = exchange
        self.answers: dict[int, Any] = {}

    def take_answers(self) -> None:
        for rank, answer in self.exchange.advance():
            self.answers[rank] = answer
            self.ready.append(rank)
        if self.exchange.verdict:
            raise self.exchange.verdict

    def ask(self, rank: int, question: str, *arguments: Any) -> Any:
        """What the exchange answers this rank; the others run until then."""
        getattr(self.exchange, question)(rank, *arguments)
        self.wait()
        return self.answers.pop(rank)


class GreenletLine:
    """A rank's connection to the exchange, whose methods it calls directly."""

    def __init__(self, turns: ExchangeTurns[Any], rank: int) -> None:
        self.turns, self.rank = turns, rank

    def ask(self, starts: list[Start], question: str, *arguments: Any) -> Any:
        self.tell(starts)
        return self.turns.ask(self.rank, question, *arguments)

    def tell(self, starts: list[Start]) -> None:
        for start in starts:
            self.turns.exchange.start(self.rank, start)

    def where(self) -> str:
        return caller(5)  # above this, the desk, the port and Comm

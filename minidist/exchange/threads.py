"""Ranks as threads of one process, over an exchange: to test programs that use Comm, without MPI.

    from minidist.exchange.rules import Rules
    from minidist.exchange.threads import run_threads

    run_threads(lambda comm: ring.all_reduce(comm, np.ones(10)), 1024, Rules("synchronous", "contrary"))

One rank runs at a time, until it waits, and the exchange says which is next. So runs can be repeated exactly. The ranks
share modules and everything else that belongs to a process.
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from minidist.exchange import marks
from minidist.exchange.port import Desk, ExchangePort
from minidist.exchange.rules import Deadlock, Exchange, Rules, Start
from minidist.mpi.comm import Comm, CommError, Ledger, caller

T = TypeVar("T")


class Ended(BaseException):
    """Raised in the remaining ranks when another one has failed. No program should catch it."""


def run_threads(function: Callable[[Comm], T], n: int, rules: Rules) -> list[T]:
    """Call `function(comm)` on n ranks; return their results, in order of rank.

    An exception on one rank ends all ranks, and is raised here, with a note that names the rank; so is a Deadlock. A
    CommError is raised if a request's array is read or written before its wait(), if a request is never waited for, and
    if a message is never received. An endless loop without messages is not ended: use `minidist.launch` for programs
    that may have one.
    """
    return Threads(n, rules).run(function)


class Threads:
    """The ranks of one run, which take turns."""

    def __init__(self, n: int, rules: Rules) -> None:
        self.n, self.exchange = n, Exchange(n, rules)
        self.turns = [threading.Lock() for _ in range(n)]  # held; released when the rank's turn begins
        self.able = deque((rank, None) for rank in self.exchange.in_order(range(n)))  # may run, with this answer
        self.error: BaseException | None = None  # the exception that ended the run

    def run(self, function: Callable[[Comm], T]) -> list[T]:
        results: dict[int, T] = {}

        def be_rank(rank: int) -> None:
            try:
                self.await_turn(rank)
                results[rank] = self.call(function, rank)
                self.exchange.finish(rank)
                self.pass_on()
            except Ended:
                pass
            except BaseException as error:
                if not isinstance(error, Deadlock):  # a deadlock is not one rank's fault
                    error.add_note(f"on rank {rank} of {self.n}")
                self.error = self.error or error
                for turn in self.turns:
                    if turn.locked():
                        turn.release()

        for turn in self.turns:
            turn.acquire()
        ranks = [threading.Thread(target=be_rank, args=(rank,), daemon=True) for rank in range(self.n)]
        for thread in ranks:
            thread.start()
        self.pass_on()
        for thread in ranks:
            thread.join()
        if self.error:
            raise self.error
        if lost := self.exchange.unreceived():
            raise CommError(f"{len(lost)} messages were not received; one is that of {lost[0].call} at {lost[0].where}")
        return [results[rank] for rank in range(self.n)]

    def call(self, function: Callable[[Comm], T], rank: int) -> T:
        ledger = Ledger()
        desk = Desk(ThreadLine(self, rank), ledger)
        value = function(Comm(ExchangePort(desk, "world", range(self.n), rank), ledger))
        ledger.check_requests()
        desk.finish()
        for array in marks.arrays_in(value):
            desk.check_marks(array, f"what rank {rank} returned")
        return value

    def pass_on(self) -> None:
        """Wake the next rank that may run."""
        if not self.able:
            self.able.extend(self.exchange.advance())
        if self.able:  # else all have finished
            self.turns[self.able[0][0]].release()

    def await_turn(self, rank: int) -> Any:
        """Sleep until it is this rank's turn; return the exchange's answer."""
        self.turns[rank].acquire()
        if self.error:
            raise Ended
        _, answer = self.able.popleft()
        return answer


class ThreadLine:
    """A rank's connection to the exchange, whose methods it calls directly."""

    def __init__(self, threads: Threads, rank: int) -> None:
        self.threads, self.rank = threads, rank

    def ask(self, starts: list[Start], question: str, *arguments: Any) -> Any:
        self.tell(starts)
        getattr(self.threads.exchange, question)(self.rank, *arguments)
        self.threads.pass_on()
        answer = self.threads.await_turn(self.rank)
        if isinstance(answer, Deadlock):
            raise Deadlock(answer.reason, answer.looks, answer.awaited)
        return answer

    def tell(self, starts: list[Start]) -> None:
        if self.threads.error:
            raise Ended
        for start in starts:
            self.threads.exchange.start(self.rank, start)

    def where(self) -> str:
        return caller(5)  # above this, the desk, the port and Comm

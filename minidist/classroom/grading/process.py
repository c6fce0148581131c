"""A rank without MPI, in a process of its own: every message goes to the process that grades (see router.py)."""

import os
import socket
import sys
from collections.abc import Callable
from typing import Any

from minidist.classroom.grading import ranks
from minidist.exchange.operations import Start
from minidist.exchange.port import Desk, ExchangePort
from minidist.launch import over_socket
from minidist.launch.target_function import find_function
from minidist.mpi.comm import Comm, Ledger, caller
from minidist.mpi.rank import explain


def perform(target: str, function: Callable[..., Any] | None, line: socket.socket) -> None:
    """Call the function that `target` names, and report what it returned or how it failed."""
    rank, n, program, guarded, arguments = over_socket.receive(line)
    router = RouterLine(line, program)
    ranks.note[0] = router.note
    try:
        function = function or find_function(target)
        ledger = Ledger()
        desk = Desk(router, ledger, guarded)
        value = function(Comm(ExchangePort(desk, "world", range(n), rank), ledger), *arguments)
        ledger.check_requests()
        desk.finish()
        answer = over_socket.to_frame(["returned", value])
    except BaseException as error:
        below = error.__traceback__ and error.__traceback__.tb_next  # without this function
        answer = over_socket.to_frame(["failed", type(error).__name__, explain(error.with_traceback(below))])
    over_socket.write(line, answer)


def fields(start: Start) -> list[Any]:
    """The fields of a Start, from which the router makes it again."""
    return [getattr(start, name) for name in start.__slots__]


class RouterLine:
    """A rank's connection to the router, which trusts nothing that it says."""

    def __init__(self, line: socket.socket, program: str) -> None:
        self.line, self.program = line, program

    def ask(self, starts: list[Start], question: str, *arguments: Any) -> Any:
        over_socket.send(self.line, ["ask", [fields(start) for start in starts], question, arguments])
        return over_socket.receive(self.line)

    def tell(self, starts: list[Start]) -> None:
        over_socket.send(self.line, ["tell", [fields(start) for start in starts]])

    def note(self, where: str) -> None:
        """Say where this rank is, for the message if it fails or hangs there."""
        over_socket.send(self.line, ["at", where])

    def where(self) -> str:
        """The line that runs in the graded program's innermost function; if none runs, the line that called Comm."""
        frame = sys._getframe(3)
        while frame.f_back and frame.f_code.co_filename != self.program:
            frame = frame.f_back
        return f"{os.path.basename(self.program)}:{frame.f_lineno}" if frame.f_back else caller(5)

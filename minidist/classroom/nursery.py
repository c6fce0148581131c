"""Where the ranks of graded programs come from: a process that has imported what they need, and forks them.

It starts once, knows nothing of any part's inputs or results, and so has nothing that a program could find in its
memory. A fork takes milliseconds, so every part gets ranks on which nothing is left of the part before.

`Nursery` is the end in the process that grades; the other one is `main`, and reads and writes JSON on a socket: a
question, with what a new rank is to have open, and then the answer.
"""

import faulthandler
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, BinaryIO, NoReturn

SPACE = 1 << 16  # bytes of a question
STACK = signal.SIGUSR1  # upon which a rank writes down its stack, even from native code


class Nursery:
    """The process, as long as the context lasts, and the ranks of one job after another."""

    def __init__(self) -> None:
        self.line, theirs = socket.socketpair()
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)  # ranks import what this process can import
        command = [sys.executable, "-P", "-m", "minidist.classroom.nursery", str(theirs.fileno())]
        environment = {**os.environ, "PYTHONPATH": path}
        self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment, stdin=subprocess.DEVNULL)
        theirs.close()

    def __enter__(self) -> "Nursery":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it, and its ranks."""
        self.line.close()  # upon which it does so
        self.process.wait()

    def fork(self, rank: int, target: str, line: socket.socket, files: Sequence[BinaryIO]) -> None:
        """A new rank, which talks over `line`, and writes stdout, stderr and stacks to three files."""
        descriptors = [line.fileno(), *(file.fileno() for file in files)]
        self._ask({"do": "fork", "rank": rank, "target": target}, descriptors)

    def write_stacks(self) -> None:
        """Let each rank that lives write down its stack."""
        self._ask({"do": "write stacks"})

    def end(self, leaving: int | None = None) -> dict[int, int | None]:
        """Kill the ranks that live, and return how each has ended: {rank: exit code, or minus the signal; None if it
        lived}. One that seems to be leaving has a second for it."""
        return {int(rank): code for rank, code in self._ask({"do": "end", "leaving": leaving}).items()}

    def _ask(self, question: dict[str, Any], descriptors: list[int] | None = None) -> Any:
        socket.send_fds(self.line, [json.dumps(question).encode()], descriptors or [])
        answer = self.line.recv(SPACE)
        if not answer:
            raise RuntimeError("the process from which ranks are forked has ended")
        return json.loads(answer)


def main() -> None:
    """In the process itself: do as asked until the socket is closed."""
    line = socket.socket(fileno=int(sys.argv[1]))
    import minidist.classroom.process  # noqa: F401  (what ranks need is here before them)
    from minidist.mpi.target import find

    targets: dict[str, Callable[..., Any]] = {}
    ranks: dict[int, int] = {}  # rank -> process
    while True:
        message, descriptors, _, _ = socket.recv_fds(line, SPACE, 4)
        question: Any = json.loads(message) if message else {"do": "end", "leaving": None}
        answer: Any = None
        match question["do"]:
            case "fork":
                target = question["target"]
                if target not in targets:
                    with suppress(Exception):  # then the rank fails with it, and says so
                        targets[target] = find(target)
                process = os.fork()
                if not process:
                    line.close()
                    be_rank(target, targets.get(target), *descriptors)
                ranks[question["rank"]] = process
                for descriptor in descriptors:
                    os.close(descriptor)
            case "write stacks":
                for process in ranks.values():
                    os.kill(process, STACK)  # of one that has ended, nobody else has the number yet
                time.sleep(0.1)
            case "end":
                answer = {}
                for rank, process in ranks.items():
                    give_up = time.monotonic() + (rank == question["leaving"])
                    ended, status = os.waitpid(process, os.WNOHANG)
                    while not ended and time.monotonic() < give_up:
                        time.sleep(0.005)
                        ended, status = os.waitpid(process, os.WNOHANG)
                    answer[rank] = os.waitstatus_to_exitcode(status) if ended else None
                    if not ended:
                        os.kill(process, signal.SIGKILL)
                        os.waitpid(process, 0)
                ranks = {}
        if not message:
            return
        line.sendall(json.dumps(answer).encode())


def be_rank(
    target: str, function: Callable[..., Any] | None, line: int, stdout: int, stderr: int, stacks: int
) -> NoReturn:
    """In the new process."""
    from minidist.classroom.process import perform

    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    faulthandler.enable(all_threads=False)
    faulthandler.register(STACK, stacks, all_threads=False)
    parent = os.getppid()
    signal.signal(signal.SIGALRM, lambda *_: None if os.getppid() == parent else os._exit(1))
    signal.setitimer(signal.ITIMER_REAL, 0.5, 0.5)
    try:
        perform(target, function, socket.socket(fileno=line))
    finally:
        with suppress(Exception):
            sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    main()

"""The ranks of a job of `one_process.py`, which describes the files: python -m minidist.launch.one_process_main FOLDER.

What processes have of their own, ranks share here: modules and what stands in them, the working folder, signals, the
figures of Matplotlib. What they print is kept apart: with every turn, standard output is another file.
"""

import faulthandler
import mmap
import os
import sys
import threading
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from minidist.exchange.one_process import World
from minidist.exchange.rules import Deadlock
from minidist.exchange.waits import Look
from minidist.launch import encode
from minidist.launch.main_stack import format_stack, place_of
from minidist.launch.target_function import find_function
from minidist.mpi.comm import Comm
from minidist.mpi.rank import MACHINERY, explain

NAP = 0.001  # seconds that a sleeping rank waits before it looks at the time again


class Ranks(World):
    """The ranks of a job; they say where in the job's own code they are."""

    def __init__(self, folder: Path, n: int) -> None:
        super().__init__(n)
        self.folder = folder
        self.outputs = [
            [os.open(folder / str(rank) / name, os.O_WRONLY | os.O_CREAT) for name in ("stdout", "stderr")]
            for rank in range(n)
        ]
        with open(folder / "turn", "r+b") as file:
            self.turn = mmap.mmap(file.fileno(), 4)
        self.turns.announce = self.announce

    def announce(self, rank: int) -> None:
        """Before a rank's turn: what is printed now is its own."""
        self.turn[:] = rank.to_bytes(4, "little")
        for descriptor, file in enumerate(self.outputs[rank], start=1):
            os.dup2(file, descriptor)

    def look(self, rank: int) -> Look:
        """What a rank is doing, asked by itself or by another thread."""
        if rank in self.turns.results:
            return Look(finished=True)
        frame = self.turns.frame(rank)
        if frame is None and rank == self.turns.running:
            frame = sys._current_frames()[threading.main_thread().ident or 0]
        stack = [each for each in traceback.extract_stack(frame) if not each.filename.startswith(NOT_THE_JOBS)]
        look = super().look(rank)
        look.where = place_of(stack) if frame and stack else "the start of the job"
        look.stack = format_stack([(each.filename, each.lineno or 0, each.name) for each in stack])
        return look

    def record(self, deadlock: Deadlock | None = None, error: BaseException | None = None) -> dict[str, Any]:
        """How all ranks are."""
        looks = deadlock.looks if deadlock else [self.look(rank) for rank in range(self.n)]
        found: dict[str, Any] = {
            "looks": [look and asdict(look) for look in looks],
            "awaited": deadlock.awaited if deadlock else self.awaited(),
            "cause": deadlock.reason if deadlock else "",
            "results": {rank: self.result(rank, value) for rank, value in dict(self.turns.results).items()},
            "first": self.turns.running if error else -1,
        }
        if error:
            found["error"] = type(error).__name__, explain(error)
        return found

    def result(self, rank: int, value: Any) -> tuple[Any, ...]:
        ledger = self.ledgers[rank]
        return value, {peer: tuple(counts) for peer, counts in ledger.sent.items()}, ledger.control

    def answer(self, orders: int) -> NoReturn:
        """A thread: write down how all ranks are whenever a line asks; end the process when there are no more."""
        with open(orders, "rb", buffering=0) as lines:
            while lines.readline():
                encode.save(self.folder / "seen", self.record())
        os._exit(1)

    def let_sleepers_wait(self) -> None:
        """Make time.sleep of a rank a turn of the others, as if each had a processor of its own."""
        real = time.sleep

        def sleep(seconds: float) -> None:
            if threading.current_thread() is not threading.main_thread():
                real(seconds)
                return
            rank, until = self.turns.running, time.monotonic() + seconds
            while (rest := until - time.monotonic()) > 0:
                real(min(rest, NAP))
                self.turns.ready.append(rank)
                self.turns.wait()

        time.sleep = sleep  # type: ignore[assignment]  # its argument is positional


NOT_THE_JOBS = (*MACHINERY, "<frozen runpy", threading.__file__)


def main() -> NoReturn:
    orders = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # nobody answers input()
    sys.excepthook = sys.__excepthook__
    folder = Path(sys.argv[1])
    _, n, _ = encode.load(folder / "job")
    ranks = Ranks(folder, n)
    threading.Thread(target=ranks.answer, args=[orders], daemon=True).start()
    faulthandler.enable(all_threads=False)  # a crash in native code then says in stderr where it happened
    ranks.let_sleepers_wait()

    def be_rank(comm: Comm) -> Any:
        target, _, args = encode.load(folder / "job")  # values of its own
        value = find_function(target)(comm, *args)
        encode.check(value)
        return value

    try:
        ranks.turns.run(ranks.rank_of(be_rank), range(n))
        found = ranks.record()
    except Deadlock as deadlock:
        found = ranks.record(deadlock)
    except BaseException as error:
        found = ranks.record(error=error)
    encode.save(folder / "outcome", found)
    os._exit(0)  # even if another thread still runs


if __name__ == "__main__":
    main()

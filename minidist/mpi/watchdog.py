"""A rank's watchdog: a thread that handles Ctrl-C, reports long waits, ends endless ones, and follows its parent.

It is a thread, because the main thread may be inside MPI, where no Python handler ever runs.
"""

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable

from minidist.mpi import stops
from minidist.mpi.comm import Comm
from minidist.mpi.early_end import INTERRUPTED, be_first_to_fail
from minidist.mpi.words import name_ranks
from minidist.system import processes

LONG = 30.0  # seconds; a longer wait is reported
LOOKS = 5  # about a second apart, after which such a wait for a finished rank ends the job: its message may be here


class Watchdog(threading.Thread):
    """end: ends the job with a status. follows: whether this process is to end when its parent has ended."""

    def __init__(self, comm: Comm, end: Callable[[int], object], follows: bool = False) -> None:
        super().__init__(daemon=True)
        self.comm, self.end = comm, end
        self.follows, self.parent = follows, os.getppid()
        self.waits, self.since = -1, 0.0  # the last wait that was seen, and when it was first seen
        self.told = False  # whether it was reported
        self.hopeless = 0  # looks at which a rank that this one waits for had finished
        self.signals, written = os.pipe()
        os.set_blocking(written, False)
        signal.signal(signal.SIGINT, lambda *_: None)
        signal.set_wakeup_fd(written, warn_on_full_buffer=False)  # works whatever the main thread does

    def run(self) -> None:
        while True:
            ready, _, _ = select.select([self.signals], [], [], min(1.0, LONG / 4))
            if ready and signal.SIGINT in os.read(self.signals, 64):
                self.interrupt()
            if self.follows and os.getppid() != self.parent:  # not needed on Linux: see stay_behind in run.py
                processes.undo()
                os._exit(1)
            self.look(time.monotonic())

    def interrupt(self) -> None:
        """Print a line and end the job. Rank 0 does so; another rank does it a second later, if it is still here."""
        if self.comm.rank > 0:
            time.sleep(1.0)
        processes.undo()
        who = f"rank {self.comm.rank} was " if self.comm.rank else ""  # only if rank 0 has not ended the job
        print(f"minidist: {who}interrupted", file=sys.stderr)
        self.end(INTERRUPTED)

    def look(self, now: float) -> None:
        """Report a long wait of this rank once, and its end."""
        ledger = self.comm.ledger
        waits, waiting = ledger.waits, ledger.waiting  # read once: the main thread may leave it at any moment
        if waiting is None or waits != self.waits:
            if self.told:
                print(f"rank {self.comm.rank} goes on after {now - self.since:.0f} s", file=sys.stderr, flush=True)
            self.waits, self.since, self.told, self.hopeless = waits, now, False, 0
        elif now - self.since > LONG:
            call, comm, peers = waiting
            others = {comm.world_ranks[peer] for peer in peers} - {self.comm.rank}
            where = f"in phase {ledger.phase!r} ({call})"
            if not self.told:
                self.told = True
                said = f"rank {self.comm.rank} has waited {LONG:g} s for {name_ranks(others)} {where}"
                print(said, file=sys.stderr, flush=True)
            gone = others & stops.finished() if self.follows else set()
            self.hopeless += bool(gone)
            if self.hopeless > LOOKS:
                self.give_up(gone, where)

    def give_up(self, gone: set[int], where: str) -> None:
        """End the job: these ranks have finished, so what this rank waits for never comes."""
        be_first_to_fail()
        has = "has" if len(gone) == 1 else "have"
        why = f"rank {self.comm.rank} waits {where} for {name_ranks(gone)}, which {has} finished"
        print(f"minidist: error: {why}: all ranks must make the same steps", file=sys.stderr, flush=True)
        self.end(1)

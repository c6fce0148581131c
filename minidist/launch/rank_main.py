"""A rank of a job of `minidist.launch.launcher`: it calls the target function, and records the outcome."""

import faulthandler
import os
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

from minidist.launch import encode
from minidist.launch.main_stack import main_stack, place_of
from minidist.launch.target_function import find_function
from minidist.mpi.comm import Ledger
from minidist.mpi.over_mpi import MPI, world
from minidist.mpi.rank import MACHINERY, explain
from minidist.mpi.run import abort


def be_rank(folder: Path, mine: Path) -> NoReturn:
    """Be the rank whose own folder is `mine`; `folder` is the job's. `minidist.launch.worker` lists their files."""
    (mine / "started").touch()
    faulthandler.enable(all_threads=False)  # a crash in native code then says in stderr where it happened
    ledger = Ledger()
    threading.Thread(target=answer_looks, args=(folder, mine, ledger), daemon=True).start()
    try:
        target, args, kwargs = encode.load(folder / "job")
        function = find_function(target)
        value = function(world(ledger), *args, **kwargs)
        ledger.check_requests()
        sent = {peer: tuple(counts) for peer, counts in ledger.sent.items()}
        encode.save(mine / "result", {"value": value, "sent": sent, "control": ledger.control})
    except BaseException as error:
        try:
            record = {"type": type(error).__name__, "text": explain(error), "time": time.monotonic()}
            encode.save(mine / "error", record)
        finally:
            abort()

    # Wait for the others without spinning: they may need the core. Then exit, even if another thread still runs.
    everyone = MPI.COMM_WORLD.Ibarrier()
    while not everyone.Test():
        time.sleep(0.001)
    MPI.Finalize()
    os._exit(0)


def answer_looks(folder: Path, mine: Path, ledger: Ledger) -> None:
    """A thread: whenever the launcher asks, write down what the main thread is doing.

    It runs while the main thread waits for a message or loops in Python, but not while native code holds the
    interpreter; the launcher says so when there is no answer.
    """
    number = 1
    while True:
        while not (folder / f"look.{number}").exists():
            time.sleep(0.1)
        encode.save(mine / f"seen.{number}", look(ledger))
        number += 1


def look(ledger: Ledger) -> dict[str, Any]:
    """What the main thread is doing: the fields of `minidist.exchange.waits.Look`, with the stack as frames."""
    frames = [frame for frame in main_stack() if not frame.filename.startswith((*MACHINERY, "<frozen runpy"))]
    where = place_of(frames) if frames else "the start of the job"
    waiting = None
    if wait := ledger.waiting:  # read once: the main thread may leave it at any moment
        call, comm, peers = wait
        waiting = call, [comm.world_ranks[peer] for peer in peers]
    return {
        "where": where,
        "stack": [(frame.filename, frame.lineno, frame.name) for frame in frames],
        "waiting": waiting,
        "set_out": dict(ledger.set_out),
        "arrived": dict(ledger.arrived),
        "open": [(request.kind, request.comm.world_ranks[request.peer]) for request in ledger.open_requests],
        # Last: if two looks agree on these, the main thread was in the same wait when the rest was read.
        "waits": ledger.waits,
        "cpu": time.process_time(),
    }

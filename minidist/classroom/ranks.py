"""On a rank: run a student's program on cases, and bring back what it returned and what the wire saw.

Nothing here decides about points. A rank's inputs are known to that rank alone: they lie in a file that is deleted
before the student's program is loaded, so a right result can only come from messages. To start ranks takes longer than
to run a part on them, so they stay for the next part, for which the program is loaded anew; but they are replaced after
a part that did not end well, or that left anything behind.
"""

import importlib.util
import inspect
import itertools
import os
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from minidist.mpi import encode
from minidist.mpi.comm import Comm
from minidist.mpi.run import explain
from minidist.mpi.target import find
from minidist.mpi.witness import witnessed

progress = [Path(os.devnull)]  # where this rank says how far it has come
Cases = list[tuple[int, dict[str, Any]]]  # (number of ranks, arguments) of each


def serve(comm: Comm, program: str, folder: str) -> None:
    """Run part after part, as the grading process asks for them, until it ends this job.

    Rank r is asked by a file folder/r/part.NUMBER, and answers in folder/r/outcome.NUMBER; in folder/r/case it says at
    which case of the part it is.
    """
    mine = Path(folder) / str(comm.rank)
    progress[0] = mine / "at"
    (mine / "ready").touch()
    for number in itertools.count():
        while not (mine / f"part.{number}").exists():
            time.sleep(0.002)
        target, cases, inputs = encode.load(mine / f"part.{number}")
        os.remove(mine / f"part.{number}")
        encode.save(mine / f"outcome.{number}", run_cases(comm, program, target, mine, cases, inputs))
        comm.barrier()  # a rank that has come so far waits for the others, and says so if they hang


def note(where: str) -> None:
    """Say where in the case this rank is, for the message if it fails or hangs there: "at block0 in the forward"; ""
    when it is there no more."""
    progress[0].write_text(where)


def run_cases(comm: Comm, program: str, target: str, mine: Path, cases: Cases, inputs: Sequence[Any]) -> dict[str, Any]:
    """Call `target`(comm, student's module, this rank's input, **arguments) for each case, on its first n ranks.

    program is the student's file, loaded afresh; target "path/to/on_ranks.py:function"; inputs are this rank's, one for
    each case. The answer: what each case brought; the names that stand for something else afterwards, and those that do
    as soon as the program is loaded; where a function is not written yet; and whether anything is left running or open.
    """
    threads = threading.active_count()
    run, compare, watched = find(target), changed, witnessed  # a program may put others in their place
    before = fingerprint()
    comm.barrier()  # no rank's inputs lie in a file any more
    student = load(program)
    changed_at_once = compare(before)
    outcomes: list[dict[str, Any] | None] = []
    not_written = ""
    for number, (n, arguments) in enumerate(cases):
        group = comm.split(int(comm.rank >= n), comm.rank)
        outcomes.append(None)
        if comm.rank < n:
            (mine / "case").write_text(str(number))
            (mine / "at").unlink(missing_ok=True)
            wired, witness = watched(group, program)
            comm.ledger.reset()
            try:
                value = run(wired, student, inputs[number], **arguments)
            except NotImplementedError as error:  # as all ranks do, in a skeleton: they need not be replaced
                not_written = explain(error)
                (mine / "not written").write_text(not_written)  # in case other ranks wait for this one
                continue
            comm.ledger.check_requests()
            seen = {"sent": dict(witness.sent), "received": dict(witness.received), "told": comm.ledger.total()}
            outcomes[number] = {"value": value, **seen}
    return {
        "outcomes": outcomes,
        "changed": compare(before),
        "changed at once": changed_at_once,
        "not written": not_written,
        "left": threading.active_count() > threads or bool(comm.ledger.open_requests),
    }


def load(program: str) -> ModuleType:
    """The student's file as a module. Its folder comes last on the path, so that no file in it hides a library."""
    if os.path.dirname(program) not in sys.path:
        sys.path.append(os.path.dirname(program))
    spec = importlib.util.spec_from_file_location("exercise", program)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["exercise"] = module
    spec.loader.exec_module(module)
    return module


def returned(value: Any) -> Any:
    """What a student's function returned, as it can be written to a file: an array as it is, of others the type."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return np.array(value)  # of a subclass, the plain array
    return type(value).__name__


def peak_memory(function: Callable[..., Any], *args: Any) -> tuple[Any, int]:
    """(what the function returned, the most bytes that were allocated at a time while it ran).

    It runs twice, and the smaller peak counts: what the first call makes once and for all is no working memory, and the
    launcher may look at this rank at any moment, which allocates too. Each time it gets arrays as they were at first.
    """
    peaks = []
    for _ in range(2):
        fresh = [arg.copy() if isinstance(arg, np.ndarray) else arg for arg in args]
        tracemalloc.start()
        try:
            value = function(*fresh)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    return value, min(peaks)


def arrays_held(witness: np.ndarray) -> int:
    """Bytes of the data of all NumPy arrays made since tracemalloc was started, by NumPy's own account.

    witness, one of them, has a size that no other has. It must be found, or the account was cleared; it does not count.
    """
    traces = tracemalloc.take_snapshot().traces
    sizes = [trace.size for trace in traces if trace.domain == np.lib.tracemalloc_domain]
    if sizes.count(witness.nbytes) != 1:
        raise RuntimeError("the account of memory was cleared: leave tracemalloc alone")
    return sum(sizes) - witness.nbytes


# ---- has the program laid hands on the modules that test it? ---------------------------------------------------------

Fingerprint = dict[tuple[str, str], Any]  # (module, name in it) -> the object that the name stood for


def fingerprint() -> Fingerprint:
    """What the names in this project's modules, the lesson's on_ranks.py and those that they rest on stand for now."""
    marks: Fingerprint = {}
    others = ("on_ranks", "mpi4py.MPI", "numpy", "builtins", "tracemalloc")
    for module_name, module in list(sys.modules.items()):
        if module_name.split(".")[0] == "minidist" or module_name in others:
            for name, value in vars(module).items():
                _mark(marks, module_name, name, value)
    return marks


def _mark(marks: Fingerprint, module: str, name: str, value: Any) -> None:
    marks[module, name] = value
    function = inspect.unwrap(value)  # of a cache or a static method
    if isinstance(function, FunctionType):
        marks[module, f"{name}.__code__"] = function.__code__
    elif inspect.isclass(value) and value.__module__ == module:
        for attribute, of_class in vars(value).items():
            _mark(marks, module, f"{name}.{attribute}", of_class)


def changed(before: Fingerprint, look: Callable[[], Fingerprint] = fingerprint) -> list[str]:
    """The names that stand for something else than before, or for nothing."""
    now = look()
    nothing = object()
    return [".".join(key) for key, value in before.items() if now.get(key, nothing) is not value]

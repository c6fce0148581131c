"""Where the ranks of graded programs come from: a process that has imported what they need, and forks them.

It starts once, and knows nothing of any part's inputs or results: its memory holds nothing that a program could look
for. A fork takes milliseconds, so every part gets new ranks, which hold nothing of the part before. If the machine
allows it, the process and its ranks live in namespaces of their own (see sandbox.py).

`Nursery` is the end in the process that grades; `main` is the other end. They exchange JSON over a socket: a question,
with the open descriptors for a new rank, and then the answer.
"""

import faulthandler
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from minidist.classroom.grading import limits, sandbox, syscalls

SPACE = 1 << 16  # bytes of a question
STACK = signal.SIGUSR1  # makes a rank write its stack, even in native code
SETTINGS = {  # freed memory goes back at once; one thread per rank; no compiled files next to the modules
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_ARENA_MAX": "1",
    **dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    "PYTHONDONTWRITEBYTECODE": "1",
}
LIBRARIES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "TMPDIR")  # without these Python may not start, or has no room


def own_environment() -> dict[str, str]:
    """The environment of students' programs: of this process's own, only where libraries are."""
    kept = {name: os.environ[name] for name in LIBRARIES if name in os.environ}
    return {"PATH": os.defpath, "HOME": "/", "LANG": "C.UTF-8", **kept}


class Exit(NamedTuple):
    """How a rank has ended."""

    code: int | None  # its exit code, or minus the signal; None if it was still alive
    seconds: float  # of processor time that it used


class Nursery:
    """The process, which lives as long as the context, and the ranks of one job after another.

    preload: a "path/to/file.py" that ranks are to have loaded. hidden: modules that they cannot import. With `isolate`,
    they get namespaces of their own if possible; `isolation` says why not. modules: names of modules that every rank
    will import anyway, imported here once. environment: the ranks', if not this process's.

    Ranks of one process hash strings alike. If `apart` is set, each rank comes from a process that hashes in its own
    way, as separately started processes do.
    """

    def __init__(
        self,
        preload: Path | None = None,
        hidden: Sequence[str] = (),
        isolate: bool = False,
        modules: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        hash_seed: int = 0,
    ) -> None:
        self.apart, self.siblings = False, dict[int, Nursery]()
        self.make_sibling = partial(Nursery, preload, hidden, isolate, modules, environment)
        self.line, theirs = socket.socketpair()
        self.answered = True  # the last question; if a signal has cut it short, its answer may still come
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)  # ranks import what this process can import
        plan = {
            "line": theirs.fileno(),
            "preload": str(preload or ""),
            "modules": list(modules),
            "hidden": list(hidden),
            "isolate": isolate,
        }
        command = [sys.executable, "-P", "-m", "minidist.classroom.grading.nursery", json.dumps(plan)]
        seeds = {"PYTHONHASHSEED": str(hash_seed)} if environment is not None else {}
        theirs_alone = {**(os.environ if environment is None else environment), **SETTINGS, "PYTHONPATH": path, **seeds}
        self.group = limits.make_group() if isolate else None
        self.process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], env=theirs_alone, stdin=subprocess.DEVNULL, start_new_session=True
        )
        if self.group:
            limits.join_group(self.group, self.process.pid)
        theirs.close()
        self.isolation: str = self._ask({"do": "say hello"})  # why there are no namespaces; "" if there are

    def __enter__(self) -> "Nursery":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it, and its ranks."""
        for sibling in self.siblings.values():
            sibling.close()
        self.line.close()  # this ends it
        self.process.wait()
        if self.group:
            limits.remove_group(self.group)
            self.group = None

    @property
    def processes(self) -> list[int]:
        """The processes from which all ranks descend."""
        return [self.process.pid, *(sibling.process.pid for sibling in self.siblings.values())]

    def fork(self, rank: int, target: str, descriptors: Sequence[int], seconds: float, folder: str) -> None:
        """Fork a rank, with that many seconds of processor time. descriptors: its line, and pipes for its stdout,
        stderr and stacks. folder: its own, if it has no /tmp of its own."""
        if self.apart and rank not in self.siblings:
            self.siblings[rank] = self.make_sibling(hash_seed=rank + 1)
        question = {"do": "fork", "rank": rank, "target": target, "seconds": seconds, "folder": folder}
        (self.siblings[rank] if self.apart else self)._ask(question, descriptors)

    def write_stacks(self) -> None:
        """Make each living rank write its stack."""
        self._ask_all({"do": "write stacks"})

    def end(self, leaving: int | None = None) -> dict[int, Exit]:
        """Kill the living ranks, and all processes that they started. The rank `leaving` gets a second to exit. If a
        signal has cut a question short, the nursery ends with them: the next answer would be that to this question."""
        if not all(each.answered for each in (self, *self.siblings.values())):
            self.close()
            return {}
        answer = self._ask_all({"do": "end", "leaving": leaving})
        return {rank: Exit(*outcome) for rank, outcome in answer.items()}

    def _ask_all(self, question: dict[str, Any]) -> dict[int, Any]:
        answers = [each._ask(question) for each in (self, *self.siblings.values())]
        return {int(rank): said for answer in answers for rank, said in answer.items()}

    def _ask(self, question: dict[str, Any], descriptors: Sequence[int] = ()) -> Any:
        self.answered, answer = False, b""
        with suppress(OSError):
            socket.send_fds(self.line, [json.dumps(question).encode()], list(descriptors))
            answer = self.line.recv(SPACE)
        if not answer:
            raise RuntimeError("the process from which ranks are forked has ended")
        self.answered = True
        return json.loads(answer)


# ---- in the process itself -------------------------------------------------------------------------------------------


def main() -> None:
    """Answer questions until the socket is closed."""
    plan = json.loads(sys.argv[1])
    line = socket.socket(fileno=plan["line"])
    import numpy.random  # noqa: F401  (imported before ranks are forked)

    import minidist.classroom.grading.process
    import minidist.classroom.grading.source  # noqa: F401
    from minidist.classroom.grading import ranks as on_rank
    from minidist.classroom.grading.chapter import hide
    from minidist.launch.target_function import find_function, load_file

    if plan["preload"]:
        load_file(plan["preload"])
    hide(plan["hidden"])
    for name in plan["modules"]:  # after hide(), which also removes modules that hold a hidden one
        with suppress(Exception):  # then a rank fails on it, and says so
            importlib.import_module(name)
    isolation = sandbox.enter(plan["hidden"]) if plan["isolate"] else "not asked for"
    others = bool(isolation) and plan["isolate"] and sandbox.others_can_run()
    if others:
        isolation += "; each was a user of its own"
    limits.adopt_orphans()
    if plan["isolate"]:
        limits.lower_priority()
    on_rank.taken.append(on_rank.fingerprint())
    gc.collect()
    gc.freeze()  # a rank that collects would write to all of these objects, and so copy their memory

    targets: dict[str, Callable[..., Any]] = {}
    ranks: dict[int, int] = {}  # rank -> process
    while True:
        message, descriptors = b"", list[int]()
        with suppress(ConnectionResetError):  # the grader has ended before it had read an answer
            message, descriptors, _, _ = socket.recv_fds(line, SPACE, 4)
        question: Any = json.loads(message) if message else {"do": "end", "leaving": None}
        answer: Any = None
        match question["do"]:
            case "say hello":
                answer = isolation
            case "fork":
                target = question["target"]
                if target not in targets:
                    with suppress(Exception):  # then the rank fails on it, and says so
                        targets[target] = find_function(target)
                process = os.fork() if isolation else sandbox.fork_apart()
                if not process:
                    line.close()
                    be_rank(question, targets.get(target), descriptors, not isolation, others, plan["isolate"])
                ranks[question["rank"]] = process
                for descriptor in descriptors:
                    os.close(descriptor)
            case "write stacks":
                answer = {}
                for process in ranks.values():
                    os.kill(process, STACK)  # the number of an ended one is not in use again yet
                time.sleep(0.1)
            case "end":
                answer = {rank: end(process, rank == question["leaving"]) for rank, process in ranks.items()}
                ranks = {}
                limits.end_orphans()
        if not message:
            return
        with suppress(BrokenPipeError):  # likewise
            line.sendall(json.dumps(answer).encode())


def end(process: int, leaving: bool) -> Exit:
    """End a rank, if it lives; one that is leaving gets a second to exit."""
    give_up = time.monotonic() + leaving
    while True:
        ended, status, usage = os.wait4(process, os.WNOHANG)
        if ended or time.monotonic() >= give_up:
            break
        time.sleep(0.005)
    if not ended:
        os.kill(process, signal.SIGKILL)
        _, _, usage = os.wait4(process, 0)
    code = os.waitstatus_to_exitcode(status) if ended else None
    return Exit(code, usage.ru_utime + usage.ru_stime)


def be_rank(
    question: dict[str, Any],
    function: Callable[..., Any] | None,
    descriptors: Sequence[int],
    isolated: bool,
    another: bool,
    filtered: bool,
) -> NoReturn:
    """Be a rank, in the new process: `isolated` in namespaces, or else perhaps as `another` user; if `filtered`,
    without the system calls that could bypass the wire."""
    from minidist.classroom.grading.process import perform

    line, stdout, stderr, stacks = descriptors
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)  # what ranks have inherited they share, with its flags and its owner
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)  # the old one may take the pipe for a file, and seek
    parent = os.getppid()
    if isolated:
        sandbox.enter_alone(question["rank"])
    elif question["folder"]:
        os.chdir(question["folder"])
        os.environ["TMPDIR"] = os.environ["HOME"] = question["folder"]
        if another:
            os.chmod("..", 0o711)  # so that the rank can pass through
            sandbox.become_another(question["rank"], question["folder"])
    limits.set_limits(question["seconds"], isolated)
    if filtered:
        syscalls.refuse()
    faulthandler.enable(all_threads=False)
    faulthandler.register(STACK, stacks, all_threads=False)
    faulthandler.register(signal.SIGXCPU, stacks, all_threads=False, chain=True)  # its processor time is used: ends it
    signal.signal(signal.SIGALRM, lambda *_: None if os.getppid() == parent else os._exit(1))
    signal.setitimer(signal.ITIMER_REAL, 0.5, 0.5)
    try:
        perform(question["target"], function, socket.socket(fileno=line))
    finally:
        with suppress(Exception):
            sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    main()

"""Lesson 18's systems: broken ones, drawn by a seed, and healthy ones next to them; and the runs that checks ask for.

A system is a program of minidist, in a copy of the package with the changes of a bug, or without. It answers requests
(`handle.py`) by training on ranks that are threads, in a process that stays until all is done: `probe.py`. What it has
answered once, it knows.
"""

import atexit
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from minidist import Stopped
from minidist.bugs import record
from minidist.bugs.checks import MODEL, SGD
from minidist.bugs.probe import ProbedRun
from minidist.bugs.record import Bug, Edit
from minidist.claims.mutants import changed_copy, python_in
from minidist.claims.mutants.patch import read_document
from minidist.system import processes

OURS = Path(__file__).with_name("ours.toml")
AXES = {"tensor_parallel": "tp", "context_parallel": "cp", "expert_parallel": "ep", "pipeline": "pp"}  # others: dp
KINDS: dict[str, tuple[tuple[str, ...], ...]] = {  # by what shows them: groups of bugs, of each of which one is drawn
    "gradients": (
        ("experts-times-ep", "cp-wrong-backward"),  # fewer checks see these than any of the others
        ("replica-not-summed", "local-label-smoothing", "gathered-logits", "dropout-per-rank", "same-dropout-mask")
        + ("one-receive-buffer", "order-of-readiness"),
    ),
    "norms": (("norm-without-experts",), ("replica-counted-twice", "norm-per-group")),
    "sizes": (("bucket-never-flushed",), ("local-token-mean",)),  # sizes of layouts and batches
    "memory": (("zero2-is-zero1",), ("whole-optimizer-state",), ("whole-parameters",)),
    "precision": (("scale-on-one-stage",), ("norm-times-scale",)),
    "checkpoint": (("moment-not-loaded", "moments-of-rank-0", "one-part-saved"), ("updates-not-loaded",)),
}
SALT = 392  # another one draws others
SETTINGS = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True, kw_only=True)
class System:
    """A program to be checked. A check is told only its `facts`."""

    name: str
    chapter: str
    options: str
    layout: str  # options, with {n} for the ranks along the axis, {m} for micro-batches and {host} for ranks per host
    axes: tuple[tuple[str, tuple[int, ...]], ...]
    seed: int
    batch: int = 8
    precision: str = "fp32"
    zero: int = 0
    shards: int = 0  # 0: among all
    clip: float = 1.0
    broken: bool = False
    edits: tuple[Edit, ...] = field(default=(), repr=False)

    @property
    def facts(self) -> dict[str, Any]:
        shards = self.shards or max(self.axes[0][1])
        told = {name: getattr(self, name) for name in ("batch", "precision", "zero", "clip")}
        return told | {"axes": {axis: list(sizes) for axis, sizes in self.axes}, "shards": shards}

    def run(self, asked: Mapping[str, Any]) -> ProbedRun:
        """The run that answers a request."""
        n, m = asked["layout"][self.axes[0][0]], asked["layout"].get("micro", 1)
        options = [MODEL, self.options, self.layout.format(n=n, m=m, host=min(n, self.shards))]
        options += [f"--precision {asked['precision']}", f"--steps {asked['steps']}", f"--batch {asked['batch']}"]
        options += [SGD + f" --clip {self.clip}"] if asked["optimizer"] == "sgd" else []
        options += [f"--seed {self.seed + asked['seed']}"]
        return ProbedRun(self.chapter, " ".join(options), n, asked["own_rows"], asked["resume_at"], parameters=True)


# ---- which ones ------------------------------------------------------------------------------------------------------


def read_bugs() -> dict[str, Bug]:
    """The bugs of record and our own, by name."""
    return record.read_all() | {bug.name: bug for bug in record.read(read_document(OURS))}


def system_of(bug: Bug, seed: int, broken: bool = True) -> System:
    """The program with this bug or, if not broken, the healthy program in which the bug was made."""
    words = bug.options.split()
    axis, dropout = AXES.get(bug.chapter, "dp"), "--dropout" in words
    micro_option = "--micro-batches" if bug.chapter == "pipeline" else "--accumulate"
    layout = bug.layout.replace("--ep 2", "--ep {n}").replace("--micro-batches 4", "")
    micro = (4, 2, 1) if bug.chapter == "pipeline" else (1, 2, 4)  # dropout masks depend on this number
    return System(
        name=bug.name,
        chapter=bug.chapter,
        options=bug.options.replace("--batch 9", ""),
        layout=layout if dropout else f"{layout} {micro_option} {{m}}",
        axes=((axis, (1, 2, 3) if axis == "dp" else (1, 2)), *([] if dropout else [("micro", micro)])),
        seed=seed,
        precision=bug.precision,
        zero=int(bug.chapter[-1]) if bug.chapter.startswith("zero") else 0,
        clip=float(words[words.index("--clip") + 1]) if "--clip" in words else 1.0,
        broken=broken,
        edits=(*bug.given, *(bug.change if broken else ())),
    )


def hybrid_system(seed: int) -> System:
    """A healthy system: ZeRO-3 in hosts of two ranks, which hold copies of each other's states."""
    sizes = (("dp", (1, 2, 4)), ("micro", (1, 2)))
    layout = "--dp {n} --pp 1 --tp 1 --zero 3 --ranks-per-host {host} --micro-batches {m}"
    return System(
        name="hybrid", chapter="parallel3d", options="", layout=layout, axes=sizes, seed=seed, zero=3, shards=2
    )


def draw(seed: int) -> dict[str, tuple[System, ...]]:
    """For each kind of bug two broken systems or more, then as many healthy ones, and one more. A seed always draws the
    same. Which of the bugs are drawn makes no difference to a check that looks at one thing: see KINDS.

    The first healthy ones are the programs in which the bugs were made. Their facts are those of the broken ones, and
    so tell a check nothing.
    """
    random, bugs, drawn = np.random.default_rng([SALT, seed]), read_bugs(), {}
    hybrid = replace(hybrid_system(int(random.integers(1, 10**6))), batch=int(random.choice((7, 9, 11))))
    for kind, groups in KINDS.items():
        made: dict[bool, list[System]] = {True: [], False: []}
        for names in groups:
            bug = bugs[str(random.choice(names))]
            batches = (8, 12) if bug.chapter == "pipeline" else (8, 10, 12) if kind == "sizes" else (7, 8, 9, 10, 11)
            batch = int(random.choice(batches))
            for is_broken, of in made.items():
                of.append(replace(system_of(bug, int(random.integers(1, 10**6)), is_broken), batch=batch))
        drawn[kind] = (*made[True], *made[False], hybrid)
    return drawn


# ---- their runs ------------------------------------------------------------------------------------------------------


class Systems:
    """Performs runs, with one process for each changed copy of the package, and remembers what they counted."""

    def __init__(self) -> None:
        self.opened = ExitStack()
        self.processes: dict[tuple[Edit, ...], subprocess.Popen[str]] = {}
        self.known: dict[tuple[tuple[Edit, ...], ProbedRun], dict[str, Any]] = {}
        atexit.register(self.close)

    def close(self) -> None:
        """End the processes, and remove their copies."""
        self.processes.clear()
        self.opened.close()

    def perform(self, wanted: Iterable[tuple[System, Mapping[str, Any]]]) -> list[dict[str, Any]]:
        """What each requested run counts, with the fields of `handle.Result`; or its error, if it fails. All systems
        run at the same time. Raises Stopped if a process ends."""
        keys = [(system.edits, system.run(asked)) for system, asked in wanted]
        missing: dict[tuple[Edit, ...], list[ProbedRun]] = {}
        for edits, run in dict.fromkeys(keys):
            if (edits, run) not in self.known:
                missing.setdefault(edits, []).append(run)
        try:
            self.learn(missing)
        except BaseException:  # asked again, a process would first answer the previous request
            self.close()
            raise
        return [self.known[key] for key in keys]

    def learn(self, missing: Mapping[tuple[Edit, ...], Sequence[ProbedRun]]) -> None:
        """Ask each process for its runs, and read what they count. Raises Stopped."""
        for edits, runs in missing.items():
            with suppress(BrokenPipeError):  # the process has ended, and will not answer
                print(json.dumps([asdict(run) for run in runs]), file=self.process(edits).stdin, flush=True)
        for edits, runs in missing.items():
            stdout = self.process(edits).stdout
            line = stdout.readline() if stdout else ""
            if not line:
                raise Stopped("a copy of the package ended in the middle of its runs")
            self.known.update({(edits, run): told(of) for run, of in zip(runs, json.loads(line), strict=True)})

    def process(self, edits: tuple[Edit, ...]) -> "subprocess.Popen[str]":
        """The process for the copy of the package with these changes."""
        if edits not in self.processes:
            folder = self.opened.enter_context(changed_copy(edits))
            probe = processes.started(
                [sys.executable, "-m", "minidist.bugs.probe"],
                cwd=folder,
                env={**os.environ, **python_in(folder), **SETTINGS},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            self.processes[edits] = self.opened.enter_context(probe)
        return self.processes[edits]


def told(counted: Mapping[str, Any]) -> dict[str, Any]:
    """The part of what a run counted that a check is told."""
    if "error" in counted:
        return dict(counted)
    held = [{name: np.array(x) for name, x in of_rank.items()} for of_rank in counted["parameters"]]
    return {
        "losses": counted["losses"],
        "gradients": {name: np.array(x) for name, x in sorted(counted["gradients"].items())},  # on any ranks alike
        "norms": counted["norms"],
        "bytes": counted["bytes"],
        "memory": counted["memory"],
        "scales": [float(of_rank.pop("loss scale")[0]) for of_rank in held],
        "parameters": held,
    }

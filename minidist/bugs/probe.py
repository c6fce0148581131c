"""Trains what it is asked to, on ranks that are threads, and prints what it counted: runs in a copy of the package.

`minidist/bugs/checks.py` and `systems.py` start it. Each line of standard input has a list of runs (the fields of
`Run`); a line of standard output answers with a list of what was counted, in the same order.
"""

import json
import math
import sys
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from minidist.checkpoints import checkpoint
from minidist.claims.proof import proof_claims
from minidist.command import Job, about
from minidist.engine import Engine
from minidist.exchange.one_process import run_ranks
from minidist.nn.layers import Tokens
from minidist.nn.tensor import Array, Parameter
from minidist.programs.chapter import find
from minidist.programs.proof import prove
from minidist.system import processes
from minidist.system.files import temporary_folder
from minidist.train import Alone, Driver
from minidist.ty.report import check

Named = dict[str, Array]


class Cost(NamedTuple):
    """What a run has cost so far: of all ranks, and with all that comes before its first step."""

    seconds: float  # of the processor
    bytes: int  # sent


@dataclass(frozen=True)
class ProbedRun:
    """A run of training, to be counted."""

    chapter: str
    options: str
    ranks: int = 1
    own_rows: bool = False  # each rank's share of a batch is drawn with a seed of its own
    resume_at: int = 0  # after this many steps, save a checkpoint, forget everything, and load it; 0: never
    parameters: bool = False  # whether to also tell what each rank holds at the end
    prove: bool = False  # whether its numbers are proved before it begins
    types: bool = False  # one forward with types of distribution, in place of training


def main() -> None:
    processes.unwind_at_signals()
    for line in sys.stdin:
        print(json.dumps([count(ProbedRun(**run)) for run in json.loads(line)]), flush=True)


def count(run: ProbedRun) -> dict[str, Any]:
    """Perform a run; returns what rank 0 knows at the end that it counted or, if it fails, the error alone."""
    with temporary_folder() as folder:
        try:
            if run.chapter == "train":
                return train(run, Alone(), str(folder))
            if run.types:
                return run_ranks(lambda comm: look_at_types(run, comm), run.ranks)[0]
            return run_ranks(lambda comm: train(run, comm, str(folder)), run.ranks)[0]
        except Exception as error:  # a broken program may raise anything
            return {"error": f"{type(error).__name__}: {error}".splitlines()[0]}


def look_at_types(run: ProbedRun, comm: Any) -> dict[str, Any]:
    """Run one forward with types; returns what it alarms."""
    begun = time.process_time()
    job, driver = start(run, comm)
    alarms = [str(alarm) for alarm in check(driver, job, comm)]
    sent = sum(comm.all_gather_object(payload(bytes_by_phase(comm))))
    return {"alarms": alarms, "cost": {"all": Cost(time.process_time() - begun, sent)}}


def train(run: ProbedRun, comm: Any, folder: str) -> dict[str, Any]:
    """Train on this rank; returns what all ranks have counted."""
    begun, costs = time.process_time(), list[Cost]()
    job, driver = start(run, comm)
    serial = find(run.chapter).serial(job) if run.prove else None
    proof = prove(comm, job, find(run.chapter).make, serial) if serial else None
    sent = payload(bytes_by_phase(comm))
    seen = watch_gradients(driver.engine, comm)
    losses: list[float] = []
    while driver.engine.steps < job.training.steps:
        if driver.engine.steps == run.resume_at > 0:
            checkpoint.save(folder, driver.engine, comm, about(job, comm.size))
            job, driver = start(run, comm)
            checkpoint.load(folder, driver.engine)
        comm.ledger.reset()
        loss = driver.train_batch(*draw(run, job, driver.engine.steps))
        if not losses:
            seen["sent"] = dict(bytes_by_phase(comm) - seen["apart"])
            seen["held"] = held(driver.engine)
        losses.append(sum(comm.all_gather_object(loss)))
        sent += payload(bytes_by_phase(comm)) - (0 if costs else payload(seen["apart"]))
        costs.append(Cost(time.process_time() - begun, sum(comm.all_gather_object(sent))))
    apart = payload(seen["apart"])
    everyone = comm.all_gather_object((seen["sent"], seen["held"], seen["norm"], copies(driver.engine), apart))
    bytes_sent, memory, norms, alike, collected = map(list, zip(*everyone, strict=True))
    return {
        "losses": losses,
        "gradients": as_lists(seen["gradients"]),
        "norms": norms,
        "bytes": bytes_sent,
        "memory": memory,
        "copies": difference_of_copies(alike),
        "unproved": [claim.claim for claim in proof_claims(proof, losses, job.training.precision) if not claim.holds],
        "cost": {"a step": costs[0], "all": costs[-1], "to collect": Cost(0.0, sum(collected))},
        **({"parameters": [as_lists(of_rank) for of_rank in alike]} if run.parameters else {}),
    }


def as_lists(named: Named) -> dict[str, list[float]]:
    return {name: array.ravel().tolist() for name, array in named.items()}


def start(run: ProbedRun, comm: Any) -> tuple[Job, Driver]:
    chapter = find(run.chapter)
    job = chapter.job(run.options.split(), comm.size)
    return job, chapter.make(job, comm)


def draw(run: ProbedRun, job: Job, step: int) -> tuple[Tokens, Tokens]:
    """Draw the global batch of a step."""
    if not run.own_rows:
        return job.batch(step)
    sizes, seed = [len(part) for part in np.array_split(np.arange(job.training.batch), run.ranks)], job.training.seed
    parts = [job.corpus.batch(size, job.model.context, key=(seed + rank, step)) for rank, size in enumerate(sizes)]
    return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])


def watch_gradients(engine: Engine, comm: Any) -> dict[str, Any]:
    """A dictionary that the first update fills: its gradients by name and their norm, not clipped. "apart": bytes that
    ranks send only to collect these. Steps whose gradients overflow make no update: if all do, there are none."""
    found: dict[str, Any] = {"gradients": {}, "norm": math.nan, "apart": Counter()}
    update_all = engine.update_all

    def watched(scale: float) -> None:
        engine.update_all = update_all  # type: ignore[method-assign]  # only the first update is watched
        before = bytes_by_phase(comm)
        found["norm"] = math.sqrt(engine.squared_norm()) / engine.loss_scale.scale
        named = whole(engine, lambda flat: engine.owned(flat)[1])
        found["gradients"] = {
            name: gradient.astype(np.float64) / engine.loss_scale.scale
            for name, gradient in engine.collect_on_rank_0(named).items()
        }
        found["apart"] = bytes_by_phase(comm) - before
        update_all(scale)

    engine.update_all = watched  # type: ignore[method-assign]
    return found


def bytes_by_phase(comm: Any) -> Counter[str]:
    """What this rank has sent in this step; its control traffic, if any, as "control"."""
    return Counter({phase: of["bytes"] for phase, of in comm.ledger.by_phase().items()})


def payload(sent: Counter[str]) -> int:
    return sent.total() - sent["control"]


def whole(engine: Engine, piece: Any) -> Named:
    """Whole arrays by name, from the ranks' pieces of the Flats that this rank shares."""
    return {name: x for flat in engine.flats for name, x in engine.whole_parameters(flat, piece(flat)).items()}


def held(engine: Engine) -> dict[str, int]:
    """The most bytes that this rank's device has held, by kind, without workspace."""
    return {kind: nbytes for kind, nbytes in engine.peak_bytes().items() if kind != "workspace"}


def copies(engine: Engine) -> Named:
    """What must be equal on all ranks that hold it: this rank's whole parameters, and the loss scale."""
    parameters = {
        parameter.name: view.astype(np.float64)
        for flat in engine.flats
        if flat.param.size == flat.padded
        for parameter, view in flat.views(flat.param)
        if is_whole(parameter)
    }
    return {**parameters, "loss scale": np.array([engine.loss_scale.scale])}


def is_whole(parameter: Parameter) -> bool:
    """Whether this rank holds the whole parameter, and not a part of it, as in tensor parallelism."""
    shape, axis, runs = parameter.spans()
    return runs == ((0, shape[axis]),)


def difference_of_copies(held: list[Named]) -> tuple[float, str]:
    """The largest relative difference between two ranks' copies, and the name of the array."""
    largest = 0.0, ""
    for name in sorted({name for of in held for name in of}):
        first, *others = [of[name] for of in held if name in of]
        size = float(np.abs(first).max()) or 1.0
        largest = max([largest, *((float(np.abs(other - first).max()) / size, name) for other in others)])
    return largest


if __name__ == "__main__":
    main()

"""What tests/test_fsdp.py runs on ranks: FSDP by its options, and the engines of which it must have the losses."""

import hashlib
from dataclasses import replace
from typing import Any
from unittest import mock

from jobs import engines
from minidist.command import Job
from minidist.data_parallel import Axes, DataParallel
from minidist.engine import Engine, Settings
from minidist.fsdp import FSDP
from minidist.mpi.comm import Comm
from minidist.nn.layers import Unit
from minidist.programs.fsdp import CHAPTER, FSDPOptions
from minidist.zero3 import ZeRO3, across_hosts


def job_of(words: str, units: list[Unit], settings: Settings, ranks: int) -> Job[FSDPOptions]:
    """The chapter's job, with other units and settings."""
    batch = ["--batch", str(settings.accumulate * ranks), "--accumulate", str(settings.accumulate)]
    return replace(CHAPTER.job([*batch, "--strategy", *words.split()], ranks), units=units, settings=settings)


def engine_of(case: list[Any], comm: Comm) -> Engine:
    """case: [options, or one of the others' names; model, precision, accumulate, recompute]."""
    name, model, precision, accumulate, recompute = case
    settings = engines.settings(precision, "adamw", accumulate, clip=0.5, recompute=recompute)
    units = engines.model(model)
    if name == "data_parallel":
        return DataParallel(units, settings, comm)
    if name == "zero3":
        return ZeRO3(units, settings, comm)
    if name == "zero3 on hosts":  # of half the ranks
        g = fsdp_hosts(comm.size)
        host = comm.split(comm.rank // g)
        across_hosts(units, host, comm.split(comm.rank % g))
        return ZeRO3(units, settings, host, Axes(rows=comm))
    return CHAPTER.make(job_of(name, units, settings, comm.size), comm)


def fsdp_hosts(ranks: int) -> int:
    return ranks if ranks % 2 else ranks // 2


def train_all(comm: Comm, cases: list[list[Any]], batch: int) -> dict[str, Any]:
    """By the case's repr: the losses of the global batch, and in float64 the first gradients and the last parameters,
    otherwise their bits as a number."""
    results = {}
    for case in cases:
        found = engines.train(engine_of(case, comm), batch)
        arrays = {kind: found[kind] for kind in ("gradients", "parameters")}
        bits = b"".join(array.tobytes() for of in arrays.values() for array in of.values())
        losses, exact = engines.on_all(comm, found["losses"]), arrays if case[2] == "fp64" else {}
        results[repr(case)] = {"losses": losses, "bits": hashlib.blake2b(bits).hexdigest(), **exact}
    return results if comm.rank == 0 else {}


def orders(comm: Comm, variants: list[list[Any]]) -> list[list[str]]:
    """Of each [options, micro-batches], in which order a step starts collectives and runs units."""
    return [order(comm, words, accumulate) for words, accumulate in variants]


def order(comm: Comm, words: str, accumulate: int) -> list[str]:
    """ "gather block1", "backward block1", "reduce block1", ..."""
    engine = engine_of([words, "gpt untied", "fp64", accumulate, "none"], comm)
    assert isinstance(engine, FSDP)
    seen: list[str] = []
    start, reduce, leave = engine.start_gather, engine.reduce, engine.leave

    def watched_start(flat: Any, what: str) -> Any:
        if flat.gathered is None:
            seen.append(f"gather {flat.name}")
        return start(flat, what)

    def watched_reduce(flat: Any) -> None:
        seen.append(f"reduce {flat.name}")
        reduce(flat)

    def watched_leave(unit: Any, left: Any) -> None:
        seen.append(f"{engine.direction} {unit.name}")
        leave(unit, left)

    with (
        mock.patch.object(engine, "start_gather", watched_start),
        mock.patch.object(engine, "reduce", watched_reduce),
        mock.patch.object(engine, "leave", watched_leave),
    ):
        engine.train_batch(*engines.batch(0, 12))
    return seen

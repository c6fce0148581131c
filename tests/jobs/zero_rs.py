"""What tests/test_zero_r.py runs on ranks: small models whose checkpoints wait elsewhere; buffers of few elements."""

import hashlib
from typing import Any, NamedTuple

import numpy as np

from jobs import engines
from minidist import zero_r
from minidist.data_parallel import DataParallel
from minidist.engine import Engine, Settings
from minidist.layout import Layout
from minidist.nn.gpt import GPTConfig, gpt
from minidist.nn.layers import Unit

VOCABULARY, CONTEXT, LAYERS, BATCH, STEPS = 23, 8, 2, 12, 2


class Case(NamedTuple):
    zero: int
    tp: int
    sequence: bool
    accumulate: int
    dropout: float
    precision: str
    activations: str = "device"
    bucket: int | None = None
    scattered: bool = True


def model(dropout: float) -> list[Unit]:
    return gpt(GPTConfig(VOCABULARY, CONTEXT, LAYERS, heads=4, width=20, dropout=dropout))


def settings(case: Case) -> Settings:
    how: Any = {"recompute": "full", "bucket_size": case.bucket}
    return engines.settings(case.precision, "adamw", case.accumulate, clip=0.5, **how)


def engine_of(comm: Any, case: Case) -> DataParallel:
    layout = Layout(dp=comm.size // case.tp, tp=case.tp)
    how = case.zero, case.activations, case.scattered, case.sequence
    return zero_r.zero_r(model(case.dropout), settings(case), comm, layout, *how)


def tokens(step: int) -> tuple[np.ndarray, np.ndarray]:
    return engines.batch(step, BATCH, CONTEXT, VOCABULARY)


def losses(engine: Engine) -> list[float]:
    """This rank's part of them: of some steps, and of an evaluation after them."""
    return [*(engine.train_batch(*tokens(step)) for step in range(STEPS)), engine.evaluate(*tokens(99))]


def serial(case: Case) -> list[float]:
    """Everything on one rank, nothing of it ever moved."""
    return losses(Engine(model(case.dropout), settings(case)))


def train_all(comm: Any, cases: list[list[Any]]) -> list[dict[str, Any]]:
    """On rank 0 each case's losses, and a fingerprint of every rank's final model states."""
    results = []
    for case in (Case(*each) for each in cases):
        engine = engine_of(comm, case)
        found: dict[str, Any] = {"losses": engines.on_all(comm, losses(engine)), "moved": engine.link.by_phase()}
        held = [array for flat in engine.flats for array in (flat.param, flat.master, *flat.moments)]
        states = hashlib.blake2b(b"".join((array + 0).tobytes() for array in held)).hexdigest()  # -0 is 0
        results.append({**found, "states": comm.all_gather_object(states)})
    return results if comm.rank == 0 else []

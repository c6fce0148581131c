"""What tests of all chapters run on ranks: their command lines; and gradients that overflow float16."""

import hashlib
import io
import json
import runpy
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from jobs.engines import CONTEXT, ENGINES, VOCABULARY, model, settings
from minidist import data
from minidist.engine import Engine
from minidist.mpi.comm import Comm
from minidist.nn.precision import LossScale

HOUSE = Path(data.__file__).parent


def steps(engine: Engine, n: int, after: list[Any]) -> None:
    """n steps on one batch; after each, what an overflow must change alike on all ranks, or leave as it is."""
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, (7, CONTEXT + 1))
    for _ in range(n):
        loss = engine.forward(tokens[:, :-1], tokens[:, 1:])
        engine.backward(loss)
        engine.step()
        held = [array for flat in engine.flats for array in (flat.param, flat.master, *flat.moments)]
        digest = hashlib.blake2b(b"".join(array.tobytes() for array in held)).hexdigest()
        after.append({"loss": loss.value, "scale": engine.loss_scale.scale, "updates": engine.updates, "held": digest})


def from_too_large_a_scale(engine: Engine) -> list[Any]:
    """12 steps from a loss scale at which every gradient overflows."""
    engine.loss_scale = LossScale(2.0**22)
    after: list[Any] = []
    steps(engine, 12, after)
    return after


def all_overflow(comm: Comm) -> dict[str, Any]:
    return {
        name: from_too_large_a_scale(make(model("gpt"), settings("mixed", "adamw", 1, 1.0), comm))
        for name, make in ENGINES.items()
    }


def one_overflows(comm: Comm) -> dict[str, Any]:
    """In the second of three steps the last rank's gradient has one element too large, in a shard of rank 0."""
    found: dict[str, Any] = {}
    for name, make in ENGINES.items():
        engine = make(model("gpt"), settings("mixed", "adamw", 1, 1.0), comm)
        flat: Any = engine.units[1].flats[0]
        collect = flat.collect

        def collect_and_overflow(grad: np.ndarray, collect: Any = collect, engine: Engine = engine) -> None:
            collect(grad)
            if comm.rank == comm.size - 1 and engine.steps == 1:
                grad[3] = np.inf

        flat.collect = collect_and_overflow
        found[name] = []
        steps(engine, 3, found[name])
    return found


def command_lines(comm: Comm, lines: list[str], folder: str) -> dict[str, Any]:
    """Each as `python -m minidist.LINE` would run it on these ranks; its exit status, what this rank printed, and its
    report. One job for all of them: MPI is started once."""
    found, load = {}, cache(data.load)
    for i, line in enumerate(lines):
        name, *options = line.split()
        report = Path(folder) / f"{comm.size}-{i}.json"
        status: list[int] = []

        def run(
            main: Callable[[Comm, Any], int | None], prepare: Callable[[Comm], Any], status: list[int] = status
        ) -> None:
            status.append(main(comm, prepare(comm)) or 0)
            comm.ledger.check_requests()

        comm.ledger.reset()
        comm.ledger._before.clear()  # a process of its own has sent nothing yet
        arguments = [name, *options, "--json", str(report)]
        with (
            mock.patch.object(sys, "argv", arguments),
            mock.patch("minidist.data.load", load),
            mock.patch("minidist.mpi.run.run", run),
            mock.patch("minidist.programs.chapter.run", run),
            redirect_stdout(io.TextIOWrapper(io.BytesIO(), "utf-8")) as printed,
        ):
            runpy.run_path(str(HOUSE / f"{name}.py"), run_name="__main__")
        printed.seek(0)
        comm.barrier()  # until the report is there
        found[line] = {
            "status": status[0],
            "printed": printed.read(),
            **json.loads(report.read_text(encoding="utf-8")),
        }
    return found

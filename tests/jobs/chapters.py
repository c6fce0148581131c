"""What tests of all chapters run on ranks: their command lines; and gradients that overflow float16."""

import json
from pathlib import Path
from typing import Any

from jobs.engines import ENGINES, batch, model, overflow_on_the_last, settings, states_of
from minidist.engine import Engine
from minidist.mpi.comm import Comm
from minidist.nn.precision import LossScale
from minidist.programs.chapter import find
from ranks import printed


def steps(engine: Engine, n: int, after: list[Any]) -> None:
    """n steps on one batch; after each, what an overflow must change alike on all ranks, or leave as it is."""
    for _ in range(n):
        loss = engine.train_batch(*batch(0, 7))
        seen = {"loss": loss, "scale": engine.loss_scale.scale, "updates": engine.updates}
        after.append({**seen, "held": states_of(engine)})


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
        overflow_on_the_last(comm, engine, engine.units[1].flats[0], element=3)
        found[name] = []
        steps(engine, 3, found[name])
    return found


def command_lines(comm: Comm, lines: list[str], folder: str) -> dict[str, Any]:
    """Each as `python -m minidist.LINE` would run it on these ranks; its exit status, what this rank printed, and its
    report. One job for all of them: MPI is started once."""
    found = {}
    for i, line in enumerate(lines):
        name, *options = line.split()
        report = Path(folder) / f"{comm.size}-{i}.json"
        chapter = find(name)
        comm.ledger.reset()
        comm.ledger._before.clear()  # a process of its own has sent nothing yet
        with printed() as screen:
            status = chapter.work(comm, chapter.prepared([*options, "--json", str(report)], comm)) or 0
            comm.ledger.check_requests()
        comm.barrier()  # until the report is there
        found[line] = {"status": status, "printed": screen.getvalue(), **json.loads(report.read_text(encoding="utf-8"))}
    return found

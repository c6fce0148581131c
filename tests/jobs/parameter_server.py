"""What tests/test_parameter_server.py runs on ranks: small trainings with a parameter server, and the mail."""

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from minidist import parameter_server
from minidist.nn.flat import Flat
from minidist.programs.chapter import find
from minidist.ps.claims import claims
from minidist.ps.engines import Gradients, Whole
from minidist.ps.outcome import TrainedRun


def prepared(arguments: list[str], ranks: int) -> Any:
    return find("parameter_server").prepared(arguments, SimpleNamespace(size=ranks))


def train_all(comm: Any, cases: list[list[str]], naps: bool = False) -> dict[str, Any]:
    """Train with each command line; what came of it by the command line. naps: ranks fall asleep now and then, so that
    messages arrive in another order."""
    results = {}
    if naps:
        compute, rng = Gradients.compute, np.random.default_rng(comm.rank)

        def sleepy(self: Any, job: Any) -> Any:
            time.sleep(0.02 * rng.random())
            return compute(self, job)

        Gradients.compute = sleepy  # type: ignore[method-assign]
    for arguments in cases:
        job, plan = prepared(arguments, comm.size)
        whole = Whole(job, len(plan.servers))
        plan = parameter_server.consistent(plan, job.own.consistency, job.own.staleness)
        outcome = parameter_server.train_once(comm, job, plan, whole.read())
        if outcome:
            results[" ".join(arguments)] = found(whole, outcome)
    return results


def found(whole: Whole, outcome: TrainedRun) -> dict[str, Any]:
    whole.write(outcome)
    return {
        "size": outcome.plan.size,
        "losses": outcome.losses,
        "weights": by_name(list(whole.flats)),
        "seconds": outcome.seconds,
        "idle": outcome.part("held"),
        "reads": [log.reads for log in outcome.logs],
        "ended": [log.ended for log in outcome.logs],
        "pushed": [log.pushed.total() for log in outcome.logs],
        "sent": [[(phase, peer, *counts) for (phase, peer), counts in rank.sent.items()] for rank in outcome.ranks],
        "ranges": [(each.lo, each.hi, each.shard) for each in outcome.plan.ranges],
        "claims": [(claim.claim, claim.expected, claim.counted) for claim in claims(outcome)],
    }


def by_name(flats: list[Flat]) -> dict[str, np.ndarray]:
    return {parameter.name: view.astype(np.float64) for flat in flats for parameter, view in flat.views(flat.master)}


def chapter(comm: Any, arguments: list[str], path: str) -> Any:
    """The whole chapter as the command line runs it: its exit status and its JSON report."""
    status = find("parameter_server").work(comm, prepared([*arguments, "--json", path], comm.size))
    return status, json.loads(Path(path).read_text()) if comm.rank == 0 else None


def chapters(comm: Any, lines: list[list[str]], path: str) -> list[Any]:
    """The same of several command lines, one after the other."""
    found = []
    for arguments in lines:
        found.append(chapter(comm, arguments, path))
        comm.barrier()  # until the report has been read
    return found


def mail(comm: Any) -> list[Any]:
    """Everyone posts a large array to everyone, before anybody receives; then takes what comes."""
    assert comm.probe() is None
    comm.barrier()
    array = np.full(200_000, float(comm.rank))
    with comm.phase("mail"):
        for dest in range(comm.size):
            if dest != comm.rank:
                comm.post(array, dest)
                array += 100  # it has been copied
    got: dict[int, float] = {}
    while len(got) < comm.size - 1:
        source = comm.probe()
        if source is None:
            continue
        out = np.empty(200_000)
        comm.recv(out, source)
        assert (out == out[0]).all()
        got[source] = float(out[0])
    comm.flush()
    return [sorted(got.items()), comm.ledger.by_phase()["mail"]]

"""What tests/test_proofs.py runs on ranks: the proof of a command line, without the training that would follow."""

import shlex
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from minidist.claims.proof import Proof
from minidist.mpi.comm import Comm
from minidist.parameter_server import consistent
from minidist.programs import parameter_server
from minidist.programs.chapter import find
from minidist.programs.proof import prove
from minidist.ps.report import trainings


def proof_of(comm: Comm, line: str, made: list[Any] | None = None) -> Proof | None:
    """On rank 0, what the proof says. made: filled with the engines' pools."""
    name, *options = shlex.split(line)
    chapter = find(name)
    prepared = chapter.prepared(options, comm)
    if name == "parameter_server":
        job, plan = prepared
        whole = parameter_server.Whole(job, len(plan.servers))
        plan = replace(plan, first_step=whole.steps, first_update=whole.updates)
        return parameter_server.prove_servers(comm, job, consistent(plan, *trainings(plan.own)[0]))

    def make(small: Any, comm: Any) -> Any:
        driver = chapter.make(small, comm)
        if made is not None:
            made.extend(driver.engine.pools)
        return driver

    with prepared.reserved or nullcontext():
        return prove(comm, prepared, make, chapter.serial(prepared))


def in_words(proof: Proof | None) -> Any:
    """What a test looks at."""
    assert proof
    return {"differs": proof.differs, "agree": proof.agree, "left out": proof.left_out}


def prove_all(comm: Comm, lines: list[str]) -> dict[str, Any]:
    """On rank 0, what the proof of each line says."""
    found = {line: proof_of(comm, line) for line in lines}
    comm.ledger.check_requests()
    phases = {phase for (kind, phase, *_) in comm.ledger.ever() if kind == "payload"}
    assert phases <= {"proof"}, phases
    return {line: in_words(proof) for line, proof in found.items()} if comm.rank == 0 else {}


def left_behind(comm: Comm, line: str) -> list[dict[str, int]]:
    """What this rank's pools of the proof still hold when it is over, without a collection of cycles."""
    pools: list[Any] = []
    proof_of(comm, line, pools)
    return [{kind: nbytes for kind, nbytes in pool.held.items() if nbytes} for pool in pools]

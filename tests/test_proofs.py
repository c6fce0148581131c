"""A run proves its numbers: every chapter and case, on 1 to 8 ranks, in both doors; and a proof that fails says why."""

import gc
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jobs import proofs as jobs
from minidist import UsageError, data
from minidist.claims import proof
from minidist.claims.audit import SMALL, fill_line, list_lines
from minidist.claims.proof import Proof, Size, Taken, proof_claims
from minidist.claims.run import Asked
from minidist.exchange.rules import Rules
from minidist.exchange.threads import run_threads
from minidist.launch.launcher import launch
from minidist.layout import Layout
from minidist.programs.chapter import find, find_all
from sampling import shard_of_this_run

RANKS = (1, 2, 3, 4, 8)
TRAINING = {name: chapter for name, chapter in find_all().items() if chapter.trains and name != "train"}
CASES = [
    (n, fill_line(name, f"{line} --prove", n))
    for name, lines in list_lines(TRAINING).items()
    for n in TRAINING[name].ranks or RANKS[name == "parameter_server" :]
    for line in lines.values()
]
USUAL = "--steps 6 --layers 2 --width 16 --heads 4 --context 16 --batch 16 --prove"
OTHERS = [
    (4, f"{name} {USUAL} {options}")
    for name, options in (
        ("data_parallel", "--model llama --kv-heads 2 --dropout 0.1 --accumulate 4"),
        ("data_parallel", "--untied --clip 0 --optimizer sgd --bucket-size 100"),
        ("zero1", "--bucket-size 1000 --model llama --dropout 0.2"),
        ("zero2", "--optimizer sgd --untied --recompute selective --dropout 0.2 --clip 0.1"),
        ("zero3", "--keep-last --recompute log"),
        ("zero3", "--persist 20 --ahead 500 --live 5000"),
        ("zero3", "--recompute every:2 --precision fp64"),
        ("zero3", "--recompute sqrt --precision fp32 --clip 0.01"),
        ("fsdp", "--strategy shard_grad_op --accumulate 4 --no-sync"),
        ("fsdp", "--strategy no_shard --dropout 0.1"),
        ("fsdp", "--strategy hybrid_shard --experts 4 --capacity 1.0 --prefetch 2 --backward-prefetch post"),
        ("fsdp", "--strategy hybrid_shard --cp 2 --experts 8 --positions striped --dropout 0.1"),
        ("offload", "--delayed-update 2 --accumulate 2"),
        ("offload", "--delayed-update 0 --zero 3 --parameters host"),
        ("offload", "--zero 3 --persist 10 --ahead 1000"),
        ("infinity", "--zero 1 --accumulate 2 --dropout 0.1 --recompute full"),
        ("tensor_parallel", "--gather-logits --dropout 0.1 --untied"),
        ("tensor_parallel", "--sequence-parallel --model llama --kv-heads 4 --recompute selective"),
        ("zero_r", "--zero 3 --sequence-parallel --activations device --scattered"),
        ("zero_r", "--zero 1 --tp 4 --dropout 0.1 --activations host"),
        ("context_parallel", "--cp 2 --zero 2 --dropout 0.1 --model llama --kv-heads 2 --positions striped"),
        ("context_parallel", "--scheme all-gather --untied --recompute full"),
        ("expert_parallel", "--capacity 0.5 --top 1 --ep 2 --zero 2 --dropout 0.1"),
        ("expert_parallel", "--ranks-per-host 2 --host-limit 1 --top 4 --capacity 1.5"),
        ("expert_parallel", "--balance 0 --experts 2 --top 1 --zero 0 --model llama"),
        ("local_sgd", "--every 1 --outer-lr 0.7 --outer-momentum 0.9 --dropout 0.1"),
        ("local_sgd", "--every 7 --accumulate 2 --optimizer sgd --clip 0"),
        ("pipeline", "--schedule pipedream --replicas 2,1,1"),
        ("pipeline", "--schedule pipedream --replicas 1,3 --micro-batches 3 --batch 15 --dropout 0.1"),
        ("pipeline", "--schedule pipedream --replicas auto --dropout 0.1"),
        ("pipeline", "--schedule pipedream --micro-batches 4"),
        ("pipeline", "--schedule 2bw --recompute full"),
        ("pipeline", "--schedule zb-v --layers 6 --recompute log --dropout 0.1"),
        ("pipeline", "--schedule llama3 --layers 6 --contiguous 6 -m 16 --untied"),
        ("pipeline", "--schedule dualpipe --batch 16 --model llama"),
        ("parallel3d", "--dp 2 --pp 1 --tp 2 --experts 8 --sequence-parallel --capacity 1"),
        ("parallel3d", "--dp 1 --pp 2 --tp 2 --sequence-parallel --dropout 0.1"),
        ("parallel3d", "--dp 4 --pp 1 --tp 1 --zero 3 --ranks-per-host 2 --experts 8"),
        ("parallel3d", "--dp 1 --pp 2 --cp 2 --tp 1 --experts 8 --ep 2 --schedule zb-h1"),
        ("parallel3d", "--dp 1 --pp 1 --cp 2 --tp 2 --scheme all-gather --model llama --sequence-parallel"),
        ("parallel3d", "--dp 2 --pp 2 --tp 1 --model llama --zero 3 --schedule interleaved --layers 4"),
        ("parameter_server", "--consistency async --servers 2 --slow 0:5 --jitter 0"),
        ("parameter_server", "--colocated --consistency ssp --staleness 1 --placement hash --virtual 4"),
        ("parameter_server", "--servers 2 --replicas 1 --consistency async --optimizer sgd"),
        ("parameter_server", "--filter 1e-3 --consistency async"),
        ("parameter_server", "--filter 1e-3 --accumulate 2 --dropout 0.1"),
        ("parameter_server", "--local-steps 2 --consistency ssp"),
        ("parameter_server", "--local-steps 3 --clip 0.01 --keys cached"),
        ("parameter_server", "--servers 2 --replicas 1 --stop 3:9 --consistency ssp"),
    )
]
EVERY = [*CASES, *OTHERS]
SHARD = shard_of_this_run(EVERY, 8)


@pytest.fixture(autouse=True)
def one_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "load", cache(data.load))


def on_threads(n: int, line: str) -> Any:
    return run_threads(partial(jobs.prove_all, lines=[line]), n, Rules("synchronous", "contrary"))[0][line]


def check(found: dict[str, Any]) -> None:
    assert found["differs"] == {}
    assert not found["left out"]
    assert found["agree"].keys() >= {"losses", "parameters"}
    assert all(count == agree > 0 for count, agree in found["agree"].values())


def marked(pairs: list[tuple[int, str]]) -> list[Any]:
    return [
        pytest.param(n, line, id=f"{n}-{line.replace(USUAL, '')}", marks=[pytest.mark.slow] * ((n, line) not in SHARD))
        for n, line in pairs
    ]


@pytest.mark.parametrize(("n", "line"), marked(EVERY))
def test_a_run_proves_itself(n: int, line: str) -> None:
    check(on_threads(n, line))


@pytest.mark.parametrize("n", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 4, 8))])
def test_and_over_mpi(n: int) -> None:
    """In one job, which starts MPI once."""
    lines = [line for of, line in (shard_of_this_run(CASES, 4) if n == 3 else CASES) if of == n]
    found = launch("jobs.proofs:prove_all", n, lines, timeout=400).values[0]
    assert found.keys() == {*lines}
    for of_line in found.values():
        check(of_line)

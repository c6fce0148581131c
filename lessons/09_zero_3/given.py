"""What lesson 09's notebook starts from, runs and counts. The answers to its gaps are in answers.py."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from minidist.classroom.notebook.watch import watch
from minidist.engine import Settings
from minidist.mpi.comm import Comm
from minidist.nn.gpt import GPTConfig, gpt
from minidist.papers import zero

Array = np.ndarray


Moment = tuple[str, str, int, int]  # direction, unit, bytes of gathered parameters, and of unreduced gradients
TOKENS = np.random.default_rng(0).integers(0, 64, (16, 65))  # 16 sequences of 64, and targets


def start(layers: int, width: int, batch: int) -> tuple[list[Array], Array, Array]:
    """Weights, and a batch with its targets: the same wherever this is called."""
    random = np.random.default_rng(0)
    weights = [random.standard_normal((width, width)) / width**0.5 for _ in range(layers)]
    x, y = random.standard_normal((2, batch, width))
    return weights, x, np.tanh(y)


def transformer() -> list[Any]:
    """The units of a small GPT, whose head is not tied."""
    return gpt(GPTConfig(vocabulary=64, context=64, layers=6, heads=4, width=64, tied=False))


def sent_by(comm: Comm) -> dict[str, int]:
    """The bytes that this rank has sent, by phase."""
    return {phase: counted["bytes"] for phase, counted in comm.ledger.by_phase().items()}


def look(engine: Any, flat: Any) -> Moment:
    """What a rank holds in addition to its shards, with the engine's direction and the unit."""
    arrays = [[getattr(other, kind) for other in engine.flats] for kind in ("gathered", "bucket")]
    gathered, bucket = (sum(array.nbytes for array in of_kind if array is not None) for of_kind in arrays)
    return engine.direction, flat.name, gathered, bucket


def step_of(make: Any, comm: Comm) -> tuple[list[Moment], dict[str, int], dict[str, int]]:
    """One step of the transformer with this engine: what `look` saw after each call of a method, the most bytes at a
    time by kind, and the bytes sent by phase."""
    watched = watch(make, ("parameters_of", "forget", "collect", "reduce"), look)
    engine = watched(transformer(), Settings(), comm)
    engine.history.clear()
    comm.ledger.reset()
    engine.train_batch(TOKENS[:, :-1], TOKENS[:, 1:])
    return engine.history, engine.peak_bytes(), sent_by(comm)


def count_step(make: Any, comm: Comm, parts: int = 1) -> dict[str, int]:
    """The bytes that this rank sends in one step of the transformer whose batch comes in parts, by phase."""
    engine = make(transformer(), Settings(accumulate=parts), comm)
    comm.ledger.reset()
    engine.train_batch(TOKENS[:, :-1], TOKENS[:, 1:])
    return sent_by(comm)


def claim_thirds(sent: Sequence[Mapping[str, Mapping[str, int]]], third: int) -> None:
    """Every rank sends the same number of bytes in each of three phases."""
    for of_rank in sent:
        assert list(of_rank) == ["all-gather forward", "all-gather backward", "reduce-scatter gradients"]
        assert [counted["bytes"] for counted in of_rank.values()] == [third] * 3


def claim_one_at_a_time(history: Sequence[Sequence[Moment]], sizes: Mapping[str, int]) -> None:
    """At each moment a rank holds this unit's parameters, its gradient, both or neither; at the end neither."""
    for of_rank in history:
        for _, unit, gathered, bucket in of_rank:
            assert {gathered, bucket} <= {0, 2 * sizes[unit]}
        assert max(gathered + bucket for _, _, gathered, bucket in of_rank) == 4 * max(sizes.values())
        assert of_rank[-1][2:] == (0, 0)


def claim_figure_1(held: Mapping[tuple[str, int], list[int]], stages: Sequence[str], psi: int) -> None:
    """Each of 64 ranks holds what the paper's formula says, and that is what its Figure 1 prints for 7.5 billion."""
    for (name, _), states in held.items():
        stage = stages.index(name)
        promised = zero.model_states(psi, 64, stage)
        assert states == [promised.parameters, promised.gradients, promised.optimizer]
        assert zero.FIGURE_1[stage].agrees(7.5 * sum(states) / psi)


def claim_traffic(
    traffic: Sequence[Mapping[tuple[str, int], Mapping[str, int]]],
    in_parts: Sequence[Mapping[tuple[str, int], Mapping[str, int]]],
    stages: Sequence[str],
    padded: Callable[[int], int],
) -> None:
    """What every rank sends in a step, by phase: 2 psi, 2 psi, (a+1) psi and 3a psi, times (N-1)/N, and the norm.

    traffic: for each rank, by stage and number of ranks. in_parts: for each of 4 ranks, by stage and micro-batches.
    """
    cases = [(name, n, 1, sent) for of_rank in traffic for (name, n), sent in of_rank.items()]
    cases += [(name, 4, a, sent) for of_rank in in_parts for (name, a), sent in of_rank.items()]
    for name, n, a, sent in cases:
        stage = stages.index(name)
        norm = {"norm": 8 * (n - 1)} if stage else {}
        promised = zero.volume(padded(n), n, stage, accumulate=a)
        assert sent == {phase: 2 * numbers for phase, numbers in promised.items()} | norm

"""A run proves its numbers before it begins: its own layout takes a few steps, and so does one process.

Counts of bytes and of memory do not see a wrong gradient, and a loss falls with one, too. So before it trains, each
chapter takes two steps in float64 on a small batch whose rows and positions are shared unequally. Rank 0 takes the same
steps alone, with fresh units and the chapter's serial form (`minidist/programs/serial.py`). In float64 the layout of
ranks changes only the order of sums. So losses, the norm of the gradient, the first step's gradient of each parameter,
and each parameter after the last step agree to 1e-11, or there is a bug, and its factor often names it
(`minidist/claims/layouts.py`).

Every rank sends what it holds to rank 0, which lays the pieces over its own arrays: no rank is believed for another,
and of copies that differ the worst counts. All this is one phase, `proof`, outside the claims about a step.
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from minidist.checkpoints.pieces import Piece, pieces
from minidist.claims.claim import Claim
from minidist.claims.layouts import tell
from minidist.formulas.asked import Asked
from minidist.layout import Layout
from minidist.nn.layers import Tokens
from minidist.nn.optim import clipping_factor

Array = np.ndarray

GRADIENT = "gradient of "
TOLERANCE = 1e-11  # relative, in float64: a sum in another order is off by about 1e-15
# Of the run's first loss: relative, and for a loss below 1 absolute, by how the run computes.
FIRST_LOSS = {"mixed": 5e-4, "bf16": 5e-3, "fp32": 1e-5, "fp64": TOLERANCE}
MOST_RANKS = 64  # on which a proof is made unless it is asked for
MOST_SECONDS = 1.0  # likewise, by the formula below
NAP = 5e-4  # seconds between two looks
POSITIONS = 13  # of a sequence, at least; an odd number, so that ranks have unequal shares


# ---- how large it is -------------------------------------------------------------------------------------------------


class Size(NamedTuple):
    """The small batch of a proof."""

    steps: int
    micro_batches: int
    rows: int  # of a micro-batch
    positions: int  # of a sequence

    @property
    def tokens(self) -> int:
        """Of all steps."""
        return self.steps * self.micro_batches * self.rows * self.positions


def size_of(asked: Asked, steps: int, micro_batches: int | None, shorter: bool) -> Size:
    """A row more than ranks that share them, and an odd number of positions, more than two to a context rank. With
    sequence parallelism it must be a multiple of t. micro_batches: None: two, if there are several. shorter: whether
    sequences may be shorter than the run's."""
    at = asked.layout
    positions = min(asked.context, max(POSITIONS, 4 * at.cp + 1)) if shorter else asked.context
    if asked.sequence_parallel:
        positions -= positions % at.tp
    elif shorter and positions > at.cp:
        positions -= positions % 2 == 0
    return Size(steps, micro_batches or min(asked.accumulate, 2), at.dp + 1, positions)


# Seconds on a core that other programs leave alone, as measured once: they need only be right within a factor of two.
A_FLOP = 7e-11
A_UNIT = 1.3e-3  # forward and backward of a small unit; an expert adds half of that
A_STATE = 3e-8  # to draw, update, send and compare a parameter
A_RANGE = 1.5e-3  # of keys: a parameter server's messages with one worker in one iteration


def seconds(asked: Asked, size: Size) -> float:
    """About how long a proof takes: rank 0 works alone; ranks share their work, and two of them work at a time."""
    at, model = asked.layout, asked.model
    flops = (
        6 * model.active() * size.tokens * 3 / 2 + 2 * model.active() * asked.batch * asked.context
    )  # the first loss
    units, experts = (model.layers + 2) * size.steps * size.micro_batches, model.experts / 2
    found = A_FLOP * flops + A_UNIT * units * (1 + experts + at.ranks / at.pp / 2 * (1 + experts / at.ep))
    if asked.chapter == "parameter_server":
        k = at.servers or at.ranks
        ranges = model.layers + 2 + k * asked.virtual
        found += A_RANGE * ranges * at.dp * size.steps
    return found + A_STATE * model.parameters() * (2 + at.ranks)


def why_left_out(asked: Asked, size: Size) -> str:
    """Why a run is not proved unless it is asked for; "" if it is."""
    if asked.ranks > MOST_RANKS:
        return f"{asked.ranks} ranks are more than {MOST_RANKS}: use --prove"
    if (takes := seconds(asked, size)) > MOST_SECONDS:
        return f"it would take about {takes:.0f} s: use --prove"
    return ""


# ---- what ranks hold -------------------------------------------------------------------------------------------------


@dataclass
class Taken:
    """The steps that a rank has taken, as far as they are compared."""

    losses: list[float] = field(default_factory=list)  # its parts of them
    norms: list[float] = field(default_factory=list)  # of the gradient, before it is clipped
    pieces: dict[str, list[tuple[Piece, Array]]] = field(default_factory=dict)  # of gradients and parameters, by name


def take_steps(driver: Any, batches: Sequence[tuple[Tokens, Tokens]], gradients: bool) -> Taken:
    """Take a step with each batch. gradients: whether those of the first step are compared."""
    engine, taken = driver.engine, Taken()
    for x, y in batches:
        taken.losses.append(driver.train_batch(x, y))
        taken.norms.append(engine.norm)
        if gradients and len(taken.losses) == 1 and engine.settings.optimizer.moments:
            note_pieces(taken, engine, GRADIENT, [flat.moments[0] for flat in engine.flats])
    engine.settle()
    note_pieces(taken, engine, "", [flat.master for flat in engine.flats])
    return taken


def note_pieces(taken: Taken, engine: Any, kind: str, arrays: Sequence[Array]) -> None:
    """Note this rank's pieces of arrays of its Flats, by their parameters' names. The gradient itself is gone after the
    update. But a fresh optimizer's first moment is a multiple of it, which clipping has made smaller."""
    clipped = clipping_factor(engine.norm, engine.settings.clip) if kind else 1.0
    for flat, array in zip(engine.flats, arrays, strict=True):
        for name, piece, at in pieces(flat, engine.piece(flat)):
            taken.pieces.setdefault(kind + name, []).append((piece, array[at] / clipped))


def send(comm: Any, taken: Taken) -> None:
    """Send what this rank has taken to rank 0, when it asks. Until then sleep: rank 0 works, and needs the core."""
    while comm.probe() is None:
        time.sleep(NAP)
    comm.recv(np.empty(0), 0)
    flat = [(name, *each) for name, held in taken.pieces.items() for each in held]
    comm.send_object((taken.losses, taken.norms, [(name, piece, array.size) for name, piece, array in flat]), 0)
    comm.send(np.concatenate([np.empty(0), *(array for *_, array in flat)]), 0)


def receive(comm: Any, mine: Taken) -> Iterator[Taken]:
    """On rank 0: what each rank has taken, one after another."""
    yield mine
    for source in range(1, comm.size):
        comm.send(np.empty(0), source)
        losses, norms, listed = comm.recv_object(source)
        comm.recv(arrived := np.empty(sum(size for *_, size in listed)), source)
        taken, start = Taken(losses, norms), 0
        for name, piece, size in listed:
            taken.pieces.setdefault(name, []).append((piece, arrived[start : start + size]))
            start += size
        yield taken


def lay_over(found: Array, covered: Array, truth: Array, piece: Piece, held: Array) -> None:
    """Lay a rank's piece over an array (all of it, flat); of copies that differ, the one that is further from the truth
    stays. What no rank holds is not covered."""
    begin, place, length = piece.runs().T
    before = np.cumsum(length) - length
    inside, there = (np.arange(length.sum()) + np.repeat(first - before, length) for first in (begin, place))
    own = held[inside]
    worse = ~(np.abs(own - truth[there]) <= np.abs(found[there] - truth[there])) & ~np.isnan(found[there])
    found[there[worse]] = own[worse]
    covered[there] = True


# ---- and whether it is the same --------------------------------------------------------------------------------------


@dataclass
class Proof:
    """What was compared, and what of it agrees."""

    size: Size
    left_out: str = ""  # why there was none
    first: float = math.nan  # the run's first loss, by one process in float64
    agree: dict[str, tuple[int, int]] = field(default_factory=dict)  # losses, …: how many, and how many of them agree
    differs: dict[str, str] = field(default_factory=dict)  # the first difference among them, in words

    def note(self, what: str, lines: Sequence[str]) -> None:
        """lines: for each thing that was compared, how it differs, or ""."""
        told = [line for line in lines if line]
        self.agree[what] = (len(lines), len(lines) - len(told))
        if told:
            self.differs[what] = told[0]


def compare(size: Size, everyone: Iterator[Taken], alone: Taken, at: Layout, one_norm: bool) -> Proof:
    """Compare what all ranks have taken with what one process has. one_norm: whether the ranks have one norm."""
    truth = {name: whole(held) for name, held in alone.pieces.items()}
    found = {name: array.copy() for name, array in truth.items()}
    covered = {name: np.zeros(array.size, bool) for name, array in truth.items()}
    losses, norms = np.zeros(size.steps), []
    for taken in everyone:
        losses += taken.losses
        norms.append(taken.norms)
        for name, held in taken.pieces.items():
            for piece, array in held if name in truth else ():
                lay_over(found[name], covered[name], truth[name], piece, array)
    axes = {axis: n for axis in ("dp", "pp", "cp", "tp", "ep") if (n := getattr(at, axis)) > 1}
    axes |= {"micro-batches": size.micro_batches} if size.micro_batches > 1 else {}

    def differs(name: str, one: Array, other: Array) -> str:
        return tell(name, {name: one}, {name: other}, axes, {}, TOLERANCE).strip()

    def of_steps(found: Sequence[float], truth: Sequence[float]) -> list[str]:
        """Only the first step's factor says something: later ones come after a wrong update."""
        lines = [differs("step 1", np.array(x), np.array(y)) for x, y in zip(found, truth, strict=True)]
        return [line and (line if i == 0 else f"from step {i + 1} on") for i, line in enumerate(lines)]

    made = Proof(size)
    made.note("losses", of_steps(losses.tolist(), alone.losses))
    if one_norm:
        worst = [max(of_step, key=lambda norm: abs(norm - x)) for *of_step, x in zip(*norms, alone.norms, strict=True)]
        made.note("norms", of_steps(worst, alone.norms))
    lines: dict[str, str] = {}
    for name, array in truth.items():
        line = differs(name, found[name], array) if covered[name].all() else f"{name}: no rank holds all of it"
        parameter = name.removeprefix(GRADIENT)
        lines[parameter] = lines.get(parameter) or line
    made.note("parameters", sorted(lines.values(), key=lambda line: not line.startswith(GRADIENT)))
    return made


def whole(held: Sequence[tuple[Piece, Array]]) -> Array:
    """An array, flat, of one process, which holds it in one piece."""
    [(_, array)] = held
    return array


# ---- in the report ---------------------------------------------------------------------------------------------------


def proof_claims(proof: Proof | None, losses: Sequence[float], precision: str) -> list[Claim]:
    """What was compared, and the first loss of the run itself, in its own precision."""
    if proof is None or proof.left_out:
        return []
    made = [
        Claim("in addition", f"proof: {what}", proof.differs.get(what, "one process's"), *counts, "", "all ranks")
        for what, counts in proof.agree.items()
    ]
    within = FIRST_LOSS[precision]
    formula = f"one process's ± {within:g}"
    return [*made, Claim("in addition", "proof: first loss", formula, proof.first, losses[0], "", "all ranks", within)]


def print_proof(proof: Proof | None) -> None:
    """A line that says what was proved, or why nothing was."""
    if proof and proof.left_out:
        print(f"not proved      {proof.left_out}")
    elif proof and not proof.differs:
        steps, m, rows, positions = proof.size
        print(f"proved          {steps} steps of {m * rows} x {positions} characters, in float64 and in one process")

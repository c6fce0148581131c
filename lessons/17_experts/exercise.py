"""Exercise 17: experts. Rows for tokens, a loss that balances, the way to other ranks, and the right sums.

Fill in the eleven functions; `pytest lessons/17_experts` says how many points they earn. None needs another. Do not
change the arguments, except where a function works in place.

n tokens of width h choose k of E experts each. These are k·n choices: choice j·n + t is the j-th choice of token t, so
all first choices come before all second ones. Each choice becomes a row, and rows are sorted by expert. Send with
`minidist.ring`: `all_to_all_v(comm, parts, rooms)` sends parts[i] to rank i, and what rank i sends fills rooms[i], an
array of its shape and dtype; also this rank's own. Parts and rooms are contiguous, as slices of whole rows are.
`chunk(E, P, r)` is a slice: the experts of rank r of P. `all_reduce(comm, x, x)` sums a flat array x over the ranks in
place. Rows may be float32 or float64, and stay what they are.
"""

from collections.abc import Sequence

import numpy as np

from minidist import ring  # noqa: F401
from minidist.mpi.comm import Comm

Array = np.ndarray


# ---- first part: rows ------------------------------------------------------------------------------------------------


def arrange(expert: Array, experts: int, capacity: int) -> tuple[Array, Array]:
    """(slot, place): the choice in each row, and the row of each choice. Two arrays of integers.

    expert (m,): the expert of each choice, in the order in which choices are served; from 0 to experts - 1
    capacity: rows for each expert. Expert e has the rows e * capacity to (e + 1) * capacity - 1, and its choices fill
    them without a gap. A choice that finds all of them taken is dropped.

    slot (experts * capacity,): -1 if the row is empty
    place (m,): -1 if the choice is dropped
    """
    raise NotImplementedError


def copy_rows(x: Array, slot: Array) -> Array:
    """The rows (R, h): copies of tokens x (n, h). slot (R,) as in arrange; an empty row is zeros."""
    raise NotImplementedError


def copy_rows_backward(drows: Array, slot: Array, n: int) -> Array:
    """dx (n, h), from the gradient of the rows (R, h)."""
    raise NotImplementedError


def add_rows(rows: Array, gates: Array, place: Array) -> Array:
    """y (n, h): for each token the sum of its choices' rows (R, h), each times its gate. A dropped choice adds nothing.

    gates (k, n): gates[j, t] belongs to choice j·n + t. place (k·n,) as in arrange.
    """
    raise NotImplementedError


def add_rows_backward(dy: Array, rows: Array, gates: Array, place: Array) -> tuple[Array, Array]:
    """(drows (R, h), dgates (k, n)), from dy (n, h). The gradient of an empty row is 0, and so is the gradient of a
    dropped choice's gate."""
    raise NotImplementedError


# ---- second part: balance --------------------------------------------------------------------------------------------


def count_shares(comm: Comm, expert: Array, experts: int) -> Array:
    """f (experts,), float64: each expert's share of all choices of all ranks. expert (m,): this rank's choices."""
    raise NotImplementedError


def balance_loss(prob: Array, share: Array, alpha: float) -> float:
    """α·E·Σ f P, with f = share (E,), and P the mean over the tokens of the router's probabilities prob (n, E)."""
    raise NotImplementedError


def balance_backward(prob: Array, share: Array, alpha: float) -> Array:
    """The gradient of balance_loss by the router's logits (n, E); prob is their softmax. share has no gradient."""
    raise NotImplementedError


# ---- third part: ranks -----------------------------------------------------------------------------------------------


def dispatch(comm: Comm, rows: Array, counts: Array) -> tuple[Array, Array]:
    """Send rows to the ranks that have their experts: (arrived, coming).

    rows (R, h): this rank's, sorted by expert; counts (E,): how many of them are for each of all E experts
    Rank r has the experts of the slice ring.chunk(E, comm.size, r). It does not know yet how many rows will come: first
    the ranks tell each other, in integers of at most 8 bytes.

    arrived (S, h): all ranks' rows for the experts of this rank, sorted by expert. Rows for one expert stand in the
    order of the ranks that sent them.

    coming (P, experts here): how many of them came from each of the P ranks, for each expert of this rank
    """
    raise NotImplementedError


def combine(comm: Comm, rows: Array, coming: Array, counts: Array) -> Array:
    """The way back: (R, h), in the order in which dispatch took them.

    rows (S, h): in the order in which dispatch returned them; coming and counts as there.
    """
    raise NotImplementedError


def sum_gradients(dense: Sequence[Array], experts: Sequence[Array], world: Comm, copies: Comm) -> None:
    """Make every gradient the one of the whole batch's loss, in place. All arrays are flat, (S,).

    Each rank's loss is the mean over its own tokens. All ranks have the same number of tokens, so the loss of the whole
    batch is the mean of the ranks' losses.

    dense: gradients of parameters that all ranks of `world` have; each rank's is the one of its own loss
    experts: gradients of the experts that are here. `copies` are the ranks that have the same ones, this one included.
    An expert's gradient already holds what the tokens of all ranks have added that send their rows here.
    """
    raise NotImplementedError

"""What the graded parts let the ranks do with a student's functions. No points are given here."""

from types import ModuleType
from typing import Any

import numpy as np

from minidist.classroom.grading.ranks import calls, returned
from minidist.mpi.comm import Comm

Array = np.ndarray


alone = calls(on_ranks=("count_shares", "dispatch", "combine", "to_experts", "to_tokens"))


def call(comm: Comm, exercise: ModuleType, mine: list[Any], function: str, group: int = 0) -> dict[str, Any]:
    """What the function returned, and what became of the arrays that it got. group: of sum_gradients, P: ranks with the
    same number modulo P have the same experts."""
    return sums(comm, exercise, mine, group) if function == "sum_gradients" else alone(comm, exercise, mine, function)


def sums(comm: Comm, exercise: ModuleType, mine: list[list[Array]], group: int) -> dict[str, Any]:
    """Gradients afterwards, dense ones first: those in the lists, and the arrays that were in them before."""
    dense, experts = ([gradient.copy() for gradient in gradients] for gradients in mine)
    handed = [*dense, *experts]
    copies = comm.split(comm.rank % group)
    exercise.sum_gradients(dense, experts, comm, copies)
    return {"returned": [returned(gradient) for gradient in (*dense, *experts)], "handed": handed}


# ---- all functions together ------------------------------------------------------------------------------------------


def softmax(logits: Array) -> Array:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def layer(
    comm: Comm, exercise: ModuleType, mine: list[Array], group: int, k: int, capacity: int, alpha: float
) -> dict[str, Any]:
    """A mixture, forward and backward; `group` ranks share the experts. mine: x, dy (n, h), the router (h, E), and the
    matrices of the experts that are here (experts, h, h). The loss is Σ dy·y and the balance loss."""
    x, dy, router, matrices = mine
    peers, copies = comm.split(comm.rank // group), comm.split(comm.rank % group)
    (n, h), experts = x.shape, router.shape[1]
    prob = softmax(x @ router)
    chosen = np.argsort(-prob, axis=1, kind="stable")[:, :k].T  # (k, n)
    expert, gates = chosen.reshape(-1), prob[np.arange(n), chosen]
    slot, place = exercise.arrange(expert, experts, capacity)
    counts = np.full(experts, capacity)
    arrived, coming = exercise.dispatch(peers, exercise.copy_rows(x, slot), counts)
    ends = np.cumsum(coming.sum(axis=0))[:-1]
    results = [rows @ matrix for rows, matrix in zip(np.split(arrived, ends), matrices, strict=True)]
    rows = exercise.combine(peers, np.concatenate(results), coming, counts)
    y = exercise.add_rows(rows, gates, place)
    share = exercise.count_shares(comm, expert, experts)
    balance = exercise.balance_loss(prob, share, alpha)

    drows, dgates = exercise.add_rows_backward(dy, rows, gates, place)
    dresults, coming = exercise.dispatch(peers, drows, counts)
    parts = [*zip(np.split(arrived, ends), np.split(dresults, ends), matrices, strict=True)]
    dmatrices = [(rows.T @ dpart).reshape(-1) for rows, dpart, _ in parts]
    darrived = np.concatenate([dpart @ matrix.T for _, dpart, matrix in parts])
    dx = exercise.copy_rows_backward(exercise.combine(peers, darrived, coming, counts), slot, n)
    dprob = np.zeros_like(prob)
    dprob[np.arange(n), chosen] = dgates
    dlogits = prob * (dprob - (dprob * prob).sum(axis=1, keepdims=True))
    dlogits += exercise.balance_backward(prob, share, alpha)
    drouter = (x.T @ dlogits).reshape(-1)
    exercise.sum_gradients([drouter], dmatrices, comm, copies)
    return {
        "loss": float((dy * y).sum() + balance),
        "dx": returned(dx + dlogits @ router.T),
        "drouter": returned(drouter.reshape(router.shape)),
        "dmatrices": [returned(each.reshape(h, h)) for each in dmatrices],
    }


# ---- the notebook's gaps ---------------------------------------------------------------------------------------------


def averaged(comm: Comm, exercise: ModuleType, mine: list[Array], group: int) -> list[Any]:
    """A dense gradient and an expert's, afterwards."""
    copies, found = comm.split(comm.rank % group), []
    for is_expert, gradient in enumerate(mine):
        handed = gradient.copy()
        exercise.average(handed, bool(is_expert), comm, copies)
        found.append(handed)
    return found

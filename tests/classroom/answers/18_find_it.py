"""A right answer to exercise 18."""

import numpy as np

from minidist.bugs.handle import Handle, Result

EXACT = 1e-9


def distance(x: np.ndarray, y: np.ndarray) -> float:
    """Relative to y."""
    return float(np.linalg.norm(x - y) / (np.linalg.norm(y) or 1.0))


def compare_gradients(found: Result, right: Result, what: str) -> None:
    for name, gradient in right.gradients.items():
        off = distance(found.gradients[name], gradient)
        assert off <= EXACT, f"{what}: the gradient of {name} is off by {off:.2g}"


def check_gradients(run: Handle) -> None:
    compare_gradients(run({run.axis: 2}), run(), "two ranks")


def check_norms(run: Handle) -> None:
    [right] = run().norms
    for rank, norm in enumerate(run({run.axis: 2}).norms):
        assert abs(norm / right - 1) <= EXACT, f"rank {rank} clips by {norm:.6g}, not {right:.6g}"


def check_sizes(run: Handle) -> None:
    one = {"micro": 1} if "micro" in run.axes else {}
    right = run(one, batch=9)
    for n in run.axes[run.axis][1:]:
        compare_gradients(run({**one, run.axis: n}, batch=9), right, f"{n} ranks, 9 sequences")


def check_memory(run: Handle) -> None:
    whole, [part, *_] = run().memory[0], run({run.axis: 2}).memory
    for kind in ("optimizer", "gradients", "parameters")[: run.zero]:
        assert part[kind] <= 0.6 * whole[kind], f"{kind}: {part[kind]:,} of {whole[kind]:,} bytes on one of two ranks"


def check_precision(run: Handle) -> None:
    exact = run(optimizer="sgd", steps=8)
    stored = run({run.axis: 2}, precision=run.precision, optimizer="sgd", steps=8)
    assert len(set(stored.scales)) == 1, f"ranks have the scales {stored.scales}"
    falls = [result.losses[0] - result.losses[-1] for result in (exact, stored)]
    assert falls[1] > 0.2 * falls[0], f"the loss falls by {falls[1]:.2g}, and by {falls[0]:.2g} in float64"


def check_checkpoint(run: Handle) -> None:
    straight, resumed = run({run.axis: 2}, steps=4), run({run.axis: 2}, steps=4, resume_at=2)
    off = abs(resumed.losses[-1] / straight.losses[-1] - 1)
    assert off <= EXACT, f"after a resume the loss is off by {off:.2g}"

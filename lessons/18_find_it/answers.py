"""Lesson 18's own functions, which the notebook uses where a gap is open: look here after you have tried."""

from collections.abc import Mapping, Sequence

import numpy as np

from minidist.bugs.handle import Handle

Array = np.ndarray
EXACT = 1e-9


# ---- the gaps --------------------------------------------------------------------------------------------------------


def distance(x: Array, y: Array) -> float:
    return float(np.linalg.norm(x - y) / (np.linalg.norm(y) or 1.0))


def first_difference(losses: Sequence[float], right: Sequence[float], tolerance: float) -> int:
    for step, (x, y) in enumerate(zip(losses, right, strict=True), start=1):
        if not abs(x / y - 1) <= tolerance:
            return step
    return 0


def factor(x: Array, y: Array) -> float:
    f = float(x @ y) / float(y @ y)
    return f if np.allclose(x, f * y, rtol=0, atol=1e-9 * np.abs(y).max()) else 0.0


def unequal_copies(parameters: Sequence[Mapping[str, Array]]) -> list[str]:
    first, *others = parameters
    return [name for name in first if any(name in of and not np.array_equal(of[name], first[name]) for of in others)]


# ---- the exercise ----------------------------------------------------------------------------------------------------


def check_gradients(run: Handle) -> None:
    right = run().gradients
    for name, gradient in run({run.axis: 2}).gradients.items():
        assert distance(gradient, right[name]) <= EXACT, f"the gradient of {name}"


def check_norms(run: Handle) -> None:
    [right], norms = run().norms, run({run.axis: 2}).norms
    assert all(abs(norm / right - 1) <= EXACT for norm in norms), f"norms {norms}, not {right}"


def check_sizes(run: Handle) -> None:
    micro = {"micro": 1} if "micro" in run.axes else {}
    right = run(micro, batch=9).gradients
    for n in run.axes[run.axis][1:]:
        for name, gradient in run({run.axis: n, **micro}, batch=9).gradients.items():
            assert distance(gradient, right[name]) <= EXACT, f"{n} ranks, the gradient of {name}"


def check_memory(run: Handle) -> None:
    [whole], [part, _] = run().memory, run({run.axis: 2}).memory
    for kind in ("optimizer", "gradients", "parameters")[: run.zero]:
        assert part[kind] <= 0.6 * whole[kind], f"{kind}: {part[kind]:,} of {whole[kind]:,} bytes"


def check_precision(run: Handle) -> None:
    exact = run(optimizer="sgd", steps=8).losses
    stored = run({run.axis: 2}, optimizer="sgd", precision=run.precision, steps=8)
    assert len(set(stored.scales)) == 1, f"the loss scales {stored.scales}"
    fell, wanted = (of[0] - min(of) for of in (stored.losses, exact))  # the last loss may jump up again
    assert fell > 0.2 * wanted, "the loss does not fall"


def check_checkpoint(run: Handle) -> None:
    straight, resumed = (run({run.axis: 2}, steps=4, resume_at=at).losses[-1] for at in (0, 2))
    assert abs(resumed / straight - 1) <= EXACT, f"{resumed:.6f}, not {straight:.6f}"

"""Lesson 18's own functions, which the notebook uses where a gap is open: look here after you have tried."""

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np

from minidist.bugs import command
from minidist.bugs.checks import CHECKS
from minidist.bugs.handle import Handle
from minidist.bugs.systems import KINDS, System, Systems, draw, read_bugs, system_of

Array = np.ndarray
ASKED = ("check_gradients", "check_norms", "check_sizes", "check_memory", "check_precision", "check_checkpoint")
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
    assert stored.losses[0] - stored.losses[-1] > 0.2 * (exact[0] - exact[-1]), "the loss does not fall"


def check_checkpoint(run: Handle) -> None:
    straight, resumed = (run({run.axis: 2}, steps=4, resume_at=at).losses[-1] for at in (0, 2))
    assert abs(resumed / straight - 1) <= EXACT, f"{resumed:.6f}, not {straight:.6f}"


# ---- the notebook's systems ------------------------------------------------------------------------------------------


@cache
def systems() -> Systems:
    return Systems()


def system(name: str, broken: bool = True, seed: int = 5) -> Handle:
    """A handle on the system with this bug, or on the healthy one that it was made of."""
    return handle_of(system_of(read_bugs()[name], seed, broken))


def drawn(kind: str, seed: int, number: int = 0) -> Handle:
    """A handle on a system that a grade with this seed meets in check_<kind>: 0 is the broken one, 1 and 2 are healthy.
    What a grade says of a lost part names it. Raises ValueError if there is no such system."""
    systems_of_kind = draw(seed).get(kind, ())
    if number not in range(len(systems_of_kind)):
        raise ValueError(
            f"drawn({kind!r}, {seed}, {number}): the kind is one of {', '.join(KINDS)}, the number 0, 1 or 2"
        )
    return handle_of(systems_of_kind[number])


def handle_of(made: System) -> Handle:
    return Handle(made.facts, lambda asked: systems().perform([(made, asked)])[0])


def read_table() -> dict[str, dict[str, str]]:
    """The counted table: for each bug of record, what each check says: "x", it notices the bug, "." it does not, "-" it
    was not asked."""
    bugs = read_bugs()
    return {
        name: {check.short: command.letter(bugs[name], row, check) for check in CHECKS}
        for name, row in command.kept().items()
    }


def titles() -> dict[str, str]:
    """What the short names stand for."""
    return {check.short: check.title for check in CHECKS}

"""Lesson 18's view of a training system: a check asks for runs at any layout, and gets what each of them counted.

    reference, parallel = run(), run({"dp": 2})                 # one rank, two ranks; one step in float64
    assert np.allclose(parallel.losses, reference.losses, rtol=1e-9)

`Handle` knows nothing of minidist: it gets a function that answers. In grading, this function looks up
runs in a table that the grader has made.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray
MOST = {"steps": 20, "batch": 24, "seed": 1000, "resume_at": 19}  # the largest values that a run may have
DEAREST = 240  # ranks x steps that a check may ask for
OPTIMIZERS = ("adamw", "sgd")


class RunFailed(AssertionError):
    """The system ended with an error: a check that does not catch this one has found a bug."""


class Result(NamedTuple):
    """What a run counted. The lists have an entry for each rank; gradients and norms are those of the first step
    that is not skipped; if all are, there are none, and nan."""

    losses: list[float]  # of each step
    gradients: dict[str, Array]  # whole ones by parameter, flat, before clipping
    norms: list[float]  # of the gradient, as each rank uses it for clipping
    bytes: list[dict[str, int]]  # sent in the first step, by phase
    memory: list[dict[str, int]]  # the most that was held in the first step, by kind
    parameters: list[dict[str, Array]]  # at the end: those that the rank holds whole
    scales: list[float]  # the loss scale at the end


class Handle:
    """A training system, as a check sees it: the facts below, and what its runs count.

    axes: the possible numbers of ranks along its axis and, if they can be chosen, of micro-batches.
    batch: sequences in a step, if a run names no other number.
    precision: the one in which its users train. Every system also trains in "fp64".
    zero: ZeRO's stage, or 0. shards: the most ranks among which states are divided.
    clip: the largest norm of a gradient, or 0.
    """

    axes: dict[str, tuple[int, ...]]
    batch: int
    precision: str
    zero: int
    shards: int
    clip: float

    def __init__(self, facts: Mapping[str, Any], answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        self.__dict__.update(facts, axes={axis: tuple(sizes) for axis, sizes in facts["axes"].items()})
        self._answer, self._asked = answer, dict[str, int]()

    @property
    def axis(self) -> str:
        """The axis of ranks: "dp", "tp", "cp", "ep" or "pp"."""
        return next(iter(self.axes))

    @property
    def cost(self) -> int:
        """Ranks x steps of all different runs so far."""
        return sum(self._asked.values())

    def __call__(
        self,
        layout: Mapping[str, int] | None = None,
        *,
        optimizer: str = "adamw",
        precision: str = "fp64",
        seed: int = 0,
        steps: int = 1,
        batch: int = 0,
        own_rows: bool = False,
        resume_at: int = 0,
    ) -> Result:
        """Train. An axis that the layout does not name has its first number.

        batch: 0 is the system's own.
        own_rows: each rank's rows are drawn with a seed of its own.
        resume_at: after this many steps the run saves a checkpoint, forgets everything, and loads it. 0 is never.

        Raises ValueError if there is no such run, and RunFailed if the system ends with an error.
        """
        whole = {axis: int((layout or {}).get(axis, sizes[0])) for axis, sizes in self.axes.items()}
        asked: dict[str, Any] = {"layout": whole, "optimizer": optimizer, "precision": precision}
        asked |= {"seed": int(seed), "steps": int(steps), "batch": int(batch) or self.batch}
        asked |= {"own_rows": bool(own_rows), "resume_at": int(resume_at)}
        if unknown := set(layout or {}) - set(self.axes):
            raise ValueError(f"this system has no axis {unknown.pop()!r}; it has {self.axes}")
        if wrong := why_not(self, asked):
            raise ValueError(wrong)
        self._asked[repr(asked)] = whole[self.axis] * steps
        if self.cost > DEAREST:
            raise ValueError(f"the check asks for more than {DEAREST} ranks x steps of one system")
        counted = self._answer(asked)
        if "error" in counted:
            raise RunFailed(f"the run failed: {counted['error']}")
        return Result(**counted)


def why_not(system: Any, asked: Mapping[str, Any]) -> str:
    """Why a system cannot do such a run; "" if it can."""
    layout, batch = asked["layout"], asked["batch"]
    for axis, sizes in system.axes.items():
        if layout[axis] not in sizes:
            return f"{axis} = {layout[axis]}: this system can have {', '.join(map(str, sizes))}"
    for name, most in MOST.items():
        least = int(name in ("steps", "batch"))
        if not least <= asked[name] <= most:
            return f"{name} = {asked[name]}: from {least} to {most}"
    if asked["optimizer"] not in OPTIMIZERS or asked["precision"] not in ("fp64", system.precision):
        return f"the optimizer is one of {OPTIMIZERS}, and the precision one of {('fp64', system.precision)}"
    if batch % layout.get("micro", 1) or batch < layout.get("micro", 1) * layout[system.axis]:
        return (
            f"a batch of {batch} cannot be divided into {layout.get('micro', 1)} micro-batches with a row for each rank"
        )
    if asked["resume_at"] >= asked["steps"]:
        return f"resume_at = {asked['resume_at']}: a run of {asked['steps']} steps has no step after it"
    return ""

"""Memory that others measured, next to the formulas: `measured.toml` has their figures as printed.

The first table has peaks of allocated memory, stage by stage, and a bound: 0.5 % for dense models, 1 % for mixtures of
experts. The second has figures of which a part is known: model states alone, or a difference of reserved memory.
"""

import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from minidist.cli.models import shape_of
from minidist.formulas.profile import MEGATRON, Profile
from minidist.papers import zero
from minidist.papers.models import Model
from minidist.plan.choice import Choice, Wanted, ask
from minidist.plan.memory import Held, held
from minidist.plan.show import MOMENTS, wrapped

MIB, GIB = 2**20, 2**30
FIGURES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))


class Cell(NamedTuple):
    """A run whose peaks were measured."""

    name: str
    wanted: Wanted
    choice: Choice
    peaks: list[float]  # bytes, of the fullest rank of each stage

    @property
    def bound(self) -> float:
        """Of the difference, as a share."""
        return 0.01 if self.wanted.model.experts else 0.005


@cache
def model(name: str, context: int) -> Model:
    """A model of the file, with this many positions."""
    return Model.like(shape_of(FIGURES["models"][name] | {"max_position_embeddings": context}, name))


def cells(profile: Profile = MEGATRON) -> Iterator[Cell]:
    """The measured runs: four micro-batches of one sequence for each data rank, ZeRO-1, Ulysses on context ranks."""
    for of in FIGURES["cells"]:
        choice, context = Choice(**of["layout"], zero=1), of["context"]
        sizes = model(of["model"], context), 4 * choice.dp, context
        wanted = Wanted(of["model"], *sizes, scheme="ulysses", profile=profile)
        axes = " ".join(f"{axis}{size}" for axis, size in of["layout"].items())
        peaks = [MIB * peak for peak in of["stages"]]
        yield Cell(f"{of['model']} {axes}, {context // 1024}K", wanted, choice, peaks)


class StagePeak(NamedTuple):
    """A stage of a measured run, and the formulas."""

    cell: Cell
    stage: int  # from 0
    measured: float
    held: Held

    @property
    def off(self) -> float:
        """The difference, as a share of what was measured."""
        return self.held.total / self.measured - 1


def compare(profile: Profile = MEGATRON) -> list[StagePeak]:
    """Every measured stage."""
    return [
        StagePeak(cell, stage, peak, of)
        for cell in cells(profile)
        for stage, (peak, of) in enumerate(zip(cell.peaks, held(ask(cell.wanted, cell.choice)), strict=True))
    ]


class KnownPart(NamedTuple):
    """A figure of which a part is known."""

    name: str
    measured: list[float]  # GiB
    computed: float
    source: str


def parts() -> Iterator[KnownPart]:
    """Model states of a rank, or the difference of two numbers of ranks."""
    for of in FIGURES["others"]:
        states = [zero.model_states(of["psi"], n, of["zero"], *of["bytes"]).total for n in of["ranks"]]
        computed = states[0] - sum(states[1:])
        yield KnownPart(of["name"], of["measured"], computed / GIB, of["source"])


def lines() -> Iterator[str]:
    """Both tables, in 80 columns."""
    yield f"{'memory at its peak, GiB':29} {'stage':5} {'measured':>8} {'computed':>8} {'off':>8}  moment"
    for row in compare():
        sizes = f"{row.measured / GIB:8.3f} {row.held.total / GIB:8.3f} {100 * row.off:+7.3f}%"
        yield f"{row.cell.name:29} {row.stage:5} {sizes}  {row.held.moment}"
    yield wrapped(f"Profile: {MEGATRON.name}. Source: {FIGURES['source']}. Peaks are max_memory_allocated.")
    yield f"\n{'memory of which a part is known, GiB':36} {'measured':>16} {'computed':>8}"
    for part in parts():
        yield f"{part.name:36} {', '.join(map(str, part.measured)):>16} {part.computed:8.3f}"
    yield ""


def as_rows() -> list[dict[str, Any]]:
    """The first table for machines."""
    return [
        {
            "run": row.cell.name,
            "stage": row.stage,
            "measured": row.measured,
            "computed": row.held.total,
            "off": row.off,
            "moment": MOMENTS.get(row.held.moment, row.held.moment),
            "profile": row.cell.wanted.profile.name,
            "source": FIGURES["source"],
        }
        for row in compare()
    ]


def is_far_off() -> bool:
    """Whether a peak is beyond its bound."""
    return any(abs(row.off) > row.cell.bound for row in compare())

"""What the fullest rank of a row holds, by kind. With the profile `paper` by the formulas of `formulas/needs.py`, which
every run is checked by; with a system's by those of `formulas/system.py`.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

from minidist.formulas import system
from minidist.formulas.activations import Kept, keeps
from minidist.formulas.asked import Asked
from minidist.formulas.context import blocks
from minidist.formulas.flights import KEEPS_ALL
from minidist.formulas.needs import Chunk, Pass, Peaks, chunks_held, passage, peaks_of
from minidist.formulas.shares import flats, states_of
from minidist.layout import Place
from minidist.papers import zero
from minidist.pp.schedules import SCHEDULES

T = TypeVar("T")


class Held(NamedTuple):
    """Bytes on one rank: model states, the most of each other kind, and the most at a time. With a system's profile,
    kinds are what it holds at its fullest moment, and so `total` is their sum."""

    parameters: float
    gradients: float
    optimizer: float
    passing: float  # whole units of ZeRO-2 and 3: gathered parameters, gradients
    activations: float  # that layers keep for their backward
    ends: float  # what embedding, head and loss keep
    messages: float  # keys and values on their way
    total: float  # at a time
    stand_ins: float = 0  # of a system: gradients that nobody reads
    workspaces: float = 0
    transient: float = 0  # what a backward allocates, minus what it has released
    moment: str = ""  # the fullest, with a system's profile

    @property
    def states(self) -> float:
        return self.parameters + self.gradients + self.optimizer


class Memo(dict[Any, Any]):
    """Values of formulas, by what they depend on: a search needs each of them many times."""

    def recall(self, key: Any, formula: Callable[[], T]) -> T:
        if key not in self:
            self[key] = formula()
        found: T = self[key]
        return found


def states_on(asked: Asked, memo: Memo, rank: int) -> zero.ModelStates:
    """A rank's model states."""
    formula = states_of if asked.profile.name == "paper" else system.states
    return memo.recall(("states", *of_part(asked, rank), asked.zero), partial(formula, asked, rank))


def held(asked: Asked, memo: Memo | None = None) -> list[Held]:
    """What each asked rank holds. Kinds have their peaks at different moments, so `total` is less than their sum."""
    memo = Memo() if memo is None else memo
    if asked.profile.name != "paper":
        return [held_by_system(asked, memo, rank) for rank in range(asked.ranks)]
    found, at = [], asked.layout
    m, group = at.micro_batches, at.contiguous or at.pp
    enough = m if at.schedule in KEEPS_ALL else min(m, 3 * group + m % group)
    order = (at.schedule, enough, group) if at.pp > 1 else ()
    stage = max(asked.zero, 1)  # of ZeRO: below 2, nothing is transient
    for rank, place in enumerate(asked.places):
        on = (stage, place.context, *of_part(asked, rank, stage >= 2), *of_pass(asked))
        fullest = memo.recall(("fullest", *on, *order), partial(peaks, asked, memo, rank))
        message = memo.recall(("messages", *on), partial(messages, asked, rank))
        states = states_on(asked, memo, rank)
        kinds = states.parameters, states.gradients, states.optimizer, *fullest.of_kinds, message
        found.append(Held(*kinds, states.total + fullest.together + message))
    return found


def by_stage(asked: Asked) -> list[Held]:
    """What a rank of each stage holds."""
    return held(replace(asked, only=tuple(Place(0, 0, stage, 0, 0) for stage in range(asked.layout.pp))))


def held_by_system(asked: Asked, memo: Memo, rank: int) -> Held:
    """What an asked rank of a system holds at its fullest moment."""
    at, place = asked.layout, asked.places[rank]
    part = place.context, asked.zero, *of_part(asked, rank, asked.zero >= 2)
    of_states = states_on(asked, memo, rank)
    fixed = memo.recall(("fixed", asked.dividing, at.ep, at.cp, *part), partial(system.fixed, asked, rank, of_states))
    chunks = memo.recall(("parts", *of_part(asked, rank, False)), partial(system.parts, asked, rank))

    def layer(kind: str) -> system.LayerLoad:
        return memo.recall(("layer", kind, *of_pass(asked)), partial(system.layer, asked, kind))

    def passages() -> dict[system.StageChunk, system.Pass]:
        layers = {kind: layer(kind) for kind in {*asked.model.decoder.kinds}}
        units = memo.recall(("units", *part), partial(system.passing, asked, rank))
        return {chunk: system.passage(asked, chunk, layers, units) for chunk in dict.fromkeys(chunks)}

    passed = memo.recall(("passages", *part, *of_pass(asked)), passages)
    moment, load = system.fullest(asked, rank, chunks, passed)
    states, others = fixed[:3], (load.passing, load.activations, load.ends, 0.0)
    return Held(*states, *others, sum(fixed) + sum(load), *fixed[3:], load.transient, moment)


def peaks(asked: Asked, memo: Memo, rank: int) -> Peaks:
    """A rank's peaks over all moments of a step."""
    at, place, stage = asked.layout, asked.places[rank], max(asked.zero, 1)
    part = at.cp, place.context, *of_part(asked, rank), stage, asked.rows
    chunks = memo.recall(("chunks", *part), lambda: chunks_held(asked, rank, flats(asked, rank)))
    alike = place.tensor, place.context, SCHEDULES[at.schedule].splits, *of_pass(asked)

    def kept(of: Chunk) -> Kept:
        share = of.share._replace(embedding=False, head=False)  # layers do not depend on these
        return memo.recall(("kept", share, *alike), partial(keeps, asked, rank, share))

    def passed(of: Chunk) -> Pass:
        return memo.recall((of, stage, *alike), lambda: passage(asked, rank, of, kept(of)))

    return peaks_of(asked, rank, {of: passed(of) for of in chunks}, chunks)


def of_part(asked: Asked, rank: int, divided: bool = True) -> tuple[Any, ...]:
    """What a rank's part of the model depends on. divided: its padding, too, with which ranks can divide it."""
    at, place = asked.layout, asked.places[rank]
    among = (asked.dividing, at.ep) if divided else ()
    ends = len(at.parts[0]), len(at.parts[-1])  # if these are given, they decide how all parts are cut
    return at.tp, *among, at.pp, at.chunks, *ends, SCHEDULES[at.schedule].shape, place.pipeline, place.tensor


def of_pass(asked: Asked) -> tuple[Any, ...]:
    """What a micro-batch's pass through a chunk depends on, in addition to the chunk."""
    at = asked.layout
    return at.tp, at.cp, at.ep, at.pp == 1, asked.rows, asked.recompute


def messages(asked: Asked, rank: int) -> float:
    """Bytes of keys, values and their gradients on their way, on one context rank."""
    return blocks(asked, validates=False)[rank].backward if asked.layout.cp > 1 else 0.0

"""Every axis, and every combination that a plan may propose, on ranks: memory by kind and bytes by axis are those of
the formulas, to the byte. And a wrong formula does not pass."""

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import Any

import pytest

from minidist.formulas import flights, needs, shares
from minidist.formulas.asked import Asked
from minidist.formulas.profile import PAPER
from minidist.papers.models import Model
from minidist.plan import check, memory, traffic
from minidist.plan.choice import Choice, Wanted, divides
from minidist.plan.orders import orders, takes
from minidist.plan.search import axes, expert_ranks, policies, shards
from ranks import launch


def small(name: str = "llama", layers: int = 4, batch: int = 8, experts: int = 0, **more: Any) -> Wanted:
    """A tiny model; a Llama's heads share keys, a GPT's head reads the embedding."""
    like_llama, sizes = name == "llama", (24, 16, 32, layers, 8)
    mixture: Any = {"experts": experts, "top": 2 if experts else 1, "f": 48 * like_llama}
    model = Model(name, *sizes, 4 if like_llama else 8, not like_llama, **mixture)
    return Wanted("tiny", model, batch, 16, **{"precision": "mixed", **more})


def differences(wanted: Wanted, choice: Choice) -> list[check.Compared]:
    rows = check.compare(wanted, choice, check.run(wanted, choice), 2)
    assert len(rows) >= 18
    return [row for row in rows if row.difference]


USUAL = [
    (small(), Choice(2, zero=0)),
    (small(), Choice(2, 2, zero=3, recompute="every:1")),
    (small(), Choice(2, 1, 2, zero=1)),
    (small(scheme="all-gather"), Choice(1, 2, 2, zero=2, recompute="selective")),
    (small("gpt"), Choice(1, 2, 1, 2, recompute="every:1")),
    (small("gpt"), Choice(2, 1, 1, 2, 1, "interleaved", 2, 3)),
    (small(), Choice(1, 1, 2, 2, 1, "interleaved", 3, 2, recompute="selective")),
    (small(precision="fp32"), Choice(4, zero=3, hosts=2)),
    (small(scheme="ulysses"), Choice(1, 1, 4, zero=2)),
    (small(sequence=False), Choice(1, 2, 1, 2, 1, "gpipe", rows=2)),
    (small("gpt", experts=4), Choice(2, 1, 2, ep=4)),
    (small(experts=6), Choice(4, ep=2, zero=3, hosts=2)),
    (small(), Choice(1, 2, 1, 2, 1, "zb-h1")),
    (small(experts=4), Choice(2, 1, 1, 2, 2, "dualpipe")),
]

UNEVEN = [  # layers that do not divide; fewer in the first chunk, or more in the last
    (small("llama", 5), Choice(1, 2, 1, 2, zero=1, recompute="every:1")),
    (small("gpt", 7, 10), Choice(1, 1, 1, 4, zero=0)),
    (small("gpt", 5), Choice(2, 1, 1, 3, zero=3, first=1, last=1)),
    (small("llama", 7), Choice(1, 1, 2, 2, 1, "interleaved", 2, 2, first=0, last=3)),
    (small("gpt", 6), Choice(1, 2, 1, 2, 1, "zb-v", 2, 1, first=2, last=0)),
    (small("llama", 5, experts=4), Choice(2, 1, 1, 2, 2, "dualpipe", first=1)),
    (small("gpt", 7, 12), Choice(1, 1, 1, 3, 1, "v-min", 2, 0)),
]

SYSTEM: Any = {"profile": replace(PAPER, grad_dtype="fp32", attention="tiled")}
AS_SYSTEMS_DO = [  # gradients in float32, attention in tiles: in every axis and stage, and where layers do not divide
    (small(**SYSTEM), Choice(2, zero=0)),
    (small(**SYSTEM), Choice(2, 2, zero=3, recompute="every:1")),
    (small("gpt", **SYSTEM), Choice(2, 2, zero=2, recompute="selective")),
    (small(**SYSTEM), Choice(1, 2, 2, zero=1, recompute="selective")),
    (small(precision="fp32", **SYSTEM), Choice(4, zero=3, hosts=2)),
    (small("gpt", 5, **SYSTEM), Choice(2, 1, 1, 3, zero=3, first=1, last=1)),
    (small("gpt", **SYSTEM), Choice(2, 1, 1, 2, 1, "interleaved", 2, 3, recompute="selective")),
    (small("llama", 5, experts=4, **SYSTEM), Choice(2, 1, 1, 2, 2, "dualpipe", first=1)),
    (small(experts=6, **SYSTEM), Choice(4, ep=2, zero=3, hosts=2)),
    (small("gpt", **SYSTEM), Choice(1, 2, 1, 2, 1, "zb-h1")),
]


MORE = [
    (small(experts=4, capacity=1.25), Choice(2, 2, ep=2, zero=3, recompute="every:1")),
    (small("gpt", experts=4), Choice(2, 1, 1, 2, 2, "interleaved", 2, 2)),
    (small("gpt"), Choice(2, 1, 1, 2, 1, "zb-v", 2)),
    (small("gpt", 6, 10), Choice(1, 1, 1, 3, 1, "v-min", 2, 0)),
    (small("gpt", 6, 8), Choice(1, 2, 1, 2, 1, "v-half", 2, 0)),
    (small("gpt", batch=12), Choice(1, 1, 2, 2, 1, "dualpipe-v", 2)),
    (small(batch=7), Choice(1, 1, 1, 2, 1, "llama3", 2, recompute="every:1")),
    (small("gpt", experts=4), Choice(1, 2, 1, 2, 1, "zb-h1")),
    (small("gpt", sequence=False, precision="fp32"), Choice(1, 2, 1, 2, 1, "zb-h1")),
]


@pytest.mark.parametrize(
    ("wanted", "choice"), [*USUAL, *UNEVEN, *AS_SYSTEMS_DO, *(pytest.param(*of, marks=pytest.mark.slow) for of in MORE)]
)
def test_a_row_holds_and_sends_what_the_formulas_say(wanted: Wanted, choice: Choice) -> None:
    assert differences(wanted, choice) == []


def rows_of(ranks: int, batch: int) -> Iterator[tuple[Wanted, Choice]]:
    """Every row that a plan may propose on this many ranks, for a few tiny models."""
    of_models = ("llama", 4, 6, "ring"), ("gpt", 6, 0, "all-gather"), ("llama", 6, 0, "ulysses"), ("gpt", 4, 8, "ring")
    for name, layers, experts, scheme in of_models:
        wanted = small(name, layers, batch, experts, scheme=scheme)
        for at in axes(wanted, ranks):
            for (schedule, chunks), b in itertools.product(orders(layers, at.pp), (1, 2)):
                if at.dp * b <= batch and takes(schedule, batch // at.dp // b, at.pp):
                    kinds = itertools.product(shards(at, 2, schedule), policies(wanted, at.cp, schedule))
                    for (zero, hosts), recompute in kinds:
                        for ep in expert_ranks(wanted, at, hosts):
                            sizes = at.dp, at.tp, at.cp, at.pp, ep, schedule, chunks, zero, hosts, recompute, b
                            yield wanted, Choice(*sizes)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3, 4, 6, 8, 12, 16])
def test_every_row_that_a_plan_may_propose(ranks: int) -> None:
    """A part of them, which differs from number to number; in one process."""
    rows = list(rows_of(ranks, 24 if ranks % 3 == 0 else 16))
    assert rows
    for wanted, choice in random.Random(ranks).sample(rows, min(len(rows), 240 // ranks)):
        assert differences(wanted, choice) == [], choice


def on_mpi(ranks: int, most: int) -> None:
    rows = list(rows_of(ranks, 24 if ranks % 3 == 0 else 16))
    rows = random.Random(-ranks).sample(rows, min(len(rows), most))
    plain = [[asdict(wanted), asdict(choice)] for wanted, choice in rows]
    of_ranks = launch("jobs.planned:train_rows", ranks, plain, timeout=300).values
    for i, (wanted, choice) in enumerate(rows):
        compared = check.compare(wanted, choice, [check.RankCounts(*rank[i]) for rank in of_ranks])
        assert [row for row in compared if row.difference] == [], choice


def test_over_mpi() -> None:
    on_mpi(4, 6)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3, 6, 8, 16])
def test_over_mpi_on_other_numbers_of_ranks(ranks: int) -> None:
    on_mpi(ranks, 40)


WIDE = [
    (64, Choice(4, 2, 1, 8, 1, "interleaved", 2, 1)),
    (64, Choice(2, 4, 2, 4, 1, "1f1b", 1, 3, 1, "every:1")),
    (128, Choice(64, 2, zero=2)),
    (128, Choice(8, 2, 2, 4, 1, "interleaved", 3, 2, 1, "selective")),
    (128, Choice(128, zero=3, hosts=16)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "choice"), WIDE)
def test_wide_rows_in_one_process(ranks: int, choice: Choice) -> None:
    assert choice.ranks == ranks
    wanted = check.tiny(small("llama"), choice)
    assert differences(wanted, choice) == []


@pytest.mark.parametrize(
    "choice",
    [
        Choice(128, 8, 1, 16, 1, "interleaved", 8, 1),
        Choice(16_384, zero=3, hosts=2048),
        Choice(8, 8, 16, 16, zero=2),
        Choice(6, 8, 1, 35, zero=0),
        Choice(128, 1, 1, 16, 64),
        Choice(64, 1, 2, 8, 32, hosts=4, zero=3),
        Choice(64, 1, 1, 16, first=7, last=9),
        Choice(64, 1, 1, 4),
    ],
)
def test_a_row_is_scaled_down_to_what_runs_here(choice: Choice) -> None:
    """Same axes, fewer ranks; the tiny model can be cut so."""
    wanted, fewer = check.scaled(small("llama", 126, experts=64), choice)
    assert fewer.ranks <= check.MOST
    assert fewer.zero == choice.zero
    assert (fewer.pp > 1) == (choice.pp > 1)
    assert (fewer.hosts > 1) == (choice.hosts > 1)
    assert (fewer.ep > 1) == (choice.ep > 1)
    assert fewer.ep in expert_ranks(wanted, fewer, fewer.hosts)
    ends = [end for end in (choice.first, choice.last) if end is not None]
    even = not ends and divides(126, choice.pp * choice.chunks)
    sizes = [len({*part} - {0, wanted.model.layers + 1}) for part in fewer.parts(wanted.model.layers)]
    assert (len({*sizes}) == 1) == even
    assert not ends or sizes[0] < sizes[1] < sizes[-1]
    assert wanted.batch == fewer.dp * fewer.rows * fewer.micro_batches(wanted.batch)


# ---- wrong formulas --------------------------------------------------------------------------------------------------

SECOND = small(), Choice(1, 1, 2, 2, 1, "interleaved", 3, 2, recompute="selective")
HYBRID = small(), Choice(4, zero=3, hosts=2)
TENSOR = small("gpt"), Choice(1, 2, 1, 2)
RING = small(), Choice(1, 1, 2)
SPLIT = small(), Choice(1, 2, 1, 2, 1, "zb-h1")
LATER, IN_FLIGHT = "activations of layers", "micro-batches in flight"
EXPERTS = small(experts=4), Choice(4, ep=4)


def one_more(function: Callable[..., Any]) -> Callable[..., Any]:
    """All micro-batches in flight, and one more."""
    return lambda *given: [now._replace(counts=tuple(n + 1 for n in now.counts)) for now in function(*given)]


def each(**changed: Any) -> Callable[..., Any]:
    """Each of what a formula gives, with a field changed."""
    return lambda formula: lambda *given: [one._replace(**changed) for one in formula(*given)]


def twice(formula: Callable[..., Any]) -> Callable[..., Any]:
    """Each volume two times."""
    return lambda *given: 2 * formula(*given)


def a_rank_more(formula: Callable[..., Any]) -> Callable[..., Any]:
    """Of what is stored, divided."""
    return lambda asked, held: formula(asked, [of._replace(among=of.among + 1) for of in held])


def always(value: Any) -> Callable[..., Any]:
    return lambda formula: lambda *given: value


def with_one_more(formula: Callable[..., int]) -> Callable[..., int]:
    """A micro-batch more."""
    return lambda *given: formula(*given) + 1


# a wrong formula: where it stands, what replaces it, the row, and what must differ
Wrong = tuple[Any, str, Callable[[Any], Any], tuple[Wanted, Choice], str]
MUTANTS: dict[str, Wrong] = {
    "one micro-batch more is in flight": (flights, "in_flight", one_more, SECOND, "activations of layers"),
    "targets do not linger": (flights, "in_flight", each(lingering=0), SECOND, "embedding, head, loss"),
    "states are of a rank more": (shares, "states_in", a_rank_more, HYBRID, "optimizer states"),
    "keys and values take no room": (memory, "messages", always(0.0), RING, "keys, values sent"),
    "a unit is gathered for nothing": (needs, "moments", each(passing=0), HYBRID, "transient units"),
    "the head keeps nothing": (needs, "moments", each(ends=0), TENSOR, "embedding, head, loss"),
    "a stage sends twice": (traffic, "message_volumes", twice, TENSOR, "pipeline"),
    "layers send twice": (traffic, "layer_volumes", twice, TENSOR, "tensor"),
    "embedding and head send twice": (traffic, "end_volumes", twice, TENSOR, "tensor"),
    "a tied embedding is summed twice": (traffic, "tied_volumes", twice, TENSOR, "tied"),
    "hosts sum twice": (traffic, "data_volumes", twice, HYBRID, "hosts"),
    "the data axis sends twice": (traffic, "data_volumes", twice, HYBRID, "data"),
    "context ranks send twice": (traffic, "context_volumes", twice, SECOND, "context"),
    "tokens go twice": (traffic, "expert_volumes", twice, EXPERTS, "experts"),
    "gradients are of no group": (Asked, "dividing", lambda f: property(lambda a: 1), EXPERTS, "data"),
    "tokens stay on their hosts": (check, "share_across", always(0.0), EXPERTS, "experts, to other hosts"),
    "a zero-bubble stage holds one more": (check.pipelines, "in_flight", with_one_more, SPLIT, IN_FLIGHT),
    "B leaves nothing for W": (needs, "layers_split", lambda f: lambda *of: f(*of)._replace(waiting=0), SPLIT, LATER),
    "B needs no room of its own": (needs, "layers_split", lambda f: lambda *of: f(*of)._replace(most=0), SPLIT, LATER),
    "the head leaves nothing for W": (needs, "ends_split", always((0, 0)), SPLIT, "embedding, head, loss"),
    "norms are free": (traffic, "others", lambda f: lambda asked: {}, TENSOR, "of no axis"),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_wrong_formula_differs(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    room, name, wrong, (wanted, choice), differs = MUTANTS[mutant]
    counted = RUNS.setdefault(choice, check.run(wanted, choice) if choice not in RUNS else [])
    assert not [row for row in check.compare(wanted, choice, counted, 2) if row.difference]
    monkeypatch.setattr(room, name, wrong(getattr(room, name)))
    assert differs in {row.what for row in check.compare(wanted, choice, counted, 2) if row.difference}


RUNS: dict[Choice, list[check.RankCounts]] = {}  # rows that several mutants share

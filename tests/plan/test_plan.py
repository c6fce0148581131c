"""The plan itself: nothing is left out, bubbles are those of the clock, hosts those of the layout; what is printed and
written; and no NumPy."""

import json
import math
import os
import re
from dataclasses import replace
from itertools import pairwise, permutations
from pathlib import Path

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from minidist import UsageError
from minidist.__main__ import main
from minidist.cli.shared import TrainingOptions
from minidist.deepspeed import accelerate, explain, sizes
from minidist.deepspeed import plan as planning
from minidist.formulas.activations import layer_bytes
from minidist.formulas.asked import Asked
from minidist.formulas.flights import KEEPS_ALL, in_flight
from minidist.formulas.postponed import layers_split
from minidist.formulas.shares import Share
from minidist.formulas.volumes import others
from minidist.layout import Layout
from minidist.papers import korthikanti, pipelines
from minidist.papers.models import Model
from minidist.plan import command, published, show, write
from minidist.plan import search as searching
from minidist.plan.choice import Choice, Wanted, ask, contiguous, divides
from minidist.plan.memory import held
from minidist.plan.orders import PLANNED, clocked_idle, idle, takes
from minidist.plan.search import ACTIVATIONS, CONTEXT, LIMITS, STATES, Evaluator, families, hides_nothing, search
from minidist.plan.ties import SAME
from minidist.plan.time import CEILING, Cluster, Seconds, flops_a_token
from minidist.plan.traffic import on_a_host, sent, share_across
from minidist.plan.trained import models
from minidist.pp.options import parts
from minidist.pp.schedules import SCHEDULES
from minidist.pp.watch import UNIT_COSTS, simulate
from programs import run_python
from tables import table

ROOT = Path(__file__).parents[2]
GPT = Model("gpt", 51_200, 2048, 2048, 16, 16, 16, True)
WANTED = Wanted("a GPT", GPT, 8, 2048)
MIXTURE = Wanted("a mixture", replace(GPT, experts=4, top=2), 8, 2048)
CLUSTER = Cluster(8, 16 * 10**9, 4, 312e12, 300e9, 12.5e9)

# ---- the search ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", [WANTED, pytest.param(MIXTURE, marks=pytest.mark.slow)], ids=["dense", "experts"])
def test_the_search_leaves_out_nothing(wanted: Wanted) -> None:
    """One by one, without what the search remembers or skips: the same rows fit, and take the same time."""
    cluster = replace(CLUSTER, memory=6 * 10**9, within=600e9)  # many do not fit, for either reason; cp may be 2
    found, slow = search(wanted, cluster), Evaluator(wanted, cluster)
    rows = {row.choice: row for row in found.rows}
    assert len(rows) == len(found.rows) > 20
    assert {choice.cp for choice in rows} == {1, 2}
    fit = tried = 0
    for choice in (choice for family in families(wanted, cluster) for choice in family):
        tried += 1
        if hides_nothing(wanted, cluster, choice.cp):
            continue
        need = max(held(ask(wanted, choice)), key=lambda rank: rank.total)
        assert (need.total <= cluster.memory) == (choice in rows), choice
        if choice in rows:
            fit += 1
            assert rows[choice].held == need
            slow.memo.clear()
            assert rows[choice].seconds == slow.row(choice).seconds
            assert rows[choice].sent == sum(max(along.nbytes) for along in sent(ask(wanted, choice)).values())
    assert tried == fit + sum(found.left_out.values())
    assert all(found.left_out[reason] > 0 for reason in (CONTEXT, STATES, ACTIVATIONS))
    steps = [row.seconds.step for row in found.rows]
    assert all(one < (1 + SAME) * other for one, other in pairwise(steps))


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_what_a_row_sends_does_not_depend_on_the_rows_before(zero: int) -> None:
    """Not even if the first has one micro-batch, with which nothing is sent several times."""
    evaluator = Evaluator(WANTED, CLUSTER)
    for choice in (Choice(2, 4, zero=zero, rows=rows) for rows in (4, 1, 2)):
        asked = ask(WANTED, choice)
        assert evaluator.row(choice).sent == sum(max(along.nbytes) for along in sent(asked).values())


@pytest.mark.parametrize("most", [300, 10])
def test_a_search_of_too_many_rows_says_what_it_leaves_out(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a rule, and it counts them; all rows that the rule keeps are there."""
    everything = search(WANTED, CLUSTER)
    number = len(everything.rows) + sum(everything.left_out.values())
    monkeypatch.setattr(searching, "MOST", most)
    found = search(WANTED, CLUSTER)
    [words] = [words for words in found.left_out if words.startswith("not tried")]
    limits = next(limits for limits in LIMITS if limits.words == words)
    assert found.left_out[words] > 0
    assert len(found.rows) + sum(found.left_out.values()) == number

    def keeps(at: Choice) -> bool:
        alone = at.dp * at.cp == 1
        near = limits.beyond_hosts or at.tp <= CLUSTER.per_host
        return near and at.rows <= limits.sequences and (alone or at.zero in limits.stages)

    assert {row.choice for row in found.rows} == {row.choice for row in everything.rows if keeps(row.choice)}
    assert [row.seconds.step for row in found.rows] == pytest.approx(
        [row.seconds.step for row in everything.rows if keeps(row.choice)], rel=2 * SAME
    )


def test_rows_are_whole() -> None:
    for choice in (choice for family in families(WANTED, CLUSTER) for choice in family):
        assert choice.ranks == CLUSTER.ranks
        assert choice.dp * choice.rows * choice.micro_batches(WANTED.batch) == WANTED.batch
        units = [unit for part in parts(GPT.layers, choice.pp * choice.chunks) for unit in part]
        assert units == list(range(GPT.layers + 2))


def test_what_is_asked_of_some_stages_holds_for_all() -> None:
    """The fullest of the first of each kind, and of the last stage, is the fullest of all: of the first two of each
    kind, if W comes later than B. Stages may be uneven."""
    long, short = replace(WANTED, model=replace(GPT, layers=48), batch=16), replace(WANTED, batch=16)
    for wanted, choice in (
        (WANTED, Choice(2, 1, 1, 8, recompute="selective")),
        (WANTED, Choice(1, 2, 1, 8, 1, "interleaved", 2)),
        (WANTED, Choice(2, 1, 2, 4, 1, "gpipe")),
        *((long, Choice(1, 1, 1, p, 1, "v-min", 2, 0)) for p in (3, 4, 6, 8)),
        *((long, Choice(1, 1, 1, p, 1, "v-half", 2, 0)) for p in (3, 4, 6, 8)),
        *((long, Choice(1, 1, 1, 6, 1, name, chunks, 0)) for name, chunks in SPLIT),
        *((short, Choice(1, 1, 1, 6, 1, name, chunks, 0)) for name, chunks in (*SPLIT, *SHAPES)),
        *((long, Choice(1, 1, 1, 6, 1, name, chunks, 0, first=2)) for name, chunks in (*SPLIT, *SHAPES)),
        *((long, Choice(1, 1, 1, 7, 1, name, chunks, 0, last=3)) for name, chunks in SHAPES),
    ):
        every = max(rank.total for rank in held(ask(wanted, choice, every_rank=True)))
        assert max(rank.total for rank in held(ask(wanted, choice))) == every, choice


ENDS = st.none() | st.integers(0, 12)


@given(st.integers(1, 60), st.integers(1, 20), ENDS, ENDS)
def test_chunks_have_all_units_and_almost_as_many_layers(
    layers: int, n: int, first: int | None, last: int | None
) -> None:
    """Those whose layers are not given: equally many layers or units, if that comes out even; otherwise the first ones
    have one more. A chunk without a unit is refused."""
    try:
        made = parts(layers, n, first, last)
    except UsageError:
        rest, others = layers - (first or 0) - (last or 0), n - (first is not None) - (last is not None)
        assert rest < others or (rest > 0 and others <= 0) or others < 0
        return
    assert [unit for part in made for unit in part] == list(range(layers + 2))
    assert min(map(len, made)) >= 1
    held = [len({*part} - {0, layers + 1}) for part in made]
    assert first is None or held[0] == first
    assert last is None or held[-1] == last
    middle = [len(part) for part in made[1:-1]]
    assert middle == sorted(middle, reverse=True)
    assert len({*middle}) <= 2
    if first is last is None:
        assert len({*held}) == 1 or max(map(len, made)) - min(map(len, made)) <= 1
        assert not divides(layers, n) or len({*held}) == 1 or len({*map(len, made)}) == 1


# ---- bubbles, and what is in flight ----------------------------------------------------------------------------------


@settings(deadline=None, max_examples=20)
@example(3, 7, 2, "llama3")
@given(st.integers(2, 5), st.integers(2, 16), st.integers(2, 4), st.sampled_from(PLANNED))
def test_the_bubble_is_that_of_the_schedules_own_clock(p: int, m: int, v: int, schedule: str) -> None:
    """All micro-batches run, not the few that `clocked_idle` takes."""
    kind = SCHEDULES[schedule]
    assume(takes(schedule, m, p) and m >= p and p % kind.stages_in == 0)
    chunks = v if kind.any_chunks else kind.chunks
    timelines = simulate(
        [(at, kind.instructions(at)) for at in kind.places(p, m, chunks, contiguous=contiguous(schedule, p, m))],
        UNIT_COSTS,
    )
    work = timelines[0].busy
    promised = pytest.approx(idle(schedule, p, m, chunks), rel=1e-12)
    assert (max(timeline.end for timeline in timelines) - work) / work == promised
    assert clocked_idle(Choice(pp=p, schedule=schedule, chunks=chunks), m) == promised


@settings(deadline=None, max_examples=20)
@given(st.integers(2, 5), st.integers(2, 24), st.integers(1, 4), st.sampled_from(PLANNED), st.data())
def test_in_flight_is_what_the_papers_say(p: int, m: int, v: int, schedule: str, data: st.DataObject) -> None:
    """And three groups of p micro-batches, and a last one, are enough to see it."""
    kind, stage = SCHEDULES[schedule], data.draw(st.integers(1, p))
    assume(takes(schedule, m, p) and p % kind.stages_in == 0)
    chunks = max(v, 2) if kind.any_chunks else kind.chunks
    group = contiguous(schedule, p, m) or p
    promised = pipelines.in_flight(schedule, p, m, stage, chunks, group)
    moments = in_flight(schedule, p, m, stage, chunks, group)
    assert max(sum(now.counts) + sum(now.postponed) for now in moments) == promised
    if schedule not in KEEPS_ALL:
        fewer = in_flight(schedule, p, min(m, 3 * group + m % group), stage, chunks, group)
        assert {*fewer} == {*moments}


def test_what_waits_for_w_is_table_1_s() -> None:
    """Zero Bubble: sbh(34 + 5as/h) before B, without dropout two masks less; between B and W 32sbh."""
    asked = ask(replace(WANTED, batch=4), Choice(1, 1, 1, 2, 1, "zb-h1", rows=2))
    [(before, peak, after)] = {layer_split(asked, rank, 5) for rank in range(2)}
    s, b, h, a = 2048, 2, 2048, 16
    assert after == 5 * 32 * s * b * h
    statistics = 4 * 4 * s * b
    assert before == s * b * h * (34 + 2 * a * s / h - 2) + statistics
    assert peak == 5 * before + 2 * s * b * h  # the last matrix' gradient comes before anything goes


def layer_split(asked: Asked, rank: int, layers: int) -> tuple[float, float, float]:
    """Bytes of a layer before B; of all, at most in B; and until W."""
    share = Share(2, layers)
    before = layer_bytes(asked, rank, share, "none")
    of = layers_split(asked, rank, share, before)
    return before, of.most, of.waiting


# ---- hosts -----------------------------------------------------------------------------------------------------------

SPLIT = ("zb-h1", 1), ("zb-v", 2), ("dualpipe", 1), ("dualpipe-v", 2)
SHAPES = ("1f1b", 1), ("v-half", 2), ("v-min", 2)
SHAPED = {"loop": "interleaved", "V": "zb-v"}
ALONG = {"tensor": ("tensor",), "context": ("context",), "data": ("shard", "context"), "hosts": ("host",)}


@settings(deadline=None, max_examples=40)
@given(*[st.sampled_from((1, 2, 4))] * 4, st.sampled_from((1, 2, 4, 8, 16)), st.data())
def test_what_leaves_a_host_for_experts(dp: int, pp: int, cp: int, tp: int, per_host: int, data: st.DataObject) -> None:
    """Rank by rank: of a token's copies, one goes to each rank of a group; and gradients go around the ranks that hold
    the same experts."""
    ep = data.draw(st.sampled_from([n for n in (1, 2, 4, 8, 16) if n <= dp * cp]))
    at = Layout(dp=dp, pp=pp, cp=cp, tp=tp, ep=ep)
    groups = [group[i : i + ep] for group in at.groups("shard", "context") for i in range(0, dp * cp, ep)]
    pairs = [pair for group in groups for pair in permutations(group, 2)]
    leaving = sum(one // per_host != other // per_host for one, other in pairs)
    assert share_across(at, "experts", per_host) == pytest.approx(leaving / max(len(pairs), 1))
    copies = [group[i::ep] for group in at.groups("shard", "context") for i in range(ep)]
    rings = [pair for group in copies for pair in zip(group, group[1:] + group[:1], strict=True)]
    leaving = sum(one // per_host != following // per_host for one, following in rings)
    assert share_across(at, "copies", per_host) == pytest.approx(leaving / len(rings))


@settings(deadline=None, max_examples=30)
@given(*[st.sampled_from((1, 2, 4))] * 5, st.sampled_from((1, 2, 4, 8, 16)))
def test_what_leaves_a_host(shard: int, hosts: int, pp: int, cp: int, tp: int, per_host: int) -> None:
    """Rank by rank, as the layout numbers them: how many of a ring's members send to another host."""
    at = Layout(dp=shard * hosts, hosts=hosts, pp=pp, cp=cp, tp=tp)
    for axis, names in ALONG.items():
        groups = at.groups(*names)
        pairs = [
            (one, following) for group in groups for one, following in zip(group, group[1:] + group[:1], strict=True)
        ]
        leaving = sum(one // per_host != following // per_host for one, following in pairs)
        assert share_across(at, axis, per_host) == leaving / at.ranks, axis
        near = max(sum(rank // per_host == group[0] // per_host for rank in group) for group in groups)
        assert on_a_host(at, axis, per_host) == near or leaving == 0


@given(*[st.sampled_from((1, 2, 3, 4))] * 4, st.integers(1, 8), st.integers(1, 3), st.sampled_from(("loop", "V")))
def test_what_leaves_a_host_from_stage_to_stage(
    dp: int, pp: int, cp: int, tp: int, per_host: int, v: int, shape: str
) -> None:
    """Along the parts of the model: chunk after chunk, each through all stages; in a V, there and back."""
    at = Layout(dp=dp, pp=pp, cp=cp, tp=tp, chunks=v if shape == "loop" else 2, schedule=SHAPED[shape])
    groups = [group * v if shape == "loop" else group + group[::-1] for group in at.groups("pipeline")]
    pairs = [(one, other) for group in groups if pp > 1 for one, other in pairwise(group) if one != other]
    leaving = sum(one // per_host != following // per_host for one, following in pairs)
    assert share_across(at, "pipeline", per_host) == pytest.approx(leaving / max(len(pairs), 1))


def test_bytes_on_the_axes_do_not_depend_on_hosts() -> None:
    asked = ask(WANTED, Choice(2, 2, 2, 2))
    assert all(sum(of.nbytes) for axis, of in sent(asked).items() if axis not in ("experts", "copies", "hosts"))


def test_the_rest_is_divided_into_whole_bytes() -> None:
    """Twelve ranks' shares are together what the formulas say of all."""
    asked = ask(WANTED, Choice(1, 2, 1, 6), every_rank=True)
    assert sum(sent(asked)["rest"].nbytes) == sum(left.nbytes for left in others(asked).values())


# ---- operations ------------------------------------------------------------------------------------------------------


def test_operations_are_those_of_the_papers() -> None:
    """PaLM's polynomial is Megatron's: 72bLsh²(1 + s/6h + v/12hL), apart from biases and norms."""
    for of in korthikanti.TABLE_3.values():
        model = Model("gpt", 51_200, 2048, of.h, of.layers, of.a, of.a, True)
        theirs = korthikanti.model_flops(2048, 1, of.h, of.layers, 51_200) / 2048
        assert flops_a_token(model, 2048) == pytest.approx(theirs, rel=2e-4)


@pytest.mark.parametrize("name", ["gpt", "llama"])
def test_a_table_that_is_only_read_is_no_work(name: str) -> None:
    """6 operations for each parameter of a matrix: with or without a table of its own, a token goes through the same
    head, and through no embedding."""
    h, layers, v, s = 64, 3, 1000, 32
    tied = Model(name, v, s, h, layers, 4, 4, True)
    untied = replace(tied, tied=False)
    multiplied = sum(tied.units()[1:]) + v * h
    for model in (tied, untied):
        assert flops_a_token(model, s) == 6 * multiplied + 12 * layers * h * s


@pytest.mark.parametrize("capacity", [0.01, 0.1, 0.5, 1.0, 1.25, 4.0])
def test_dropped_work_is_not_done(capacity: float) -> None:
    """Experts do no more than they have room for, and no more than tokens ask for; and no device is faster than its
    ceiling."""
    wanted = replace(MIXTURE, capacity=capacity)
    model, rows = wanted.model, search(wanted, CLUSTER).rows
    [mlp] = model.mlp()
    for row in rows[:: max(1, len(rows) // 50)]:
        assert row.mfu <= CLUSTER.ceiling
        done = row.mfu * CLUSTER.ranks * CLUSTER.flops / row.tokens
        t = wanted.context * row.choice.rows // row.choice.cp
        kept = min(1.0, math.ceil(model.top * capacity * t / model.experts) * model.experts / (model.top * t))
        assert done == pytest.approx(
            flops_a_token(model, wanted.context) - 6 * model.layers * model.top * (1 - kept) * sum(mlp)
        )


# ---- messages --------------------------------------------------------------------------------------------------------

INSTANT = replace(CLUSTER, flops=1e30, within=1e30, across=1e30, latency=1.0)  # latencies alone take time
SLOW = replace(INSTANT, flops=1.0)  # work hides everything that can be hidden


def waits(cluster: Cluster, wanted: Wanted, choice: Choice) -> Seconds:
    return Evaluator(wanted, cluster).row(choice).seconds


@pytest.mark.parametrize(("recompute", "times"), [("none", 4), ("selective", 4), ("every:1", 6)])
def test_latencies_by_hand(recompute: str, times: int) -> None:
    """A ring of n takes n-1 messages. A layer has two all-reduces in its forward, in its backward, and in its
    recomputation. Keys and values go around once forward, and twice backward, together with their gradients. Tokens go
    to experts and back."""
    layers, again = GPT.layers, times == 6

    def latency(axis: str, wanted: Wanted, choice: Choice) -> float:
        m = choice.micro_batches(wanted.batch)
        return round(getattr(waits(INSTANT, wanted, replace(choice, recompute=recompute)), axis) / m, 6)

    assert latency("tensor", WANTED, Choice(1, 4, 1, 1)) == 2 * 3 * (times * layers + 2)  # embedding and head
    if recompute != "selective":
        assert latency("context", WANTED, Choice(1, 1, 4, 1)) == 3 * (3 + again) * layers
        assert latency("experts", MIXTURE, Choice(4, 1, 1, 1, 4)) == 3 * times * layers


@pytest.mark.parametrize(("p", "v"), [(2, 1), (4, 1), (8, 1), (4, 2)])
def test_a_pipeline_waits_while_it_fills_and_drains(p: int, v: int) -> None:
    """p-1 hops as it fills and p-1 as it drains; in between, only what is longer than the work of a micro-batch."""
    choice = Choice(1, 1, 1, p, 1, "interleaved" if v > 1 else "1f1b", v)
    assert waits(SLOW, WANTED, choice).pipeline == 2 * (p - 1)
    assert waits(INSTANT, WANTED, choice).pipeline == pytest.approx(2 * (p - 1) + WANTED.batch * 2 * v)


# ---- published runs --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_ceiling_is_set_on_one_table() -> None:
    assert published.fit() == CEILING
    assert all(run.fitted == run.name.startswith("PTD ") for run in published.table_1())


def test_published_runs() -> None:
    """Those that are off have a reason, and each reason is of a run that is off. Most others are within 15 %."""
    runs = [(run, published.ratio(run, published.evaluate(run)) - 1) for run in published.all_runs()]
    off = [(run, by) for run, by in runs if abs(by) > published.OFF]
    assert all(run.reason for run, _ in off), [(run.name, by) for run, by in off if not run.reason]
    assert {run.reason for run, _ in runs if run.reason} == {run.reason for run, _ in off}
    assert len(runs) >= 45
    tested = [by for run, by in runs if not run.fitted]
    assert sum(abs(by) <= published.OFF for by in tested) >= 20
    megatron = [by for run, by in runs if run.name.startswith("Megatron-LM")]
    assert len(megatron) == 8
    assert max(map(abs, megatron)) <= published.OFF
    assert sum(run.choice.ranks != run.cluster.ranks for run, _ in runs) == 0
    trained = {run.name.partition(",")[0]: by for run, by in runs if run in list(models())}
    assert trained.keys() == {"BLOOM 176B", "OPT-175B", "GPT-NeoX-20B", "PaLM 540B", "DeepSeek-V3"}
    assert all(abs(trained[name]) <= published.OFF for name in ("BLOOM 176B", "OPT-175B", "DeepSeek-V3"))
    assert trained["GPT-NeoX-20B"] > 0 > trained["PaLM 540B"]


def test_published_models_have_their_sizes() -> None:
    """As their reports print them, where a report has another attention, within 7 %."""
    sizes = {"BLOOM": 176.2e9, "OPT": 175e9, "GPT-NeoX": 20.556e9, "PaLM": 540.35e9, "DeepSeek": 671e9}
    for run in models():
        [size] = [size for name, size in sizes.items() if run.name.startswith(name)]
        assert run.wanted.model.parameters() == pytest.approx(size, rel=0.07 if run.wanted.model.experts else 0.005)
    assert run.wanted.model.active() == pytest.approx(37e9, rel=0.07)


def test_llama_3s_third_row_fits_together_with_dp_8_alone() -> None:
    """TP 8, CP 16, PP 16: with a DP of 4, as an earlier version prints, half of the devices and of the tokens."""
    *_, third = published.of_llama()
    assert third.choice.ranks == 16_384
    assert third.choice.dp == 8
    assert third.wanted.tokens == 2**24


@pytest.mark.slow
def test_published_runs_stand_in_a_list(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Next to what was measured, where a run stands among all rows that fit; in 80 columns."""
    [smallest, *_], [eight, *_] = published.table_1(), published.selective()
    few = [run._replace(wanted=replace(run.wanted, batch=run.cluster.ranks)) for run in (smallest, eight)]
    monkeypatch.setattr(published, "all_runs", lambda: [run._replace(reason="it is smaller here") for run in few])
    assert main(["plan", "--published"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    for run in few:
        place, fit = map(int, re.search(rf"{run.name} +~?(\d+) of (\d+) ", text).groups())  # type: ignore[union-attr]
        assert 1 <= place <= fit + 1


def test_a_run_that_does_not_fit_is_not_in_the_list() -> None:
    """Where its time would stand; a row of the list is in it."""
    rows = search(WANTED, CLUSTER).rows
    middle = rows[len(rows) // 2]
    faster = sum(row.seconds.step < middle.seconds.step * (1 - 1e-9) for row in rows)
    stands = published.standing(WANTED, CLUSTER, middle.choice, middle.seconds.step)
    assert stands == (faster + 1, len(rows), True)
    less = replace(CLUSTER, memory=int(middle.held.total) - 1)
    assert not published.standing(WANTED, less, middle.choice, middle.seconds.step).listed


# ---- on the screen, and in files -------------------------------------------------------------------------------------

LINE = ["plan", "--model", "gpt2", "--ranks", "8", "--batch", "64K", "--device-memory", "16GB"]


def said(capsys: pytest.CaptureFixture[str], *more: str) -> str:
    assert main([*LINE, *more]) == 0
    return capsys.readouterr().out


def test_a_table_of_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "--tokens", "300B")
    assert max(map(len, text.splitlines())) <= 80
    assert "Memory by the profile megatron: grad-dtype fp32, attention tiled" in " ".join(text.split())
    rows = [line.split() for line in text.splitlines() if re.match(r" ?\d+ +\d+ ", line)]
    assert len(rows) == 10
    assert all(len(row) == 16 for row in rows)


def test_a_mixture_from_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    """What a token goes through; all-to-alls; and a published mixture has its published size."""
    text = said(capsys, "--experts", "4", "--device-memory", "4GB", "--rows", "3000")
    assert "A token goes through 2 of 4 experts" in text
    rows = [line.split() for line in text.splitlines() if re.match(r" *\d+ +\d+ ", line)]
    assert {row[5] for row in rows} == {"1", "2", "4"}
    of = command.shape_of(command.PlanOptions(model="mixtral-8x7b"))[1]
    assert (of.parameters(), of.active()) == (46_702_792_704, 12_879_925_248)


def test_every_term_of_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    """The terms of memory are those of the row, and the times add up."""
    text = said(capsys, "--explain", "2", "--tokens", "300B")
    assert max(map(len, text.splitlines())) <= 80
    times = text.split("Time of a step")[1]
    found = [float(number) for number in re.findall(r" (\d+\.\d{3})(?: |\n)", times)]
    *terms, together = found
    assert math.isclose(sum(terms), together, abs_tol=0.005)
    for source in ("ZeRO §5.1", "Korthikanti §4", "PaLM App. B"):
        assert source in text


def test_terms_are_those_of_the_axes_that_a_row_has() -> None:
    """Each time that is not zero is in the list; and no axis of one rank."""
    rows = search(WANTED, CLUSTER).rows
    for row in (next(row for row in rows if row.choice.pp > 1 < row.choice.tp), rows[0]):
        text = "\n".join(show.explain(row, WANTED, CLUSTER, None))
        assert ("PTD §2.2" in text) == (row.choice.schedule in ("1f1b", "interleaved") and row.choice.pp > 1)
        for name in ("tensor", "context", "experts", "pipeline", "data"):
            assert (f"waits: {name}" in text) or not getattr(row.seconds, name)
        assert "waits: experts" not in text


def test_a_row_is_checked_from_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "--check", "3")
    assert max(map(len, text.splitlines())) <= 80
    assert re.search(r"\n(\d+) of \1 agree to the byte\.", text)


def test_a_report_for_machines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, "--json", str(tmp_path / "plan.json"), "--rows", "3")
    report = json.loads((tmp_path / "plan.json").read_text())
    assert len(report["rows"]) == 3
    assert report["rows"][0]["seconds"]["step"] <= report["rows"][1]["seconds"]["step"]
    assert {"memory", "sent", "mfu", "micro_batches"} <= report["rows"][0].keys()


@pytest.mark.parametrize(("line", "says"), table(__file__, "errors_are_one_line"))
def test_errors_are_one_line(
    line: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And nothing is printed before it, or written."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as error:
        main(["plan", *line.split()])
    assert says in str(error.value)
    assert "\n" not in str(error.value)
    assert (capsys.readouterr().out, os.listdir()) == ("", [])


def test_a_size_alone_is_a_model_of_gpt_3s_proportions() -> None:
    for size, layers in ((175e9, 96), (7.5e9, 34)):
        model = command.proportioned(int(size), 2048)
        assert (model.layers, model.h, model.a) == (layers, 128 * layers, layers)
        assert abs(model.parameters() / size - 1) < 0.07


def test_hugging_faces_file_is_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 160, "max_position_embeddings": 128, "vocab_size": 100,
    }))  # fmt: skip
    assert main(["plan", "--model", str(file), "--ranks", "4", "--batch", "4096"]) == 0
    assert "layouts are possible" in capsys.readouterr().out


def test_what_no_file_can_say_is_not_written() -> None:
    found = search(WANTED, CLUSTER)
    rows = [row for row in found.rows if row.choice.pp > 1]
    with pytest.raises(UsageError, match="--write-deepspeed can only say data ranks"):
        write.sayable(found._replace(rows=rows), "--write-deepspeed", hybrid=False)


@pytest.mark.parametrize("choice", [
    Choice(16, zero=0, rows=1), Choice(16, zero=1, rows=2), Choice(16, zero=2, rows=1),
    Choice(16, zero=3, rows=2, recompute="every:1"), Choice(16, zero=3, hosts=4),
])  # fmt: skip
def test_explain_reads_a_row_back_to_the_same_bytes(choice: Choice, tmp_path: Path) -> None:
    """Model states, what passes, and what is sent; of DeepSpeed's file and of Accelerate's."""
    name, of = "llama2-7b", command.shape_of(command.PlanOptions(model="llama2-7b"))[1]
    wanted = Wanted(name, of, 64, of.s)
    asked = ask(wanted, choice)
    [ours], along = held(asked), sent(asked)
    files = {"ds.json": write.deepspeed(wanted, choice)} if choice.hosts == 1 else {}
    files["accelerate.yaml"] = write.accelerate(wanted, choice, per_host=4)
    for file, text in files.items():
        (tmp_path / file).write_text(text)
        translated, ranks = accelerate.load(str(tmp_path / file), 16)
        accumulate, recompute = choice.micro_batches(wanted.batch), translated.recompute or "none"
        given = TrainingOptions(batch=wanted.batch, accumulate=accumulate, recompute=recompute)
        plan = planning.make(
            translated.config, ranks, given, width=of.h, layers=of.layers, shard=translated.shard, fsdp=translated.fsdp
        )
        model = explain.model_of(name)
        states = sizes.states(plan, model)
        assert (states.parameters, states.gradients, states.optimizer) == ours[:3]
        assert sizes.passing(plan, model) == ours.passing
        assert plan.accumulate == choice.micro_batches(wanted.batch)
        assert (plan.recompute == "full") == (choice.recompute == "every:1")
        lines = {line[2:28].strip(): line for line in explain.traffic(plan, model, 4)}
        gigabytes = sum(along[axis].nbytes[0] for axis in ("data", "hosts")) / 1e9
        assert float(lines["total sent"].split()[-1].replace(",", "")) == pytest.approx(gigabytes, abs=1e-3)


# ---- without NumPy ---------------------------------------------------------------------------------------------------

BAN = """
import sys
class Ban:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("numpy", "mpi4py", "rich"):
            raise ImportError(f"a plan needs {name}")
sys.meta_path.insert(0, Ban())
from minidist.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("more", [["--explain", "1"], pytest.param(["--json", "-"], marks=pytest.mark.slow)])
def test_a_plan_needs_the_standard_library_alone(more: list[str]) -> None:
    done = run_python("-c", BAN, *LINE, *more, cwd=ROOT, timeout=600)
    assert (done.returncode, done.stderr) == (0, "")
    assert "tokens" in done.stdout


def test_counts_have_three_digits() -> None:
    assert [show.count(n) for n in (2_950_199, 797_000, 15e12, 12)] == ["2.95M", "797K", "15T", "12"]


def test_a_row_whose_clock_differs_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    row = next(row for row in search(WANTED, CLUSTER).rows if row.seconds.bubble)
    assert "!" not in show.line(1, row, WANTED, None)
    monkeypatch.setattr(show, "idle", lambda *given: 2 * idle(*given))
    assert "!" in show.line(1, row, WANTED, None)

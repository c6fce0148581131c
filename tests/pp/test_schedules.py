"""Every schedule without MPI: what it promises for all numbers of stages, micro-batches and chunks."""

import functools
import itertools
import json
import math
import shlex
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from minidist import UsageError
from minidist.mpi.clock import Clock
from minidist.papers import chimera, dualpipe, pipelines, v_shapes, zero_bubble
from minidist.papers.figure import decimals
from minidist.pp import balance
from minidist.pp.instructions import Backward, Both, Forward, Instruction, Receive, Send, StagePlace, Step, Weight
from minidist.pp.schedules import SCHEDULES, in_groups
from minidist.pp.timeline import Timeline, WorkSpan, in_flight, print_timelines, write_trace
from minidist.pp.watch import simulate
from minidist.programs.chapter import find
from minidist.text import data
from programs import run_python
from tables import table

WITH_FLUSH = [name for name, schedule in SCHEDULES.items() if schedule.flushes]
LOOPED = ("interleaved", "breadth-first", "llama3")  # any number of chunks
WITHOUT_FLUSH = [name for name, schedule in SCHEDULES.items() if not schedule.flushes]
COSTS = {"F": 1.0, "B": 1.0, "W": 1.0}


@dataclass
class Seen:
    """What one worker did in `play`."""

    live: int = 0
    most_live: int = 0
    made: int = 0  # updates
    oldest: int = 0
    most_versions: int = 1
    forward: dict[tuple[int, int], int] = field(default_factory=dict)  # (micro-batch, chunk) -> version
    backward: set[tuple[int, int]] = field(default_factory=set)
    weight: set[tuple[int, int]] = field(default_factory=set)
    used_at_update: list[list[int]] = field(default_factory=list)  # per update: the versions of its gradients


def places(name: str, *sizes: Any, **more: Any) -> list[StagePlace]:
    """p, m, and what else there is."""
    return SCHEDULES[name].places(*sizes, **more)


def pieces(stream: Iterable[Instruction]) -> Iterator[Forward | Backward | Weight | Send | Receive | Step]:
    """Both as what it stands for."""
    for instruction in stream:
        if isinstance(instruction, Both):
            back = instruction.backward
            yield from (instruction.forward, back, Weight(back.micro_batch, back.chunk))
        else:
            yield instruction


FOLDED = ("zb-v", "v-half", "v-min", "dualpipe-v")
CROSSED = ("chimera", "dualpipe")


def part_of(name: str, p: int, stage: int, chunk: int) -> int:
    """Which part of the model it is. Folded, the second half of the model runs back; crossed, there are two models."""
    if name in FOLDED:
        return (stage, 2 * p - 1 - stage)[chunk]
    if name in CROSSED:
        return (stage, p - 1 - stage)[chunk]
    return chunk * p + stage


def play(at: Sequence[StagePlace], name: str) -> list[Seen]:
    """All workers with blocking receives over channels that keep their order, as MPI's do. Not the interpreter: what an
    instruction needs is written down here again, and so is who its peer is."""
    p, v = at[0].stages, at[0].chunks
    last = p - 1 if name in CROSSED else p * v - 1
    holder = {
        (part_of(name, p, s, chunk), k % 2 if name in CROSSED else 0): s
        for s, chunk, k in itertools.product(range(p), range(v), (0, 1))
        if name not in CROSSED or chunk == k
    }
    workers = at[0].replicas or (1,) * p
    rank_of = {(place.stage, place.replica): rank for rank, place in enumerate(at)}
    streams = [deque(pieces(SCHEDULES[name].instructions(place))) for place in at]
    channels: dict[tuple[str, int, int], deque[tuple[int, int]]] = defaultdict(deque)
    seen = [Seen() for _ in at]
    have: list[set[tuple[str, int, int]]] = [set() for _ in at]  # received, and not used yet
    waiting = False
    while not waiting:
        waiting = True
        for rank, (place, stream, me) in enumerate(zip(at, streams, seen, strict=True)):
            while stream:
                instruction = stream[0]
                if isinstance(instruction, Step):
                    me.used_at_update.append(
                        [me.forward[key] for key in me.weight if key[0] // place.micro_batches == me.made]
                    )
                    me.made += 1
                    me.oldest = max(me.oldest, instruction.oldest)
                    me.most_versions = max(me.most_versions, me.made - min(me.oldest, me.made) + 1)
                    stream.popleft()
                    waiting = False
                    continue
                k, part = instruction.micro_batch, part_of(name, p, place.stage, instruction.chunk)
                key = k, instruction.chunk
                assert name not in CROSSED or k % 2 == instruction.chunk
                assert k % workers[place.stage] == place.replica
                if isinstance(instruction, Receive | Send):
                    down = instruction.what == "activations"
                    sending = isinstance(instruction, Send)
                    other = part + (1 if down == sending else -1)
                    assert 0 <= other <= last
                    to = holder[other, k % 2 if name in CROSSED else 0]
                    peer = rank_of[to, k % workers[to]]
                    assert peer == place.peer(instruction)
                    if sending:
                        assert key in (me.forward if down else me.backward)
                        channels[instruction.what, rank, peer].append((k, other))
                    else:
                        channel = channels[instruction.what, peer, rank]
                        if not channel:
                            break
                        assert channel.popleft() == (k, part), "messages between two workers overtake each other"
                        have[rank].add((instruction.what, *key))
                elif isinstance(instruction, Forward):
                    assert key not in me.forward
                    if part > 0:
                        have[rank].remove(("activations", *key))
                    assert me.oldest <= instruction.version <= me.made, "weights that are not there"
                    me.forward[key] = instruction.version
                    me.live += 1
                    me.most_live = max(me.most_live, me.live)
                elif isinstance(instruction, Backward):
                    assert key in me.forward
                    assert key not in me.backward
                    if part < last:
                        have[rank].remove(("gradients", *key))
                    assert me.forward[key] >= me.oldest, "weights that are not there any more"
                    me.backward.add(key)
                else:
                    assert isinstance(instruction, Weight)
                    assert key in me.backward
                    assert key not in me.weight
                    me.weight.add(key)
                    me.live -= 1
                stream.popleft()
                waiting = False
    assert not any(streams), "deadlock"
    assert not any(channels.values()), "a message that nobody received"
    total = at[0].micro_batches * at[0].updates
    for place, me in zip(at, seen, strict=True):
        everything = {(k, chunk) for k in range(place.replica, total, workers[place.stage]) for chunk in range(v)}
        everything -= {(k, chunk) for k, chunk in everything if name in CROSSED and k % 2 != chunk}
        assert set(me.forward) == me.backward == me.weight == everything
        assert me.made == place.updates
        assert me.live == 0
    return seen


def check_with_flush(name: str, p: int, m: int, v: int = 1, n: int = 0) -> None:
    for i, seen in enumerate(play(places(name, p, m, v, contiguous=n), name), start=1):
        if pipelines.filled(name, p, m):
            assert seen.most_live == pipelines.in_flight(name, p, m, i, v, n)
        assert seen.most_versions == 1
        assert set(seen.forward.values()) == {0}


def check_without_flush(name: str, p: int, m: int, updates: int) -> None:
    for i, seen in enumerate(play(places(name, p, m, 1, updates), name), start=1):
        assert seen.most_live == min(p - i + 1, m * updates)
        delays = [t - version for t, versions in enumerate(seen.used_at_update) for version in versions]
        delay = {"pipedream": p - i, "vertical-sync": p - 1, "2bw": 1}[name]
        versions = {"pipedream": p - i + 1, "vertical-sync": p, "2bw": 2}[name]
        assert max(delays) == min(delay, updates - 1)
        assert all(d == min(delay, t) for t, d in enumerate(delays)) or m > 1
        assert seen.most_versions == min(versions, updates + 1)


def allowed(name: str, p: int, m: int) -> bool:
    """By the papers, and their code; written down here again."""
    return {
        "interleaved": m % p == 0,
        "llama3": m >= p,
        "chimera": p % 2 == 0 and m % p == 0,
        "dualpipe": p % 2 == m % 2 == 0 and m >= 2 * p,
        "dualpipe-v": m >= 2 * p,
    }.get(name, True)


def groups(p: int, m: int) -> list[int]:
    """Llama 3's N: what is left of m is nothing, or p or more."""
    return [n for n in range(p, m + 1) if m % n == 0 or m % n >= p]


@pytest.mark.parametrize("name", WITH_FLUSH)
def test_with_flush_small_and_exhaustive(name):
    for p, m in itertools.product(range(1, 7), range(1, 13)):
        if not allowed(name, p, m):
            continue
        for v in range(1, 5) if name in LOOPED else (SCHEDULES[name].chunks,):
            for n in groups(p, m) if name == "llama3" else (0,):
                check_with_flush(name, p, m, v, n)


@pytest.mark.parametrize("name", WITH_FLUSH)
@given(p=st.integers(1, 16), m=st.integers(1, 64), v=st.integers(1, 4), i=st.integers(0, 100))
@settings(max_examples=30, deadline=None)
def test_with_flush(name, p, m, v, i):
    if name in ("chimera", "dualpipe"):
        p += p % 2
    m += m % 2 if name == "dualpipe" else 0
    if name in ("interleaved", "chimera"):
        m = max(m // p, 1) * p
    m = max(m, {"dualpipe": 2 * p, "dualpipe-v": 2 * p, "llama3": p}.get(name, 1))
    assert allowed(name, p, m)
    n = groups(p, m)[i % len(groups(p, m))] if name == "llama3" else 0
    check_with_flush(name, p, m, v if name in LOOPED else SCHEDULES[name].chunks, n)


@pytest.mark.parametrize("name", ["pipedream", "vertical-sync"])
@given(p=st.integers(1, 16), updates=st.integers(1, 64))
@settings(max_examples=30, deadline=None)
def test_pipedream(name, p, updates):
    check_without_flush(name, p, 1, updates)


@given(p=st.integers(1, 16), more=st.integers(0, 8), updates=st.integers(1, 5))
@settings(max_examples=30, deadline=None)
def test_two_bw(p, more, updates):
    m = p + more
    check_without_flush("2bw", p, m, updates)
    for seen in play(places("2bw", p, m, 1, updates), "2bw"):
        for (k, _), version in seen.forward.items():
            assert version == max(k // m - 1, 0)  # the paper's k counts from 1


@pytest.mark.parametrize("name", ["pipedream", "vertical-sync"])
@given(replicas=st.lists(st.integers(1, 4), min_size=1, max_size=5), turns=st.integers(1, 2), updates=st.integers(1, 5))
@settings(max_examples=30, deadline=None)
def test_replicated_stages(name, replicas, turns, updates):
    m = math.lcm(*replicas) * turns
    at = places(name, len(replicas), m, 1, updates, tuple(replicas))
    for place, seen in zip(at, play(at, name), strict=True):
        downstream = sum(replicas[place.stage :])
        assert seen.most_live == min(-(-downstream // replicas[place.stage]), m * updates // replicas[place.stage])


# ---- on the clock ----------------------------------------------------------------------------------------------------


def on_the_clock(
    name: str, p: int, m: int, v: int = 0, costs: dict[str, float] = COSTS, latency: float = 0.0, n: int = 0
) -> list[Timeline]:
    return simulate(
        [(at, SCHEDULES[name].instructions(at)) for at in places(name, p, m, v, contiguous=n)], costs, latency
    )


def times(timelines: list[Timeline]) -> tuple[float, float, float]:
    """Work of a stage, the longest time between a stage's first and last work, the whole."""
    whole = max(t.end for t in timelines) - min(t.start for t in timelines)
    return timelines[0].busy, max(t.end - t.start for t in timelines), whole


@given(p=st.integers(1, 16), m=st.integers(1, 64))
@settings(max_examples=25, deadline=None)
def test_bubbles(p, m):
    for name in ("gpipe", "1f1b"):
        work, _, whole = times(on_the_clock(name, p, m))
        assert (whole - work) / whole == (p - 1) / (m + p - 1)
        assert (whole - work) / work == (p - 1) / m
    work, _, whole = times(on_the_clock("naive", p, m))
    assert whole == p * work


@given(p=st.integers(1, 8), groups=st.integers(1, 6), v=st.integers(1, 4))
@settings(max_examples=25, deadline=None)
def test_interleaved_bubble(p, groups, v):
    work, _, whole = times(on_the_clock("interleaved", p, groups * p, v))
    assert (whole - work) / work == (p - 1) / (v * groups * p)


@given(p=st.integers(1, 10), more=st.integers(0, 12), costs=st.tuples(st.integers(1, 5), st.integers(1, 5)).map(sorted))
@settings(max_examples=25, deadline=None)
def test_zero_bubble_formulas(p, more, costs):
    """For T_W <= T_F, T_B, as the paper assumes."""
    t_w, t_f = costs
    t_b = t_f
    for name, least, formula in (
        ("1f1b", 1, (p - 1) * (t_f + t_b + t_w)),
        ("zb-h1", p, (p - 1) * (t_f + t_b - t_w)),
        ("zb-h2", 2 * p - 1, (p - 1) * (t_f + t_b - 2 * t_w)),
    ):
        work, longest, _ = times(on_the_clock(name, p, least + more, costs={"F": t_f, "B": t_b, "W": t_w}))
        assert longest - work == formula


@pytest.mark.parametrize("row", zero_bubble.TABLE_5, ids=lambda row: f"{row.model} {row.p} {row.m}")
def test_zero_bubble_table_5(row):
    """Without ranks; tests/test_pipeline.py has it with 8."""
    for name, figure in row.bubble.items():
        costs = {"F": row.t_f, "B": row.t_b, "W": row.t_w}
        work, cost, _ = times(on_the_clock(name, row.p, row.m, costs=costs, latency=row.t_comm))
        assert figure.agrees((cost - work) / cost), name


def test_clock():
    clock = Clock(latency=2.0, bandwidth=100.0)
    clock.work(5.0)
    clock.receive(1.0, 100)  # was there at 1 + 2 + 1: before now
    assert clock.now == 5.0
    clock.receive(7.0, 300)
    assert clock.now == 7 + 2 + 3


# ---- the balance of stages -------------------------------------------------------------------------------------------


def cuts(n: int, workers: int) -> list[list[tuple[range, int]]]:
    """Every way to cut n units into stages with some workers each."""
    found: list[list[tuple[range, int]]] = []
    for stages in range(1, min(n, workers) + 1):
        for inner in itertools.combinations(range(1, n), stages - 1):
            borders = [0, *inner, n]
            for counts in itertools.product(range(1, workers + 1), repeat=stages):
                if sum(counts) == workers:
                    found.append([(range(a, b), c) for a, b, c in zip(borders, borders[1:], counts, strict=False)])
    return found


def pace(known: balance.Profile, stages: list[tuple[range, int]], bandwidth: float) -> float:
    links = [2 * known.activations[units[-1]] / bandwidth for units, _ in stages[:-1]]
    for units, m in stages:
        work = sum(known.times[i] for i in units)
        gradients = 2 * (m - 1) / m * sum(known.weights[i] for i in units) / bandwidth
        links.append(max(work, gradients) / m)
    return max(links)


UNITS = st.lists(st.tuples(*[st.integers(0, 20)] * 3), min_size=1, max_size=5)


@given(units=UNITS, workers=st.integers(1, 4), bandwidth=st.sampled_from([0.3, 1.0, 7.0]))
@settings(max_examples=100, deadline=None)
def test_balance_is_the_best_of_all_cuts(units, workers, bandwidth):
    known = balance.Profile(*([float(x) for x in column] for column in zip(*units, strict=True)))
    best = min(pace(known, stages, bandwidth) for stages in cuts(len(units), workers))
    found, stages = balance.partition(known, workers, bandwidth)
    assert found == pytest.approx(best)
    assert pace(known, stages, bandwidth) == pytest.approx(best)
    for replicas in {tuple(count for _, count in stages) for stages in cuts(len(units), workers)}:
        settled = [stages for stages in cuts(len(units), workers) if tuple(c for _, c in stages) == replicas]
        found, stages = balance.partition(known, workers, bandwidth, replicas)
        assert tuple(count for _, count in stages) == replicas
        assert found == pytest.approx(min(pace(known, stages, bandwidth) for stages in settled))


def test_a_deep_model_is_cut_as_well():
    known = balance.Profile(*([1.0] * 2000 for _ in range(3)))
    assert balance.partition(known, 4, 1.0, (1, 1, 1, 1)) == (
        500.0,
        [(range(i, i + 500), 1) for i in range(0, 2000, 500)],
    )


# ---- the command line ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def text_is_read_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "load", functools.cache(data.load))
        yield


def prepared(line: str, ranks: int) -> Any:
    return find("pipeline").job(shlex.split(line), ranks)


IMPOSSIBLE = table(__file__, "impossible")


@pytest.mark.parametrize(("ranks", "line", "says", "advice"), IMPOSSIBLE)
def test_a_layout_that_cannot_work_names_one_that_would(ranks, line, says, advice):
    with pytest.raises(UsageError) as refusal:
        prepared(line, ranks)
    message = str(refusal.value)
    assert says in message
    assert message.count("\n") == 0
    assert message.split("use ")[-1] == " ".join(advice)
    prepared(f"{line} {' '.join(advice)}", ranks)  # it does work


@given(
    name=st.sampled_from(list(SCHEDULES)),
    ranks=st.integers(1, 9),
    m=st.one_of(st.none(), st.integers(1, 20)),
    v=st.one_of(st.none(), st.integers(1, 3)),
    n=st.one_of(st.none(), st.integers(1, 20)),
    batch=st.integers(1, 40),
)
@settings(max_examples=100, deadline=None)
def test_following_the_advice_leads_to_a_layout_that_works(name, ranks, m, v, n, batch):
    line = f"--schedule {name} --batch {batch}" + (f" -m {m}" if m else "")
    line += f" --chunks {v}" if v and name in LOOPED else ""
    line += f" --contiguous {n}" if n and name == "llama3" else ""
    for _ in range(5):  # the schedule, the stages, micro-batches, groups of them, then the model
        try:
            prepared(line, ranks)
            return
        except UsageError as refusal:
            line += " " + str(refusal).split("use ")[-1]
    raise AssertionError(line)


def run_without_mpi(*arguments: str) -> Any:
    """As `python -m minidist.pipeline` does, in a Python that has no mpi4py."""
    code = "import sys, runpy; sys.modules['mpi4py'] = None; runpy.run_module('minidist.pipeline', run_name='__main__')"
    return run_python("-c", code, *arguments, env={"COLUMNS": "80"})


EXPLAINED = "F0&B1 is a forward that overlaps", "Without a flush, below"


def test_draws_all_schedules_without_mpi():
    drawn = run_without_mpi("--draw", "all", "-p", "4", "-m", "8")
    assert (drawn.returncode, drawn.stderr) == (0, "")
    lines = drawn.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    pictures = {
        line.split()[0]: lines[i + 1 : i + 5]
        for i, line in enumerate(lines)
        if line.split()[:1] and line.split()[0] in SCHEDULES
    }
    assert list(pictures) == list(SCHEDULES)
    assert pictures["1f1b"][3] == "stage 3        " + "".join(f"F{k}B{k}W{k}" for k in range(8))
    assert pictures["zb-h1"][0] == "stage 0  F0F1F2F3      B0W0F4B1W1F5B2W2F6B3W3F7B4W4B5W5B6W6B7W7"
    for name, picture in pictures.items():  # without a flush, a line of versions below each stage's
        stages = picture if SCHEDULES[name].flushes else picture[::2]
        assert all(line.startswith("stage") for line in stages)
        assert all(set(line) <= set("0123456789| ") for line in picture if line not in stages)
    assert "33 units of time, 27.3% idle; in flight 4 3 2 1" in lines
    assert "28.5 units of time" in drawn.stdout
    below = lines[lines.index(pictures["zb-v"][3]) + 1]
    assert below.endswith("in flight 4 4 4 4")  # micro-batches, as 1F1B's: 8 chunks, of which a stage has two
    assert all(words in drawn.stdout for words in EXPLAINED)


def test_drawing_of_work_that_takes_longer(capsys):
    """Stages of two workers: F, B and W of each take twice the time of the single worker's."""
    at = places("pipedream", 2, 2, 1, 1, (2, 1))
    spans = [WorkSpan("F", 0, 2, 0, 0), WorkSpan("B", 3, 5, 0, 0), WorkSpan("W", 5, 7, 0, 0)]
    alone = [WorkSpan("F", 2, 3, 0, 0), WorkSpan("B", 3, 4, 0, 0), WorkSpan("W", 4, 5, 0, 0)]
    assert [place.workers(place.stage) for place in at] == [2, 2, 1]
    print_timelines("replicas", [Timeline("one of two", spans), Timeline("alone", alone)])
    heading, two, one = capsys.readouterr().out.splitlines()
    assert heading == "replicas"
    assert two.rstrip() == "one of two  F0--  B0--W0--"
    assert one.rstrip() == "alone           F0B0W0"


def test_drawing_says_what_it_cannot_draw():
    drawn = run_without_mpi("--draw", "interleaved", "-p", "4", "-m", "6")
    assert (drawn.returncode, drawn.stdout) == (2, "")
    assert drawn.stderr.count("\n") == 1
    assert "use -m 8" in drawn.stderr


def test_of_all_schedules_those_are_drawn_that_can_be():
    drawn = run_without_mpi("--draw", "all", "-p", "4", "-m", "3")
    assert (drawn.returncode, drawn.stderr) == (0, "")
    lines = drawn.stdout.splitlines()
    assert "interleaved is left out, it needs a multiple of 4 for -m, not 3: use -m 4" in lines
    assert "2bw is left out, it needs at least 4 for -m, not 3: use -m 4" in lines
    assert "dualpipe is left out, it needs a multiple of 2 for -m, not 3: use -m 8" in lines
    left_out = ("interleaved", "llama3", "chimera", "dualpipe", "dualpipe-v", "2bw")
    assert [line.split()[0] for line in lines if "  " in line and line.split()[0] in SCHEDULES] == [
        name for name in SCHEDULES if name not in left_out
    ]


@pytest.mark.parametrize("name", ["1f1b", "interleaved", "zb-h2", "zb-v", "dualpipe", "dualpipe-v", "pipedream"])
def test_trace_has_every_piece_of_work_and_every_message(name, tmp_path):
    """Of two pipelines whose ranks alternate, as in a grid with tensor parallelism."""
    p, m, v = 4, 8, SCHEDULES[name].chunks
    at = places(name, p, 1, 1, updates=m) if name == "pipedream" else places(name, p, m, v)
    one, other = (simulate([(a, SCHEDULES[name].instructions(a)) for a in at], COSTS) for _ in range(2))
    timelines = [timeline for both in zip(one, other, strict=True) for timeline in both]
    write_trace(str(tmp_path / "trace.json"), timelines, [range(0, 2 * p, 2), range(1, 2 * p, 2)])
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    (process,) = {event["pid"] for event in events}
    rows = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert process not in rows
    stages = [f"pipeline {i}, stage {stage}" for stage in range(p) for i in (0, 1)]
    assert list(rows.values()) == [f"rank {rank} ({stage})" for rank, stage in enumerate(stages)]

    slices = [event for event in events if event["ph"] == "X"]
    both = [event for event in slices if "&" in event["name"]]  # a forward and a whole backward
    assert len(slices) + 2 * len(both) == 2 * 3 * p * m * v
    assert bool(both) == name.startswith("dualpipe")
    assert len({(event["tid"], event["name"]) for event in slices}) == len(slices)
    expected = {"1f1b": "F7", "interleaved": "F7 c1", "zb-h2": "F7", "zb-v": "F7 c1", "pipedream": "F7 v7"}
    expected |= {"dualpipe": "F6 c0 & B3 c1", "dualpipe-v": "F7 c0 & B3 c1"}
    assert expected[name] in {event["name"] for event in slices if event["tid"] == max(rows)}

    arrows: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event["ph"] in "sf":
            assert type(event["id"]) is int  # Perfetto drops others
            arrows[event["id"]].append(event)
    turns = v > 1 and SCHEDULES[name].shape == "v"  # where a V turns around, nothing is sent
    assert len(arrows) == 2 * 2 * m * (p * v - 1 - turns)

    def around(event: dict[str, Any]) -> list[dict[str, Any]]:
        return [s for s in slices if s["tid"] == event["tid"] and s["ts"] <= event["ts"] < s["ts"] + s["dur"]]

    for ends in arrows.values():
        (start,) = [event for event in ends if event["ph"] == "s"]
        (finish,) = [event for event in ends if event["ph"] == "f"]
        assert start["ts"] < finish["ts"]
        assert start["tid"] != finish["tid"]
        assert rows[start["tid"]].split(",")[0][-1] == rows[finish["tid"]].split(",")[0][-1]  # of the same pipeline
        (made_by,), (used_by,) = around(start), around(finish)  # an arrow without a slice at each end is not shown
        if "&" not in made_by["name"] + used_by["name"]:
            assert made_by["args"]["micro-batch"] == used_by["args"]["micro-batch"]


def test_a_drawing_explains_what_it_has():
    """Nothing of overlaps and versions of weights where there are none."""
    drawn = run_without_mpi("--draw", "zb-v", "-p", "2", "-m", "4").stdout
    assert "forward of micro-batch 0" in drawn
    assert "Below: a step's time" in drawn
    assert not any(words in drawn for words in EXPLAINED)


def test_a_drawing_without_flush_shows_versions():
    """By hand: PipeDream's last stage updates after each micro-batch and uses the newest; 2BW's, the version before."""
    drawn = run_without_mpi("--draw", "pipedream", "-p", "2", "-m", "2").stdout.splitlines()
    assert drawn[3].startswith("stage 1    F0B0W0F1B1W1F2B2W2")
    assert drawn[4].startswith("           0 0  |1 1  |2 2  |")
    drawn = run_without_mpi("--draw", "2bw", "-p", "2", "-m", "2").stdout.splitlines()
    assert drawn[4].startswith("           0 0   0 0  |0 0   0 0  |1 1   1 1  |2 2")


# ---- folded and crossed, with any times ------------------------------------------------------------------------------

SHAPED = ("breadth-first", "llama3", *FOLDED, *CROSSED)
TIMES = st.sampled_from([0.5, 1.0, 1.25, 2.0, 3.0])  # sums of these are exact


def earliest(name: str, p: int, m: int, v: int, costs: dict[str, float], latency: float) -> float:
    """No schedule of these places can be faster: some stage does its work after the way to it, and before the way back
    from it, or one micro-batch goes there and back."""
    parts = p if name in CROSSED else p * v
    across = latency * (parts - 1 - (name in FOLDED)) * (p > 1)  # nothing is sent where a V turns around, or to oneself
    alone = parts * (costs["F"] + costs["B"]) + 2 * across
    return max(m * v * sum(costs.values()), alone)


@pytest.mark.parametrize("name", SHAPED)
@given(p=st.integers(1, 8), m=st.integers(1, 24), f=TIMES, b=TIMES, w=TIMES, latency=st.sampled_from([0.0, 0.25, 1.0]))
@example(p=1, m=1, f=0.5, b=0.5, w=0.5, latency=1.0)
@settings(max_examples=25, deadline=None)
def test_any_times(name, p, m, f, b, w, latency):
    """No deadlock; each piece of work once, and after what it needs; idle never below what dependencies force."""
    p += p % 2 if name in CROSSED else 0
    m = max(m, {"dualpipe": 2 * p, "dualpipe-v": 2 * p, "llama3": p}.get(name, 1))
    m = -(-m // {"chimera": p, "dualpipe": 2}.get(name, 1)) * {"chimera": p, "dualpipe": 2}.get(name, 1)
    costs = {"F": f, "B": b, "W": w}
    v = SCHEDULES[name].chunks
    n = groups(p, m)[m % len(groups(p, m))] if name == "llama3" else 0
    timelines = on_the_clock(name, p, m, costs=costs, latency=latency, n=n)
    assert max(timeline.end for timeline in timelines) >= earliest(name, p, m, v, costs, latency)
    begun: dict[tuple[str, int, int], tuple[float, float, int]] = {}  # letter, micro-batch, part: its time, and where
    for stage, timeline in enumerate(timelines):
        assert timeline.busy == m * v * sum(costs.values())
        assert all(one.end <= other.start for one, other in itertools.pairwise(timeline.spans))
        for span in timeline.spans:
            own = [(span.letter[0], span.micro_batch, span.chunk)]
            own += [(letter, *span.along) for letter in "BW"] if span.along else []
            for letter, k, chunk in own:
                key = letter, k, part_of(name, p, stage, chunk)
                assert key not in begun
                begun[key] = span.start, span.end, stage
    parts = p if name in CROSSED else p * v
    assert len(begun) == 3 * m * parts
    for (letter, k, part), (start, _, stage) in begun.items():
        if letter == "F":
            needs = [("F", k, part - 1)] if part else []
        elif letter == "B":
            needs = [("B", k, part + 1)] if part < parts - 1 else [("F", k, part)]
        else:
            needs = [("B", k, part)]
        for need in needs:
            before = begun[need]
            sent = latency if before[2] != stage else 0.0
            assert start >= before[1] + sent or (letter == "W" and start == before[0])


@pytest.mark.parametrize("name", ["interleaved", "breadth-first", *FOLDED])
def test_what_stays_on_a_stage_takes_no_time(name: str) -> None:
    """One stage has all parts of the model and sends nothing, however long a message takes."""
    m = SCHEDULES[name].at_least(1) + 3
    assert on_the_clock(name, 1, m, latency=0.5) == on_the_clock(name, 1, m)


def test_megatrons_flexible_interleaving() -> None:
    """Its docstring's example: groups of 3, 5 micro-batches, 2 chunks."""
    order = in_groups(5, 2, 3)
    assert [k for k, _ in order] == [0, 1, 2, 0, 1, 2, 3, 4, 3, 4]
    assert [chunk for _, chunk in order] == [0, 0, 0, 1, 1, 1, 0, 0, 1, 1]


@pytest.mark.parametrize("p", [4, 6, 8, 12, 16])
def test_dualpipes_formula(p: int) -> None:
    """Table 2's bubble where it holds (F = B_input, W <= F), and what is idle where it does not."""
    for f, w, overlap in itertools.product((1.0, 2.0), (0.5, 1.0), (1.0, 0.75)):
        costs = {"F": f, "B": f, "W": w, "F&B": overlap * (2 * f + w)}
        at = places("dualpipe", p, 2 * p)
        timelines = simulate([(place, SCHEDULES["dualpipe"].instructions(place)) for place in at], costs)
        most = max(timeline.end for timeline in timelines) - min(timeline.busy for timeline in timelines)
        assert most == dualpipe.idle(p, f, f + w, w, costs["F&B"])
    unlike = [({"F": 1.0, "B": 1.5, "W": 1.0}, 8.0), ({"F": 1.0, "B": 2.0, "W": 1.0, "F&B": 2.6}, 9.2)]
    for costs, idle in unlike if p == 8 else ():
        timelines = on_the_clock("dualpipe", 8, 16, costs=costs)
        whole = max(timeline.end for timeline in timelines)
        most = max(whole - timeline.busy for timeline in timelines)
        assert most == pytest.approx(idle)
        both = costs.get("F&B", sum(costs.values()))
        assert most != pytest.approx(dualpipe.idle(8, costs["F"], costs["B"] + costs["W"], costs["W"], both))


def test_zb_v_with_unequal_times() -> None:
    """Its authors say that only equal times leave no bubble; the prototype's numbers."""
    timelines = on_the_clock("zb-v", 4, 8, costs={"F": 1.0, "B": 1.2, "W": 0.8})
    idle = [timeline.end - timeline.start - timeline.busy for timeline in timelines]
    assert idle == pytest.approx([2.4, 1.8, 1.2, 0.6])


@pytest.mark.parametrize("d", [2, 4, 6, 8, 16, 32])
def test_chimeras_bubble(d: int) -> None:
    """Table 2's, (D-2)/(2N+D-2), for equal times and every N; and ours for longer backwards. A worker holds D/2 + 1 to
    D micro-batches if N = D, else D."""
    sizes = ((1, 2, 3, 4), (1.0, 1.5, 2.0, 3.0)) if d < 16 else ((1, 2), (1.0, 2.0))
    for units, backward in itertools.product(*sizes):
        n = units * d
        timelines = on_the_clock("chimera", d, n, costs={"F": 1.0, "B": backward / 2, "W": backward / 2})
        work, _, whole = times(timelines)
        if backward == 1:
            assert (whole - work) / whole == (d - 2) / (2 * n + d - 2)
        elif units == 1 or backward >= 2:
            assert whole - work == chimera.idle(d, n, backward)
        ends = [min(d - i + 1, d // 2) + min(i, d // 2) for i in range(1, d + 1)] if units == 1 else [d] * d
        assert [in_flight(timeline) for timeline in timelines] == ends
    assert [decimals(4)(chimera.bubble(d, d)) for d in (4, 8, 16)] == ["0.2000", "0.2727", "0.3043"]


def test_v_patterns_on_the_clock() -> None:
    for name, p in itertools.product(("zb-v", "v-half", "v-min"), (1, 2, 3, 4, 6, 7, 9, 12)):
        timelines = on_the_clock(name, p, 2 * p)
        work, longest, whole = times(timelines)
        assert (longest if name == "zb-v" else whole) - work == v_shapes.idle(name, p), (name, p)


def deadlock_of(orders: Sequence[Sequence[Instruction]], name: str = "1f1b") -> str:
    with pytest.raises(ValueError, match="deadlock") as raised:
        simulate(list(zip(places(name, len(orders), 2), map(iter, orders), strict=True)), COSTS)
    return str(raised.value)


def test_a_deadlock_says_who_waits_for_whom() -> None:
    """The clock would wait without end."""
    there: list[Instruction] = [Forward(0), Send("activations", 0)]
    back: list[Instruction] = [Receive("gradients", 0), Backward(0)]
    last: list[Instruction] = [Receive("activations", 0), Forward(0), Backward(0)]
    crossed = [*back, *there], [*last, Send("gradients", 0)]
    says = "deadlock: stage 0 in 'receive gradients 0' for stage 1, and stage 1 in 'receive activations 0' for stage 0"
    assert deadlock_of(crossed) == says
    assert (
        deadlock_of([[*there, *back], last])
        == "deadlock: stage 0 in 'receive gradients 0' for stage 1, which has ended"
    )
    waits_for_a_cycle = [back, back, last]
    assert deadlock_of(waits_for_a_cycle).startswith("deadlock: stage 1 in 'receive gradients 0' for stage 2, and")
    assert deadlock_of([[Receive("activations", 0, 1), Forward(0, 1)]], "zb-v").startswith(
        "deadlock: stage 0 in 'receive activations 0' for stage 0"
    )


# ---- which one to take -----------------------------------------------------------------------------------------------


def test_the_best_that_fits() -> None:
    drawn = run_without_mpi(*["--best", "--pp", "8", "-m", "32", "--held", "0.6", "--costs", "1,1.2,0.8,0.1"])
    assert (drawn.returncode, drawn.stderr) == (0, "")
    lines = drawn.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    rows = [line.split() for line in lines if line.split() and line.split()[0] in SCHEDULES and line.count("%") == 1]
    assert {row[0] for row in rows} == set(WITH_FLUSH)
    assert [float(row[1]) for row in rows] == sorted(float(row[1]) for row in rows)
    assert [row[0] for row in rows if row[-1] in ("best", "fits")] == ["v-min", "naive"]
    assert "v-min  Qi et al., Controllable Memory, 2024; small: on the way back" in lines
    report = json.loads(run_without_mpi(*["--best", "--pp", "4", "-m", "8", "--json", "-"]).stdout)
    assert report["best"] == "zb-v"
    assert {row["schedule"]: row["held"] for row in report["tried"]}["dualpipe"] == 1.25


def test_nothing_fits() -> None:
    refused = run_without_mpi(*["--best", "--pp", "3", "-m", "6", "--held", "0.01"])
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    advice = refused.stderr.split("use ")[-1].split()
    assert run_without_mpi(*["--best", "--pp", "3", "-m", "6"], *advice).returncode == 0

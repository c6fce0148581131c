"""FSDP on 1 to 4 ranks: the losses of plain data parallelism, whatever the strategy; the order in which it sends; what
it holds, sends and takes; and which options do not go together."""

import itertools
import json
import random
from functools import cache
from typing import Any

import numpy as np
import pytest

from jobs import engines
from jobs import fsdp as jobs
from minidist import UsageError
from minidist.engine import Engine, Settings
from minidist.mpi.clock import Clock
from minidist.papers import fsdp as paper
from ranks import launch

# Of the cases every eighth on four ranks, and so every variant; with -m slow, all on one to four.
RANKS = pytest.mark.parametrize(
    ("n", "every"), [(4, 8), *(pytest.param(n, 1, marks=pytest.mark.slow) for n in (1, 2, 3, 4))]
)
BATCH = 15  # 15 rows, and micro-batches of 5, are not divisible by 2 or 4 ranks
BACK = ("pre", "post", "none")
VARIANTS = [
    *(
        f"full_shard --backward-prefetch {back}{forward}"
        for back, forward in itertools.product(BACK, ("", " --forward-prefetch", " --forward-prefetch --prefetch 2"))
    ),
    *("shard_grad_op", "shard_grad_op --forward-prefetch"),
    *(f"hybrid_shard --backward-prefetch {back}" for back in BACK),
    "hybrid_shard --prefetch 2 --forward-prefetch",
    "no_shard",
]
MODELS = ("gpt", "gpt untied", "llama")
RECOMPUTE = ("none", "selective", "full")


def cases(precision: str) -> list[list[Any]]:
    """Every variant with every accumulation and recomputation; models go round."""
    accumulations = ((1, ""), (3, ""), (3, " --no-sync"))
    return [
        [words + no_sync, model, precision, accumulate, recompute]
        for i, ((accumulate, no_sync), words) in enumerate(itertools.product(accumulations, VARIANTS))
        for j, recompute in enumerate(RECOMPUTE)
        for model in (MODELS if words == "no_shard" else MODELS[(i + j) % 3 :][:1])
        if not (no_sync and words == "no_shard")
    ]


EXACT, MIXED = cases("fp64"), cases("mixed")


def twin(case: list[Any], n: int) -> list[Any]:
    """The case of another engine that has the same sums in the same order: with one micro-batch, or where whole
    gradients add up, data parallelism; where each micro-batch reduces, ZeRO-3; across hosts, ZeRO-3 on hosts."""
    words, model, precision, accumulate, recompute = case
    whole = accumulate == 1 or "no-sync" in words or words == "no_shard"
    name = "data_parallel" if whole else "zero3"
    if words.startswith("hybrid_shard") and n in (2, 4) and "no-sync" not in words:
        name = "zero3 on hosts"
    return [name, model, precision, accumulate, recompute]


def some(of: list[list[Any]], n: int, every: int) -> list[list[Any]]:
    return of[n % every :: every]


@cache
def on_ranks(n: int, every: int) -> dict[str, Any]:
    """All cases in one job."""
    mixed = some(MIXED, n, every)
    twins = {repr(twin(case, n)): twin(case, n) for case in mixed}
    cases = [*some(EXACT, n, every), *mixed, *twins.values()]
    return launch("jobs.fsdp:train_all", n, cases, BATCH, timeout=280).values[0]


@cache
def serial(model: str, accumulate: int, recompute: str) -> dict[str, Any]:
    settings = engines.settings("fp64", "adamw", accumulate, clip=0.5)
    settings.recompute = recompute
    return engines.train(Engine(engines.model(model), settings), BATCH)


# ---- the same losses -------------------------------------------------------------------------------------------------


def test_the_matrix_is_whole() -> None:
    """Each strategy meets tied and untied models under each accumulation and each recomputation."""
    for strategy in ("full_shard", "shard_grad_op", "hybrid_shard", "no_shard"):
        met = [case for case in EXACT if case[0].startswith(strategy)]
        assert {case[1] for case in met} == set(MODELS)
        for place in (3, 4):
            assert len({(case[1], case[place]) for case in met}) == 3 * len({case[place] for case in met})


@RANKS
def test_equals_serial_training(n: int, every: int) -> None:
    for case in some(EXACT, n, every):
        found, truth = on_ranks(n, every)[repr(case)], serial(case[1], *case[3:])
        np.testing.assert_allclose(found["losses"], truth["losses"], rtol=1e-12, atol=0, err_msg=repr(case))
        for kind in ("gradients", "parameters"):
            assert found[kind].keys() == truth[kind].keys()
            for name, array in truth[kind].items():
                difference = np.abs(found[kind][name] - array).max()
                assert difference < 1e-12 * np.abs(array).max(), (case, kind, name)


@RANKS
def test_equals_other_engines_to_the_last_bit_in_mixed_precision(n: int, every: int) -> None:
    """Whole gradients that add up on each rank, then on the host, then across, have an order that no other has."""
    compared = set()
    for case in some(MIXED, n, every):
        if case[0].startswith("hybrid_shard") and "no-sync" in case[0] and n in (2, 4):
            continue
        found, truth = on_ranks(n, every)[repr(case)], on_ranks(n, every)[repr(twin(case, n))]
        np.testing.assert_array_equal(found["losses"], truth["losses"], err_msg=repr(case))
        assert found["bits"] == truth["bits"], case
        compared.add(twin(case, n)[0])
    assert compared == {"data_parallel", "zero3", *(["zero3 on hosts"] if n in (2, 4) else [])}


@RANKS
def test_whole_gradients_across_hosts_are_close(n: int, every: int) -> None:
    """float16 gradients have 11 bits, and the order of their sums is one of its own."""
    for case in some(MIXED, n, every):
        if case[0].startswith("hybrid_shard") and "no-sync" in case[0]:
            truth = on_ranks(n, every)[repr(twin(case, n))]
            np.testing.assert_allclose(on_ranks(n, every)[repr(case)]["losses"], truth["losses"], rtol=2e-3)


# ---- the order -------------------------------------------------------------------------------------------------------

# A model of embedding, two blocks and head, untied; what stands in a step's log from the head's backward on.
BACKWARD = {
    "pre": [
        *("gather head", "gather block1", "backward head", "reduce head"),
        *("gather block0", "backward block1", "reduce block1"),
        *("gather embedding", "backward block0", "reduce block0"),
        *("backward embedding", "reduce embedding"),
    ],
    "post": [
        *("gather head", "backward head", "gather block1", "reduce head"),
        *("backward block1", "gather block0", "reduce block1"),
        *("backward block0", "gather embedding", "reduce block0"),
        *("backward embedding", "reduce embedding"),
    ],
    "none": [
        *("gather head", "backward head", "reduce head"),
        *("gather block1", "backward block1", "reduce block1"),
        *("gather block0", "backward block0", "reduce block0"),
        *("gather embedding", "backward embedding", "reduce embedding"),
    ],
}
FORWARD = {
    False: [f"{what} {unit}" for unit in ("embedding", "block0", "block1", "head") for what in ("gather", "forward")],
    True: [
        *("gather embedding", "gather block0", "forward embedding"),
        *("gather block1", "forward block0", "gather head", "forward block1", "forward head"),
    ],
}


def order(words: str, accumulate: int = 1) -> list[str]:
    variants = [[f"full_shard --backward-prefetch {back}", 1] for back in BACK]
    variants += [["full_shard --forward-prefetch", 1], ["full_shard --prefetch 2 --forward-prefetch", 1]]
    variants += [["full_shard --no-sync", 2], ["shard_grad_op", 2], ["shard_grad_op --no-sync", 2]]
    return ordered(repr(variants))[variants.index([words, accumulate])]


@cache
def ordered(variants: str) -> list[list[str]]:
    """One job for all of them."""
    return launch("jobs.fsdp:orders", 2, eval(variants)).values[0]


@pytest.mark.parametrize("back", BACK)
def test_the_order_of_a_backward(back: str) -> None:
    """Section 3.3.2: the next all-gather is issued before the current reduce-scatter, unless there is no prefetch."""
    assert order(f"full_shard --backward-prefetch {back}") == FORWARD[False] + BACKWARD[back]


def test_the_order_of_a_forward() -> None:
    assert order("full_shard --forward-prefetch") == FORWARD[True] + BACKWARD["pre"]


def test_two_units_ahead() -> None:
    log = order("full_shard --prefetch 2 --forward-prefetch")
    assert log[:4] == ["gather embedding", "gather block0", "gather block1", "forward embedding"]
    assert log[log.index("gather head", 8) :][:4] == ["gather head", "gather block1", "gather block0", "backward head"]


def test_without_communication_only_the_last_micro_batch_reduces() -> None:
    log = order("full_shard --no-sync", 2)
    assert log.count("gather block0") == 4
    assert [log.count(f"reduce block{i}") for i in range(2)] == [1, 1]
    assert log[: len(log) // 2].count("reduce block0") == 0


def test_what_is_not_resharded_is_gathered_once() -> None:
    """In each micro-batch; without communication, in each step, as PyTorch does it."""
    log = order("shard_grad_op", 2)
    assert (log.count("gather block0"), log.count("reduce block0")) == (2, 2)
    log = order("shard_grad_op --no-sync", 2)
    assert (log.count("gather block0"), log.count("reduce block0")) == (1, 1)


# ---- how long it takes -----------------------------------------------------------------------------------------------


def replay(b: list[int], g: list[int], r: list[int], prefetch: str) -> float:
    """A backward, event by event: an independent look at what the formulas add up."""
    channel = now = 0.0
    there: dict[int, float] = {}  # unit -> when its gather is through
    reduced = 0.0

    def send(cost: int) -> float:
        nonlocal channel
        channel = max(channel, now) + cost
        return channel

    def gather(i: int) -> None:
        if i < len(g) and g[i] and i not in there:
            there[i] = send(g[i])

    for i, compute in enumerate(b):
        gather(i)
        now = max(now, there.get(i, 0.0))
        if prefetch == "pre":
            gather(i + 1)
        now = max(now + compute, reduced)  # the gradient before has gone when there is another
        if prefetch == "post":
            gather(i + 1)
        reduced = send(r[i])
    return max(now, reduced)


@pytest.mark.parametrize("back", BACK)
def test_the_formulas_of_a_backward(back: str) -> None:
    draw = random.Random(7)
    for _ in range(500):
        n = draw.randint(1, 6)
        b, g, r = ([draw.randint(1, 9) for _ in range(n)] for _ in range(3))
        if draw.random() < 0.5:
            g[-1] = 0  # a tied embedding is there
        if draw.random() < 0.2:
            g = [0] * n  # all is there
        if draw.random() < 0.2:
            r = [0] * n  # nothing is reduced yet
        assert paper.backward_time(b, g, r, back) == replay(b, g, r, back), (b, g, r)
        ahead = "pre" if back == "pre" else "none"
        assert paper.forward_time(b, g, back == "pre") == replay(b, g, [0] * n, ahead)


def test_of_equal_units_each_takes_what_the_chapter_says() -> None:
    n, b, g, r = 50, 4, 3, 2
    took = {back: paper.backward_time([b] * n, [g] * n, [r] * n, back) for back in BACK}
    each = {"none": b + r + g, "post": max(b, r) + g, "pre": max(b, r + g)}
    for back in BACK:
        assert abs(took[back] - n * each[back]) <= b + g + r
    assert took["pre"] < took["post"] < took["none"]


def test_the_channel_of_a_clock() -> None:
    clock = Clock(latency=1.0, bandwidth=10.0)
    first, second = clock.start(40), clock.start(20)  # one after the other
    assert (first, second, clock.now) == (5.0, 8.0, 0.0)
    clock.work(6.0)
    clock.wait(first)  # is through already
    assert clock.now == 6.0
    clock.wait(second)
    assert clock.now == 8.0
    clock.work(4.0)
    assert clock.start(10) == 14.0  # not before it was started


# ---- as a reader types it --------------------------------------------------------------------------------------------

LETTERS = "абвгдежзиклмнопрстуфхцч"
V, S, H, STORED = len(LETTERS), 8, 12, 2
GPT = f"--layers 2 --width {H} --heads 2 --context {S} --batch 24 --steps 2"
LINES = (
    "",
    "--prefetch 2",
    "--backward-prefetch post",
    "--backward-prefetch none",
    "--untied --prefetch 2 --forward-prefetch",
    "--strategy shard_grad_op",
    "--strategy hybrid_shard",
    "--strategy hybrid_shard --shard 1",
    "--accumulate 3",
    "--accumulate 3 --no-sync",
    "--accumulate 3 --no-sync --strategy shard_grad_op",
    "--accumulate 3 --strategy no_shard",
    "--recompute full --backward-prefetch none",
    "--recompute every:2 --accumulate 2",
    "--recompute log --strategy hybrid_shard",
)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The reports of 4 ranks."""
    folder = tmp_path_factory.mktemp("reports")
    (folder / "text.txt").write_text(100 * LETTERS, encoding="utf-8")
    lines = [f"fsdp {line} {GPT} --data {folder / 'text.txt'}" for line in LINES]
    reports = launch("jobs.chapters:command_lines", 4, lines, str(folder), timeout=200).values[0]
    return dict(zip(LINES, reports.values(), strict=True))


def units(tied: bool = True, shards: int = 4) -> list[int]:
    """From the definition of GPT, padded."""
    block, embedding = 12 * H * H + 13 * H, V * H + S * H
    sizes = [embedding, block, block, 2 * H + (0 if tied else V * H)]
    return [-(-size // shards) * shards for size in sizes]


def test_every_claim_holds(found: dict[str, Any]) -> None:
    for line, report in found.items():
        assert report["status"] == 0, line
        assert report["claims"]
        assert all(claim["holds"] for claim in report["claims"]), line
        timed = any(claim["claim"] == "a step's time" for claim in report["claims"])
        # Several units ahead, nothing that is sent, several units that run again together: no formula.
        unsaid = ("--prefetch 2", "no_shard", "every:2", "log")
        assert timed == (not any(option in line for option in unsaid)), line


@pytest.mark.parametrize(
    ("line", "gathered"),
    [
        ("", lambda embedding, block, _, head: embedding + 2 * block),
        ("--prefetch 2", lambda embedding, block, _, head: embedding + 2 * block + head),
        ("--backward-prefetch post", lambda embedding, block, _, head: embedding + block),
        ("--backward-prefetch none", lambda embedding, block, _, head: embedding + block),
        ("--untied --prefetch 2 --forward-prefetch", lambda embedding, block, _, head: embedding + 2 * block),
        ("--strategy shard_grad_op", lambda *units: sum(units)),
        ("--accumulate 3 --strategy no_shard", lambda *units: 0),
    ],
)
def test_how_much_is_gathered_at_a_time(line: str, gathered: Any, found: dict[str, Any]) -> None:
    promised = STORED * gathered(*units("untied" not in line))
    assert [rank["gathered"] for rank in found[line]["memory"]] == [promised] * 4


@pytest.mark.parametrize(
    ("line", "times", "held"),
    [
        ("", (1, 1, 1), None),
        ("--strategy shard_grad_op", (1, 0, 1), None),
        ("--accumulate 3", (3, 3, 3), None),
        ("--accumulate 3 --no-sync", (3, 3, 1), "whole"),  # (2a+1)Ψ, and a whole gradient
        ("--accumulate 3 --no-sync --strategy shard_grad_op", (1, 0, 1), "whole"),
    ],
)
def test_what_is_sent_and_the_price_of_no_sync(
    line: str, times: tuple[int, ...], held: str | None, found: dict[str, Any]
) -> None:
    psi, report = sum(units()), found[line]
    once = STORED * psi * 3 // 4
    phases = ("all-gather forward", "all-gather backward", "reduce-scatter gradients")
    for rank in range(4):
        sent = report["sent"][rank]
        assert [sent.get(phase, {"bytes": 0})["bytes"] for phase in phases] == [once * n for n in times]
        assert sum(counts["bytes"] for counts in sent.values()) == once * sum(times) + 8 * 3
        embedding, block, _, _ = units()
        assert report["memory"][rank]["bucket"] == STORED * (psi if held else embedding + block)


def test_what_leaves_a_host(found: dict[str, Any]) -> None:
    """Of 2 ranks: 2M/G·(W-G)/W from each rank, all of it the all-reduce of shards. The paper's formula says more."""
    report = found["--strategy hybrid_shard"]
    m = STORED * sum(units(shards=2))
    for rank, sent_to in enumerate(report["sent_to"]):
        across = sum(sent for peer, sent in sent_to.items() if int(peer) // 2 != rank // 2)
        assert across == 2 * m // 2 * 2 // 4 == report["sent"][rank]["all-reduce across hosts"]["bytes"]
        assert paper.across_hosts(m, 4, 2) == across < paper.across_hosts_as_printed(m, 4, 2)
    assert [rank["parameters"] for rank in report["memory"]] == [m // 2] * 4
    assert f"{paper.across_hosts_as_printed(m, 4, 2):,.0f}" in report["printed"]


def test_overlap_is_worth_what_the_clock_says(found: dict[str, Any]) -> None:
    took = {line: report["counted"][0].get("time") for line, report in found.items()}
    assert took[""] < took["--backward-prefetch post"] < took["--backward-prefetch none"]
    assert took["--prefetch 2"] <= took[""]  # nothing is claimed of it
    assert took["--accumulate 3 --no-sync"] < took["--accumulate 3"]
    for report in found.values():
        assert len({json.dumps(rank) for rank in map(lambda of: of.get("time"), report["counted"])}) == 1
    computed = 6 * sum(units()[:3]) // 2 + 3 * (units()[3] + units()[0])  # F and twice F; the head with the embedding
    assert took[""] > computed
    assert "to wait\nfor the wire" in found[""]["printed"]


def test_losses_are_the_same(found: dict[str, Any]) -> None:
    """Bit for bit, where gradients are summed in the same order."""
    for group in (LINES[:4], LINES[8:9], LINES[9:12]):
        assert len({json.dumps(found[line]["loss"]) for line in group}) == 1
    assert found[""]["loss"] == found["--strategy shard_grad_op"]["loss"]


# ---- what does not go together ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranks", "words", "accumulate", "said"),
    [
        (4, "no_shard --forward-prefetch", 1, "no_shard gathers nothing: leave"),
        (4, "no_shard --prefetch 1", 1, "no_shard gathers nothing: leave"),
        (4, "no_shard --no-sync", 2, "leave out --no-sync"),
        (4, "shard_grad_op --backward-prefetch pre", 1, "leave out --backward-prefetch"),
        (4, "full_shard --no-sync", 1, "--accumulate 2 or more"),
        (4, "full_shard --shard 2", 1, "--ranks-per-host needs --strategy hybrid_shard"),
        (4, "hybrid_shard --shard 3", 1, "4 ranks are no hosts of 3 each: use --ranks-per-host 2"),
        (3, "hybrid_shard --ranks-per-host 5", 1, "use --ranks-per-host 3"),
    ],
)
def test_what_does_not_go_together(ranks: int, words: str, accumulate: int, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        jobs.job_of(words, [], Settings(accumulate=accumulate), ranks)


@pytest.mark.parametrize(("ranks", "shard"), [(1, 1), (2, 1), (3, 3), (4, 2), (8, 4)])
def test_hosts_are_two_if_that_is_possible(ranks: int, shard: int) -> None:
    assert jobs.job_of("hybrid_shard", [], Settings(), ranks).layout.shard == shard

"""All-reduces for a network of hosts: sums, bits and bytes on 1 to 17 ranks of one process, on 64 and on 256."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from cases import printed_by
from minidist import collectives, ring
from minidist.claims.collectives import compare
from minidist.exchange.one_process import run_ranks
from minidist.expert_parallel import count_copies, count_hosts
from minidist.launch import launcher
from minidist.mpi.comm import Comm
from minidist.nn.mixture import choose
from minidist.papers import collectives as formulas
from minidist.papers import deepseek_v3, nccl
from minidist.programs import busbw
from minidist.programs import ring as ring_program

Array = np.ndarray
TREES = {"binary_tree": 3, "double_tree": 2}  # and what the busiest rank sends, as a multiple of S
BY_HOST = ("hierarchical_all_reduce", "hosts_first_ring", "hosts_last_ring")


def numbers(rank: int, size: int, dtype: str = "int64") -> Array:
    """Whole numbers in integers, so that sums are exact; fractions in floats, so that each order shows."""
    drawn = np.random.default_rng([rank, size])
    return drawn.integers(-(2**40), 2**40, size) if dtype == "int64" else drawn.standard_normal(size).astype(dtype)


def on_ranks(n: int, g: int, size: int, work: Callable[[Comm, Array], Array], dtype: str = "int64") -> list[Any]:
    """Of each rank: its result, the bytes that it has sent, those across hosts, and its calls."""

    def on_rank(comm: Comm) -> tuple[Array, int, int, int]:
        comm.ledger.host_of = [rank // g for rank in range(n)]
        x = numbers(comm.rank, size, dtype)
        given, begun = x.copy(), comm.ledger.waits
        result = work(comm, x)
        assert result is x or np.array_equal(x, given)
        return result, comm.ledger.total(), comm.sent_across(), comm.ledger.waits - begun

    return run_ranks(on_rank, n)


def sizes(n: int) -> list[int]:
    return sorted({0, 1, 2, n - 1, n, n + 1, 37, 1003})


def hosts_of(n: int) -> list[int]:
    """The numbers of ranks that a host may have."""
    return [g for g in range(1, n + 1) if n % g == 0]


EVERY = [*range(1, 18), 64, pytest.param(256, marks=pytest.mark.slow)]


@pytest.mark.parametrize("n", EVERY)
@pytest.mark.parametrize("name", TREES)
def test_trees_give_the_sum_by_their_bytes(name: str, n: int) -> None:
    for size in sizes(n) if n < 64 else [n + 1]:
        found = on_ranks(n, n, size, getattr(collectives, f"{name}_all_reduce"))
        cost = getattr(formulas, f"{name}_all_reduce")(size, n)
        whole = sum(numbers(rank, size) for rank in range(n))
        assert all(np.array_equal(result, whole) for result, *_ in found)
        assert [sent for _, sent, _, _ in found] == [8 * elements for elements in cost.sent]
        assert max(calls for *_, calls in found) == cost.steps
        assert sum(cost.sent) == 2 * (n - 1) * size
        assert max(cost.sent) <= TREES[name] * (size + 1)


@pytest.mark.parametrize("n", EVERY)
@pytest.mark.parametrize("name", BY_HOST)
def test_hosts_get_the_sum_by_their_bytes(name: str, n: int) -> None:
    for g in hosts_of(n) if n < 64 else [8]:
        for size in sizes(n) if n < 64 else [n + 1]:
            found = on_ranks(n, g, size, getattr(collectives, name))
            cost = getattr(formulas, name)(size, n, g)
            whole = sum(numbers(rank, size) for rank in range(n))
            assert all(np.array_equal(result, whole) for result, *_ in found)
            assert [sent for _, sent, _, _ in found] == [8 * elements for elements in cost.sent], (g, size)
            assert [across for _, _, across, _ in found] == [8 * elements for elements in cost.across], (g, size)
            assert max(calls for *_, calls in found) == cost.steps


@pytest.mark.parametrize("hosts", [[0, 0, 1, 1], [0, 1, 0, 1], [0, 1, 1, 0], [0, 1, 2, 0, 1, 2]])
def test_claims_hold_wherever_the_ranks_of_a_host_are(hosts: list[int]) -> None:
    """mpirun may put consecutive ranks on different hosts."""

    def on_rank(comm: Comm) -> int:
        comm.ledger.host_of = hosts
        return compare(comm, 23, ring_program.COLLECTIVES, None)

    assert run_ranks(on_rank, len(hosts)) == [0] * len(hosts)


def test_bytes_across_hosts_worked_out_by_hand() -> None:
    """4 ranks on 2 hosts, S = 8. Hierarchical: 4 of 8 within, half of 4 twice across, then 4 within. First: ranks 1
    and 3 send to the other host all that they send, 12. Last: every rank does."""
    assert formulas.hierarchical_all_reduce(8, 4, 2) == formulas.Cost(4, [12] * 4, [4] * 4)
    assert formulas.hosts_first_ring(8, 4, 2) == formulas.Cost(6, [12] * 4, [0, 12, 0, 12])
    assert formulas.hosts_last_ring(8, 4, 2) == formulas.Cost(6, [12] * 4, [12] * 4)
    # 6 ranks on 3 hosts, S = 7: chunks of 4 and 3 within a host, cut into 2, 1, 1 and 1, 1, 1 across.
    assert formulas.hierarchical_all_reduce(7, 6, 2).across == [8 - 2 - 1, 6 - 2, 8 - 1 - 1, 6 - 2, 8 - 1 - 2, 6 - 2]


@pytest.mark.parametrize("n", range(2, 34))
def test_no_rank_is_inside_both_trees(n: int) -> None:
    for tree in (collectives.binary_tree, collectives.renumbered_tree):
        places = [tree(rank, n) for rank in range(n)]
        edges = {(place.parent, rank) for rank, place in enumerate(places) if place.parent is not None}
        assert edges == {(rank, child) for rank, place in enumerate(places) for child in place.children}
        assert len(edges) == n - 1
        depth, level = 0, [rank for rank, place in enumerate(places) if place.parent is None]
        assert len(level) == 1
        while level := [child for rank in level for child in places[rank].children]:
            depth += 1
        assert depth <= n.bit_length()
    inside = [
        {rank for rank in range(n) if len(tree(rank, n).children) > 1}
        for tree in (collectives.binary_tree, collectives.renumbered_tree)
    ]
    assert not inside[0] & inside[1]


@pytest.mark.parametrize("name", ["all_reduce", "hierarchical_all_reduce", "halving_doubling_all_reduce"])
@pytest.mark.parametrize("op", [np.add, np.maximum])
def test_results_in_place_and_with_another_operation(name: str, op: np.ufunc) -> None:
    work: Any = getattr(collectives, name)
    for n, g in ((1, 1), (3, 3), (4, 2), (6, 2), (6, 3)):
        truth = op.reduce([numbers(rank, 12) for rank in range(n)])
        for in_place in (False, True):

            def be(comm: Comm, x: np.ndarray, own: bool = in_place) -> np.ndarray:
                result: np.ndarray = work(comm, x, x if own else None, op)
                return result

            found = on_ranks(n, g, 12, be)
            assert all(np.array_equal(result, truth) for result, *_ in found)


WAYS = {
    "ring": ring.all_reduce,
    "halves": collectives.halving_doubling_all_reduce,
    "hosts": collectives.hierarchical_all_reduce,
}


@pytest.mark.parametrize(
    ("nbytes", "n", "g", "expected"),
    [
        (collectives.SHORT, 4, 4, "halves"),
        (collectives.SHORT, 8, 2, "hosts"),  # several hosts, so place counts, not size
        (collectives.SHORT, 8, 1, "halves"),  # each on its own
        (collectives.SHORT - 4, 4, 4, "ring"),  # chunks of different sizes: the others would not send the same
        (collectives.SHORT - 4, 8, 2, "ring"),
        (collectives.SHORT + 32, 4, 4, "ring"),  # long
        (collectives.SHORT + 32, 8, 2, "hosts"),
        (collectives.SHORT + 32, 8, 1, "ring"),
        (96, 6, 6, "ring"),  # 6 is no power of two
        (96, 2, 2, "ring"),
        (96, 6, 2, "hosts"),
    ],
)
def test_the_choice_is_by_size_and_place(nbytes: int, n: int, g: int, expected: str) -> None:
    """The calls and the bits of the chosen one, and not of the others; and whichever it is, the ring's bytes."""
    run = partial(on_ranks, n, g, nbytes // 4, dtype="float32")

    def seen(work: Callable[..., Array]) -> list[tuple[bytes, int]]:
        return [(result.tobytes(), calls) for result, *_, calls in run(work)]

    chosen = run(collectives.all_reduce)
    assert {name for name, way in WAYS.items() if seen(way) == seen(collectives.all_reduce)} >= {expected}
    assert all(np.array_equal(result, chosen[0][0]) for result, *_ in chosen)
    assert [sent for _, sent, _, _ in chosen] == [4 * of for of in formulas.ring_all_reduce(nbytes // 4, n).sent]
    if g in (1, n):  # on one host, or alone on each, without short messages: the ring
        assert seen(partial(collectives.all_reduce, short=0)) == seen(ring.all_reduce)
    if expected != "ring":
        assert seen(collectives.all_reduce) != seen(ring.all_reduce)


def test_hosts_of_a_communicator_and_of_its_parts() -> None:
    def on_rank(comm: Comm) -> tuple[Any, ...]:
        before = comm.hosts, comm.evenly_spread
        comm.ledger.host_of = [0, 0, 1, 1, 1, 2]
        part = comm.split(comm.rank % 2, comm.rank)  # 0, 2, 4 and 1, 3, 5
        four = comm.split(comm.rank in (0, 1, 2, 3), comm.rank)
        return before, comm.hosts, comm.evenly_spread, part.hosts, part.evenly_spread, four.hosts, four.evenly_spread

    found = run_ranks(on_rank, 6)
    assert found[0][:3] == (([[0, 1, 2, 3, 4, 5]], False), [[0, 1], [2, 3, 4], [5]], False)
    assert found[0][3:5] == ([[0], [1, 2]], False)
    assert found[1][3:5] == ([[0], [1], [2]], False)
    assert found[0][5:] == ([[0, 1], [2, 3]], True)


# ---- bandwidths ------------------------------------------------------------------------------------------------------


def test_bandwidths_are_those_of_nccl_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock on which every call takes a millisecond: S/t, times the factor; the limit; and factors by bytes."""
    monkeypatch.setattr(busbw, "SIZES", [4096])
    monkeypatch.setattr(busbw, "best_time", lambda comm, way: 1e-3)
    printed = printed_by("ring --busbw --ranks-per-host 2", 4)
    speeds, factors = printed.split("busbw = factor·algbw")
    rows = {line[:24].strip(): line[24:].split() for line in speeds.splitlines() if "1.000" in line}
    assert set(rows) == {*ring_program.COLLECTIVES}
    for name, (milliseconds, algorithm, bus, limit) in rows.items():
        factor = {"all-reduce": 1.5, "broadcast": 1}.get(name.split()[0], 0.75)
        assert (milliseconds, algorithm, bus) == ("1.000", "0.004", f"{4.096e-3 * factor:.3f}")
        assert limit == f"{1 / factor:.2f}"  # a link took as long
    by_bytes = {line[:24].strip(): line[24:].split() for line in factors.splitlines() if "N" in line or "broad" in line}
    assert by_bytes["all-reduce ring"] == ["2(N-1)/N", "1.500", "1.500", "1.00"]
    assert by_bytes["all-reduce hierarchical"] == ["2(N-1)/N", "1.500", "1.500", "1.00"]
    assert by_bytes["all-reduce binary tree"] == ["2(N-1)/N", "1.500", "3.000", "0.50"]
    assert by_bytes["all-reduce double tree"] == ["2(N-1)/N", "1.500", "2.000", "0.75"]
    assert by_bytes["all-gather ring"] == ["(N-1)/N", "0.750", "0.750", "1.00"]
    assert by_bytes["broadcast"] == ["1", "1.000", "1.500", "0.67"]


def test_mpis_own_all_reduce_is_timed_and_not_counted() -> None:
    printed = launcher.launch("jobs.rings:bandwidths", 2, timeout=60).ranks[0].stdout
    speeds, factors = (line[20:].split() for line in printed.splitlines() if line.startswith("all-reduce MPI's own"))
    assert len(speeds) == 4
    assert factors == ["2(N-1)/N", "1.000"]


def test_published_logs_by_hand() -> None:
    """33,554,432 B in 812.3 µs; 30/16 of 43.81."""
    assert round(nccl.algorithm_bandwidth(33_554_432, 812.3e-6), 2) == 41.31
    assert nccl.bus_bandwidth("all-reduce", 2, 41.31) == 41.31
    assert nccl.bus_bandwidth("all-reduce", 16, 43.81) == pytest.approx(43.81 * 30 / 16)
    assert [figure.printed for figure in nccl.FIGURES[:3]] == ["41.31", "41.31", "82.15"]
    assert all(figure.agrees() for figure in nccl.FIGURES)


@pytest.mark.parametrize("hosts", deepseek_v3.DEEPEP)
def test_what_of_deepeps_logical_bandwidth_crosses(hosts: int) -> None:
    """The same on 2 hosts as on 4, to 2 %, and less than a card's; by formula, and by tokens that choose at random."""
    rates = [deepseek_v3.physical(rate, n) for n, rate in deepseek_v3.DEEPEP.items()]
    assert rates == [45, 45.75]
    assert max(rates) < 1.02 * min(rates) < deepseek_v3.INFINIBAND
    each = deepseek_v3.EXPERTS // hosts
    chosen = choose(np.random.default_rng(hosts).random((4096, deepseek_v3.EXPERTS)), deepseek_v3.CHOSEN)
    copies = count_hosts(chosen, each).sum()
    crossing = sum(count_copies(chosen, each, own)[1] for own in range(hosts)) / hosts
    assert crossing / copies == pytest.approx(deepseek_v3.physical(1, hosts), rel=1e-12)


def test_a_chapter_says_which_logical_bytes_cross() -> None:
    """Those that stay and those that cross are the copies of tokens, of 2 bytes times the width."""
    hosts = "--experts 8 --top 2 --ranks-per-host 2 --host-limit 1"
    line = f"expert_parallel {hosts} --steps 1 --validate 0 --width 16 --heads 2"
    printed = " ".join(printed_by(line, 4).split())
    found = re.search(
        r"would be ([\d,]+) bytes in a step: ([\d,]+) stay on a token's own host, ([\d,]+) cross", printed
    )
    assert found is not None
    whole, stay, cross = (int(number.replace(",", "")) for number in found.groups())
    assert whole == stay + cross > stay > 0 < cross
    assert whole % (2 * 16) == 0
    assert "90 on 2 are 45.0 and 61 on 4 are 45.8" in printed


@pytest.mark.parametrize(
    ("s", "n", "hosts", "messages"),
    [
        (16, 4, [0] * 4, 4),  # by halves: 2 lg N
        (16, 1, [0], 0),
        (15, 4, [0] * 4, 6),  # around the ring
        (12, 3, [0] * 3, 4),
        (131_072, 4, [0] * 4, 4),
        (131_076, 4, [0] * 4, 6),
        (16, 4, [0, 0, 1, 1], 4),  # within, across, within: 1 + 2 + 1
        (131_080, 8, [0] * 4 + [1] * 4, 8),
        (16, 4, [0, 1, 1, 2], 4),  # not the same number on each
    ],
)
def test_messages_of_a_chapters_all_reduce(s: int, n: int, hosts: list[int], messages: int) -> None:
    """The rule that claims use, and the messages of the algorithm that is chosen."""
    assert formulas.all_reduce_messages(s, n, 2, hosts) == messages

    def on_rank(comm: Comm) -> int:
        comm.ledger.host_of = hosts
        collectives.all_reduce(comm, np.zeros(s, np.float16))
        return sum(number for _, number in comm.ledger.sent.values())

    assert run_ranks(on_rank, n) == [messages] * n

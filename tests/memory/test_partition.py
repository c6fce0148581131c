"""All partitions of a graph, against graphs whose answer is seen at a glance, and against the paper's argument."""

import itertools

import pytest

from minidist.memory.partition import best, partitions
from minidist.papers import zero_offload

CHAIN = {"a": 0, "b": 5, "c": 7}
FLOWS = [("a", "b", 3), ("b", "c", 2), ("c", "a", 1)]


def test_every_partition_is_there_once_with_what_it_cuts_and_leaves() -> None:
    found = {"".join(sorted(each.host)): (each.moved, each.device) for each in partitions(CHAIN, FLOWS, "a")}
    assert found == {"": (0, 12), "b": (5, 7), "c": (3, 5), "bc": (4, 0)}


def test_the_best_moves_least_and_of_those_leaves_least() -> None:
    (only,) = best(list(partitions(CHAIN, FLOWS, "a")))
    assert only.host == {"c"}
    two = best(list(partitions({"a": 0, "b": 5, "c": 5}, [("a", "b", 1), ("a", "c", 1)], "a")))
    assert sorted("".join(sorted(each.host)) for each in two) == ["b", "c"]


def test_the_papers_graph_by_its_own_argument() -> None:
    """Section 3, step by step, without the search: edges cut by hand for the choices that it leaves open."""
    offloading = [each for each in PAPER if each.device < 16]
    assert len(PAPER) == 2**7
    # 3.3: each edge has 2M at least and the graph is a cycle, so two of them are cut: no less than 4M.
    assert min(each.moved for each in offloading) == 4
    # Whoever moves 4M cuts no edge of 4M: the float32 states stay with the update, the parameters with the passes.
    cheapest = [each for each in offloading if each.moved == 4]
    for each in cheapest:
        assert len(each.host & set(zero_offload.SUPER)) in (0, len(zero_offload.SUPER))
        assert "p16" not in each.host
    # 3.4: two nodes are left to choose, which makes table 1.
    chosen = sorted((each.device, "g16" in each.host, "p32" in each.host) for each in cheapest)
    assert chosen == [(2, True, True), (4, False, True), (14, True, False)]
    (optimum,) = best(PAPER)
    assert optimum.host == {"g16", *zero_offload.SUPER}


PAPER = list(partitions(zero_offload.NODES, zero_offload.EDGES, zero_offload.FWD_BWD))


def test_what_is_in_the_graph_flows_in_a_cycle() -> None:
    """Of each node as much goes in as comes out, by kind of number; 16 bytes of a parameter are held."""
    assert sum(zero_offload.NODES.values()) == 16
    ends = {node for start, end, _ in zero_offload.EDGES for node in (start, end)}
    assert ends == set(zero_offload.NODES)
    for state in ("p32", "m32", "v32"):
        assert (state, "update", 4) in zero_offload.EDGES
        assert ("update", state, 4) in zero_offload.EDGES
    assert len(set(zero_offload.EDGES)) == len(zero_offload.EDGES) == 11


@pytest.mark.parametrize(("g16", "fp32"), [*itertools.product((False, True), repeat=2)])
def test_table_1(g16: bool, fp32: bool) -> None:
    where = ("g16",) * g16 + ("update super",) * fp32
    memory, reduction = zero_offload.TABLE_1[where]
    host = {*(["g16"] if g16 else []), *(zero_offload.SUPER if fp32 else [])}
    (partition,) = [each for each in PAPER if each.host == host]
    assert partition.device == memory.value
    assert reduction.agrees(16 / partition.device)
    assert partition.moved == (4 if where else 0)

"""Which layouts of experts are possible, and the formulas of what they send, each against counting."""

import itertools
from argparse import Namespace
from fractions import Fraction

import numpy as np
import pytest

from minidist import UsageError
from minidist.ep.options import choose_ep, choose_hosts
from minidist.papers import deepseek_v3, deepspeed_moe, switch
from minidist.papers.collectives import chunk_sizes
from minidist.programs.expert_parallel import Hosts, draw, layouts


@pytest.mark.parametrize(
    ("ranks", "experts", "ep", "found"),
    [(4, 8, None, 4), (6, 4, None, 3), (7, 3, None, 1), (8, 8, 2, 2), (1, 8, None, 1), (4, 8, 3, "use --ep 2")],
)
def test_as_many_ranks_as_possible_divide_the_experts(
    ranks: int, experts: int, ep: int | None, found: int | str
) -> None:
    options = Namespace(experts=experts, ep=ep)
    if isinstance(found, int):
        assert choose_ep(options, ranks) == found
    else:
        with pytest.raises(UsageError, match=found):
            choose_ep(options, ranks)


def test_every_message_about_hosts_names_what_works() -> None:
    refused = []
    for p, g, experts, top, limit in itertools.product((2, 4, 6), (None, 1, 2, 4), (4, 6, 12), (1, 3), (None, 1, 2, 7)):
        options = Namespace(ranks_per_host=g, host_limit=limit, experts=experts, top=top)
        try:
            hosts = choose_hosts(options, p)
            assert hosts * (g or p) == p
            assert limit is None or top <= limit * experts // hosts
        except UsageError as error:
            refused.append(str(error))
    assert all(": use " in message for message in refused)
    assert len({message.split()[0] for message in refused}) == 3  # of the limit, the ranks, the experts


@pytest.mark.parametrize(("p", "experts"), [(1, 4), (2, 4), (3, 4), (4, 10)])
def test_rows_that_leave_and_arrive(p: int, experts: int) -> None:
    """Counted one by one."""
    chosen = np.random.default_rng(p).integers(0, 9, (p, experts))
    owner = np.repeat(np.arange(p), chunk_sizes(experts, p))
    going, coming = [0] * p, [0] * p
    for rank, expert in itertools.product(range(p), range(experts)):
        if owner[expert] != rank:
            going[rank] += chosen[rank, expert]
            coming[owner[expert]] += chosen[rank, expert]
    assert switch.rows_without_capacity(chosen.tolist()) == (going, coming)
    tokens, k, factor = Fraction(48), 2, 1.25  # whole where p and E divide: k·cf·T·(P-1)/P
    if experts == 4 and 4 % p == 0:
        assert switch.rows_of_capacity(tokens, experts, k, factor, p) == ([k * factor * tokens * (p - 1) / p] * p,) * 2


def test_hosts_of_a_token_by_all_choices() -> None:
    experts, k, hosts = 8, 3, 4
    reached = [len({e // 2 for e in of}) for of in itertools.combinations(range(experts), k)]
    assert deepseek_v3.hosts_reached(experts, k, hosts) == pytest.approx(np.mean(reached))
    v3 = deepseek_v3.EXPERTS, deepseek_v3.CHOSEN, deepseek_v3.HOSTS
    assert round(deepseek_v3.copies_to_hosts(*v3), 2) == 4.63
    assert deepseek_v3.copies_to_experts(8, 8) == 7.0
    assert deepseek_v3.most_copies(4, 8) == 3.5


def test_deepspeeds_mixtures_to_the_unit() -> None:
    assert [deepspeed_moe.parameters(h, 128) for h in deepspeed_moe.WIDTHS] == [52_470_214_656, 13_148_878_848]


def test_copies_of_tokens_whose_router_is_drawn() -> None:
    """Each choice looked at by itself; and on 8 ranks close to what all choices give."""
    small = Hosts(experts=12, k=3, hosts=4, limit=2)
    tokens, to_experts, to_hosts, limited = draw(small, 1, 5, 100)
    prob = np.random.default_rng([5, *small]).random((tokens, 12))
    elsewhere = [[expert // 3 for expert in np.argsort(-of)[:3] if expert // 3 != 1] for of in prob]
    assert (to_experts, to_hosts) == (sum(map(len, elsewhere)), sum(len({*of}) for of in elsewhere))
    assert limited < to_hosts
    v3 = layouts(8, 2, None, 4)["DeepSeek-V3"]
    tokens, *copies = np.sum([draw(v3, rank, rank, 8) for rank in range(8)], axis=0)
    to_experts, to_hosts, limited = (number / tokens for number in copies)
    assert abs(to_experts - 7.0) < 0.05
    assert abs(to_hosts - 4.63) < 0.05
    assert limited <= 3.5 + 0.05

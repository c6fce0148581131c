"""Expert parallelism against a mixture written token by token (ep/oracle.py): comparing N ranks with N others proves
nothing about the layer."""

import itertools
import json
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from alone import train_alone
from ep.oracle import check_same, dropped_by
from jobs import expert_parallels as jobs
from minidist.exchange.by_rules import run_by_rules
from minidist.exchange.one_process import run_ranks
from minidist.exchange.rules import Rules
from minidist.expert_parallel import count_hosts, limit_hosts
from minidist.fsdp import FSDP
from minidist.layout import Layout
from minidist.nn.mixture import choose
from minidist.papers.collectives import chunk_sizes
from ranks import launch

DIVIDED = [(n, ep) for n in range(1, 9) for ep in range(1, n + 1) if n % ep == 0]  # N, P
CAPACITIES = (None, 0.5, 1.0)


def exact(top: int, capacity: float | None, name: str = "gpt", accumulate: int = 1, recompute: str = "none") -> Any:
    return (name, top, capacity, "fp64", "sgd", accumulate, recompute)


# Each layout with another choice of everything else, so that each choice meets several layouts.
CHOICES = itertools.cycle(itertools.product((0, 1, 2, 3), (1, 2), CAPACITIES))
CASES = [
    *((n, exact(top, capacity), ep, zero) for (n, ep), (zero, top, capacity) in zip(DIVIDED, CHOICES, strict=False)),
    *((4, exact(2, 1.0), 2, zero) for zero in range(4)),
    *((4, exact(2, capacity, "llama"), 2, 1) for capacity in (None, 1.0)),
    *((4, exact(2, capacity, accumulate=2), 4, zero) for capacity in (None, 1.0) for zero in (0, 2)),
    *((3, exact(2, capacity, recompute=again), 3, 3) for capacity in (None, 1.0) for again in ("full", "selective")),
]


@cache
def serial(case: Any, ranks: int, cp: int = 1, how: str = "zigzag", hosts: tuple[int, int] = (1, 1)) -> Any:
    return jobs.serial(case, ranks, cp, how, hosts)


@pytest.mark.parametrize(("n", "case", "ep", "zero"), CASES, ids=str)
def test_equals_the_mixture_written_token_by_token(n: int, case: Any, ep: int, zero: int) -> None:
    """Losses with the balance loss, norms, gradients and parameters; and the same tokens are dropped."""
    ranks = run_by_rules(partial(jobs.run, case=case, ep=ep, zero=zero), n, Rules("synchronous", "contrary"))
    truth, units = serial(case, n if case[2] is not None else 1)
    check_same(jobs.joined(ranks), truth)
    sizes = [size * jobs.CONTEXT for size in chunk_sizes(jobs.BATCH // case[5], n)]
    for layer, dropped in enumerate(dropped_by(units)):
        again = 2 if case[6] == "full" else 1  # forwards of a micro-batch
        for i, expected in enumerate(dropped.values()):
            found, first = [], 0
            for rank, size in zip(ranks, sizes, strict=True):
                plan = rank["plans"][layer][again * i]
                choices = np.flatnonzero(plan.place == len(plan.slot))
                found += [(first + int(choice) % size, int(choice) // size) for choice in choices]
                first += size
            assert sorted(found) == sorted(expected)


@pytest.mark.parametrize(("n", "ep"), [(3, 1), (4, 2), (4, 4)])
def test_under_fsdp_and_through_a_constant_buffer(n: int, ep: int) -> None:
    case = exact(2, None)
    truth, _ = serial(case, 1)
    check_same(jobs.joined(run_ranks(partial(jobs.run_fsdp, case=case, ep=ep), n)), truth)
    for zero in (0, 1, 2):
        buffered = partial(jobs.run, case=case, ep=ep, zero=zero, bucket_size=100)
        check_same(jobs.joined(run_ranks(buffered, n)), truth)


MIXED = [
    (("gpt", 2, capacity, "mixed", optimizer, 1, "none"), 2, 1)
    for capacity in (None, 1.0)
    for optimizer in ("sgd", "adamw")
]
ON_MPI = [(exact(2, None), 4, 0), (exact(2, 1.0), 2, 2), (exact(1, 0.5, "llama"), 4, 3), *MIXED]


@cache
def on_mpi() -> list[dict[str, Any]]:
    """All cases in one job."""
    found: list[dict[str, Any]] = launch("jobs.expert_parallels:run_all", 4, ON_MPI, timeout=120).values[0]
    return found


@pytest.mark.parametrize("i", range(len(ON_MPI)), ids=lambda i: str(ON_MPI[i]))
def test_over_mpi_and_in_mixed_precision(i: int) -> None:
    """In mixed precision tokens travel in float16, and a choice between two experts that are nearly alike may change:
    then a gradient is off, so it is compared over all parameters. The balance loss without the loss scale, which
    float64 does not see, would change the routers' gradients altogether."""
    case, _, _ = ON_MPI[i]
    found, (truth, _) = on_mpi()[i], serial(case, 4 if case[2] is not None else 1)
    if case[3] == "fp64":
        check_same(found, truth)
        return
    np.testing.assert_allclose(found["losses"], truth["losses"], rtol=5e-3)
    for layer in range(2):
        mine, right = (of["gradients"][f"block{layer}.router.weight"] for of in (found, truth))
        assert np.linalg.norm(mine - right) < 0.02 * np.linalg.norm(right)


GRIDS = [
    *((Layout(2, 1, 1, 2, ep=2), zero) for zero in range(4)),
    *((Layout(2, 2, 1, 1, ep=2, schedule=schedule), zero) for zero, schedule in enumerate(("1f1b", "gpipe", "zb-h1"))),
    (Layout(1, 1, 1, 2), 0),
    (Layout(1, 2, 1, 1), 0),
    (Layout(2, 2, 1, 2, ep=2), 1),
    (Layout(4, 2, 1, 1, ep=2), 3),
    (Layout(4, 1, 1, 2, ep=4), 2),
    (Layout(2, 2, 1, 2, ep=1), 3),
]
MET = itertools.cycle(itertools.product((None, 1.0), ("none", "full")))  # capacity, recomputation
GRID_CASES = [
    pytest.param(*grid, *met, marks=[pytest.mark.slow] * (met != first))
    for grid, first in zip(GRIDS, MET, strict=False)
    for met in itertools.product((None, 1.0), ("none", "full"))
]


@pytest.mark.parametrize(("layout", "zero", "capacity", "again"), GRID_CASES, ids=str)
def test_in_a_grid(layout: Layout, zero: int, capacity: float | None, again: str) -> None:
    """With tensor and pipeline parallelism: a stage's balance loss is in the loss, and has its gradient."""
    name = "llama" if layout.pp == 1 and capacity else "gpt"
    case = exact(2, capacity, name, accumulate=2 if layout.pp > 1 else 1, recompute=again)
    ranks = run_ranks(partial(jobs.run_grid, case=case, layout=layout, zero=zero), layout.ranks)
    truth, _ = serial((*case[:6], "none"), layout.dp if capacity else 1)
    check_same(jobs.joined(ranks), truth)


EVERY_GRID = [
    (dp, pp, tp) for tp in (1, 2) for pp in range(1, 5) for dp in range(1, 9) if dp * pp * tp <= 8
]  # of two heads, and of four units


@pytest.mark.slow
@pytest.mark.parametrize(("dp", "pp", "tp"), EVERY_GRID)
def test_in_every_grid(dp: int, pp: int, tp: int) -> None:
    """On up to 8 ranks: each number of them that can divide the experts, each of ZeRO's stages, with a capacity and
    without."""
    divisors = [ep for ep in range(1, dp + 1) if dp % ep == 0]
    for ep, zero, capacity in itertools.product(divisors, range(4), (None, 1.0)):
        case, layout = exact(2, capacity, accumulate=2 if pp > 1 else 1), Layout(dp, pp, tp=tp, ep=ep)
        on_ranks = partial(jobs.run_grid, case=case, layout=layout, zero=zero)
        truth, _ = serial(case, dp if capacity else 1)
        check_same(jobs.joined(run_ranks(on_ranks, layout.ranks)), truth)


# With context ranks, which divide the experts, too; on hosts with a copy each; and in crossed and folded pipelines.
POSITIONS = itertools.cycle(("zigzag", "striped", "contiguous"))
WITH_ALL = [  # layout, ZeRO's stage, scheme, and what each layout meets: capacity, recomputation
    (Layout(1, 1, 2, 1, ep=2), 0, "ring", 1.0, "none"),
    (Layout(2, 1, 2, 1, ep=4), 1, "all-gather", None, "full"),
    (Layout(2, 1, 2, 1, ep=2), 3, "ulysses", 1.0, "none"),
    (Layout(1, 1, 3, 1, ep=3), 2, "ring", None, "none"),
    (Layout(1, 1, 2, 2, ep=2), 1, "ring", 1.0, "full"),
    (Layout(1, 2, 2, 1, ep=2), 2, "ring", 1.0, "none"),
    (Layout(2, 2, 2, 1, ep=4), 1, "all-gather", 0.5, "none"),
    (Layout(1, 2, 2, 2, ep=2), 3, "ring", None, "full"),
    (Layout(4, hosts=2, ep=2), 3, "ring", 1.0, "none"),
    (Layout(2, cp=2, hosts=2, ep=2), 3, "ring", 1.0, "none"),
    (Layout(4, hosts=2, pp=2, ep=2), 3, "ring", None, "none"),
    (Layout(2, 2, schedule="zb-v", chunks=2, ep=2), 1, "ring", 1.0, "none"),
    (Layout(1, 2, 2, schedule="zb-v", chunks=2, ep=2), 2, "ring", None, "none"),
    (Layout(2, 2, schedule="dualpipe", ep=2), 1, "ring", None, "none"),
    (Layout(2, 2, 2, schedule="dualpipe", ep=2), 3, "ulysses", 1.0, "none"),
    (Layout(2, 2, schedule="chimera", ep=2), 0, "ring", 1.0, "none"),
]
ALL_CASES = [
    pytest.param(*case, next(POSITIONS), marks=[pytest.mark.slow] * (i % 3 > 0)) for i, case in enumerate(WITH_ALL)
]


@pytest.mark.parametrize(("layout", "zero", "scheme", "capacity", "again", "how"), ALL_CASES, ids=str)
def test_in_a_grid_with_all_else(
    layout: Layout, zero: int, scheme: str, capacity: float | None, again: str, how: str
) -> None:
    """Which positions a rank has matters for what it drops, and for nothing else."""
    case = exact(2, capacity, "gpt", accumulate=8 // layout.dp if layout.pp > 1 else 1, recompute=again)
    on_ranks = partial(jobs.run_grid, case=case, layout=layout, zero=zero, scheme=scheme, positions=how)
    truth, _ = serial((*case[:6], "none"), layout.dp if capacity else 1, layout.cp if capacity else 1, how)
    check_same(jobs.joined(run_ranks(on_ranks, layout.ranks)), truth)


@pytest.mark.parametrize(
    ("layout", "capacity", "how"),
    [
        (Layout(2, cp=2, ep=2), 1.0, {"forward_prefetch": True}),
        (Layout(1, cp=3, ep=3), None, {"reshard_after_forward": False}),
        (Layout(4, hosts=2, ep=2), 1.0, {"backward_prefetch": "post"}),
        (Layout(2, cp=2, hosts=2, ep=1), None, {"backward_prefetch": "none"}),
    ],
    ids=str,
)
def test_under_fsdp_with_context_ranks_and_on_hosts(
    layout: Layout, capacity: float | None, how: dict[str, Any]
) -> None:
    case = exact(2, capacity)
    on_ranks = partial(jobs.run_grid, case=case, layout=layout, zero=3, build=partial(FSDP, **how))
    truth, _ = serial(case, layout.dp if capacity else 1, layout.cp if capacity else 1)
    check_same(jobs.joined(run_by_rules(on_ranks, layout.ranks, Rules("eager", "contrary"))), truth)


def test_a_limit_of_hosts_takes_the_best_hosts() -> None:
    """By hand: each token's hosts, by the sum of their k/limit best, and its experts on these."""
    n, e, k, hosts = 200, 12, 4, 4
    prob = np.random.default_rng(0).random((n, e))
    for limit in (2, 3, 4):
        chosen = choose(limit_hosts(prob, k, hosts, limit), k)
        for token, found in zip(prob.tolist(), chosen.tolist(), strict=True):
            scores = [sum(sorted(token[3 * host : 3 * host + 3])[-max(1, k // limit) :]) for host in range(hosts)]
            _, best = zip(*sorted(zip(scores, range(hosts), strict=True))[-limit:], strict=True)
            allowed = [(token[expert], expert) for host in best for expert in range(3 * host, 3 * host + 3)]
            assert set(found) == {expert for _, expert in sorted(allowed)[-k:]}
        reached = count_hosts(chosen, e // hosts)
        assert reached.tolist() == [len({expert // 3 for expert in of}) for of in chosen.tolist()]
        assert reached.max() <= limit


ON_HOSTS = [  # experts on several hosts of which a token may go to one or two
    (Layout(2, 2, ep=2, ep_hosts=2), 1, 1, None),
    (Layout(2, cp=2, tp=2, ep=4, ep_hosts=2), 2, 1, 1.0),
    (Layout(4, ep=4, ep_hosts=4), 0, 2, 0.5),
    (Layout(4, tp=2, ep=4, ep_hosts=4), 2, 1, None),
    (Layout(8, ep=4, ep_hosts=2), 1, 1, 1.0),
]


@pytest.mark.parametrize(
    ("layout", "zero", "limit", "capacity"),
    [pytest.param(*case, marks=[pytest.mark.slow] * (i > 1)) for i, case in enumerate(ON_HOSTS)],
    ids=str,
)
def test_a_limit_of_hosts_in_a_grid(layout: Layout, zero: int, limit: int, capacity: float | None) -> None:
    case = exact(2, capacity, accumulate=2 if layout.pp > 1 else 1)
    on_ranks = partial(jobs.run_grid, case=case, layout=layout, zero=zero, host_limit=limit)
    filling = (layout.dp, layout.cp) if capacity else (1, 1)
    truth, _ = serial(case, *filling, hosts=(layout.ep_hosts, limit))
    check_same(jobs.joined(run_ranks(on_ranks, layout.ranks)), truth)


def test_a_sample_has_every_expert() -> None:
    """Rank 0 puts the model together, for --sample, from the ranks that hold experts."""
    case = exact(2, None)
    ranks = run_ranks(partial(jobs.weights_of, case=case, ep=2), 4)
    names = {parameter.name for unit in jobs.model(case) for parameter in unit.parameters}
    assert ranks[0].keys() == names


SMALL = "--steps 2 --layers 2 --width 16 --heads 4 --context 8 --batch 16"


def test_copies_that_leave_a_host_of_one_rank_are_the_rows_that_it_sends(tmp_path: Path) -> None:
    """By the choices of the trained routers, and on the wire. With a limit of one host, three go to the same."""
    line = f"expert_parallel {SMALL} --precision fp32 --experts 24 --top 3 --ranks-per-host 1 --host-limit 1"
    [report] = launch("jobs.chapters:command_lines", 3, [line], str(tmp_path)).values[0].values()
    leave, hosts = ([rank[name] for rank in report["counted"]] for name in ("leave", "hosts"))
    for sent, (to_experts, to_hosts) in zip(report["sent"], leave, strict=True):
        assert sent["dispatch forward"]["bytes"] == 4 * 16 * to_experts
        assert to_experts == 3 * to_hosts > 0
    [row] = [line.split() for line in report["printed"].splitlines() if "this layout, trained" in line]
    to_experts, to_hosts = np.sum(leave, axis=0) / np.sum(hosts)
    assert row[3:] == [f"{to_experts:.2f}", "1", f"{to_hosts:.2f}"]


def test_against_a_dense_model_of_the_active_size(tmp_path: Path) -> None:
    """Each seed's two losses are those of two trainings of their own; mean and standard error are printed."""
    sizes = f"{SMALL} --precision fp64"
    line = f"expert_parallel --top 1 --against-dense 2 --against-plot {tmp_path}/seeds.svg {sizes}"
    [report] = launch("jobs.chapters:command_lines", 2, [line], str(tmp_path), timeout=200).values[0].values()
    truth, alone = [], tmp_path / "alone.json"
    for experts, seed in itertools.product(("", "--experts 8 --top 1"), (0, 1)):
        assert train_alone(*f"{sizes} {experts} --seed {seed}".split(), "--json", str(alone)) == 0
        truth.append(json.loads(alone.read_text())["validation_loss"])
    assert report["status"] == 0
    np.testing.assert_allclose([*report["dense"], *report["experts"]], truth, rtol=1e-12, atol=0)
    assert len({*truth}) == 4
    less = np.subtract(report["dense"], report["experts"])
    rows = {line.split()[0]: line.split()[-1] for line in report["printed"].splitlines() if line.strip()}
    assert rows["mean"] == f"{less.mean():.4f}"
    assert rows["standard"] == f"{less.std(ddof=1) / 2**0.5:.4f}"
    assert (tmp_path / "seeds.svg").read_bytes().startswith(b"<?xml")

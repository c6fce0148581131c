"""The parameter server: against serial training, against itself when messages arrive in another order, and without MPI
under random schedules. Its workshop's parts are tested in tests/ps."""

import heapq
import itertools
import math
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alone import known_alone
from jobs.parameter_server import by_name
from jobs.puppets import SETTINGS, FakeComm, Network, plan_of, play
from minidist import command, train
from minidist.engine import Engine
from minidist.parameter_server import Server
from minidist.programs.chapter import find
from minidist.ps.consistent_hash import segments
from minidist.ps.messages import Answer, Copied, Mailbox, Pull, Push, Update
from minidist.ps.simulated_time import step_seconds
from ranks import launch

SMALL = ["--layers=1", "--width=12", "--heads=2", "--context=8", "--batch=9", "--steps=5", "--warmup=1"]
EXACT = [*SMALL, "--precision=fp64", "--lr=0.02"]


def variants(*options: str) -> list[list[str]]:
    return [[*EXACT, *option.split()] for option in options]


def short(value: Any) -> str:
    return " ".join(value[len(EXACT) :]) if isinstance(value, list) else str(value)


BSP = {
    1: variants("--colocated"),
    2: variants("", "--optimizer=sgd"),
    4: variants(
        *(f"--servers={k} --optimizer={optimizer}" for k in (1, 2, 3) for optimizer in ("sgd", "adamw")),
        "--servers=2 --accumulate=3 --dropout=0.2 --clip=0.05",
        "--servers=2 --model=llama --placement=hash --virtual=3",
        "--servers=3 --replicas=2 --keys=list",
        "--servers=2 --keys=cached --untied",
        "--servers=2 --filter=1e-300",
        "--colocated --optimizer=sgd --clip=0",
        "--colocated --replicas=1",
        "--colocated --placement=hash --virtual=3",
        "--colocated --filter=1e-300",
    ),
}
ALONE = variants("--filter=0.003 --optimizer=sgd --clip=0", "--local-steps=2 --optimizer=sgd")  # on 2 ranks: one worker
LOOSE = variants(
    "--consistency=async",
    "--consistency=async --servers=2 --replicas=1 --slow=0:3 --slow=1:0.5",
    "--consistency=ssp --staleness=1 --servers=2 --placement=hash",
    "--consistency=ssp --staleness=2 --colocated",
    "--consistency=ssp --staleness=2 --servers=2 --filter=1e-3",
    "--consistency=ssp --staleness=1 --servers=2 --replicas=1",
    "--consistency=ssp --staleness=1 --colocated --filter=1e-3 --placement=hash",
)
PUSH_BY_PUSH = variants(
    *(f"--consistency=ssp --staleness=0 --servers=2 --clip=0.3 --optimizer={o}" for o in ("sgd", "adamw"))
)
STOPS = variants(
    *(
        f"{mode} --servers=2 --replicas=1 --stop={rank}:{event}"
        for mode in ("--consistency=bsp", "--consistency=ssp --staleness=1")
        for rank, event in itertools.product((2, 3), (1, 12, 13, 14, 15, 16, 33))
    ),
    "--colocated --replicas=1 --stop=1:20",
)
LATER = [case for i, case in enumerate(STOPS[:-1]) if i % 5]  # with -m slow


def marked(cases: list[list[str]]) -> list[Any]:
    return [pytest.param(case, marks=[pytest.mark.slow] * (case in LATER)) for case in cases]


@cache
def on_ranks(n: int, later: bool = False, naps: bool = False) -> dict[str, Any]:
    """All cases for n ranks in one job."""
    stops = LATER if later else [case for case in STOPS if case not in LATER]
    if naps:
        cases = stops[::2] if later else LOOSE + stops[::2]
    else:
        cases = stops if later else BSP[n] + {2: ALONE, 4: LOOSE + stops + PUSH_BY_PUSH}.get(n, [])
    return launch("jobs.parameter_server:train_all", n, cases, naps, timeout=240).values[0]


def result(arguments: list[str], n: int = 4) -> dict[str, Any]:
    return on_ranks(n, arguments in LATER)[" ".join(arguments)]


def of(options: str) -> dict[str, Any]:
    return result([*EXACT, *options.split()])


# ---- bsp is serial training ------------------------------------------------------------------------------------------


def alone(arguments: list[str]) -> tuple[command.Job, Engine]:
    """The serial engine with those of the options that it knows."""
    job = find("train").job(known_alone(" ".join(arguments)), ranks=1)
    return job, Engine(job.units, job.settings)


def weights_of(engine: Engine) -> dict[str, np.ndarray]:
    return {name: weight.copy() for name, weight in by_name(list(engine.flats)).items()}


def assert_same(found: dict[str, Any], losses: list[float], weights: dict[str, np.ndarray]) -> None:
    np.testing.assert_allclose(found["losses"], losses, rtol=1e-12, atol=0)
    assert found["weights"].keys() == weights.keys()
    for name, weight in weights.items():
        assert np.abs(found["weights"][name] - weight).max() <= 1e-12 * np.abs(weight).max(), name


@cache
def serial(arguments: tuple[str, ...]) -> tuple[list[float], dict[str, np.ndarray]]:
    job, engine = alone(list(arguments))
    losses = [train.train_step(engine, job, step) for step in range(job.training.steps)]
    return losses, weights_of(engine)


@pytest.mark.parametrize(("n", "arguments"), [(n, case) for n, cases in BSP.items() for case in cases], ids=short)
def test_bsp_is_serial_training(n: int, arguments: list[str]) -> None:
    found = result(arguments, n)
    assert_same(found, *serial(tuple(arguments)))
    assert all(expected == counted for _, expected, counted in found["claims"]), found["claims"]


def test_the_filter_keeps_back_what_it_does_not_send() -> None:
    """One worker, against gradient descent with the small entries of the gradient left for later."""
    job, engine = alone(ALONE[0])
    losses, kept, sent = [], {flat: np.zeros(flat.padded) for flat in engine.flats}, 0
    for step in range(5):
        x, y = job.corpus.batch(9, 8, key=(0, step))
        loss = engine.forward(x, y)
        engine.backward(loss)
        for flat, rest in kept.items():
            rest += flat.grad
            large = np.abs(rest) > 0.003
            flat.grad[...] = np.where(large, rest, 0)
            rest[large] = 0
            sent += int(large.sum())
        engine.step()
        losses.append(loss.value)
    found = result(ALONE[0], 2)
    assert_same(found, losses, weights_of(engine))
    assert found["pushed"] == [sent]
    assert 0 < sent < 0.9 * 5 * found["size"]
    pushed = sum(nbytes for phase, _, nbytes, _ in found["sent"][0] if phase in ("push values", "push keys"))
    assert pushed == 16 * sent


def test_local_steps_between_pulls() -> None:
    """One worker, 2 + 2 + 1 steps: gradients at weights that gradient descent moves on, their sum to the server."""
    job, engine = alone(ALONE[1])
    losses = []
    for first in (0, 2, 4):
        start = {flat: flat.param.copy() for flat in engine.flats}
        total = {flat: np.zeros(flat.padded) for flat in engine.flats}
        for step in range(first, min(first + 2, 5)):
            loss = engine.forward(*job.corpus.batch(9, 8, key=(0, step)))
            engine.backward(loss)
            losses.append(loss.value)
            for flat in total:
                total[flat] += flat.grad
                flat.param -= job.settings.learning_rate(step) * flat.grad
                flat.grad.fill(0)
        norm = math.sqrt(sum(float(g @ g) for g in total.values()))
        for update, flat in enumerate(total):
            flat.param[...] = start[flat]
            job.settings.optimizer.update(
                flat.param, total[flat], flat.moments, scale=min(1, 2 / norm), lr=job.settings.learning_rate(first),
                step=update + 1, decayed=flat.decayed,
            )  # fmt: skip
    assert_same(result(ALONE[1], 2), losses, weights_of(engine))


@pytest.mark.parametrize("arguments", PUSH_BY_PUSH, ids=short)
def test_each_push_is_an_update(arguments: list[str]) -> None:
    """With bound 0, all read the weights of the last iteration, and their gradients, each clipped on its own, are then
    applied one after the other, as they end in simulated time, with the learning rate times the share of the batch."""
    found = result(arguments)
    job, engine = alone([argument for argument in arguments if argument != "--clip=0.3"])
    losses, updates = [], 0
    for step in range(5):
        x, y = job.corpus.batch(9, 8, key=(0, step))
        pushes, total = [], 0.0
        for worker, rows in enumerate((slice(0, 5), slice(5, 9))):
            share = (rows.stop - rows.start) / 9
            loss = engine.forward(x[rows], y[rows])
            engine.backward(loss)
            engine.micro_batch = 0
            gradients = {flat: flat.grad.copy() for flat in engine.flats}
            norm = math.sqrt(sum(float(g @ g) for g in gradients.values()))
            pushes.append((found["ended"][worker][step], share, min(1, 0.3 / norm), gradients))
            total += share * loss.value
            for flat in engine.flats:
                flat.grad.fill(0)
        for _, share, scale, gradients in sorted(pushes, key=lambda push: push[0]):
            updates += 1
            for flat, gradient in gradients.items():
                job.settings.optimizer.update(
                    flat.param, gradient, flat.moments, scale=scale, lr=share * job.settings.learning_rate(step),
                    step=updates, decayed=flat.decayed,
                )  # fmt: skip
        losses.append(total)
    assert_same(found, losses, weights_of(engine))


# ---- the order of events is that of simulated time -------------------------------------------------------------------


@pytest.mark.parametrize("later", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_same_run_in_whatever_order_messages_arrive(later: bool) -> None:
    awake, sleepy = on_ranks(4, later), on_ranks(4, later, naps=True)
    for arguments in sleepy:
        for name in ("losses", "seconds", "idle", "reads"):
            assert awake[arguments][name] == sleepy[arguments][name], (arguments, name)


@pytest.mark.parametrize("arguments", LOOSE, ids=short)
def test_workers_run_ahead_within_the_bound(arguments: list[str]) -> None:
    found = result(arguments)
    bound = next((int(a.split("=")[1]) for a in arguments if a.startswith("--staleness")), math.inf)
    reads = list(itertools.chain(*found["reads"]))
    assert all(oldest >= clock - bound and own == clock for clock, oldest, _, own in reads)
    assert any(oldest < clock for clock, oldest, _, _ in reads), "nobody ran ahead"
    assert found["losses"][-1] < found["losses"][0]
    assert all(expected == counted for _, expected, counted in found["claims"]), found["claims"]


@pytest.mark.parametrize("arguments", marked(STOPS), ids=short)
def test_a_copy_takes_over(arguments: list[str]) -> None:
    """No push is lost, and no update made twice: bsp still is serial training, ssp still keeps its bound."""
    found = result(arguments)
    if "--consistency=ssp" in arguments:
        reads = list(itertools.chain(*found["reads"]))
        assert len(reads) == 2 * 5 * len(found["ranges"])
        assert all(oldest >= clock - 1 and own == clock for clock, oldest, _, own in reads)
        undisturbed = result([argument for argument in arguments if "--stop" not in argument])
        np.testing.assert_allclose(found["losses"], undisturbed["losses"], rtol=0.02)
    else:
        assert_same(found, *serial(tuple(arguments)))
    assert all(expected == counted for _, expected, counted in found["claims"]), found["claims"]


# ---- random schedules, without MPI -----------------------------------------------------------------------------------


def one_after_another(costs: list[list[float]], bound: float) -> list[tuple[int, int, tuple[int, ...]]]:
    """SSP by its definition, sequentially: what each read sees, if messages take no time."""
    n, steps = len(costs), len(costs[0])
    pushed, waiting = [0] * n, []
    reads = [(worker, 0, (0,) * n) for worker in range(n)]
    ends = [(costs[worker][0], worker) for worker in range(n)]
    heapq.heapify(ends)
    while ends:
        now, worker = heapq.heappop(ends)
        pushed[worker] += 1
        if pushed[worker] < steps:
            waiting.append(worker)
        for reader in [w for w in waiting if min(pushed) >= pushed[w] - bound]:
            waiting.remove(reader)
            reads.append((reader, pushed[reader], tuple(pushed)))
            heapq.heappush(ends, (now + costs[reader][pushed[reader]], reader))
    assert not waiting
    return sorted(reads)


@st.composite
def schedules(draw: st.DrawFn) -> list[list[float]]:
    """What each step of each worker costs. No two sums of them are so near that a message's latency could matter."""
    n, steps = draw(st.integers(1, 3)), draw(st.integers(1, 6))
    whole = draw(st.lists(st.integers(1, 9), min_size=n * steps, max_size=n * steps))
    return [[whole[w * steps + i] + math.sqrt((2, 3, 5)[w]) / 10 for i in range(steps)] for w in range(n)]


@settings(max_examples=60, deadline=None)
@given(schedules(), st.integers(1, 2), st.sampled_from((0, 1, 2, 4, math.inf)), st.integers(0, 2**32))
def test_reads_under_random_schedules(costs: list[list[float]], k: int, bound: float, seed: int) -> None:
    """Whatever the order of arrival, every read sees what the sequential run says; so it keeps the bound, and sees all
    of the reader's own updates, and the workers never are further apart than the bound."""
    reads, weights, _ = play(costs, k, bound, aggregate=False, seed=seed)
    assert [(worker, clock, [view]) for worker, clock, view in one_after_another(costs, bound)] == reads
    for worker, clock, [view] in reads:
        assert min(view) >= clock - bound
        assert view[worker] == clock
        assert max(view) - min(view) <= bound + 1  # an iteration that has ended, and waits
    assert all((each == len(costs[0])).all() for each in weights)


@settings(max_examples=20, deadline=None)
@given(schedules(), st.integers(1, 2), st.integers(0, 2**32))
def test_bsp_under_random_schedules(costs: list[list[float]], k: int, seed: int) -> None:
    reads, weights, _ = play(costs, k, 0, aggregate=True, seed=seed)
    assert all(view == [(clock,) * len(costs)] for _, clock, view in reads)
    assert all((each == len(costs[0])).all() for each in weights)


@pytest.mark.parametrize("aggregate", [True, False], ids=["bsp", "ssp"])
@pytest.mark.parametrize(("k", "replicas"), [(2, 1), pytest.param(3, 1, marks=pytest.mark.slow), (3, 2)])
def test_a_server_may_stop_at_any_event(k: int, replicas: int, aggregate: bool) -> None:
    """Whatever has been sent and not yet arrived: every iteration of every worker ends up in every weight, once, and
    every read is the one that it would have been."""
    costs = [[1.0, 2.5, 1.2], [2.1, 1.3, 1.1]]
    undisturbed, _, _ = play(costs, k, 0 if aggregate else 1, aggregate, 0, replicas)
    for event in itertools.count(1):
        found = play(
            costs, k, 0 if aggregate else 1, aggregate, event, replicas, stop=(2, event)
        )  # seed: in new orders
        reads, weights, stopped = found
        assert all((each == 3).all() for each in weights), (event, weights)
        assert reads == undisturbed, event
        if not stopped:
            break
    assert event > 20


def test_no_worker_is_answered_before_all_copies_have_the_update() -> None:
    """Worker 0 waits for an update of worker 1. The server is rank 2, with copies on ranks 3 and 4."""
    network, plan = Network(seed=0), plan_of(2, 3, 2, 0, aggregate=False, replicas=2)
    asking, _, *others = (Mailbox(FakeComm(network, rank, 5), np.float64) for rank in range(5))  # type: ignore[arg-type]
    server, *copies = (Server(0, plan, SETTINGS, [np.zeros(plan.size)], mailbox) for mailbox in others)

    def copied() -> None:
        for copy in copies:
            update = copy.mailbox.next()
            assert isinstance(update, Update)
            copy.handle(update)
        word = server.mailbox.next()
        assert isinstance(word, Copied)
        server.handle(word)

    server.handle(Push(shard=0, range=0, worker=0, clock=0, stamp=1.0, share=0.5, more=True, values=np.ones(2)))
    server.handle(Pull(shard=0, range=0, worker=0, clock=1, stamp=1.0))
    server.handle(Push(shard=0, range=0, worker=1, clock=0, stamp=2.0, share=0.5, values=np.ones(2)))
    copied()
    assert server.chain.under_way  # of worker 1: it makes fresh what worker 0 has asked for
    assert asking.next() is None
    copied()
    answer = asking.next()
    assert isinstance(answer, Answer)
    assert [list(holder.state[0][0]) for holder in (server, *copies)] == [[-1.0, -1.0]] * 3
    np.testing.assert_array_equal(answer.values, [-1.0, -1.0])  # twice half of a learning rate of 1


# ---- what is sent ----------------------------------------------------------------------------------------------------


def sent(found: dict[str, Any], phase: str, source: int, dests: range) -> int:
    return sum(nbytes for name, peer, nbytes, _ in found["sent"][source] if name == phase and peer in dests)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_bytes_of_workers_and_servers(k: int) -> None:
    """5 iterations, 8 bytes a value; units are padded to a multiple of k."""
    found, n = of(f"--servers={k} --optimizer=sgd"), 4 - k
    parameters = sum(weight.size for weight in found["weights"].values())
    assert parameters <= found["size"] < parameters + 3 * k
    s = 5 * 8 * found["size"]
    for worker in range(n):
        assert sent(found, "push values", worker, range(n, 4)) == s
        assert sum(sent(found, "pull values", server, range(worker, worker + 1)) for server in range(n, 4)) == s
    for server in range(n, 4):
        assert sum(sent(found, "push values", w, range(server, server + 1)) for w in range(n)) == n * s // k
        assert sent(found, "pull values", server, range(n)) == n * s // k


def test_co_located_servers_send_as_much_as_a_ring() -> None:
    found = of("--colocated --optimizer=sgd --clip=0")
    for rank in range(4):
        values = sent(found, "push values", rank, range(4)) + sent(found, "pull values", rank, range(4))
        assert values == 5 * 8 * 2 * 3 * found["size"] // 4


def test_co_located_servers_with_hashed_keys_send_as_much_together() -> None:
    """A rank sends the gradients of keys that are not its own, and its own weights to 3 others; that adds up to what a
    ring sends, however the keys are shared."""
    found = of("--colocated --placement=hash --virtual=3")
    s, total = found["size"], 0
    own = [sum(hi - lo for lo, hi, server in segments(range(4), 3, s) if server == rank) for rank in range(4)]
    assert len(set(own)) == 4
    for rank in range(4):
        values = sent(found, "push values", rank, range(4)) + sent(found, "pull values", rank, range(4))
        assert values == 5 * 8 * (s - own[rank] + 3 * own[rank])
        total += values
    assert total == 5 * 8 * 4 * (2 * 3 * s // 4)


def test_key_caching_leaves_half() -> None:
    """8-byte keys, 8-byte values, 10 pulls and pushes: all keys with each, or all of them once and signatures then."""
    listed, cached = of("--servers=3 --replicas=2 --keys=list"), of("--servers=2 --keys=cached --untied")
    for found, servers in ((listed, range(1, 4)), (cached, range(2, 4))):
        s, lists = 8 * found["size"], len(found["ranges"])
        keys = sent(found, "push keys", 0, servers) + sent(found, "pull keys", 0, servers)
        values = sent(found, "push values", 0, servers) + sum(sent(found, "pull values", k, range(1)) for k in servers)
        assert values == 10 * s
        assert keys == (10 * s if found is listed else s + 9 * 8 * lists)


def test_replication_after_aggregation() -> None:
    """2 copies of S after aggregation; without it 1 copy for each of 2 workers."""
    after, without = of("--servers=3 --replicas=2 --keys=list"), result(LOOSE[1])
    for found, servers in ((after, range(1, 4)), (without, range(2, 4))):
        copied = sum(sent(found, "replicate values", server, range(4)) for server in servers)
        assert copied == 5 * 8 * 2 * found["size"]


# ---- simulated time --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_idle_share_falls_with_the_bound(tmp_path: Any) -> None:
    """The shape of Li et al., figure 13: large at 0, near nothing at 16. In bsp it is what the slowest step leaves."""
    sizes = ["--layers=1", "--width=32", "--context=32", "--batch=12", "--steps=32"]
    path = str(tmp_path / "report.json")
    job = launch("jobs.parameter_server:chapter", 4, [*sizes, "--staleness-sweep"], path, timeout=120)
    runs = job.values[0][1]["runs"]
    assert [status for status, _ in job.values] == [0] * 4
    screen = job.ranks[0].stdout
    assert "On each rank, in one iteration, in each of these 7 trainings\n" in screen
    promises = {(claim["source"], claim["claim"]) for run in runs for claim in run["claims"]}
    assert screen.count("✓") == len(promises) == len(runs[0]["claims"])  # a row for each promise, not for each training
    assert max(len(line) for line in screen.splitlines() if path not in line) <= 80
    idle = [run["simulated"]["idle"] for run in runs]
    assert idle == sorted(idle, reverse=True)
    assert (idle[0] > 0.35, idle[-2] < 0.01, idle[-1]) == (True, True, 0)
    own = np.array(
        [[step_seconds(runs[0]["parameters"], 4 * 32, 1.0, 1.0, (0, w, i)) for i in range(32)] for w in range(3)]
    )
    slowest = own.max(0).sum()
    assert runs[0]["simulated"]["seconds"] == pytest.approx(slowest, rel=0.25)  # messages come on top
    assert runs[0]["simulated"]["seconds"] > slowest
    assert idle[0] * runs[0]["simulated"]["seconds"] == pytest.approx(slowest - own.sum() / 3, rel=0.1)


# ---- the chapter -----------------------------------------------------------------------------------------------------


def test_save_and_go_on(tmp_path: Any) -> None:
    """Five steps, or three, a file, and two more: the same, and serial training can read the file."""
    path, report = str(tmp_path / "run"), str(tmp_path / "report.json")
    options = [*EXACT, "--servers=2", "--optimizer=sgd"]
    schedule = ["--min-lr=0.02", "--warmup=0"]  # so that the learning rate does not depend on the number of steps
    [(status, begun), *_] = launch(
        "jobs.parameter_server:chapter", 4, [*options, *schedule, "--steps=3", f"--save={path}"], report
    ).values
    [(_, ended), *_] = launch(
        "jobs.parameter_server:chapter", 3, [*options, *schedule, f"--load={path}"], report
    ).values
    job, engine = alone([*options, *schedule])
    losses = [train.train_step(engine, job, step) for step in range(5)]
    assert status == 0
    np.testing.assert_allclose([*begun["loss"], *ended["loss"]], losses, rtol=1e-12)
    x, y = job.corpus.validation_batch(72, 8)
    assert ended["validation_loss"] == pytest.approx(engine.evaluate(x, y), rel=1e-12)


FINISHED = [
    "",
    "--colocated",
    "--servers 2 --replicas 1 --stop 3:5",
    pytest.param("--keys cached", marks=pytest.mark.slow),
    pytest.param("--consistency async --filter 0.1", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("options", FINISHED)
def test_nothing_left_to_do_is_a_report(tmp_path: Any, options: str) -> None:
    """No steps at all, or a finished run that is loaded: the model is validated as it is."""
    path, report = str(tmp_path / "run"), str(tmp_path / "report.json")
    runs = ["--steps=0"], ["--steps=2", f"--save={path}"], ["--steps=2", f"--load={path}"]
    lines = [[*EXACT, *options.split(), *more] for more in runs]
    untrained, (_, trained), loaded = launch("jobs.parameter_server:chapters", 4, lines, report, timeout=60).values[0]
    job, engine = alone(EXACT)
    x, y = job.corpus.validation_batch(72, 8)
    assert untrained[1]["validation_loss"] == pytest.approx(engine.evaluate(x, y), rel=1e-12)
    assert loaded[1]["validation_loss"] == trained["validation_loss"] != untrained[1]["validation_loss"]
    for status, found in (untrained, loaded):
        assert (status, found["loss"], found["claims"]) == (0, [], [])


def test_a_sweep_with_nothing_to_do(tmp_path: Any) -> None:
    options = [*EXACT, "--steps=0", "--staleness-sweep"]
    job = launch("jobs.parameter_server:chapter", 4, options, str(tmp_path / "report.json"), timeout=30)
    [(status, found), *_] = job.values
    assert (status, [run["loss"] for run in found["runs"]]) == (0, [[]] * 7)
    assert "nan" not in job.output
    assert "Warning" not in job.output


@pytest.mark.parametrize(
    ("n", "options"),
    [
        (4, "--keys=cached"),
        (4, "--colocated --placement=hash --replicas=1"),
        (4, "--servers=2 --replicas=1 --consistency=ssp --filter=1e-3"),
        (1, "--colocated --keys=cached"),  # nothing goes over a wire
    ],
)
def test_claims_on_the_screen(n: int, options: str, tmp_path: Any) -> None:
    """A row for each claim, those on all ranks together under a heading of their own, in 80 columns."""
    job = launch("jobs.parameter_server:chapter", n, [*EXACT, *options.split()], str(tmp_path / "report.json"))
    status, report = job.values[0]
    each, together = job.ranks[0].stdout.split("\nOn all ranks together\n")
    claims = report["claims"]
    assert status == 0
    assert all(claim["holds"] for claim in claims)
    assert "\nOn each rank, in one iteration" in each
    for text, scope in ((each, "each rank"), (together, "all ranks")):
        rows = [claim["source"] for claim in claims if claim["scope"] == scope]
        assert [
            row for line in text.splitlines() if line.endswith("✓") for row in set(rows) if line.startswith(f"{row} ")
        ] == rows
    assert max(len(row) for row in job.ranks[0].stdout.splitlines() if "written to" not in row) <= 80

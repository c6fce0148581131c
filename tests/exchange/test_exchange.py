"""The exchange, and ranks that are threads over it: results, byte counts, deadlocks and races, under every rule."""

import importlib
import itertools
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs import engines, races, rings
from jobs.races import RIGHT
from minidist import ring
from minidist.claims.collectives import Inputs
from minidist.exchange import marks
from minidist.exchange.by_rules import run_by_rules
from minidist.exchange.operations import Start
from minidist.exchange.rules import PAYLOAD, Deadlock, Exchange, Rules
from minidist.launch.launcher import launch
from minidist.mpi.comm import Comm, CommError
from minidist.mpi.mailbox import NumberedMailbox
from minidist.programs.ring import COLLECTIVES

SENDS, ORDERS = ("synchronous", "eager", "drawn"), ("natural", "contrary", "drawn")
RULES = [Rules(sends, order) for sends, order in itertools.product(SENDS, ORDERS)]  # type: ignore[arg-type]
rules_of_any_seed = st.builds(Rules, st.sampled_from(SENDS), st.sampled_from(ORDERS), st.integers(0, 2**32))


def name_of(rules: Rules) -> str:
    return f"{rules.sends}, {rules.order}"


# ---- results and bytes ----------------------------------------------------------------------------------------------


# Those by host need hosts: tests/test_collectives.py.
ANYWHERE = sorted(name for name, collective in COLLECTIVES.items() if not collective.by_host)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(ANYWHERE), st.integers(1, 9), st.integers(0, 60), rules_of_any_seed)
def test_collectives_give_the_truth_and_send_what_the_formulas_say(name: str, n: int, size: int, rules: Rules) -> None:
    collective = COLLECTIVES[name]
    inputs = [np.random.default_rng([rank, size]).integers(-100, 100, size).astype(np.float32) for rank in range(n)]

    def be_rank(comm: Comm) -> tuple[np.ndarray, int, int]:
        result = collective.run(comm, inputs[comm.rank])
        return result, comm.ledger.total(), comm.ledger.waits

    cost = collective.cost(size, n)
    found = run_by_rules(be_rank, n, rules)
    for rank, (result, nbytes, _) in enumerate(found):
        assert np.array_equal(result, collective.truth(Inputs(np.stack(inputs)), rank))
        assert nbytes == 4 * cost.sent[rank]
    assert max(waits for _, _, waits in found) == cost.steps


OPERATIONS = [name for name in rings.OPERATIONS if not re.fullmatch("broadcast from [4-7]", name)]
CASES = [
    [name, "fractions", dtype, [size]]
    for name, dtype, size in itertools.product(OPERATIONS, ("float64", "float16"), (1, 5, 20_003))
    if name != "all_to_all"
] + [["all_to_all", "fractions", "float32", [4, size]] for size in (0, 1, 9000)]
ENGINE_CASES = [
    ["zero3", "gpt", "fp64", "adamw", 3, 0.5, 15],
    ["zero3 keep_last", "llama", "mixed", "adamw", 1, 0.5, 15],
    ["zero2", "gpt untied", "mixed", "sgd", 3, 0.0, 15],
    ["fsdp", "gpt", "mixed", "adamw", 3, 0.5, 15],
]


@cache
def over_mpi(job: str) -> list[Any]:
    return launch(f"jobs.{job}", 4, {"rings:run_all": CASES, "engines:train_all": ENGINE_CASES}[job]).values


def same(one: Any, other: Any) -> bool:
    """To the last bit."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, np.ndarray):
        return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    return bool(one == other)


@pytest.mark.parametrize("rules", RULES, ids=name_of)
def test_collectives_give_the_bits_and_the_counts_of_mpi(rules: Rules) -> None:
    here = run_by_rules(lambda comm: rings.run_all(comm, CASES), 4, rules)
    for mine, theirs in zip(here, over_mpi("rings:run_all"), strict=True):
        for case in map(repr, CASES):
            assert same(mine[case], theirs[case]), case


# In every run each way to send and each order once.
@pytest.mark.parametrize(
    "rules",
    [pytest.param(rules, marks=[pytest.mark.slow] * (i % 4 > 0), id=name_of(rules)) for i, rules in enumerate(RULES)],
)
def test_engines_give_the_bits_of_mpi(rules: Rules) -> None:
    here = run_by_rules(lambda comm: engines.train_all(comm, ENGINE_CASES), 4, rules)
    for mine, theirs in zip(here, over_mpi("engines:train_all"), strict=True):
        for case in map(repr, ENGINE_CASES):
            for what in theirs[case]:
                assert same(mine[case][what], theirs[case][what]), (case, what)


def test_many_ranks() -> None:
    """More than a machine has cores, or MPI room for."""
    n = 200

    def be_rank(comm: Comm) -> bool:
        row = comm.split(comm.rank // 20)
        total = ring.all_reduce(row, np.array([comm.rank], np.int64))
        return bool(total[0] == sum(row.world_ranks))

    assert run_by_rules(be_rank, n, Rules()) == [True] * n


def test_no_mpi_is_loaded() -> None:
    program = "import sys; sys.modules['mpi4py'] = None; import minidist.exchange.by_rules"
    subprocess.run([sys.executable, "-c", program], check=True)


# ---- any program ----------------------------------------------------------------------------------------------------

Messages = list[tuple[int, int, int]]  # (source, dest, elements) of each, in an order in which all could be sent
messages_between_four = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 5)), max_size=25)


def content(number: int, elements: int) -> np.ndarray:
    return np.full(elements, number, np.float32)


@settings(max_examples=100, deadline=None)
@given(messages_between_four, rules_of_any_seed, st.randoms(use_true_random=False))
def test_requests_may_be_waited_for_in_any_order(messages: Messages, rules: Rules, random: Any) -> None:
    orders = [random.sample(range(2 * len(messages)), 2 * len(messages)) for _ in range(4)]

    def be_rank(comm: Comm) -> list[tuple[int, np.ndarray]]:
        requests, outs = {}, []
        for number, (source, dest, elements) in enumerate(messages):
            if dest == comm.rank:
                outs.append((number, np.zeros(elements, np.float32)))
                requests[2 * number] = comm.irecv(outs[-1][1], source)
            if source == comm.rank:
                requests[2 * number + 1] = comm.isend(content(number, elements), dest)
        for i in orders[comm.rank]:
            if i in requests:
                requests[i].wait()
        return outs

    for received in run_by_rules(be_rank, 4, rules):
        for number, out in received:
            assert np.array_equal(out, content(number, messages[number][2]))


Script = list[tuple[str, int]]  # ("send" or "recv", peer), one after the other
script_of_three = st.lists(st.tuples(st.sampled_from(("send", "recv")), st.integers(0, 2)), max_size=4)


def deadlocks(scripts: Sequence[Script], eager: bool) -> bool:
    """A second opinion: two ranks go on when one sends to the other and that one receives from it."""
    at, sent = [0] * len(scripts), [[0] * len(scripts) for _ in scripts]
    moved = True
    while moved:
        moved = False
        for rank, script in enumerate(scripts):
            if at[rank] == len(script):
                continue
            call, peer = script[at[rank]]
            here = at[peer] < len(scripts[peer]) and scripts[peer][at[peer]]
            if call == "send" and eager:
                sent[rank][peer] += 1
            elif call == "recv" and sent[peer][rank]:
                sent[peer][rank] -= 1
            elif call == "send" and here == ("recv", rank) and peer != rank:
                at[peer] += 1
            else:
                continue
            at[rank] += 1
            moved = True
    return any(place < len(script) for place, script in zip(at, scripts, strict=True))


def perform(comm: Comm, script: Script) -> None:
    for call, peer in script:
        getattr(comm, call)(np.zeros(2), peer)


@settings(max_examples=200, deadline=None)
@given(st.tuples(*[script_of_three] * 3), st.sampled_from(("synchronous", "eager")), st.sampled_from(ORDERS))
def test_deadlocks_are_exact(scripts: tuple[Script, ...], sends: Any, order: Any) -> None:
    said = ""
    try:
        run_by_rules(lambda comm: perform(comm, scripts[comm.rank]), 3, Rules(sends, order))
    except CommError as error:
        said = str(error)
    if deadlocks(scripts, sends == "eager"):
        assert "A cycle of waits" in said or "waits for itself" in said or "has finished" in said
    else:
        assert not said or "were not received" in said


# ---- deadlocks have names -------------------------------------------------------------------------------------------

HERE = re.escape("test_exchange.py:")


ALL_WAIT = "Every rank waits, and no message is under way.\n"


def deadlock(function: Callable[[Comm], Any], n: int, rules: Rules = RULES[0]) -> str:
    with pytest.raises(Deadlock) as caught:
        run_by_rules(function, n, rules)
    return re.sub(rf"{HERE}\d+", "HERE", str(caught.value))


def receive_first(comm: Comm) -> None:
    comm.recv(np.zeros(1), (comm.rank + 1) % comm.size)


@pytest.mark.parametrize("rules", RULES, ids=name_of)
def test_a_cycle_is_named(rules: Rules) -> None:
    assert deadlock(receive_first, 3, rules) == (
        f"{ALL_WAIT}rank 0: recv(source=1) at HERE\nrank 1: recv(source=2) at HERE\nrank 2: recv(source=0) at HERE\n"
        "A cycle of waits: 0 -> 1 -> 2 -> 0. Each of these ranks waits for the next, so none can go on."
    )


def test_who_waits_for_one_that_has_finished() -> None:
    assert deadlock(lambda comm: None if comm.rank else receive_first(comm), 2) == (
        "Rank 1 has left without sending what rank 0 waits for.\n"
        "rank 0: recv(source=1) at HERE, but rank 1 has finished\nrank 1: finished"
    )


def test_who_never_came_to_a_barrier() -> None:
    assert deadlock(lambda comm: None if comm.rank == 1 else comm.barrier(), 3) == (
        "Rank 1 has left without calling barrier, in which rank 0 waits.\nrank 0: barrier at HERE; rank 1 never came\n"
        "rank 1: finished\nrank 2: barrier at HERE; rank 1 never came"
    )


def test_who_waits_for_itself() -> None:
    assert deadlock(lambda comm: comm.send(np.zeros(1), 0), 1) == (
        f"{ALL_WAIT}rank 0: send(dest=0) at HERE\nRank 0 waits for itself, so it can never go on."
    )


def test_a_deadlock_of_some_is_seen_while_others_look_for_messages() -> None:
    def be_rank(comm: Comm) -> None:
        while comm.rank == 2 and comm.probe() is None:
            pass
        comm.recv(np.zeros(1), 1 - comm.rank)

    assert deadlock(be_rank, 3) == (
        "Some ranks can never go on.\nrank 0: recv(source=1) at HERE\nrank 1: recv(source=0) at HERE\n"
        "rank 2: looking for messages (probe) at HERE\n"
        "A cycle of waits: 0 -> 1 -> 0. Each of these ranks waits for the next, so none can go on."
    )


@pytest.mark.parametrize("look", ["probe", *(pytest.param(look, marks=pytest.mark.slow) for look in ("done", "poll"))])
def test_who_looks_for_ever(look: str) -> None:
    def be_rank(comm: Comm) -> None:
        request, box = comm.irecv(np.zeros(1), 1 - comm.rank) if look == "done" else None, NumberedMailbox(comm, 0)
        while not (request.done() if request else comm.probe() if look == "probe" else box.poll()):
            pass

    said = deadlock(be_rank, 2)
    assert said.startswith("Ranks look for messages again and again, and none will come.\nrank 0: looking ")
    assert said.count(f"({look}) at HERE") == 2


def test_an_exception_ends_all_ranks() -> None:
    def be_rank(comm: Comm) -> None:
        if comm.rank == 1:
            raise ValueError("this rank fails")
        comm.recv(np.zeros(1), 1)

    with pytest.raises(ValueError, match="this rank fails") as caught:
        run_by_rules(be_rank, 3, Rules())
    assert caught.value.__notes__ == ["on rank 1 of 3"]


def test_the_first_exception_is_the_one_that_is_raised() -> None:
    def be_rank(comm: Comm) -> None:
        if comm.rank == 1:
            raise ValueError("the cause")
        try:
            comm.recv(np.zeros(1), 1)
        finally:
            raise RuntimeError("while it was ended")

    with pytest.raises(ValueError, match="the cause"):
        run_by_rules(be_rank, 3, Rules(order="contrary"))


def test_a_message_that_nobody_receives() -> None:
    with pytest.raises(CommError, match=rf"1 messages were not received; one is that of send at {HERE}\d+"):
        run_by_rules(lambda comm: comm.send(np.zeros(1), 0), 1, Rules("eager"))


# ---- races ----------------------------------------------------------------------------------------------------------

# Each wrong program: under which of two rules it is found, and in which words.
STRICT, LAX = Rules("synchronous", "contrary"), Rules("eager", "natural")
WRONG: dict[str, tuple[tuple[Rules, ...], str]] = {
    "changes_what_it_sends": ((STRICT, LAX), r"isend to rank \d at races.py:\d+ was changed before its wait\(\)"),
    "reads_before_the_wait": ((STRICT, LAX), r"returned was computed from the array of irecv at races.py:\d+ before"),
    "passes_on_before_the_wait": ((STRICT, LAX), r"sends to rank \d was computed from the array of irecv at races.py:"),
    "writes_into_a_receive": ((STRICT, LAX), r"irecv from rank \d at races.py:\d+ was written to before its wait\(\)"),
    "never_waits": ((STRICT, LAX), r"never waited for, so the data may be missing: irecv from rank \d at races.py:"),
    "everybody_sends_first": ((STRICT,), r"A cycle of waits: 0 -> 1 -> 2 -> 0"),
    "believes_in_an_order": ((STRICT,), "wrong"),
    "believes_others_are_ready": ((STRICT,), "wrong"),
}
TWINS = (
    "changes_it_later", "reads_after_the_wait", "passes_on_after_the_wait", "one_receives_first", "asks_who_it_was",
    "waits_until_all_are_ready",
)  # fmt: skip


def outcome(name: str, n: int, rules: Rules) -> str:
    """RIGHT, or what went wrong."""
    function = getattr(races, name)
    if "board" in function.__code__.co_varnames:
        function = partial(function, board={})
    try:
        found = run_by_rules(function, n, rules)
    except CommError as error:
        return str(error)
    return next((value for value in found if value != RIGHT), RIGHT)


@pytest.mark.parametrize("name", WRONG)
def test_a_race_is_found_in_one_run(name: str) -> None:
    rules, words = WRONG[name]
    for rule in (STRICT, LAX):
        found = outcome(name, 3, rule)
        assert re.search(words, found) if rule in rules else found == RIGHT


def test_races_name_the_line() -> None:
    lines = importlib.import_module("inspect").getsource(races).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("def changes_what_it_sends"))
    isend = 1 + next(i for i, line in enumerate(lines) if i > start and "isend" in line)
    assert f"isend to rank 1 at races.py:{isend} was changed" in outcome("changes_what_it_sends", 3, LAX)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(TWINS), st.integers(2, 4), rules_of_any_seed)
def test_right_programs_are_right_under_all_rules(name: str, n: int, rules: Rules) -> None:
    assert outcome(name, n, rules) == RIGHT


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "complex128"])
def test_a_mark_goes_with_what_is_computed_from_it(dtype: str) -> None:
    """Through sums, products and narrower numbers; and it tells requests apart."""

    def be_rank(comm: Comm) -> Any:
        outs = [np.zeros(3, dtype) for _ in range(5)]
        requests = [comm.irecv(out, comm.rank) for out in outs]
        found = [marks.marks_in(numbers) for numbers in (outs[0], outs[1] + 1, 2 * outs[2], np.sum(outs[3]))]
        found.append(marks.marks_in(outs[4].real.astype(np.float16)))
        for _ in outs:
            comm.isend(np.ones(3, dtype), comm.rank).wait()
        for request in requests:
            request.wait()
        return found, [marks.marks_in(out) for out in outs]

    ((found, afterwards),) = run_by_rules(be_rank, 1, Rules())
    assert found == [{number} for number in range(1, 6)]
    assert afterwards == [set()] * 5


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "int8", "int64", "bool"])
def test_a_shorter_message_leaves_the_rest_as_it_was(dtype: str) -> None:
    def be_rank(comm: Comm) -> Any:
        if comm.rank == 0:
            return comm.send(np.ones(2, dtype), 1)
        out = np.zeros(3, dtype)
        with pytest.raises(CommError, match="expected 3 x"):
            comm.irecv(out, 0).wait()
        return out.tolist()

    assert run_by_rules(be_rank, 2, Rules())[1] == [1, 1, 0]


@pytest.mark.parametrize("rules", RULES, ids=name_of)
def test_control_messages_never_wait(rules: Rules) -> None:
    def be_rank(comm: Comm) -> Any:
        comm.send_object(comm.rank, 1 - comm.rank)
        return comm.recv_object(1 - comm.rank)

    assert run_by_rules(be_rank, 2, rules) == [1, 0]


# ---- order ----------------------------------------------------------------------------------------------------------


def heard(comm: Comm) -> list[int]:
    """Everyone else posts three messages to rank 0: whom it hears, one after the other."""
    for i in range(3 * bool(comm.rank)):
        comm.post(np.full(2, i), 0)
    sources: list[int] = []
    while comm.rank == 0 and len(sources) < 3 * (comm.size - 1):
        if (source := comm.probe()) is not None:
            out = np.zeros(2, int)
            comm.recv(out, source)
            assert out[0] == sources.count(source)
            sources.append(source)
    comm.flush()
    return sources


def test_messages_arrive_in_the_order_of_the_rules() -> None:
    def order(rules: Rules) -> list[int]:
        return run_by_rules(heard, 4, rules)[0]

    first = [list(dict.fromkeys(order(Rules("eager", way)))) for way in ("natural", "contrary")]
    assert first == [[1, 2, 3], [3, 2, 1]]
    drawn = [order(Rules("eager", "drawn", seed)) for seed in range(8)]
    assert drawn == [order(Rules("eager", "drawn", seed)) for seed in range(8)]
    assert len({tuple(sources) for sources in drawn}) > 4


def test_each_send_is_drawn_for_itself() -> None:
    exchange = Exchange(2, Rules("drawn"))
    for number in range(20):
        exchange.start(0, Start(number, "isend", True, "world", PAYLOAD, 1, 0, None, "main", "", np.zeros(1, np.uint8)))
    eager = sum(operation.through for operation in exchange.operations[0].values())
    assert 3 < eager < 17


@pytest.mark.parametrize(("listener", "patient"), [(3, 0), (0, 3)])
@pytest.mark.parametrize("rules", RULES, ids=name_of)
def test_nobody_is_overtaken_for_ever(rules: Rules, listener: int, patient: int) -> None:
    """Ranks 1 and 2 send message after message, until the listener has heard the patient one, who sends just one."""

    def be_rank(comm: Comm) -> int:
        overtaken, heard, asking = 0, False, {1, 2}
        if comm.rank == patient:
            comm.post(np.zeros(1), listener)
        elif comm.rank in asking:
            more = np.ones(1)
            while more[0]:
                comm.send(np.zeros(1), listener)
                comm.recv(more, listener)
        while comm.rank == listener and (asking or not heard) and overtaken < 1000:
            if (source := comm.probe()) is not None:
                comm.recv(np.zeros(1), source)
                heard |= source == patient
                overtaken += not heard
                if source != patient:
                    comm.post(np.array([float(not heard)]), source)
                    asking -= {source} if heard else set()
        comm.flush()
        return overtaken

    assert run_by_rules(be_rank, 4, rules)[listener] < 10

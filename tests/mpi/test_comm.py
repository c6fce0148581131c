"""The wire: what arrives, what is refused and in which words, and what is counted; over every transport alike.

Each job runs many cases; a test looks up one of them. Expected sizes and counts are written out here by hand.
"""

import functools
import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from jobs.comm_jobs import WRONG_MESSAGES
from jobs.transports import TRANSPORTS
from tables import table


@functools.cache
def start(transport, job, n):
    """What each rank did, as RankResults: one start for all the tests that look at them."""
    return TRANSPORTS[transport](f"jobs.comm_jobs:{job}", n)


@pytest.fixture(params=TRANSPORTS)
def run(request):
    return functools.partial(start, request.param)


@pytest.mark.parametrize("way", ["recv", "irecv", "sendrecv"])
@pytest.mark.parametrize("name", WRONG_MESSAGES)
def test_a_message_that_does_not_fit_names_both_sides(run, way, name):
    outcomes = run("wrong_messages", 2)[1].value
    sent, dtype = WRONG_MESSAGES[name]
    expected = f"CommError: rank 1 expected 10 x float64 from rank 0, which sent {sent} x {dtype}"
    assert outcomes[f"{way}, {name}"] == expected
    assert outcomes[f"the message after it, {name}"] == "True"


IN_EVERY_RUN = ("MPI", "processes", "one process")


@pytest.mark.parametrize(
    "run",
    [name if name in IN_EVERY_RUN else pytest.param(name, marks=pytest.mark.slow) for name in TRANSPORTS],
    indirect=True,
)
def test_a_message_with_more_elements_than_a_tag_can_count(run):
    outcomes = run("huge_messages", 2)[1].value
    assert outcomes["equal"] == "no error"
    assert outcomes["equal: content"] == "True"
    for name in ("one shorter", "one longer", "another dtype"):
        assert outcomes[name].startswith("CommError: rank 1 expected 33554437 x int8 from rank 0, which sent "), name
    assert outcomes["another dtype"].endswith("uint8")


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("send a column", ["shape (4,) and strides (32,) is not contiguous", "np.ascontiguousarray"]),
        ("send a transposed matrix", ["shape (4, 4) and strides (8, 32) is not contiguous"]),
        ("receive into a column", ["is not contiguous", "receive into a new array"]),
        ("irecv into every second row", ["shape (2, 4) and strides (64, 8) is not contiguous"]),
        ("receive into a read-only array", ["cannot receive into a read-only array"]),
        ("send to rank 2 of 2", ["cannot send to rank 2; ranks are 0 to 1"]),
        ("send to rank -1", ["cannot send to rank -1; ranks are 0 to 1"]),
        ("receive from rank 2 of 2", ["cannot receive from rank 2; ranks are 0 to 1"]),
        ("receive from rank -1", ["cannot receive from rank -1; ranks are 0 to 1"]),
        ("send an object to rank -1", ["cannot send to rank -1; ranks are 0 to 1"]),
        ("receive an object from rank 2 of 2", ["cannot receive from rank 2; ranks are 0 to 1"]),
        ("send objects", ["cannot send dtype object", "float16, bfloat16, float32"]),
        ("send swapped bytes", ["cannot send dtype >f4" if sys.byteorder == "little" else "cannot send dtype <f4"]),
        ("send dates", ["cannot send dtype datetime64[s]"]),
        ("sendrecv from and into one array", ["into memory that is being sent to rank", "Receive into another array"]),
    ],
)
def test_a_bad_call_says_what_is_wrong(run, case, words):
    for rank in run("bad_calls", 2):
        assert rank.value[case].startswith("CommError: ")
        for word in words:
            assert word in rank.value[case]


def test_a_bad_call_leaves_nothing_behind(run):
    for rank in run("bad_calls", 2):
        assert rank.value["requests left open"] == "0"
        assert rank.value["bytes counted"] == "0"


def test_a_request_must_be_waited_for_in_its_phase(run):
    careless, other = (rank.value for rank in run("requests", 2))
    for outcomes in (careless, other):
        assert outcomes["waited for"] == "no error"
        assert outcomes["content"] == "True"
        assert outcomes["phase afterwards"] == "main"
        assert outcomes["requests left open"] == "0"
    for case, request in (
        ("irecv dropped", "irecv from rank 1 at comm_jobs.py:"),
        ("isend dropped", "isend to rank 1 at comm_jobs.py:"),
    ):
        assert careless[case].startswith(f"CommError: never waited for, so the data may be missing: {request}")
    assert "in phase 'careless'" in careless["irecv dropped"]
    assert "in phase 'hasty'" in careless["isend dropped"]


@pytest.mark.parametrize(("case", "verb", "request_"), table(__file__, "the_memory_of_an_open_request_is_left_alone"))
def test_the_memory_of_an_open_request_is_left_alone(run, case, verb, request_):
    for me, rank in enumerate(run("requests", 2)):
        words = (
            f"CommError: rank {me}: cannot {verb} memory of an open request: {request_} rank {1 - me} at comm_jobs.py:"
        )
        assert rank.value[case].startswith(words)


@pytest.mark.parametrize("n", [4, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 3))])
def test_every_dtype_and_shape_arrives_as_it_was_sent(run, n):
    for rank in run("shapes_and_dtypes", n):
        wrong = [name for name, arrived in rank.value.items() if not arrived]
        assert not wrong
        assert ("bfloat16, sendrecv" in rank.value) == (importlib.util.find_spec("ml_dtypes") is not None)
        assert {"float16, sendrecv", "0-d, isend and irecv", "16 MB, sendrecv"} <= set(rank.value)


@pytest.mark.parametrize("n", [2, 3, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 4))])
def test_bytes_and_messages_are_counted_by_phase_and_peer(run, n):
    for me, rank in enumerate(run("count", n)):
        expected = {}
        for peer in range(n):
            if peer != me:
                elements = 10 * me + peer + 1
                expected["a", peer] = (elements * 4, 1)
                expected["b", peer] = (elements * 8, 2)
        assert rank.sent == expected
        a = sum(nbytes for (phase, _), (nbytes, _) in expected.items() if phase == "a")
        if n > 1:
            assert {phase: sent for phase, sent in rank.value["by phase"].items() if phase != "control"} == {
                "a": {"bytes": a, "messages": n - 1},
                "b": {"bytes": 2 * a, "messages": 2 * (n - 1)},
            }


def test_a_witness_sees_the_same_at_both_ends(run):
    """With the line of the program: each message of `count` is sent by its only isend."""
    lines = (Path(__file__).parents[1] / "jobs" / "comm_jobs.py").read_text().splitlines()
    isend, sendrecv, send = (
        next(number for number, line in enumerate(lines, 1) if code in line)
        for code in ("sending = [comm.isend(", "half.sendrecv(np.ones(3)", "half.send(np.ones(3)")
    )
    ranks = run("count_with_witness", 4)
    for me, rank in enumerate(ranks):
        partner = (me + 2) % 4
        expected = {("half", partner, sendrecv): [24, 1], ("half", partner, send): [24, 1]}
        for peer in {0, 1, 2, 3} - {me}:
            nbytes = (10 * me + peer + 1) * 4
            expected |= {("a", peer, isend): [nbytes, 1], ("b", peer, isend): [2 * nbytes, 2]}
        assert rank.value["sent"] == expected
        for peer in {0, 1, 2, 3} - {me}:
            extra = [48, 2] if peer == partner else [0, 0]
            assert ranks[peer].value["received"][me] == [(10 * me + peer + 1) * 12 + extra[0], 3 + extra[1]]


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_control_traffic_is_counted_apart(run, n):
    for me, rank in enumerate(run("count", n)):
        assert rank.value["gathered"] == list(range(n))
        assert rank.value["payload of control traffic"] == 0
        nbytes, messages = rank.control
        # Every other rank tells rank 0 its value, 100,000 characters long; rank 0 tells every other rank all n of them.
        assert messages == (n - 1 if me == 0 else 1)
        at_least = (n - 1) * n * 100_000 if me == 0 else 100_000
        assert at_least <= nbytes <= at_least * 1.01


def test_a_split_communicator_counts_by_world_rank(run):
    ranks = run("split", 4)
    for me, partner in ((0, 2), (1, 3), (2, 0), (3, 1)):
        value = ranks[me].value
        assert value["size"] == 2
        assert value["rank"] == (0 if me > partner else 1)  # key=-rank: the higher rank comes first
        assert value["world ranks"] == sorted([me, partner], reverse=True)
        assert value["received from"] == np.float64(partner)
        assert value["alone"] == (0, 1, [me])
        assert value["one ledger"] is True
        assert ranks[me].sent == {("half", partner): (40, 1)}


def test_reset_counts_from_nothing(run):
    (rank,) = run("reset", 1)
    assert rank.value == {"total": 4, "sent": {("after", 0): [4, 1]}}

"""What ranks send each other in a collective, and what they hold after each step: recorded while the site is built.

The functions are the chapters' own, on ranks that are threads. An array has one number for each chunk, and the number
says what it is (`recording.py`). So every message says where its content comes from, and no picture of an algorithm is
drawn by hand.
"""

import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from minidist import collectives, context_parallel, ring
from minidist.cp.group import ContextGroup
from minidist.exchange.one_process import run_ranks
from minidist.memory import colors
from minidist.mpi.comm import Comm
from minidist.nn.attend import Span
from minidist.site.recording import Array, Item, RankEvent, RecordedMessage, Recording, element, items, messages

RANKS = range(2, 9)
COLORS = [*colors.RANKS, colors.PURPLE, *(colors.QUANTITIES[name] for name in ("persistent", "bucket", "gathered"))]


# ---- the collectives -------------------------------------------------------------------------------------------------


class BeforeAndAfter(NamedTuple):
    """What a rank has at the start and at the end."""

    start: Array
    end: Array


def whole(comm: Comm) -> Array:
    """A rank's own array: its part of every chunk."""
    return np.array([element(chunk, comm.rank) for chunk in range(comm.size)], np.uint64)


def one_chunk(comm: Comm) -> Array:
    """A rank's own part of its own chunk."""
    return np.array([element(comm.rank, comm.rank)], np.uint64)


def rows(comm: Comm) -> Array:
    """A rank's own array, with one number per row."""
    return whole(comm)[:, None]


def keys_and_values(comm: Comm) -> BeforeAndAfter:
    """Ring attention with one position on each rank; its block is a key and a value. At the end it has its own block,
    and the one that came last."""
    own = np.full((1, 1, 1, 1, 1), element(comm.rank, comm.rank), np.uint64)
    group, at = ContextGroup(comm, np.uint64), Span(comm.size, comm.size, comm.rank)
    used = [block.copy() for _, block in context_parallel.ring_blocks(group, own, own, at, "forward")]
    return BeforeAndAfter(used[0], np.concatenate([used[0], used[-1]]))


def on_hosts(comm: Any) -> Array:
    """The hierarchical all-reduce on two hosts, or, of an odd number of ranks, each on its own."""
    comm.ledger.host_of = [rank * 2 // comm.size if comm.size % 2 == 0 else rank for rank in range(comm.size)]
    return collectives.hierarchical_all_reduce(comm, whole(comm))


RUNS: dict[str, Callable[[Comm], BeforeAndAfter]] = {
    "reduce-scatter": lambda comm: BeforeAndAfter(whole(comm), ring.reduce_scatter(comm, whole(comm))),
    "all-gather": lambda comm: BeforeAndAfter(one_chunk(comm), ring.all_gather(comm, one_chunk(comm), comm.size)),
    "all-reduce": lambda comm: BeforeAndAfter(whole(comm), ring.all_reduce(comm, whole(comm))),
    "recursive-doubling": lambda comm: BeforeAndAfter(whole(comm), collectives.doubling_all_reduce(comm, whole(comm))),
    "tree": lambda comm: BeforeAndAfter(whole(comm), collectives.binary_tree_all_reduce(comm, whole(comm), blocks=1)),
    "hierarchical": lambda comm: BeforeAndAfter(whole(comm), on_hosts(comm)),
    "all-to-all": lambda comm: BeforeAndAfter(rows(comm), ring.all_to_all(comm, rows(comm))),
    "keys-and-values": keys_and_values,
}


class ShownCollective(NamedTuple):
    """A collective that the page shows."""

    title: str
    text: str
    run: Callable[[Comm], BeforeAndAfter]


WORDS = tomllib.loads(Path(__file__).with_name("collectives.toml").read_text(encoding="utf-8"))
COLLECTIVES = {name: ShownCollective(**WORDS[name], run=run) for name, run in RUNS.items()}

# ---- a run, recorded -------------------------------------------------------------------------------------------------


def record(collective: ShownCollective, n: int) -> tuple[list[RecordedMessage], list[BeforeAndAfter]]:
    """Run a collective on n ranks; returns all messages by step, and what each rank has at the start and at the end."""

    def on_rank(comm: Comm) -> tuple[list[RankEvent], BeforeAndAfter]:
        recording: Any = Recording(comm)
        ran = collective.run(recording)
        return recording.events, ran

    found = run_ranks(on_rank, n)
    return sorted(messages([events for events, _ in found])), [ran for _, ran in found]


# ---- what a rank holds -----------------------------------------------------------------------------------------------


def held(name: str, rank: int, sent: Sequence[RecordedMessage], ran: BeforeAndAfter) -> list[list[Item | None]]:
    """A rank's items before the first step and after each step: every item that the rank ever has is in its place, or
    None while it is absent. An item is known when it is sent on, or from the result; one not seen again has left."""

    def key(item: Item) -> Any:
        return item if name == "all-to-all" else item[0]  # an all-to-all sums nothing: source and destination

    last = max((message.step for message in sent), default=0)
    start = {key(item): item for item in items(ran.start)}
    known = [(m.step - 1, {key(item): item for item in m.items}) for m in sent if m.source == rank]
    known.append((last, {key(item): item for item in items(ran.end)}))
    arrivals = [(m.step, {*map(key, m.items)}) for m in sent if m.dest == rank]

    def at(place: Any, step: int) -> Item | None:
        times = [time for time, there in arrivals if place in there]
        until = min((time for time in times if time > step), default=last + 1)  # the next arrival changes it
        found = [(time, there[place]) for time, there in known if step <= time < until and place in there]
        if times and step < times[0]:
            sent_before = any(time < step and place in there for time, there in known)
            return None if sent_before else start.get(place)
        return found[0][1] if found else None

    if name == "all-to-all":  # the chunks for all other ranks, then one from each rank; its own is there from the start
        n = len(ran.start)
        places = [(dest, 1 << rank) if dest != rank else None for dest in range(n)]
        places += [(rank, 1 << source) for source in range(n)]
    else:
        places = sorted({*start, *(place for _, there in known for place in there)})
    return [[at(place, step) for place in places] for step in range(last + 1)]


def trace(name: str, n: int) -> dict[str, Any]:
    """A run as the page plays it: all messages by step, and what each rank holds at the start and after each step."""
    sent, ran = record(COLLECTIVES[name], n)
    steps = max(message.step for message in sent)
    return {
        "messages": [[list(message[1:]) for message in sent if message.step == step] for step in range(1, steps + 1)],
        "held": [held(name, rank, sent, ran[rank]) for rank in range(n)],
        "bar": n if name == "all-to-all" else 0,  # how many of a rank's boxes are left of a bar; 0: there is no bar
    }


Traces = dict[tuple[str, int], dict[str, Any]]  # by the collective's name and the number of ranks


def all_traces() -> Traces:
    """The traces of every collective on every number of ranks."""
    return {(name, n): trace(name, n) for name in COLLECTIVES for n in RANKS}

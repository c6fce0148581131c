"""What ranks send each other in a collective, and what they hold after each step: recorded while the site is built.

The functions are the chapters' own, on ranks that are threads. An array has one number for each chunk, and the number
says what it is (`recording.py`). So every message says where its content comes from, and no picture of an algorithm is
drawn by hand.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from minidist import collectives, colors, context_parallel, ring
from minidist.cp.group import ContextGroup
from minidist.exchange.one_process import run_ranks
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


def reduce_scatter(comm: Comm) -> BeforeAndAfter:
    return BeforeAndAfter(whole(comm), ring.reduce_scatter(comm, whole(comm)))


def all_gather(comm: Comm) -> BeforeAndAfter:
    own = np.array([element(comm.rank, comm.rank)], np.uint64)
    return BeforeAndAfter(own, ring.all_gather(comm, own, comm.size))


def all_reduce(comm: Comm) -> BeforeAndAfter:
    return BeforeAndAfter(whole(comm), ring.all_reduce(comm, whole(comm)))


def recursive_doubling(comm: Comm) -> BeforeAndAfter:
    return BeforeAndAfter(whole(comm), collectives.doubling_all_reduce(comm, whole(comm)))


def all_to_all(comm: Comm) -> BeforeAndAfter:
    rows = whole(comm)[:, None]  # one number per row
    return BeforeAndAfter(rows, ring.all_to_all(comm, rows))


def keys_and_values(comm: Comm) -> BeforeAndAfter:
    """Ring attention with one position on each rank; its block is a key and a value."""
    own = np.full((1, 1, 1, 1, 1), element(comm.rank, comm.rank), np.uint64)
    group, at = ContextGroup(comm, np.uint64), Span(comm.size, comm.size, comm.rank)
    used = [block.copy() for _, block in context_parallel.ring_blocks(group, own, own, at, "forward")]
    return BeforeAndAfter(
        used[0], np.concatenate([used[0], used[-1]])
    )  # its own block stays, and the last block is still there


class ShownCollective(NamedTuple):
    """A collective that the page shows."""

    title: str
    text: str
    run: Callable[[Comm], BeforeAndAfter]


COLLECTIVES = {
    "reduce-scatter": ShownCollective(
        "Reduce-scatter around the ring",
        "Every rank passes a partial sum to its right neighbor, which adds its own part. Each chunk's sum ends on one"
        " rank.",
        reduce_scatter,
    ),
    "all-gather": ShownCollective(
        "All-gather around the ring",
        "Every rank passes on the chunk that it received last. In the end each rank holds all chunks.",
        all_gather,
    ),
    "all-reduce": ShownCollective(
        "All-reduce around the ring",
        "A reduce-scatter, then an all-gather: every rank ends with the sum of all chunks.",
        all_reduce,
    ),
    "recursive-doubling": ShownCollective(
        "All-reduce by recursive doubling",
        "Ranks at distance 1, 2, 4 swap all that they have summed. If N is no power of two, some ranks first hand their"
        " array to a neighbor, and get the result at the end.",
        recursive_doubling,
    ),
    "all-to-all": ShownCollective(
        "All-to-all in pairs",
        "Every rank has a chunk for each rank: its number says for which. Left of the bar is what a rank still has to"
        " send, right of it what it has got from rank 0, 1, 2 and so on. Expert parallelism sends tokens in this way.",
        all_to_all,
    ),
    "keys-and-values": ShownCollective(
        "The ring of keys and values",
        "Every rank keeps its own block, a key and a value, and the other blocks pass by. So its queries meet all keys"
        " (Ring Attention).",
        keys_and_values,
    ),
}

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

"""Which rank waits for which: the explanation of a hang, from what each rank was doing when the launcher looked.

Pure functions of `Look`s, so that they can be tested without MPI. Ranks are named by their rank in the world.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from minidist.mpi.words import name_ranks

# Two looks, at most this many seconds apart, must find every rank in the same wait before it is called a deadlock.
LOOK_INTERVAL = 5.0
# MPI polls while it waits. A rank that used this many seconds of processor time in between has polled many thousands of
# times, and has seen every message that had been sent; one that was never scheduled has not.
POLLED = 0.05


@dataclass
class Look:
    """What one rank was doing: in a wait for messages, computing, or finished."""

    finished: bool = False
    waiting: tuple[str, list[int]] | None = None  # a call of Comm and the ranks that it waits for
    open: list[tuple[str, int]] = field(default_factory=list)  # ("isend" or "irecv", peer) without a wait yet
    waits: int = 0  # how many waits it had begun
    cpu: float = 0.0  # seconds of processor time that it had used
    where: str = ""  # "exercise.py:31 in exchange"
    stack: str = ""
    # World rank -> payload messages ever sent to it, and ever received from it; None: unknown.
    set_out: dict[int, int] | None = None
    arrived: dict[int, int] | None = None


# None stands for a rank that did not answer.
Looks = list[Look | None]

CALLS = {
    "send": "send(dest={})",
    "recv": "recv(source={})",
    "sendrecv": "sendrecv(dest={}, source={})",
    "wait for isend": "wait for isend(dest={})",
    "wait for irecv": "wait for irecv(source={})",
    "send (control)": "send(dest={}) of an object",
    "recv (control)": "recv(source={}) of an object",
    "probe": "looking for messages (probe)",
    "collect": "looking for mail (poll)",
    "done": "looking whether requests are through (done)",
}
STILL_COMPUTING = "still computing"  # as reports say it
MEETINGS = ("barrier", "split")  # calls that return only when every rank has come


def explain(looks: Looks, awaited: Sequence[Sequence[int]] | None = None) -> str:
    """One line for each rank, and the cycle of waits if there is one.

    awaited: for each rank, the ranks that it waits for and that will never answer; None: found from the looks.
    """
    lines = [f"rank {rank}: {describe(rank, looks)}" for rank in range(len(looks))]
    cycle = find_cycle(looks) if awaited is None else shortest_cycle(awaited)
    if len(cycle) == 1:
        lines.append(f"Rank {cycle[0]} waits for itself, so it can never go on.")
    elif cycle:
        arrows = " -> ".join(str(rank) for rank in [*cycle, cycle[0]])
        lines.append(f"A cycle of waits: {arrows}. Each of these ranks waits for the next, so none can go on.")
    return "\n".join(lines)


def describe(rank: int, looks: Looks) -> str:
    """What the rank is doing, in words."""
    look = looks[rank]
    if look is None:
        return "gave no answer: it is inside a long call of native code, or has not started yet"
    if look.finished:
        return "finished"
    if look.waiting is None:
        return f"computing at {look.where} (not in a message call)"
    call, peers = look.waiting
    if call in MEETINGS:
        absent = _absent(look, looks)
        return f"{call} at {look.where}" + (f"; {name_ranks(absent)} never came" if absent else "")
    text = f"{CALLS[call].format(*peers)} at {look.where}"
    if peers and all((peer := looks[p]) and peer.finished for p in peers):
        text += f", but {name_ranks(peers)} {'has' if len(set(peers)) == 1 else 'have'} finished"
    return text


def find_stuck(before: Looks, now: Looks) -> list[int]:
    """The ranks that, by two looks, can never go on, whatever the computing ranks will do.

    A stuck rank has polled in the same wait all the time. Nothing that it waits for is under way, and a rank that would
    have to send or receive it has finished or is also stuck. Where a send or receive has begun, it might be the awaited
    one and merely slow, on a loaded machine or with a huge message. Then the rank is not called stuck: the timeout
    decides.
    """
    awaited = {rank: waits_in_vain_for(rank, now) for rank in range(len(now)) if _stayed(before[rank], now[rank])}
    finished = {rank for rank, look in enumerate(now) if look and look.finished}
    stuck = {rank for rank, peers in awaited.items() if peers}
    while free := {rank for rank in stuck if not (finished | stuck).intersection(awaited[rank])}:
        stuck -= free
    return sorted(stuck)


def find_cause(looks: Looks, stuck: Sequence[int], awaited: Sequence[Sequence[int]] | None = None) -> str:
    """Why these ranks can never go on: another one has finished without doing what they wait for, or all wait.
    awaited: as in explain."""
    awaited = awaited or [waits_in_vain_for(rank, looks) for rank in range(len(looks))]
    for rank in stuck:
        gone = [peer for peer in awaited[rank] if (look := looks[peer]) and look.finished]
        if gone:
            has = "has" if len(set(gone)) == 1 else "have"
            return f"{name_ranks(gone)} {has} left without {_what_is_missing(rank, gone, looks)}"
    if len(stuck) + sum(bool(look and look.finished) for look in looks) == len(looks):
        return "every rank waits, and no message is under way"
    return "some ranks can never go on"


def _what_is_missing(rank: int, gone: Sequence[int], looks: Looks) -> str:
    """What ranks should have done before they finished, so that `rank` could go on."""
    look = looks[rank]
    assert look is not None
    assert look.waiting is not None
    call, peers = look.waiting
    collectives = re.findall(r'[/"]minidist/ring\.py", line \d+(,?) in (\w+)', look.stack)
    if call in MEETINGS or collectives:
        if collectives:  # the outermost: Python's traceback, with commas, has it first, faulthandler's last
            _, call = collectives[0 if collectives[0][0] else -1]
        return f"calling {call}, in which rank {rank} waits"
    _, sources = _ends(call, peers)
    if set(gone) & set(sources):
        return f"sending what rank {rank} waits for"
    return f"receiving what rank {rank} sends"


def tell_late(looks: Looks, seconds: float) -> str:
    """Say that a job has not ended in time. Ranks that compute may need longer, and are not called hung."""
    computing = [rank for rank, look in enumerate(looks) if look is None or not (look.finished or look.waiting)]
    if not computing:
        return f"hung: it had not ended after {seconds:g} s"
    were = "was" if len(computing) == 1 else "were"
    return f"had not ended after {seconds:g} s: {name_ranks(computing)} {were} {STILL_COMPUTING}"


def _stayed(before: Look | None, now: Look | None) -> bool:
    return (
        before is not None
        and now is not None
        and now.waiting is not None
        and now.waits == before.waits
        and now.cpu - before.cpu >= POLLED
    )


def waits_in_vain_for(rank: int, looks: Looks) -> list[int]:
    """The ranks that `rank` waits for; none if it does not wait, or if what it waits for may be under way."""
    look = looks[rank]
    if look is None or look.waiting is None:
        return []
    call, peers = look.waiting
    if call in MEETINGS:
        return _absent(look, looks)
    dests, sources = _ends(call, peers)
    if sources:  # the send of a sendrecv may be complete: MPI does not say
        return [] if any(_may_come(p, rank, looks, "control" in call) for p in sources) else sources
    return [] if any(rank in _transfers(looks[p])[1] for p in dests) else dests


def _may_come(source: int, rank: int, looks: Looks, control: bool) -> bool:
    """Whether a message from `source` to `rank` may be under way."""
    there, here = looks[source], looks[rank]
    if rank not in _transfers(there)[0]:
        return False
    if control or there is None or here is None or there.set_out is None or here.arrived is None:
        return True
    return there.set_out.get(rank, 0) > here.arrived.get(source, 0)


def find_cycle(looks: Looks) -> list[int]:
    """The shortest cycle of ranks that wait for one another: [0, 2] when 0 waits for 2 and 2 for 0; [] if none."""
    return shortest_cycle([waits_in_vain_for(rank, looks) for rank in range(len(looks))])


def shortest_cycle(next_ranks: Sequence[Sequence[int]]) -> list[int]:
    """The shortest cycle in a graph, given as the successors of each node; [] if none."""
    cycles = []
    for start in range(len(next_ranks)):
        paths, seen = [[start]], {start}
        for path in paths:  # breadth first: the list grows while it is read
            if start in next_ranks[path[-1]]:
                cycles.append(path)
                break
            fresh = [rank for rank in next_ranks[path[-1]] if rank not in seen]
            seen.update(fresh)
            paths.extend([*path, rank] for rank in fresh)
    return min(cycles, key=len, default=[])


def _transfers(look: Look | None) -> tuple[list[int], list[int]]:
    """(ranks that it is sending to, ranks that it is receiving from), by its present call and its open requests."""
    dests: list[int] = []
    sources: list[int] = []
    if look is not None:
        calls = [(kind, [peer]) for kind, peer in look.open]
        if look.waiting and look.waiting[0] not in MEETINGS:
            calls.append(look.waiting)
        for call, peers in calls:
            more_dests, more_sources = _ends(call, peers)
            dests += more_dests
            sources += more_sources
    return dests, sources


def _ends(call: str, peers: list[int]) -> tuple[list[int], list[int]]:
    """(ranks that the call sends to, ranks that it receives from)."""
    if call == "sendrecv":
        return peers[:1], peers[1:]
    return (peers, []) if "send" in call else ([], peers)


def _absent(look: Look, looks: Looks) -> list[int]:
    """The ranks that have not come to the meeting in which `look` waits."""
    assert look.waiting is not None
    call, peers = look.waiting
    return [p for p in peers if (peer := looks[p]) is None or peer.waiting is None or peer.waiting[0] != call]

"""Does what a rank says make sense? It may run any program, so only what a Comm can say reaches the exchange."""

import re
from typing import Any

import numpy as np

from minidist.exchange import waits
from minidist.exchange.operations import Start
from minidist.exchange.rules import PAYLOAD, Exchange
from minidist.mpi.port import described

LANES = re.compile(r"payload|control|(letter|enclosed) \d{1,9}")
CALLS = {"isend", "irecv", "post", "poll", *waits.CALLS}


class Nonsense(Exception):
    """A rank has said something that no Comm says."""


def sensible(condition: object, otherwise: str = "a call that cannot be") -> None:
    if not condition:
        raise Nonsense(otherwise)


def check_start(exchange: Exchange, rank: int, start: Start, objects: bool) -> None:
    """A send or receive that a rank says it has started. Any exception means that it makes no sense."""
    members = exchange.members[start.comm]
    sensible(type(start.number) is int and start.number not in exchange.operations[rank])
    sensible(objects or start.lane == PAYLOAD, "objects, which are not for exercises: send arrays")
    sensible(start.call in CALLS and type(start.sends) is bool and LANES.fullmatch(start.lane))
    sensible(rank in members and type(start.peer) is int and 0 <= start.peer < len(members))
    sensible(type(start.tag) is int and start.tag >= 0 and isinstance(start.phase, str))
    sensible(start.room is None or (type(start.room) is int and start.room >= 0))
    sensible(isinstance(start.where, str) and start.sends == (start.data is not None))
    if start.data is not None:
        sensible(start.data.dtype == np.uint8 and start.data.ndim == 1)
        if start.lane == PAYLOAD:  # a message must be what its tag says
            name, elements = described(start.tag)
            expected = elements * (2 if name == "bfloat16" else np.dtype(name).itemsize)
            sensible(start.data.nbytes == expected, f"{start.data.nbytes} bytes as {elements} x {name}")


def check_question(exchange: Exchange, rank: int, question: str, arguments: tuple[Any, ...]) -> None:
    """What a rank asks the exchange for. Any exception means that it makes no sense."""
    mine = exchange.operations[rank].keys()
    match question, arguments:
        case ("block", (str(call), list(numbers), str())):
            sensible(call in CALLS and numbers and len(set(numbers)) == len(numbers))
            sensible(mine >= set(numbers))
        case ("look", (list(numbers), str())):
            sensible(len(set(numbers)) == len(numbers) and mine >= set(numbers))
        case ("meet", (str(call), str(comm), int(), int(), str())):
            sensible(call in waits.MEETINGS and rank in exchange.members[comm])
        case ("probe", (str(comm), str())):
            sensible(rank in exchange.members[comm])
        case ("collect", (str(comm), str(lane), str())):
            sensible(rank in exchange.members[comm] and LANES.fullmatch(lane) and lane.startswith("letter"))
        case _:
            raise Nonsense("a question")

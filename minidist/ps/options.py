"""The options of the parameter server."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass

from minidist.cli.fields import choice, flag, option, whole
from minidist.cli.options import at_least, within

CONSISTENCIES = ("bsp", "ssp", "async")


def pair(number: Callable[[str], float]) -> Callable[[str], tuple[int, float]]:
    """An argument type: RANK:NUMBER."""

    def parse(text: str) -> tuple[int, float]:
        rank, _, value = text.partition(":")
        if not rank.isdigit() or not value:
            raise argparse.ArgumentTypeError(f"write RANK:NUMBER, not {text}")
        return int(rank), number(value)

    return parse


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    consistency: str = choice(CONSISTENCIES, "bsp", "bsp; ssp, async: not serial losses")
    staleness: int = whole("N", "ssp: iterations that a read may lag", 4, least=0)
    servers: int = whole("N", "the last N ranks; the others work", 1)
    colocated: bool = flag("every rank works, and serves 1/N of the keys")
    placement: str = choice(("even", "hash"), "even", "of keys: even or hash")
    virtual: int = whole("N", "hash: virtual servers to a server", 32)
    replicas: int = whole("N", "copies of a shard, on the servers after its own", 0, least=0)
    local_steps: int = whole("N", "of a worker between pulls", 1)
    keys: str = choice(("none", "list", "cached"), "none", "with values: none, list or cached")
    filter: float = option(0.0, within(0, 1e9), "X", "push what exceeds this, keep the rest; 0: all")
    jitter: float = option(1.0, within(0, 1), "X", "simulated time: how much of it is luck")
    slow: tuple[tuple[int, float], ...] = option(
        (), pair(within(1e-3, 1e3)), "RANK:FACTOR", "simulated time: of this worker; may be repeated", action="append"
    )
    stop: tuple[int, float] | None = option(
        None, pair(at_least(1)), "RANK:EVENT", "the server on RANK stops at its EVENT-th event"
    )
    staleness_sweep: bool = flag("compare bsp, ssp 1, 2, 4, 8, 16 and async")

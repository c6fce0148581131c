"""The options of a mixture of experts, and which layouts are possible."""

from argparse import Namespace

from minidist import UsageError
from minidist.cli.options import Parser, at_least, within


def add_mixture(parser: Parser, experts: int) -> None:
    """Add them. experts: how many there are by default; 0: each block has just an MLP."""
    add = parser.add_argument
    help = "MLPs in place of each block's one" + "; default: none" * (not experts)
    add("--experts", type=at_least(min(experts, 1), at_most=10_000), metavar="E", default=experts, help=help)
    add("--top", type=at_least(1), metavar="K", default=2, help="experts that each token goes through")
    add("--capacity", type=within(0.01, 1e3), metavar="CF", help="room, times the mean; default: no choice is dropped")
    add("--balance", type=within(0, 1e3), metavar="X", default=1e-2, help="weight of the balance loss")


def check_mixture(options: Namespace) -> None:
    """Raise UsageError if a token cannot choose as many experts."""
    if options.experts and options.top > options.experts:
        raise UsageError(f"--top {options.top} is more than --experts {options.experts}: use --top {options.experts}")


def choose_ep(options: Namespace, ranks: int) -> int:
    """P, the number of ranks that divide the experts: by default as many as possible. Raises UsageError if the one that
    is given is impossible."""
    possible = [p for p in range(1, min(ranks, options.experts) + 1) if ranks % p == 0]
    if options.ep in (None, *possible):
        return options.ep or possible[-1]
    if options.ep > options.experts:
        raise UsageError(f"--ep {options.ep} is more than --experts {options.experts}: use --ep {possible[-1]}")
    nearest = max(p for p in possible if p <= options.ep)
    raise UsageError(f"{ranks} ranks are not divisible by --ep {options.ep}: use --ep {nearest}")


def choose_hosts(options: Namespace, p: int) -> int:
    """The number of hosts on which p ranks are. Raises UsageError if they, or their limit, are impossible."""
    if not options.ranks_per_host:
        if options.host_limit:
            raise UsageError("--host-limit needs to know which ranks share a host: use --ranks-per-host")
        return 1
    if p % options.ranks_per_host:
        works = max(n for n in range(1, p + 1) if p % n == 0 and n <= options.ranks_per_host)
        raise UsageError(f"--ep {p} is not divisible by --ranks-per-host {options.ranks_per_host}: use {works}")
    hosts = p // options.ranks_per_host
    if options.experts % p:
        more = -(-options.experts // p) * p
        raise UsageError(f"--experts {options.experts} are not divisible by {p} ranks on hosts: use --experts {more}")
    least = -(-options.top * hosts // options.experts)
    if options.host_limit and not least <= options.host_limit <= hosts:
        raise UsageError(f"--host-limit {options.host_limit} does not fit {hosts} hosts: use {least} to {hosts}")
    return hosts

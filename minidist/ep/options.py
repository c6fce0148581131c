"""The options of a mixture of experts, and which layouts are possible."""

from argparse import SUPPRESS, Namespace

from minidist import UsageError
from minidist.cli.options import Parser, at_least, within


def add_mixture(parser: Parser, experts: int) -> None:
    """Add the options of a mixture. experts: their number by default; 0: each block has just an MLP."""
    help = "MLPs in place of each block's one" + "; default: none" * (not experts)
    number = at_least(min(experts, 1), at_most=10_000)
    parser.add_argument("--experts", type=number, metavar="E", default=experts, help=help)
    add_routing(parser)


def add_division(parser: Parser) -> None:
    """Add the options for chapters on other axes, whose help names them in one line."""
    help = "in place of an MLP; --ep --top --capacity --balance"
    parser.add_argument("--experts", type=at_least(0, at_most=10_000), metavar="E", default=0, help=help)
    parser.add_argument("--ep", type=at_least(1), metavar="P", help=SUPPRESS)
    add_routing(parser, listed=False)


def add_routing(parser: Parser, listed: bool = True) -> None:
    """Add the options for how tokens find their experts."""
    for option, type, metavar, default, help in (
        ("--top", at_least(1), "K", 2, "experts that each token goes through"),
        ("--capacity", within(0.01, 1e3), "CF", None, "room, times the mean; default: no choice is dropped"),
        ("--balance", within(0, 1e3), "X", 1e-2, "weight of the balance loss"),
    ):
        help = help if listed else SUPPRESS
        parser.add_argument(option, type=type, metavar=metavar, default=default, help=help)


def check_division(options: Namespace) -> None:
    """Raise UsageError for options of experts that no number of ranks can have."""
    check_mixture(options)
    if options.ep and not options.experts:
        raise UsageError(f"--ep {options.ep} divides experts, and there are none: use --experts {max(8, options.ep)}")


def check_mixture(options: Namespace) -> None:
    """Raise UsageError if a token cannot choose that many experts."""
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


def choose_hosts(options: Namespace, p: int, each: int = 1) -> int:
    """The number of hosts of p ranks; a host has `each` times --ranks-per-host. Raises UsageError if they,
    or their limit, are impossible."""
    if not options.ranks_per_host:
        if options.host_limit:
            raise UsageError("--host-limit needs to know which ranks share a host: use --ranks-per-host")
        return 1
    here = options.ranks_per_host * each
    if p % here:
        works = [str(n) for n in range(1, options.ranks_per_host + 1) if p % (n * each) == 0]
        times = f" x {each} context ranks" * (each > 1)
        raise UsageError(
            f"--ep {p} is not divisible by --ranks-per-host {options.ranks_per_host}{times}:"
            f" use {[f'--ep {here}', *works][-1]}"
        )
    hosts = p // here
    if options.experts % p:
        more = -(-options.experts // p) * p
        raise UsageError(f"--experts {options.experts} are not divisible by {p} ranks on hosts: use --experts {more}")
    least = -(-options.top * hosts // options.experts)
    if options.host_limit and not least <= options.host_limit <= hosts:
        raise UsageError(f"--host-limit {options.host_limit} does not fit {hosts} hosts: use {least} to {hosts}")
    return hosts

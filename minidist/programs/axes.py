"""Options of the axes that several chapters have, and which numbers of ranks along an axis work with a model."""

import math
from dataclasses import dataclass
from typing import Any

from minidist import UsageError
from minidist.cli.fields import flag, option, part, whole
from minidist.cli.options import at_least
from minidist.cli.shared import MixtureOptions, ModelOptions, RoutingOptions
from minidist.papers.context import POSITIONS, SCHEMES


def stage_option(default: int, help: str = "ZeRO's stage on the data axis, or 0") -> Any:
    """--zero, of any stage."""
    return option(default, int, "N", help, choices=(0, 1, 2, 3))


def buckets(default: int | None = None, help: str = "sum N elements at once; default: a unit's") -> Any:
    """--bucket-size, in elements, like DeepSpeed's reduce_bucket_size."""
    return whole("N", help, default)


def nearest_divisor(ranks: int, n: int) -> int:
    """The largest number up to n that divides the ranks."""
    return max(m for m in range(1, min(n, ranks) + 1) if ranks % m == 0)


def sequence_flag() -> Any:
    return flag("cut norms, dropout and residuals by positions")


# ---- tensor ----------------------------------------------------------------------------------------------------------


def check_tensor(model: ModelOptions, sequence_parallel: bool, t: int) -> None:
    """Raise UsageError unless t ranks can share every layer."""
    sizes = {"--heads": model.heads, "--kv-heads": model.key_value_heads}
    if sequence_parallel:
        sizes["--context"] = model.context
    works = max(n for n in range(1, t + 1) if math.gcd(n, *sizes.values()) == n)
    for name, size in sizes.items():
        if size % t:
            raise UsageError(f"{name} {size} cannot be cut for {t} ranks: cut for {works}, or use a multiple of {t}")


# ---- context ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ContextOptions:
    """How ranks that divide each sequence work together."""

    scheme: str = option(SCHEMES[0], None, "NAME", ", ".join(SCHEMES), choices=SCHEMES)
    positions: str = option(POSITIONS[0], None, "NAME", ", ".join(POSITIONS), choices=POSITIONS)


def check_context(model: ModelOptions, scheme: str, n: int, t: int = 1) -> None:
    """Raise UsageError unless n ranks can divide the positions, where t ranks share every layer."""
    if n == 1:
        return
    kv_heads = model.key_value_heads // t
    if model.context < n:
        raise UsageError(f"--context {model.context} has no position for each of {n} ranks: use --context {n}")
    if scheme == "ulysses" and kv_heads < n:
        each = f" on each of {t} tensor-parallel ranks" * (t > 1)
        raise UsageError(
            f"--scheme ulysses gives each rank whole key/value heads, and there are {kv_heads}{each}, for {n} ranks:"
            f" use --cp {kv_heads} or --scheme ring"
        )


# ---- experts ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class DividedOptions(MixtureOptions):
    """Experts, in a chapter on other axes."""

    experts: int = option(0, at_least(0, at_most=10_000), "E", "MLPs in place of each block's one; default: none")
    ep: int | None = whole("P", "ranks that share the experts; default: as many as can")
    routing: RoutingOptions = part(RoutingOptions)


def check_mixture(mixture: MixtureOptions) -> None:
    """Raise UsageError if a token cannot choose that many experts."""
    experts, top = mixture.experts, mixture.top
    if experts and top > experts:
        raise UsageError(f"--top {top} is more than --experts {experts}: use --top {experts}")


def check_division(mixture: DividedOptions) -> None:
    """Raise UsageError for options of experts that no number of ranks can have."""
    check_mixture(mixture)
    if mixture.ep and not mixture.experts:
        raise UsageError(f"--ep {mixture.ep} divides experts, and there are none: use --experts {max(8, mixture.ep)}")


def choose_ep(experts: int, asked: int | None, ranks: int) -> int:
    """P, the number of ranks that divide the experts: by default as many as possible. Raises UsageError if the one that
    is given is impossible."""
    possible = [p for p in range(1, min(ranks, experts) + 1) if ranks % p == 0]
    if asked is None or asked in possible:
        return asked or possible[-1]
    if asked > experts:
        raise UsageError(f"--ep {asked} is more than --experts {experts}: use --ep {possible[-1]}")
    nearest = max(p for p in possible if p <= asked)
    raise UsageError(f"{ranks} ranks are not divisible by --ep {asked}: use --ep {nearest}")


def choose_hosts(mixture: MixtureOptions, per_host: int | None, limit: int | None, p: int, each: int = 1) -> int:
    """The number of hosts of p ranks; a host has `each` times --ranks-per-host. Raises UsageError if they,
    or their limit, are impossible."""
    if not per_host:
        if limit:
            raise UsageError("--host-limit needs to know which ranks share a host: use --ranks-per-host")
        return 1
    here, experts = per_host * each, mixture.experts
    if p % here:
        works = [str(n) for n in range(1, per_host + 1) if p % (n * each) == 0]
        times = f" x {each} context ranks" * (each > 1)
        raise UsageError(
            f"--ep {p} is not divisible by --ranks-per-host {per_host}{times}: use {[f'--ep {here}', *works][-1]}"
        )
    hosts = p // here
    if experts % p:
        more = -(-experts // p) * p
        raise UsageError(f"--experts {experts} are not divisible by {p} ranks on hosts: use --experts {more}")
    least = -(-mixture.top * hosts // experts)
    if limit and not least <= limit <= hosts:
        raise UsageError(f"--host-limit {limit} does not fit {hosts} hosts: use {least} to {hosts}")
    return hosts

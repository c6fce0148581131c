"""Which layouts of context ranks are possible."""

from argparse import Namespace

from minidist import UsageError

SCHEMES = ("ring", "all-gather", "ulysses")
POSITIONS = ("zigzag", "striped", "contiguous")


def check_context(options: Namespace, n: int, t: int = 1) -> None:
    """Raise UsageError unless n ranks can divide the positions, where t ranks share every layer."""
    if n == 1:
        return
    kv_heads = ((options.kv_heads or options.heads) if options.model == "llama" else options.heads) // t
    if options.context < n:
        raise UsageError(f"--context {options.context} has no position for each of {n} ranks: use --context {n}")
    if options.scheme == "ulysses" and kv_heads < n:
        each = f" on each of {t} tensor-parallel ranks" * (t > 1)
        raise UsageError(
            f"--scheme ulysses gives each rank whole key/value heads, and there are {kv_heads}{each}, for {n} ranks:"
            f" use --cp {kv_heads} or --scheme ring"
        )

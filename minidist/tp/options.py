"""Which layouts of tensor-parallel ranks are possible."""

import math
from argparse import Namespace

from minidist import UsageError


def check_tensor(options: Namespace, t: int) -> None:
    """Raise UsageError unless t ranks can share every layer."""
    kv_heads = (options.kv_heads or options.heads) if options.model == "llama" else options.heads
    sizes = {"--heads": options.heads, "--kv-heads": kv_heads}
    if options.sequence_parallel:
        sizes["--context"] = options.context
    works = max(n for n in range(1, t + 1) if math.gcd(n, *sizes.values()) == n)
    for option, size in sizes.items():
        if size % t:
            raise UsageError(f"{option} {size} cannot be cut for {t} ranks: cut for {works}, or use a multiple of {t}")

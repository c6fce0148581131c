"""Configurations of other systems, by their keys: for the line that refuses them."""

import re

from minidist import UsageError
from minidist.cli.read import text_of

PEERS = {  # what all of a file's patterns say of it
    "Megatron's configuration": (r"\btensor[-_]model[-_]parallel[-_]size\b",),
    "torchtitan's configuration": (r"^\[(job|training|parallelism)\]", r"^(tensor|data|context)_parallel_\w*degree\b"),
    "nanotron's configuration": (r"^parallelism:", r"^(general|tokens|data_stages):"),
    "picotron's configuration": (r"\"distributed\"\s*:\s*\{", r"\"tp_size\"\s*:", r"\"dp_size\"\s*:"),
}
INSTEAD = "DeepSpeed's JSON and Accelerate's YAML are read here"


def refuse_peers(path: str) -> None:
    """Raise UsageError if a file is another system's, or TOML, which only others have."""
    text = text_of(path)
    for name, patterns in PEERS.items():
        if all(re.search(pattern, text, re.MULTILINE) for pattern in patterns):
            raise UsageError(
                f"{path} is {name}: {INSTEAD}; its axes are options of minidist.parallel3d, and python -m minidist plan"
                " looks for the best"
            )
    if path.lower().endswith(".toml"):
        raise UsageError(f"{path} is TOML: {INSTEAD}")

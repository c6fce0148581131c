"""Ranks and signals in words, for messages."""

import signal
from collections.abc import Iterable


def name_ranks(ranks: Iterable[int]) -> str:
    """ "rank 1", "ranks 1 and 2", "ranks 1, 2 and 3"."""
    names = [str(rank) for rank in sorted(set(ranks))]
    return f"rank {names[0]}" if len(names) == 1 else f"ranks {', '.join(names[:-1])} and {names[-1]}"


def killed_by(number: int) -> str:
    """A signal in words: "killed by signal 9 (SIGKILL)"; real-time signals have no name."""
    names = {known.value: f" ({known.name})" for known in signal.Signals}
    return f"killed by signal {number}{names.get(number, '')}"

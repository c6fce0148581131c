"""MapReduce: Dean & Ghemawat, OSDI 2004."""

import itertools
from collections.abc import Sequence


def pair_bytes(keys: Sequence[str], values: Sequence[str]) -> int:
    """Bytes of intermediate pairs: |k| + |v| in UTF-8, a tab, a line feed, and one for each character escaped.

    Without a combiner, reducers fetch this for all pairs that map emits; with one, for a pair for each distinct key of
    each map task (section 4.3).
    """
    text = "".join(itertools.chain(keys, values))
    return len(text.encode()) + len(keys) + len(values) + sum(map(text.count, "\\\t\n"))


def decisions(m: int, r: int, again: int = 0, backups: int = 0) -> int:
    """The master's scheduling decisions: O(M + R) (section 3.5), one for each task, once more for each task that must
    start again (3.3, 4.6), and one for each backup (3.6)."""
    return m + r + again + backups

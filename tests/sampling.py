"""A part of a large matrix for every run: another part at every commit, the same part when a run is repeated.

    git checkout COMMIT; python -m pytest                 # the part of that commit
    MINIDIST_PART=anything python -m pytest               # a part by another name

The part's name is printed when the tests have been collected, and Hypothesis draws its examples by it. With -m slow
everything runs, whatever the name."""

import functools
import math
import os
import random
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


@functools.cache
def part_of_this_run() -> str:
    """MINIDIST_PART, or else the hash of the commit; where there is no git, the first part of all."""
    if named := os.environ.get("MINIDIST_PART"):
        return named
    command = ["git", "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return "first"
    return done.stdout.strip() or "first"


def shard_of_this_run(items: Sequence[T], parts: int) -> list[T]:
    """One of `parts` equal parts of the items, drawn by the part's name, in their order."""
    drawn = random.Random(part_of_this_run()).sample(range(len(items)), math.ceil(len(items) / parts))
    return [items[index] for index in sorted(drawn)]

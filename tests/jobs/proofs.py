"""What tests/test_proofs.py runs on ranks: the proofs of command lines, without their trainings."""

import contextlib
import shlex
from functools import cache
from typing import Any
from unittest import mock

from minidist import data
from minidist.mpi.comm import Comm
from minidist.programs.chapter import find


def proved(comm: Comm, line: str) -> dict[str, Any]:
    """What the proof of a command line says, on rank 0; and what this rank still holds of it."""
    name, *options = shlex.split(line)
    chapter = find(name)
    job = chapter.prepared(options, comm)
    held = []

    def make(small: Any, comm: Any) -> Any:
        driver = chapter.make(small, comm)
        held.extend(driver.engine.pools)
        return driver

    with job.reserved or contextlib.nullcontext(), mock.patch.object(chapter, "make", make):
        pass
    return {}

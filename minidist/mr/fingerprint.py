"""What distinguishes one job from another, so that --resume never continues with another job's files."""

import os
import sys
from hashlib import blake2b
from pathlib import Path
from typing import Any

SAMPLES, SAMPLE = 16, 1 << 16  # pieces of a file that are read, and their bytes: a file of up to 1 MB is read whole


def fingerprint_file(path: str, size: int) -> list[Any]:
    """Path, size, time, and a digest of evenly spaced pieces: two different files may have the same time."""
    digest = blake2b(digest_size=8)
    with open(path, "rb") as file:
        for i in range(SAMPLES):
            place = max(file.tell() if i else 0, i * (size - SAMPLE) // (SAMPLES - 1))
            file.seek(place)
            digest.update(file.read(SAMPLE))
        return [path, size, os.fstat(file.fileno()).st_mtime_ns, digest.hexdigest()]


def fingerprint_code(job: Any) -> str:
    """A digest of the source files that define a job's functions."""
    functions = [getattr(job, name, None) for name in ("map", "reduce", "combine", "partition")]
    digest = blake2b(digest_size=8)
    for module in sorted({function.__module__ for function in functions if function is not None}):
        source = getattr(sys.modules.get(module), "__file__", None)
        digest.update(Path(source).read_bytes() if source else module.encode())
    return digest.hexdigest()

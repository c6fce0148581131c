"""What tells one job from another, so that --resume never goes on with what is of something else."""

import os
import sys
from hashlib import blake2b
from pathlib import Path
from typing import Any

SAMPLES, SAMPLE = 16, 1 << 16  # of a file so many pieces of so many bytes are read: up to 1 MB it is all of it


def fingerprint_file(path: str, size: int) -> list[Any]:
    """Path, size, time, and a digest of what stands at evenly spaced places: a copy may bear the time of another."""
    digest = blake2b(digest_size=8)
    with open(path, "rb") as file:
        for i in range(SAMPLES):
            place = max(file.tell() if i else 0, i * (size - SAMPLE) // (SAMPLES - 1))
            file.seek(place)
            digest.update(file.read(SAMPLE))
        return [path, size, os.fstat(file.fileno()).st_mtime_ns, digest.hexdigest()]


def fingerprint_code(job: Any) -> str:
    """A digest of the source files in which a job's functions stand."""
    functions = [getattr(job, name, None) for name in ("map", "reduce", "combine", "partition")]
    digest = blake2b(digest_size=8)
    for module in sorted({function.__module__ for function in functions if function is not None}):
        source = getattr(sys.modules.get(module), "__file__", None)
        digest.update(Path(source).read_bytes() if source else module.encode())
    return digest.hexdigest()

"""Whether a file still holds what was written to it: each piece has a checksum, and so has each note.

Disks may return other bytes than were written, and people edit files. A reducer, or --resume, uses committed output
only if its checksums are those noted when it was written.
"""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

from minidist.system.files import open_regular

PIECE = 1 << 20  # bytes: a reducer asks for a region piece by piece, and each can be checked on its own


@dataclass
class WrittenPieces:
    """What has been written to a file: how many bytes, and the crc32 of each piece."""

    size: int = 0
    sums: list[int] = field(default_factory=list)

    def add(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            if self.size % PIECE == 0:
                self.sums.append(0)
            some = rest[: PIECE - self.size % PIECE]
            self.sums[-1] = crc32(some, self.sums[-1])
            self.size += len(some)
            rest = rest[len(some) :]


def is_intact(path: Path, size: int, sums: list[int]) -> bool:
    """Whether a file holds what was written to it. If that was nothing, there need not be a file."""
    found = WrittenPieces()
    try:
        with open_regular(str(path)) as file:
            if os.fstat(file.fileno()).st_size != size:
                return False
            while piece := file.read(PIECE):
                found.add(piece)
    except FileNotFoundError:
        pass
    except OSError:
        return False
    return (found.size, found.sums) == (size, sums)


def seal_note(document: dict[str, Any]) -> str:
    """A note as JSON, with a checksum of its own."""
    return json.dumps({**document, "crc32": crc32(json.dumps(document).encode())})


def read_note(path: Path) -> dict[str, Any]:
    """What a note says. Raises OSError, and ValueError if it is damaged."""
    with open_regular(str(path)) as file:
        return unsealed(file.read().decode())


def unsealed(text: str) -> dict[str, Any]:
    """What a note says. Raises ValueError if it is damaged."""
    document = json.loads(text)
    if not isinstance(document, dict) or document.pop("crc32", None) != crc32(json.dumps(document).encode()):
        raise ValueError("its checksum is not that of its content")
    return document

"""Checksums of files that are written in parts, and of notes."""

import json
import tempfile
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minidist.mr import checksums
from minidist.mr.checksums import WrittenPieces, is_intact, seal_note, unsealed


@given(parts=st.lists(st.binary(max_size=40)), piece=st.integers(1, 20), damage=st.binary(max_size=60))
def test_each_piece_has_its_checksum_however_a_file_was_written(parts: list[bytes], piece: int, damage: bytes) -> None:
    whole, written = b"".join(parts), WrittenPieces()
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(checksums, "PIECE", piece)
        for part in parts:
            written.add(part)
        assert written.size == len(whole)
        assert written.sums == [crc32(whole[i : i + piece]) for i in range(0, len(whole), piece)]
        path = Path(folder, "file")
        assert is_intact(path, written.size, written.sums) == (not whole)
        for content in (whole, damage, whole + b"x", whole[:-1]):
            path.write_bytes(content)
            assert is_intact(path, written.size, written.sums) == (content == whole)
        assert not is_intact(Path(folder), written.size, written.sums)


def test_a_note_is_as_it_was_written_or_damaged() -> None:
    document = {"task": ["map", 3], "counters": {"é\t": 1}, "why": "\ud800"}
    text = seal_note(document)
    assert unsealed(text) == document
    for other in ("", "{}", "[]", "null", text[:-1], text.replace("3", "4"), json.dumps(document)):
        with pytest.raises(ValueError, match=r"checksum|Expecting"):
            unsealed(other)

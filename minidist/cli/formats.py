"""What a file is that is no UTF-8 text, by its beginning: for the line that refuses it."""

import os
import struct

LOOKED_AT = 4096  # bytes
CONVERT = "{} text: convert it first: iconv -f {} -t UTF-8"
UNPACK = "compressed by {}: unpack it first"
COLUMN = "{}: write its column of text into a file of its own, or as JSONL"
TOKENS = "{}: give the text that they were made of, because here each character is a token"

MARKS = {  # UTF-32's begins as UTF-16's does, and comes before it
    b"\xff\xfe\0\0": CONVERT.format("UTF-32", "UTF-32"),
    b"\0\0\xfe\xff": CONVERT.format("UTF-32", "UTF-32"),
    b"\xff\xfe": CONVERT.format("UTF-16", "UTF-16"),
    b"\xfe\xff": CONVERT.format("UTF-16", "UTF-16"),
    b"\x1f\x8b": UNPACK.format("gzip"),
    b"\x28\xb5\x2f\xfd": UNPACK.format("zstd"),
    b"\xfd7zXZ\0": UNPACK.format("xz"),
    b"BZh": UNPACK.format("bzip2"),
    b"PK\x03\x04": "a zip file: unpack it first",
    b"PAR1": COLUMN.format("Parquet"),
    b"ARROW1": COLUMN.format("Arrow"),
    b"\x93NUMPY": TOKENS.format("NumPy's array"),
    b"MMIDIDX\0\0": TOKENS.format("Megatron's index of tokens"),
    struct.pack("<i", 20240520): TOKENS.format("llm.c's tokens"),
    struct.pack("<i", 20240801): TOKENS.format("llm.c's tokens"),
}
UNMARKED: dict[
    tuple[bool, ...], tuple[str, str]
] = {  # which of four bytes in a row are zero, where most characters are ASCII
    (False, True, False, True): ("UTF-16", "UTF-16LE"),
    (True, False, True, False): ("UTF-16", "UTF-16BE"),
    (False, True, True, True): ("UTF-32", "UTF-32LE"),
    (True, True, True, False): ("UTF-32", "UTF-32BE"),
}


def name_format(path: str) -> str:
    """What a file is, and what to do with it; "" if it may be UTF-8 text. Raises OSError."""
    with open(path, "rb") as file:
        head = file.read(LOOKED_AT)
    for mark, what in MARKS.items():
        if head.startswith(mark):
            return what
    if path.endswith(".bin") and os.path.exists(f"{path.removesuffix('.bin')}.idx"):
        return TOKENS.format("Megatron's tokens")
    zeros = [(head[i::4].count(0), len(head[i::4])) for i in range(4)]
    found = UNMARKED.get(tuple(number > 0 for number, _ in zeros))
    if found and all(2 * number > of for number, of in zeros if number):
        return CONVERT.format(*found)
    return ""

"""MapReduce against sequential references written here: byte for byte, on nasty texts, under every fault."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minidist import Finished, UsageError
from minidist.mapreduce_files import ExternalSort, blocks, read_pair, split, write_pair
from minidist.mapreduce_jobs import Sort, WordCount
from minidist.mapreduce_plan import Plan, prepare
from minidist.mpi.launch import find_mpiexec, launch
from minidist.papers import mapreduce_pair

RANKS = (1, 2, 3, 4, 5)

NASTY = {
    "empty.txt": b"",
    "one line.txt": b"The end has no line feed",
    "crlf.txt": b"First line\r\nsecond LINE\r\n\r\nlast\rline\r\n" * 40,
    "blank.txt": b"\n\n\n \n\t\n",
    "long.txt": b"long " * 60_000 + b"\nshort\n" + b"x" * 300_000 + b"\n",
    "unicode.txt": (
        "Straße STRASSE straße \u0130stanbul ΣΊΣΥΦΟΣ Σίσυφος \u01c5 naïve cafe\u0301 été\n"
        "日本語 の テキスト word日本 \U0001d54f \U0001f600smile\u200bzero\ufeffmark\n"
        "kelvin \u212a sign, ﬁne ligature, ٣ digits ² ½ _under_ \u0085next\u2028separated \x1cfile \x0bvertical\x0cpage\n"
    ).encode()
    * 30,
    "nul.txt": b"a\0b \0\0 word\0\n\0\nback\\slash \\t \\n tab\there\n" * 20,
    "bytes.txt": b"ok \xff\xfe bad\xc3\n\xe2\x82 cut \xed\xa0\x80 surrogate \xf0\x9f\x98 \xc0\xaf \xef\xbf\xbd\n" * 25,
    "control.txt": b"a\x01 a\ta a\\ a\x08b\n\x01\n" * 5,
    os.fsdecode(b"d\xfcr.txt"): b"the name of the file is not ascii\n",
    "prose.txt": b"".join(
        b"The %d quick brown foxes jump over the lazy dog number %d\n" % (i, i % 7) for i in range(900)
    ),
}


@pytest.fixture(scope="session")
def nasty(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("input")
    for name, content in NASTY.items():
        (folder / name).write_bytes(content)
    return [str(folder / name) for name in NASTY]


# ---- the references: one process, the whole text at once --------------------------------------------------------------


def lines_of(path: str) -> list[str]:
    text = Path(path).read_bytes().decode("utf-8", errors="replace")
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    return [line[:-1] if line.endswith("\r") else line for line in lines]


def words_of(line: str) -> list[str]:
    """Runs of letters, digits and underscores, folded."""
    spaced = "".join(c if c.isalnum() or c == "_" else " " for c in line)
    return [word.casefold() for word in spaced.split(" ") if word]


def crc32(data: bytes) -> int:
    """The checksum of zip and PNG, bit by bit."""
    remainder = 0xFFFFFFFF
    for byte in data:
        remainder ^= byte
        for _ in range(8):
            remainder = remainder >> 1 ^ (0xEDB88320 if remainder & 1 else 0)
    return remainder ^ 0xFFFFFFFF


@cache
def checksum(key: str) -> int:
    return crc32(key.encode())


def reference(job: str, files: tuple[str, ...], reducers: int, left_out: str | None = None) -> list[bytes]:
    """The R output files, in order. Lines that contain `left_out` are left out."""
    kind, _, pattern = job.partition(" ")
    pairs: dict[str, list[str]] = defaultdict(list)
    for path in files:
        document = os.fsencode(path).decode(errors="replace")
        for line in lines_of(path):
            if left_out is not None and left_out in line:
                continue
            if kind == "wordcount":
                found = [m.group().casefold() for m in re.finditer(pattern, line)] if pattern else words_of(line)
                for word in found:
                    if word:
                        pairs[word].append("")
            elif kind == "inverted-index":
                for word in words_of(line):
                    pairs[word].append(document)
            elif kind == "grep":
                if re.search(pattern, line):
                    pairs[document].append(line)
            elif kind in ("vowels", "fails-on-a-key"):
                if line:
                    pairs[line[0]].append(line)
            elif kind == "lengths":
                pairs[f"{len(line):05}"].append(document)
    if kind == "fails-on-a-key":
        del pairs["T"]
    output = [b""] * reducers
    for key in sorted(pairs, key=lambda key: key.encode()):
        values = pairs[key]
        if kind in ("wordcount", "lengths"):
            text = f"{key}\t{len(values)}\n"
        elif kind == "inverted-index":
            text = f"{key}\t{' '.join(sorted(set(values)))}\n"
        else:
            ordered = sorted(values, key=lambda value: -len(value)) if kind == "vowels" else values
            text = "".join(f"{key}\t{value}\n" for value in ordered)
        r = ord(key) % reducers if kind in ("vowels", "fails-on-a-key") else checksum(key) % reducers
        output[r] += text.encode()
    return output


def expected_sort(files: list[str]) -> list[bytes]:
    return [line.encode() + b"\n" for line in sorted(line for path in files for line in lines_of(path))]


# ---- every job, on every number of ranks ------------------------------------------------------------------------------

SMALL = 20_000  # bytes of memory: nothing fits, so everything is spilled and merged, some of it in several passes


def case(name: str, job: str, maps: int, reducers: int, **options: Any) -> dict[str, Any]:
    return {"name": name, "job": job, "maps": maps, "reducers": reducers, **options}


CASES = [
    case("wordcount", "wordcount", 7, 4),
    case("one by one", "wordcount", 1, 1),
    case("more tasks than work", "wordcount", 40, 23),
    case("no combiner", "wordcount", 5, 3, combine=False),
    case("no combiner, little memory", "wordcount", 3, 2, combine=False, memory=SMALL),
    case("little memory", "wordcount", 4, 2, memory=SMALL),
    case("pattern", r"wordcount [a-z]\w*|\s+", 6, 3),
    case("groups", r"wordcount (\w)(\w*)", 6, 3),
    case("grep", r"grep \d [qb]|\\|\x00", 6, 3),
    case("grep, little memory", "grep e", 6, 2, memory=SMALL),
    case("index", "inverted-index", 7, 3),
    case("index, no combiner", "inverted-index", 7, 3, combine=False),
    case("sort", "sort", 7, 4),
    case("sort, little memory", "sort", 5, 3, memory=SMALL),
    case("own class", "vowels", 6, 5),
    case("two functions", "lengths", 6, 2),
    case("bad records", "wordcount", 6, 3, inject=["bad:00 quick"]),
    case("bad key", "fails-on-a-key", 5, 3),
]
FAULTS = {  # the least number of ranks, and what is injected
    "stops in its first map": (3, ["stop:2:map:1"]),
    "stops in its second map": (3, ["stop:1:map:2"]),
    "stops in a reduce": (3, ["stop:2:reduce:1"]),
    "is slow": (3, ["slow:1:300"]),
    "one is slow, another stops": (4, ["slow:1:50", "stop:3:map:2"]),
    "two stop": (4, ["stop:1:map:1", "stop:3:reduce:1"]),
}


def cases(n: int) -> list[dict[str, Any]]:
    faults = [
        case(fault, "vowels", 8, 5, inject=injected, timeout=1.0)
        for fault, (least, injected) in FAULTS.items()
        if n >= least
    ]
    return CASES + faults


@pytest.fixture(scope="session")
def on_ranks(
    nasty: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int], tuple[Path, dict[str, Any]]]:
    """For a number of ranks: the folder of the outputs of all cases, and the reports. One MPI job for each number."""

    @cache
    def on(n: int) -> tuple[Path, dict[str, Any]]:
        folder = tmp_path_factory.mktemp(f"output-{n}")
        return folder, launch("jobs.mapreduce:run_all", n, nasty, str(folder), cases(n), timeout=240).values[0]

    return on


def read_parts(folder: Path, reducers: int) -> list[bytes]:
    """The output files, of which there must be R, and nothing else."""
    names = [f"part-{r:05}-of-{reducers:05}" for r in range(reducers)]
    assert sorted(os.listdir(folder)) == names
    return [(folder / name).read_bytes() for name in names]


EVERYWHERE = [(n, case["name"]) for n in RANKS for case in cases(n)]


@pytest.mark.parametrize(("n", "name"), EVERYWHERE, ids=lambda value: str(value))
def test_output_is_that_of_the_sequential_reference(n: int, name: str, nasty: list[str], on_ranks: Any) -> None:
    folder, _ = on_ranks(n)
    (chosen,) = (case for case in cases(n) if case["name"] == name)
    left_out = "00 quick" if name == "bad records" else None
    found = read_parts(folder / name, chosen["reducers"])
    if chosen["job"] == "sort":  # where one file ends and the next begins depends on a sample
        found, expected = [b"".join(found)], [b"".join(expected_sort(nasty))]
    else:
        expected = reference(chosen["job"], tuple(nasty), chosen["reducers"], left_out)
    for r, (part, truth) in enumerate(zip(found, expected, strict=True)):
        assert part == truth, f"part {r}"

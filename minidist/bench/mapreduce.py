"""Counting words, compared with DuckDB, Polars, a Counter and the shell's tools, on 300 MB of real text.

Each program starts as a process of its own on two cores, reads the file, and writes a file of words and counts. Words
are Python's \\w+ in lower case. All programs must count the same, word for word.
"""

import shutil
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from minidist.bench.measure import Comparison, alternate, compare, missing_row
from minidist.launch.launcher import launch
from minidist.mapreduce import run
from minidist.mpi.comm import Comm
from minidist.mr.load import make
from minidist.mr.plan import Plan
from minidist.system import processes
from minidist.system.files import temporary_folder
from minidist.text.data import load

RANKS = 3  # a master and two workers
SIZE = 300_000_000  # bytes
PAIRS = 3


def measure_word_count(size: int = SIZE, pairs: int = PAIRS) -> Iterator[Comparison]:
    """MapReduce with a master and two workers, compared with two threads of DuckDB and Polars, and with programs on one
    core."""
    title = f"word count, {size / 1e6:.0f} MB, {RANKS} ranks"
    with temporary_folder() as folder:
        text, output, other = folder / "text", folder / "output", folder / "other"
        write_text(text, size)
        for beside, theirs, package in PROGRAMS:
            if package and find_spec(package) is None:
                yield missing_row(title, beside, 1.0, f"no {beside} here")
                continue
            times = alternate(partial(run_minidist, text, output), partial(theirs, text, other), pairs, warm_up=0)
            if counts_of(output.glob("part-*")) != counts_of([other]):
                raise AssertionError(f"MapReduce and {beside} do not agree")
            row, megabytes = compare(title, beside, *times, 1.0, "s"), text.stat().st_size / 1e6
            row.ours, row.theirs = (megabytes / statistics.median(seconds) for seconds in times)
            row.unit = "MB/s"
            yield row


def write_text(path: Path, nbytes: int) -> None:
    """Write Python's help pages again and again; each line has a suffix that varies, so that there are many words.

    All letters are ASCII: for others, folding case and lower case differ, and tr does not know them.
    """
    corpus = load(None, 1)
    lines = (corpus.decode(corpus.train) + corpus.decode(corpus.validation)).replace("ß", "ss").split("\n")
    with open(path, "w", encoding="utf-8") as file:
        copy = 0
        while file.tell() < nbytes:
            file.writelines(f"{line} r{copy}w{i % 997}\n" for i, line in enumerate(lines))
            copy += 1


def run_minidist(path: Path, output: Path) -> None:
    """Count words into files of sorted counts, the start of the ranks included."""
    shutil.rmtree(output, ignore_errors=True)
    launch("minidist.bench.mapreduce:count", RANKS, str(path), str(output), timeout=600).values  # noqa: B018


def count(comm: Comm, path: str, output: str) -> None:
    run(comm, Plan(make("wordcount", None, fast=True), [path], Path(output)))


# ---- the others ------------------------------------------------------------------------------------------------------

# The fastest of the ways that we tried: the CSV reader reads lines in parallel, one expression finds words, all in a
# streaming query. Replacing all between words by spaces, and splitting there, takes two to three times as long.
DUCKDB = r"""
import sys, duckdb
duckdb.execute("SET threads = 2; SET preserve_insertion_order = false; SET enable_progress_bar = false")
duckdb.execute('''COPY (
    SELECT word, count(*) FROM (
        SELECT unnest(regexp_extract_all(lower(line), '[\\p{L}\\p{N}_]+')) AS word
        FROM read_csv($text, columns = {line: VARCHAR}, delim = '\x01', quote = '', escape = '', header = false,
                      auto_detect = false)
    ) GROUP BY word
) TO $output (DELIMITER '\t', HEADER false, QUOTE '')'''.replace("$text", repr(sys.argv[1])).replace(
    "$output", repr(sys.argv[2])))
"""
POLARS = r"""
import os, sys
os.environ["POLARS_MAX_THREADS"] = "2"
import polars
schema = {"line": polars.String}
lines = polars.scan_csv(sys.argv[1], has_header=False, separator="\x01", quote_char=None, schema=schema)
words = lines.select(polars.col("line").str.to_lowercase().str.extract_all(r"\w+").alias("word")).explode("word")
counts = words.drop_nulls().group_by("word").len()
counts.sink_csv(sys.argv[2], separator="\t", include_header=False, engine="streaming")
"""
COUNTER = r"""
import collections, re, sys
words, counts = re.compile(r"\w+"), collections.Counter()
with open(sys.argv[1], encoding="utf-8", errors="replace") as file:
    while lines := file.readlines(1 << 20):
        counts.update(words.findall("".join(lines).casefold()))
with open(sys.argv[2], "w", encoding="utf-8") as file:
    file.writelines(f"{word}\t{counts[word]}\n" for word in sorted(counts))
"""
SHELL = r"""tr -cs A-Za-z0-9_ "\n" < "$1" | tr A-Z a-z | LC_ALL=C sort | uniq -c > "$2" """


def python(program: str, path: Path, output: Path) -> None:
    """Run a program in a Python process of its own."""
    processes.run([sys.executable, "-c", program, path, output]).check_returncode()


def shell(path: Path, output: Path) -> None:
    """Run what a user would type in a shell. It finds ASCII words only."""
    processes.run(["sh", "-c", SHELL, "sh", path, output]).check_returncode()


Program = Callable[[Path, Path], None]
PROGRAMS: tuple[tuple[str, Program, str | None], ...] = (  # name, what runs, and the package that it needs
    ("DuckDB", partial(python, DUCKDB), "duckdb"),
    ("Polars", partial(python, POLARS), "polars"),
    ("a Counter in one process", partial(python, COUNTER), None),
    ("sort | uniq -c in C", shell, None),
)


def counts_of(files: Iterable[Path]) -> Counter[str]:
    """The counts in files: each line has a word, a tab and its count, or what uniq -c writes."""
    found = Counter[str]()
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines():
            word, tab, number = line.partition("\t")
            if not tab:
                number, _, word = line.strip().partition(" ")
            if word:  # tr's first line is empty if the text does not begin with a word
                found[word] += int(number)
    return found

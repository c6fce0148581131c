"""Counting words beside a Counter in one process and beside the shell's tools, on 200 MB of real text."""

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

from minidist.data import load
from minidist.mapreduce import run
from minidist.mpi.comm import Comm
from minidist.mpi.launch import launch
from minidist.mr.load import make
from minidist.mr.plan import Plan

RANKS = 3  # a master and two workers


def write_text(path: Path, nbytes: int) -> None:
    """Python's help pages again and again, each line with a suffix that varies, so that there are many words."""
    corpus = load(None, 1)
    lines = (corpus.decode(corpus.train) + corpus.decode(corpus.validation)).split("\n")
    with open(path, "w", encoding="utf-8") as file:
        copy = 0
        while file.tell() < nbytes:
            file.writelines(f"{line} r{copy}w{i % 997}\n" for i, line in enumerate(lines))
            copy += 1


def ours(path: Path, output: Path) -> None:
    """From nothing to files of sorted counts, the start of the ranks included."""
    shutil.rmtree(output, ignore_errors=True)
    launch("minidist.bench.mapreduce:count", RANKS, str(path), str(output), timeout=600).values  # noqa: B018


def count(comm: Comm, path: str, output: str) -> None:
    run(comm, Plan(make("wordcount", None, fast=True), [path], Path(output)))


ONE_PROCESS = """
import collections, re, sys
words, counts = re.compile(r"\\w+"), collections.Counter()
with open(sys.argv[1], encoding="utf-8", errors="replace") as file:
    while lines := file.readlines(1 << 20):
        counts.update(words.findall("".join(lines).casefold()))
with open(sys.argv[2], "w", encoding="utf-8") as file:
    file.writelines(f"{word}\\t{counts[word]}\\n" for word in sorted(counts))
"""


def one_counter(path: Path, output: Path) -> None:
    """The same in one process: a Counter over large blocks, the fastest way to use it."""
    subprocess.run([sys.executable, "-c", ONE_PROCESS, path, output], check=True)


def sort_and_uniq(path: Path, output: Path, locale: str | None) -> None:
    """What one types in a shell; without a locale, in the user's own. It sees the ASCII words only."""
    environment = {**os.environ, **({"LC_ALL": locale} if locale else {})}
    pipeline = 'tr -cs A-Za-z0-9_ "\\n" < "$1" | tr A-Z a-z | sort | uniq -c > "$2"'
    subprocess.run(["sh", "-c", pipeline, "sh", path, output], env=environment, check=True)


def same_counts(output: Path, of_counter: Path) -> bool:
    """Whether the two have counted the same, so that it is the same work that is timed."""
    found = Counter[str]()
    for part in output.glob("part-*"):
        found.update({word: int(n) for word, n in re.findall(r"(.*)\t(\d+)\n", part.read_text(encoding="utf-8"))})
    truth = dict(re.findall(r"(.*)\t(\d+)\n", of_counter.read_text(encoding="utf-8")))
    return found == {word: int(n) for word, n in truth.items()}

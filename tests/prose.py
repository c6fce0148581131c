"""Plain words in all that a person reads: a ratchet, whose rules are data (prose.toml).

It reads READMEs, markdown cells of notebooks, docstrings, comments, messages and help texts, and what mutants say. For
each file and rule prose.json keeps the number of faults. More of them fail test_prose.py, which shows the new ones.

    python tests/prose.py          write lower numbers back, never higher ones
    python tests/prose.py --all    write all numbers as they are: after a merge, or when a file was moved
    python tests/prose.py FILE...  show all faults of these files
"""

import bisect
import json
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
KEPT = Path(__file__).with_name("prose.json")
GLOBS = "README.md", "minidist/**/*.md", "minidist/**/*.py", "minidist/claims/mutants/**/*.toml", "lessons/**/*.*"
RULES = {rule["name"]: rule for rule in tomllib.loads(Path(__file__).with_name("prose.toml").read_text())["rule"]}
PATTERNS = {
    name: [re.compile(rule.get(key, "(?!)"), re.I) for key in ("pattern", "allow")] for name, rule in RULES.items()
}
TOKEN = re.compile(r"""(\#[^\n]*)|(\b[rbfu]{1,2}|)(\"\"\"|'''|"|')((?:\\.|.)*?)\3""", re.I | re.S)
NO_PROSE = re.compile(r"``[^`]+``|`[^`\n]+`|\$[^$\n]+\$|\]\([^)\s]*\)|\\.|https?:\S+|\{[^{}]*\}|</?\w+[^>]*>")
OWN_LINE = re.compile(r"\s*(?:#|\||[-*+] |\d+[.)] |>)|.*\S {3,}\S")  # a heading, an item, a row: nothing goes before it
SENTENCE = re.compile(r"(?<=[.?!])[\"”’)*_]*\s+(?=\W*[A-Z0-9`])")

SAID = "mistake =", "says =", "here ="  # in TOML, what a person reads

Lines = list[tuple[int, str]]  # of a text or paragraph, each with its number in the file
Counts = dict[str, dict[str, int]]  # file -> rule -> faults


class Fault(NamedTuple):
    file: str
    line: int
    rule: str
    words: str

    def __str__(self) -> str:
        return "{}:{}: {!r}: {why}. Better: {better}".format(self.file, self.line, self.words, **RULES[self.rule])


def read_python(source: str) -> Iterator[Lines]:
    """Comments and strings with a space in them; those that follow one another are one text. Raw ones are patterns."""
    text, kind, end = Lines(), "", 0
    for token in TOKEN.finditer(source):
        comment, prefix, _, words = token.groups()
        same, between = "comment" if comment else "string", source[end : token.start()]
        if same != kind or between.strip() or (comment and between.count("\n") != 1):
            yield text
            text = []
        kind, end = same, token.end()
        if comment or (" " in words and not set("rb") & set(prefix.lower())):
            text += enumerate((words or comment.strip("#- ")).split("\n"), 1 + source.count("\n", 0, token.start()))
    yield text


def read_notebook(source: str) -> Iterator[Lines]:
    numbered = enumerate(source.splitlines(), 1)
    for cell in json.loads(source)["cells"]:
        if cell["cell_type"] == "markdown":
            found = [json.dumps(line, ensure_ascii=False) for line in cell["source"]]
            yield [(next(n for n, line in numbered if each in line), json.loads(each).rstrip("\n")) for each in found]


READERS: dict[str, Callable[[str], Iterable[Lines]]] = {
    ".py": read_python,
    ".ipynb": read_notebook,
    ".md": lambda source: [[*enumerate(source.split("\n"), 1)]],
    ".toml": lambda source: ([each] for each in enumerate(source.split("\n"), 1) if each[1].startswith(SAID)),
}


def split_paragraphs(text: Lines) -> Iterator[Lines]:
    """Headings, items of lists and cells of tables stand alone; blocks of code are left out."""
    paragraph, in_code = Lines(), False
    for number, line in text:
        in_code ^= (fence := line.lstrip().startswith("```"))
        if fence or in_code or not line.strip() or OWN_LINE.match(line):
            yield paragraph
            paragraph = []
        if not (fence or in_code):
            cells = re.split(r"\||\s{3,}", line.strip()) if OWN_LINE.match(line) else [line]
            goes_on = not line.startswith(("#", "|"))
            yield from ([(number, cell)] for cell in cells[: len(cells) - goes_on])
            paragraph = paragraph + [(number, cells[-1])] if goes_on and line.strip() else []
    yield paragraph


def find_faults(file: str, source: str) -> Iterator[Fault]:
    for paragraph in (each for text in READERS[Path(file).suffix](source) for each in split_paragraphs(text)):
        lines = [NO_PROSE.sub(lambda code: "]" if code[0][0] == "]" else "C", each.strip()) for _, each in paragraph]
        starts = [sum(len(line) + 1 for line in lines[:n]) for n in range(len(lines))]
        whole, begin = " ".join(lines), 0
        for end in [*(gap.end() for gap in SENTENCE.finditer(whole)), len(whole)]:
            for rule, start, words in judge(whole[begin:end].rstrip()):
                yield Fault(file, paragraph[bisect.bisect(starts, begin + start) - 1][0], rule, words)
            begin = end


def judge(sentence: str) -> Iterator[tuple[str, int, str]]:
    """Each fault of a sentence: the rule, where it begins, and the words with those around them."""
    for name, (pattern, allow) in PATTERNS.items():
        for found in pattern.finditer(sentence):
            if not allow.match(sentence, found.start()):
                yield name, found.start(), sentence[max(0, found.start() - 20) : found.end() + 20]
        longest = RULES[name].get("longest")
        if longest and sum(any(map(str.isalnum, word)) for word in sentence.split()) > longest:
            yield name, 0, f"{sentence[:50]} ..."


def find_all_faults(globs: Iterable[str] = GLOBS) -> list[Fault]:
    files = {str(path.relative_to(ROOT)): path for each in globs for path in ROOT.glob(each) if path.suffix in READERS}
    return [fault for file in sorted(files) for fault in find_faults(file, files[file].read_text(encoding="utf-8"))]


def find_new_faults(faults: list[Fault], kept: Counts) -> list[Fault]:
    """Those of files and rules with more faults than kept; where git can tell, without those that are committed."""
    counts = Counter((fault.file, fault.rule) for fault in faults)
    more = {key for key, count in counts.items() if count > kept.get(key[0], {}).get(key[1], 0)}
    old = set()
    for file in {file for file, _ in more}:
        show = ["git", "-C", str(ROOT), "show", f"HEAD:{file}"]
        committed = subprocess.run(show, capture_output=True, text=True, encoding="utf-8")
        old |= {fault._replace(line=0) for fault in find_faults(file, committed.stdout or '{"cells": []}')}
    excess = [fault for fault in faults if (fault.file, fault.rule) in more]
    return [fault for fault in excess if fault._replace(line=0) not in old] or excess


def write_counts(faults: list[Fault], kept: Counts | None) -> None:
    """Where something is kept, never a higher number."""
    counts: Counts = {}
    for (file, rule), count in sorted(Counter((fault.file, fault.rule) for fault in faults).items()):
        if number := count if kept is None else min(count, kept.get(file, {}).get(rule, 0)):
            counts.setdefault(file, {})[rule] = number
    rows = [f"{json.dumps(file)}: {json.dumps(rules)}" for file, rules in counts.items()]  # one file a line, for merges
    KEPT.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    if files := [name for name in sys.argv[1:] if not name.startswith("-")]:
        print(*find_all_faults(files), sep="\n")
    else:
        write_counts(find_all_faults(), None if "--all" in sys.argv else json.loads(KEPT.read_text()))

"""Every reason why something is "not here": none may be out of date. A reason is, if it names a chapter or an option
that exists, or if the book has one of the words of test_refusals.toml, by which it would have what is refused."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from minidist.deepspeed import accelerate_keys
from minidist.deepspeed.keys import KEYS, OPTIMIZERS, REFUSED_SECTIONS, SCHEDULERS
from minidist.programs.chapter import find_all
from tables import table

pytest.importorskip("hjson")

FOLDER = Path(accelerate_keys.__file__).parent
WORDS: dict[str, list[str]] = table(__file__, "words")


@cache
def book() -> frozenset[str]:
    """What the book has: names of chapters, their options, and the values of those that have a few."""
    found = set[str]()
    for name, chapter in find_all().items():
        found.add(name)
        for action in chapter.parser()._actions:
            found |= {*action.option_strings, *(map(str, action.choices or ()))}
    return frozenset(found)


def reasons() -> Iterator[tuple[str, str]]:
    """What is refused, and why: from the tables, and from the lines that the code writes."""
    tables = {"": KEYS, **{f"optimizer {name} ": of for name, of in OPTIMIZERS.items() if name != "AdamW"}}
    tables |= {f"scheduler {name} ": of for name, of in SCHEDULERS.items()}
    for where, of in tables.items():
        yield from ((f"{where}{name}", key.refused or key.yet) for name, key in of.items() if key.refused or key.yet)
    yield from REFUSED_SECTIONS.items()
    for file in sorted(FOLDER.glob("*.py")):
        nodes = [*ast.walk(ast.parse(file.read_text()))]
        parts = {
            part for node in nodes if isinstance(node, ast.JoinedStr) for part in ast.walk(node) if part is not node
        }
        for node in nodes:
            if isinstance(node, ast.JoinedStr | ast.Constant) and node not in parts and " not here" in text_of(node):
                yield text_of(node), text_of(node)


def text_of(node: ast.AST) -> str:
    """A string of the code, with ... for what is filled in."""
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) for part in node.values)
    return str(node.value) if isinstance(node, ast.Constant) and isinstance(node.value, str) else "..."


def stale(reason: str, words: list[str]) -> list[str]:
    """Why a reason is out of date: what it names, and what the book has."""
    named = re.findall(r"minidist\.(\w+)|(?<![\w-])(--[\w-]+)", reason)
    return [name for name in (*map("".join, named), *words) if name in book()]


FOUND = {**dict(reasons())}


@pytest.mark.parametrize("refused", [*FOUND])
def test_the_book_lacks_what_is_refused(refused: str) -> None:
    words = next((of for name, of in WORDS.items() if re.fullmatch(name, refused, re.DOTALL)), None)
    assert words is not None, f"{refused}: say in test_refusals.toml by which words the book would have it"
    assert not stale(FOUND[refused], words)


def test_no_word_is_of_a_refusal_that_is_gone() -> None:
    for name in WORDS:
        assert any(re.fullmatch(name, refused, re.DOTALL) for refused in FOUND), name


@pytest.mark.parametrize(("reason", "words"), table(__file__, "what_was_refused_until_the_book_had_it"))
def test_what_was_refused_until_the_book_had_it_would_be_found(reason: str, words: list[str]) -> None:
    assert stale(reason, words)

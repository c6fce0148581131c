"""A module as a page: its notes, from docstrings, next to the code that they are about."""

import ast
import html
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

NOTES = Path(__file__).parent / "static" / "notes.js"  # in the page itself, so that it acts before the first picture
SECTION = re.compile(r" *# -{2,} (.*?) -{2,}$")  # a comment that begins a part of a file, or of a class


class AnnotatedLines(NamedTuple):
    """Some lines of code, and their docstring as a note. A heading has a title and nothing else."""

    code: str
    note: str = ""
    title: str = ""
    name: str = ""  # Class.method, for links


def take_apart(path: Path) -> tuple[str, list[AnnotatedLines]]:
    """A module's docstring, and the rest in pieces, in the order of the file."""
    source = path.read_text()
    lines, tree = source.splitlines(), ast.parse(source)
    document = ast.get_docstring(tree) or ""
    pieces, done = list[AnnotatedLines](), (tree.body[0].end_lineno or 0) if document else 0
    for node, name, with_methods in _definitions(tree):
        begin = _above(lines, _first(node) - 1, done)
        pieces += _plain(lines[done:begin])
        note, string = ast.get_docstring(node) or "", node.body[0]
        done = node.end_lineno or node.lineno
        if with_methods:  # this piece has only the lines above the first method
            done = string.end_lineno or string.lineno if note else _first(string) - 1
        code = lines[begin:done]
        if note:
            code = [*lines[begin : string.lineno - 1], *lines[string.end_lineno : done]]
        pieces.append(AnnotatedLines("\n".join(code), note, name=name))
    pieces += _plain(lines[done:])
    return document, pieces


def _definitions(tree: ast.Module) -> Iterator[tuple[ast.ClassDef | ast.FunctionDef, str, bool]]:
    """(node, name, whether methods follow as pieces of their own) of each function, class and method."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node, node.name, False
        elif isinstance(node, ast.ClassDef):
            methods = [part for part in node.body if isinstance(part, ast.FunctionDef)]
            yield node, node.name, bool(methods)
            for method in methods:
                yield method, f"{node.name}.{method.name}", False


def _first(node: ast.stmt) -> int:
    """The number of a definition's first line, decorators included."""
    return min([node.lineno, *(mark.lineno for mark in getattr(node, "decorator_list", []))])


def _above(lines: list[str], begin: int, done: int) -> int:
    """The line with which a definition begins, including the comment directly above it."""
    while begin > done and lines[begin - 1].strip().startswith("#") and not SECTION.match(lines[begin - 1]):
        begin -= 1
    return begin


def _plain(lines: list[str]) -> Iterator[AnnotatedLines]:
    """Pieces for the lines between definitions, cut at headings."""
    block = list[str]()
    for line in lines:
        if found := SECTION.match(line):
            if any(part.strip() for part in block):
                yield AnnotatedLines("\n".join(block))
            yield AnnotatedLines("", title=found[1])
            block = []
        else:
            block.append(line)
    if any(part.strip() for part in block):
        yield AnnotatedLines("\n".join(block))


def as_html(pieces: list[AnnotatedLines]) -> str:
    """A row for each piece: its code, and its note next to it, which opens where there is no room for both."""
    rows = ['<p class="notes"><button type="button">Open all notes</button></p>']
    for piece in pieces:
        if piece.title:
            rows.append(f"<h3>{html.escape(piece.title[0].upper() + piece.title[1:])}</h3>")
            continue
        anchor = f' id="{piece.name}"' if piece.name else ""
        note = f'<details class="note" open><summary>note</summary>{prose(piece.note)}</details>' if piece.note else ""
        rows.append(f'<div class="piece"{anchor}>{note}<div class="code">{colored(piece.code)}</div></div>')
    return "\n".join([*rows, f"<script>{NOTES.read_text(encoding='utf-8')}</script>"])


def colored(code: str) -> str:
    """Code in colors. Its lines keep their indentation."""
    return highlight(code.strip("\n"), PythonLexer(stripall=False), HtmlFormatter(cssclass="highlight"))


TERM = r"(\S+) {2,}(\S.*(?:\n {2,}\S+(?: \S+)*)*)"  # a term; next to it its meaning, whose further lines are indented
TERMS = re.compile(rf"{TERM}(?:\n{TERM})*")


def prose(text: str) -> str:
    """A docstring as HTML: paragraphs, terms with their meanings, and indented blocks unchanged."""
    parts = []
    for block in re.split(r"\n\s*\n", text.strip("\n")):
        if not block.strip():
            continue
        if all(line.startswith("    ") for line in block.splitlines()):
            parts.append(literal(block))
            continue
        if TERMS.fullmatch(block):
            terms = "".join(f"<dt>{html.escape(one)}</dt><dd>{_inline(of)}</dd>" for one, of in re.findall(TERM, block))
            parts.append(f'<dl class="terms">{terms}</dl>')
            continue
        head, *rest = re.split(r"\n(?=    )", block, maxsplit=1)
        parts.append(f"<p>{_inline(head)}</p>")
        parts += map(literal, rest)
    return "\n".join(parts)


def literal(block: str) -> str:
    """An indented block as it is or, if it has columns, as a table, whose cells wrap where there is little room. Of two
    columns, the first must have single words: other blocks are commands, with what they do."""
    lines = textwrap.dedent(block).splitlines()
    width = max(map(len, lines))
    blank = "".join(" " if all(line[i : i + 1] in ("", " ") for line in lines) else "x" for i in range(width))
    columns = [found.span() for found in re.finditer(r"x+(?: x+)*", blank)]
    words = [line[: columns[0][1]].strip() for line in lines]
    if len(lines) < 2 or len(columns) < 2 or (len(columns) == 2 and any(not re.fullmatch(r"[\w-]*", w) for w in words)):
        return f'<pre tabindex="0">{html.escape(chr(10).join(lines))}</pre>'
    cells = ([html.escape(line[begin:end].rstrip()) for begin, end in columns] for line in lines)
    rows = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in cells)
    return f'<table class="columns">{rows}</table>'


# How docstrings name a paper, with a section if one is meant, and its address: pattern, address.
PLACES = {
    r"arXiv\s(\d{4}\.\d{4,5})(?:,\s+section\s+\d+(?:\.\d+)*)?": r"https://arxiv.org/abs/\1",
    r"doi\s(10\.\d{4,}/[\w./-]*\w)": r"https://doi.org/\1",
    r"(https://[\w./-]*\w)": r"\1",
}


def _inline(text: str) -> str:
    shown = html.escape(text, quote=False)
    for place, address in PLACES.items():
        shown = re.sub(rf'(?<!["/]){place}', rf'<a href="{address}">\g<0></a>', shown)
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", shown)

"""A program that is written down as far as it differs from another one.

Both are taken apart into pieces: definitions, methods ("ZeRO3.reduce"), imports ("import os", "from pathlib") and
assignments ("Array", "ZeRO3.accumulated"). What is written replaces the piece of the same name. A new piece stands
before the next written piece that the other program has, or at the end.
"""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Piece:
    blank: int  # lines before it
    text: str  # with the comments before it


def overlay(base: str, written: str, without: Sequence[str] = ()) -> str:
    """The program `base` without these pieces (and what is in them), and with what is written."""
    left, own = without_pieces(pieces_of(base), without), pieces_of(written)
    made: list[Piece] = []
    new: list[Piece] = []
    before: dict[str, list[Piece]] = {}
    for name, piece in own.items():
        if name in left:
            before[name], new = new, []
        else:
            new.append(piece)
    for name, piece in left.items():
        if name not in own:
            made.append(piece)
        elif before[name]:  # the first takes the place of this one
            first, *others = before[name]
            made += [replace(first, blank=piece.blank), *others, own[name]]
        else:
            made.append(replace(own[name], blank=piece.blank))
    return "".join("\n" * piece.blank + piece.text + "\n" for piece in [*made, *new])


def without_pieces(pieces: dict[str, Piece], names: Sequence[str]) -> dict[str, Piece]:
    """A piece after a removed one gets the larger of the two distances: groups stay apart."""
    assert set(names) <= set(pieces), f"there is no {set(names) - set(pieces)}"
    left, blank = {}, 0
    for name, piece in pieces.items():
        if any(is_in(name, other) for other in names):
            blank = max(blank, piece.blank)
        else:
            left[name], blank = replace(piece, blank=max(blank, piece.blank)), 0
    return left


def is_in(name: str, other: str) -> bool:
    """Whether a piece is the other or a part of it. "from minidist.ring" is no part of "from minidist"."""
    return name == other or (other.isidentifier() and name.startswith(f"{other}."))


def pieces_of(program: str) -> dict[str, Piece]:
    lines, end = program.splitlines(), 0
    pieces: dict[str, Piece] = {}
    for name, last in named(ast.parse(program).body, lines):
        before = end
        while not lines[before].strip():
            before += 1
        assert name not in pieces, f"{name} stands there twice"
        pieces[name] = Piece(before - end, "\n".join(lines[before:last]))
        end = last
    return pieces


def named(statements: Sequence[ast.stmt], lines: Sequence[str], within: str = "") -> Iterator[tuple[str, int]]:
    """The name of each piece, and its last line. A class is its first line alone; what is in it follows."""
    for statement in statements:
        match statement:
            case ast.ClassDef(name=name, lineno=line, body=body):
                yield f"{within}{name}", line
                yield from named(body, lines, f"{within}{name}.")
                continue
            case ast.FunctionDef(name=name):
                pass
            case ast.ImportFrom(module=module):
                name = f"from {module}"
            case ast.Assign(targets=[target]) | ast.AnnAssign(target=target):
                name = ast.unparse(target)
            case ast.Expr(value=ast.Constant()):
                name = "docstring"
            case _:
                name = ast.unparse(statement)
        yield f"{within}{name}", statement.end_lineno or statement.lineno

"""A look at the text of a submission before anything runs: can it be read, does it name what is not for exercises, is
some of it the chapter's? The look is taken on a rank of its own, for even to parse a stranger's file may end a process.
"""

import ast
import hashlib
from collections.abc import Iterator, Sequence
from importlib.util import decode_source
from typing import Any

from minidist.mpi.comm import Comm, Ledger, Request

OBJECTS = {"send_object", "recv_object", "gather_object", "broadcast_object", "all_gather_object"}
PRIVATE = {"_port", "_desk", "_largest_tag", "_posted"} | {
    name for of in (Comm, Ledger, Request) for name in vars(of) if name.startswith("_") and not name.startswith("__")
}
CLOSED = ("minidist.mpi.", "minidist.exchange", "minidist.launch", "minidist.classroom", "mpi4py")  # the wire
OPEN = ("minidist.mpi.comm", "minidist.mpi.run")
LONG = 8  # statements: what is longer, and the same, was hardly written twice

Function = ast.FunctionDef | ast.AsyncFunctionDef


def examine(comm: Comm, name: str, source: bytes, asked: Sequence[str], known: dict[str, str]) -> dict[str, Any]:
    """For the submission `name`: why it cannot be read, or ""; what it must not name, {asked function, or "" if it
    stands elsewhere: message}; and which of the asked functions have a digest in `known`, {name: digest}."""
    try:
        decode_source(source)  # the parser does not look into comments
        tree = ast.parse(source, name)
        compile(tree, name, "exec", dont_inherit=True)
    except SyntaxError as error:
        line = f"\n    {error.text.strip()}" if error.text and error.text.strip() else ""
        what = f"line {error.lineno}: {error.msg}{line}" if error.lineno else f"save it as UTF-8 ({error.msg})"
        return {"unreadable": f"{name} is no Python: {what}"}
    except (ValueError, RecursionError, MemoryError) as error:  # a NUL; no UTF-8; nesting without end
        return {"unreadable": f"{name} is no Python: {error or type(error).__name__}"}
    refused: dict[str, str] = {}
    for scope, node in scoped(tree):
        if message := objection(node):
            refused.setdefault(scope if scope in asked else "", f"{name}:{node.lineno} {message}")
    found = [digests([text], asked) for text in (tree, *texts_in(tree))]
    copied = [name for name in known if any(of.get(name) == known[name] for of in found)]
    return {"unreadable": "", "refused": refused, "copied": copied}


def scoped(tree: ast.AST, scope: str = "") -> Iterator[tuple[str, Any]]:
    """Every node, with the function or method of the module in which it is: "reduce_scatter", "ZeRO3.reduce"."""
    for node in ast.iter_child_nodes(tree):
        inner = scope
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not scope.partition(".")[2]:
            within = isinstance(tree, ast.ClassDef | ast.Module)
            inner = (f"{scope}." if scope else "") + node.name if within else scope
        yield inner, node
        yield from scoped(node, inner)


def objection(node: Any) -> str:
    """Why a submission must not have this; "" if it may."""
    word = getattr(node, "attr", None) or getattr(node, "value", None)
    if isinstance(node, ast.Attribute | ast.Constant) and isinstance(word, str):
        if word in OBJECTS:
            return f"uses comm.{word}: objects travel uncounted. Send arrays, with comm.send, recv and sendrecv"
        if word in PRIVATE:
            return f"uses {word}, which is the wire's own. Send arrays, with comm.send, recv and sendrecv"
    modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
    modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else modules
    for module in modules:
        if module.startswith(CLOSED) and module not in OPEN:
            return f"imports {module}, which is no part of the exercise. All that it needs is comm"
    return ""


# ---- is it the chapter's? --------------------------------------------------------------------------------------------


def digests(trees: Sequence[ast.AST], asked: Sequence[str]) -> dict[str, str]:
    """Of the asked functions that are long, and of an asked class's methods together, of their syntax trees without
    names: {"reduce_scatter": ..., "ZeRO3": ...}."""
    found: dict[str, Function] = {}
    for tree in trees:
        for scope, node in scoped(tree):
            if isinstance(node, Function) and scope in asked and scope.rpartition(".")[2] == node.name:
                found.setdefault(scope, node)
    together: dict[str, list[Function]] = {}
    for name in asked:
        if name in found:
            together.setdefault(name.partition(".")[0], []).append(found[name])
    return {name: digest(functions) for name, functions in together.items() if statements(functions) > LONG}


def texts_in(tree: ast.AST) -> Iterator[ast.AST]:
    """Programs in strings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "def " in node.value:
            try:
                yield ast.parse(node.value)
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                continue


def statements(functions: Sequence[Function]) -> int:
    bodies = [statement for function in functions for statement in body(function)]
    return sum(isinstance(node, ast.stmt) for statement in bodies for node in ast.walk(statement))


def body(function: Function) -> list[ast.stmt]:
    """Without the docstring."""
    return function.body[1:] if ast.get_docstring(function, clean=False) is not None else function.body


def digest(functions: Sequence[Function]) -> str:
    text = "".join(ast.dump(Nameless().visit(statement)) for function in functions for statement in body(function))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


class Nameless(ast.NodeTransformer):
    """Every name becomes the same; so do a function's, and annotations go."""

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.copy_location(ast.Name("_", node.ctx), node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return ast.copy_location(ast.arg("_"), node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        node.name, node.returns, node.body = "_", None, body(node)
        return node

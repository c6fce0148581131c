"""A look at the text of a submission before anything runs. Can it be read? Does it name what exercises must not use?
Which statements are in it? A separate rank does this, because even parsing a student's file may end a process.
"""

import ast
from collections.abc import Sequence
from importlib.util import decode_source
from typing import Any

from minidist.classroom.grading.likeness import Forms, find_hidden_code, forms_in, scoped, texts_in
from minidist.mpi.comm import Comm, Ledger, Request

OBJECTS = {"send_object", "recv_object", "gather_object", "broadcast_object", "all_gather_object"}
PRIVATE = {"_port", "_desk", "_largest_tag", "_posted"} | {
    name for of in (Comm, Ledger, Request) for name in vars(of) if name.startswith("_") and not name.startswith("__")
}
CLOSED = ("minidist.mpi.", "minidist.exchange", "minidist.launch", "minidist.classroom", "mpi4py")  # the wire
OPEN = ("minidist.mpi.comm", "minidist.mpi.run")


def examine(comm: Comm, name: str, source: bytes, asked: Sequence[str]) -> dict[str, Any]:
    """What the text of the submission `name` shows, under these keys:

    unreadable   why it cannot be read, or ""
    refused      what it must not name: {asked function, or "" for another place: message}
    forms        the forms of its statements (likeness.py)
    hidden code  where it runs code that is not in its text
    hashes       whether what it does may depend on how strings are hashed
    """
    try:
        decode_source(source)  # the parser does not look into comments
        tree = ast.parse(source, name)
        compile(tree, name, "exec", dont_inherit=True)
        forms = sum((forms_in(text) for text in (tree, *texts_in(tree))), Forms())
    except SyntaxError as error:
        line = f"\n    {error.text.strip()}" if error.text and error.text.strip() else ""
        what = f"line {error.lineno}: {error.msg}{line}" if error.lineno else f"save it as UTF-8 ({error.msg})"
        return {"unreadable": f"{name} is no Python: {what}"}
    except (ValueError, RecursionError, MemoryError) as error:  # a NUL; no UTF-8; nesting without end
        return {"unreadable": f"{name} is no Python: {error or type(error).__name__}"}
    refused: dict[str, str] = {}
    node: Any
    for scope, node in scoped(tree):
        if message := objection(node):
            refused.setdefault(scope if scope in asked else "", f"{name}:{node.lineno} {message}")
    return {
        "unreadable": "",
        "refused": refused,
        "forms": dict(forms),
        "hidden code": find_hidden_code(tree),
        "hashes": hashes(tree),
    }


def hashes(tree: ast.AST) -> bool:
    """Whether a program uses what depends on how strings are hashed (hash, sets), or could use any name."""
    names = {getattr(node, "id", getattr(node, "attr", "")) for node in ast.walk(tree)}
    sets = any(isinstance(node, ast.Set | ast.SetComp) for node in ast.walk(tree))
    return sets or bool(names & {"hash", "__hash__", "set", "frozenset", "exec", "eval", "getattr", "builtins"})


def objection(node: Any) -> str:
    """Why a submission must not contain this node; "" if it may."""
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

"""Is part of an exercise the chapter's code? Both are brought into a normal form, and the statements are compared.

The form of a statement is its syntax tree, in which all names are the same, and all attributes of `self`. Annotations,
docstrings and `pass` are left out. The body of a loop or a condition counts apart from its head. The chapter's
statements are looked for in the whole file, in any order, each weighted by its size. So other names, another order,
other functions around the statements and more statements, unused or not, change nothing.
"""

import ast
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

LONG = 8  # statements: two longer functions are hardly alike by chance
LIKE = 0.95  # the share of the chapter's weight that is never the same by chance

HELD = ("body", "orelse", "finalbody", "handlers", "cases")  # statements inside one, which count on their own
LEFT_OUT = ("ctx", "annotation", "returns", "type_comment", "kind")
NAMES = ("id", "arg", "name", "attr")

Function = ast.FunctionDef | ast.AsyncFunctionDef
Forms = Counter[tuple[str, int]]  # (digest of a statement, its weight) -> how often
RUNS_TEXT = {  # these run other code
    *("exec", "eval", "compile", "FunctionType", "CodeType"),
    *("__import__", "import_module", "exec_module", "load_module", "module_from_spec", "spec_from_file_location"),
    *("spec_from_loader", "SourceFileLoader", "SourcelessFileLoader", "ExtensionFileLoader", "FileFinder", "find_spec"),
    *("zipimport", "zipimporter", "runpy", "run_path", "run_module"),
}


def find_alike(chapters: Mapping[str, Forms], exercise: Forms) -> dict[str, tuple[int, int]]:
    """The chapter's functions that are in an exercise: {name: (its statements that are there, all its statements)}."""
    alike = {}
    for name, forms in chapters.items():
        shared = forms & exercise
        if forms.total() > LONG and weigh(shared) >= LIKE * weigh(forms):
            alike[name] = shared.total(), forms.total()
    return alike


def weigh(forms: Forms) -> int:
    return sum(weight * times for (_, weight), times in forms.items())


def forms_by_name(trees: Iterable[ast.AST], asked: Sequence[str]) -> dict[str, Forms]:
    """The forms of each asked function, and of a class's asked methods together: {"all_gather": ..., "ZeRO3": ...}."""
    found: dict[str, Function] = {}
    for tree in trees:
        for scope, node in scoped(tree):
            if isinstance(node, Function) and scope in asked and scope.rpartition(".")[2] == node.name:
                found.setdefault(scope, node)
    together: dict[str, Forms] = {}
    for name in asked:
        if name in found:
            together.setdefault(name.partition(".")[0], Forms()).update(forms_in(found[name]))
    return together


def forms_in(tree: ast.AST) -> Forms:
    """The forms of all statements below a node."""
    statements = [
        node for node in ast.walk(tree) if isinstance(node, ast.stmt | ast.ExceptHandler) and node is not tree
    ]
    return Forms(form(node) for node in statements if not says_nothing(node))


def says_nothing(node: ast.AST) -> bool:
    """Whether a statement is a docstring, `pass`, or a bare declaration."""
    constant = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return constant or isinstance(node, ast.Pass) or (isinstance(node, ast.AnnAssign) and node.value is None)


def form(statement: ast.AST) -> tuple[str, int]:
    words: list[str] = []
    weight = spell(statement, words)
    return hashlib.blake2b("\n".join(words).encode(errors="replace"), digest_size=12).hexdigest(), weight


def spell(node: ast.AST, words: list[str]) -> int:
    """Append a node's normal form to `words`, and return its number of nodes. It leaves out inner statements, names,
    annotations, and whether something is read or written there, which its place says."""
    if isinstance(node, ast.AnnAssign) and node.value:
        node = ast.Assign([node.target], node.value)
    own = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    nameless = own or isinstance(node, ast.Name | ast.arg | ast.FunctionDef)
    words.append(type(node).__name__)
    weight = 1
    for field, value in ast.iter_fields(node):
        values = value if isinstance(value, list) else [value]
        if field in LEFT_OUT or (isinstance(value, list) and field in HELD) or (nameless and field in NAMES):
            continue
        words.append(f"{field} {len(values)}")
        for each in values:
            if isinstance(each, ast.AST):
                weight += spell(each, words)
            else:
                words.append(repr(each))
    return weight


def texts_in(tree: ast.AST) -> Iterator[ast.AST]:
    """The syntax trees of programs in strings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "def " in node.value:
            try:
                yield ast.parse(node.value)
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                continue


def find_hidden_code(tree: ast.AST) -> str:
    """The first place where a program runs code that is not in its text: "line 3 (exec)"; "" if there is none."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.Constant(value=str(name)):
                named = {name}
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                module = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                named = {part for text in (*module, *(each.name for each in names)) for part in text.split(".")}
            case _:
                continue
        if (found := named & RUNS_TEXT) and not is_pattern(node):
            return f"line {node.lineno} ({min(found)})"
    return ""


def is_pattern(node: ast.AST) -> bool:
    """Whether this is re.compile, which runs nothing."""
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "re"


def scoped(tree: ast.AST, scope: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Every node, with the function or method that contains it: "reduce_scatter", "ZeRO3.reduce"."""
    for node in ast.iter_child_nodes(tree):
        inner = scope
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not scope.partition(".")[2]:
            within = isinstance(tree, ast.ClassDef | ast.Module)
            inner = (f"{scope}." if scope else "") + node.name if within else scope
        yield inner, node
        yield from scoped(node, inner)

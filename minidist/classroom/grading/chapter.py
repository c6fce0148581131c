"""The chapter of a lesson: its functions stand in for those that a part does not ask for; programs cannot import it."""

import gc
import importlib
import inspect
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from types import CodeType, FunctionType, ModuleType
from typing import Any


def functions(module: str, names: Sequence[str], of: str = "") -> dict[str, Callable[..., Any]]:
    """Some of a chapter's functions, or methods of its class `of`, each with only the global names that it needs: a
    submission cannot reach the rest of the chapter through them."""
    chapter = importlib.import_module(module)
    holder = getattr(chapter, of) if of else chapter
    return {name: alone(inspect.unwrap(getattr(holder, name)), {}) for name in names}


def alone(function: FunctionType, made: dict[CodeType, FunctionType]) -> FunctionType:
    """A copy of the function, whose globals are only those that it needs of its module."""
    if function.__code__ in made:
        return made[function.__code__]
    needed: dict[str, Any] = {"__builtins__": __builtins__, "__name__": function.__module__}
    code = function.__code__
    copy = FunctionType(code, needed, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__, copy.__qualname__ = function.__kwdefaults__, function.__qualname__
    made[code] = copy
    for name in names_in(code) & function.__globals__.keys():
        value = function.__globals__[name]
        inner = inspect.unwrap(value) if callable(value) else value
        if isinstance(inner, FunctionType) and inner.__module__ == function.__module__:
            value = alone(inner, made)
        needed[name] = value
    return copy


def names_in(code: CodeType) -> set[str]:
    """The global names that code reads or writes, including those of functions inside it."""
    inner = [names_in(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*inner)


class Absent(MetaPathFinder):
    """Refuses the import of some modules."""

    def __init__(self, hidden: Sequence[str]) -> None:
        self.hidden = set(hidden)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name in self.hidden:
            # No ModuleNotFoundError: `from package import module` would say that it cannot import a name.
            raise ImportError(f"{name} is not here: it has what this lesson asks you to write", name=name)


def hide(hidden: Sequence[str]) -> None:
    """Remove these modules from the process, and refuse to import them again. This package's modules that hold
    something of theirs are removed, too; importing one of those again fails, because it imports a hidden one."""
    for name in holders_of(hidden):
        package, _, last = name.rpartition(".")
        sys.modules.pop(name, None)
        if package in sys.modules:
            vars(sys.modules[package]).pop(last, None)
    if hidden:
        sys.meta_path.insert(0, Absent(hidden))
    gc.collect()  # a class and its methods refer to each other


def holders_of(hidden: Sequence[str]) -> set[str]:
    """These modules, and the modules of this package that hold something of theirs, or of another holder."""
    found: set[str] = set()
    more = set(hidden)
    while more:
        found |= more
        more = {
            name
            for name, module in [*sys.modules.items()]
            if name.startswith("minidist.") and name not in found and found & set(map(home, vars(module).values()))
        }
    return found


def home(value: Any) -> str:
    """The name of the module of a class, a function or an object; a module's own name."""
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", "")
    return name if isinstance(name, str) else ""

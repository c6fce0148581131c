"""Names of the former version, which notebooks and exercises that were begun with it still use."""

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

RENAMED = {  # module: {name: (where it is now, its name there)}
    "minidist.cp.group": {"Group": ("minidist.cp.group", "ContextGroup")},
    "minidist.tp.group": {"Group": ("minidist.tp.group", "TensorGroup")},
    "minidist.pp.timeline": {"Span": ("minidist.pp.timeline", "WorkSpan")},
    "minidist.nn.optim": {"squared_norm": ("minidist.nn.optim", "sum_of_squares")},
    "minidist.ring": {
        "exchange": ("minidist.ring", "all_to_all_v"),
        **{
            name: ("minidist.collectives", name)
            for name in ("server_all_reduce", "tree_all_reduce", "doubling_all_reduce", "halving_doubling_all_reduce")
        },
    },
    "minidist.memory.files": {"Folder": ("minidist.former", "Folder")},
    "minidist.classroom.notebook.lesson": {
        "show": ("minidist.classroom.notebook.drawing", "show"),
        "Watched": ("minidist.classroom.notebook.watch", "Watched"),
    },
}
GRADING = "chapter checks diagnose engines meaning parts pytest_plugin ranks sharded submission training wires"
NOTEBOOK = "drawing lesson slow_disk unloaded watch"
MODULES = {  # module: which one it is now
    f"minidist.classroom.{name}": f"minidist.classroom.{room}.{name}"
    for room, names in (("grading", GRADING), ("notebook", NOTEBOOK))
    for name in names.split()
}


def attribute(module: str, name: str) -> Any:
    """What a module's `__getattr__` returns for a name that it no longer has. Raises AttributeError for others."""
    if name not in RENAMED[module]:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    place, now = RENAMED[module][name]
    return getattr(importlib.import_module(place), now)


class Moved:
    """Finds and loads a module under its former name: it is the module that has the new one."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return importlib.util.spec_from_loader(name, self) if name in MODULES else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None: ...

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = importlib.import_module(MODULES[module.__name__])


def find_modules() -> None:
    """From now on modules are found under their former names, too."""
    sys.meta_path.append(Moved())


def Folder(option: str, parent: str | None, rank: int) -> Any:
    """What is now SwapFile: a rank's files were in a folder of its own."""
    return importlib.import_module("minidist.memory.files").SwapFile(option, parent)

"""Names of the former version, which notebooks and exercises that were begun with it still use."""

import importlib
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
}


def attribute(module: str, name: str) -> Any:
    """What a module's `__getattr__` returns for a name that it no longer has. Raises AttributeError for others."""
    if name not in RENAMED[module]:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    place, now = RENAMED[module][name]
    return getattr(importlib.import_module(place), now)


def Folder(option: str, parent: str | None, rank: int) -> Any:
    """What is now SwapFile: a rank's files were in a folder of its own."""
    return importlib.import_module("minidist.memory.files").SwapFile(option, parent)

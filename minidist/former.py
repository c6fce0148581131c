"""Names of the former version, which notebooks and exercises that were begun with it still import."""

import importlib
from typing import Any

MOVED = {  # module: {name: where it is now}
    "minidist.ring": dict.fromkeys(
        ("server_all_reduce", "tree_all_reduce", "doubling_all_reduce", "halving_doubling_all_reduce"),
        "minidist.collectives",
    ),
    "minidist.memory.files": {"Folder": "minidist.former"},
}


def attribute(module: str, name: str) -> Any:
    """What a module's `__getattr__` returns for a name that it no longer has. Raises AttributeError for others."""
    if name not in MOVED[module]:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    return getattr(importlib.import_module(MOVED[module][name]), name)


def Folder(option: str, parent: str | None, rank: int) -> Any:
    """What is now SwapFile: a rank's files were in a folder of its own."""
    return importlib.import_module("minidist.memory.files").SwapFile(option, parent)

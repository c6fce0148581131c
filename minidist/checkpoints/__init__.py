"""Checkpoints (`checkpoint.py`): which elements lie where, and files that are whole or absent.

What runs use of this room is loaded when they use it: most neither save nor load.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minidist.checkpoints.checkpoint import (
        check,
        check_beside,
        check_folder,
        check_run,
        differences,
        export,
        load,
        opened,
        save,
        size,
        weights,
    )

__all__ = [
    "check",
    "check_beside",
    "check_folder",
    "check_run",
    "differences",
    "export",
    "load",
    "opened",
    "save",
    "size",
    "weights",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("minidist.checkpoints.checkpoint"), name)

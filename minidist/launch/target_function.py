"""The function that the ranks of a job call: "module:function" or "path/to/file.py:function"."""

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

_files: dict[str, ModuleType] = {}  # loaded by `load_file`


def find_function(target: str) -> Callable[..., Any]:
    """The function that "module:function" or "path/to/file.py:function" names. A file's folder is put on sys.path."""
    place, _, name = target.rpartition(":")
    module = load_file(place) if place.endswith(".py") else importlib.import_module(place)
    return getattr(module, name)


def load_file(file: str) -> ModuleType:
    """Load a Python file as a module, once per process."""
    if file not in _files:
        if os.path.dirname(file) not in sys.path:
            sys.path.insert(0, os.path.dirname(file))
        spec = importlib.util.spec_from_file_location(Path(file).stem, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        _files[file] = module
    return _files[file]

"""What the ranks of a job are to call: "module:function" or "path/to/file.py:function"."""

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def find(target: str) -> Callable[..., Any]:
    """The function that "module:function" or "path/to/file.py:function" names. A file's folder is put on the path."""
    place, _, name = target.rpartition(":")
    if place.endswith(".py"):
        if os.path.dirname(place) not in sys.path:
            sys.path.insert(0, os.path.dirname(place))
        spec = importlib.util.spec_from_file_location(Path(place).stem, place)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(place)
    function: Callable[..., Any] = getattr(module, name)
    return function

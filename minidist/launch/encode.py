"""Values in files: how arguments reach the ranks of a job and how results come back. Over sockets: over_socket.py.

A student's program may have written a result, and reading a pickle runs any code inside it. So a value becomes an .npz
file without pickles: the nesting as JSON, and the arrays. None, bool, int, float (including nan and the infinities),
str, bytes, lists, tuples, dicts with any such keys, NumPy arrays and scalars come back exactly as they were. A
subclass, such as defaultdict, comes back as the plain type.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from minidist.system.files import replacing


def save(path: Path, value: Any) -> None:
    """Write `value` to `path`, which appears only when it is complete. Raises TypeError for any other type."""
    arrays: list[np.ndarray] = []
    tree = json.dumps(pack(value, arrays))
    with replacing(str(path), synced=False) as file:  # its reader would not survive a crash of this machine either
        numbered = {f"array{i}": array for i, array in enumerate(arrays)}
        np.savez(file, allow_pickle=False, tree=np.frombuffer(tree.encode(), np.uint8), **numbered)


def check(value: Any) -> None:
    """Raise TypeError if `save` could not write `value`."""
    pack(value, [])


def load(path: Path) -> Any:
    """The value that `save` wrote. A file from any other writer may raise any exception."""
    with np.load(path, allow_pickle=False) as file:
        return unpack(json.loads(file["tree"].tobytes()), lambda i: file[f"array{i}"])


PLAIN = {type(None), bool, int, float, str}  # the types of most values


def pack(value: Any, arrays: list[np.ndarray]) -> Any:
    """`value` as JSON: what JSON lacks becomes {its type: its content}, and an array its number in `arrays`."""
    if type(value) in PLAIN:
        return value
    if isinstance(value, np.ndarray | np.generic):  # before float: a np.float64 is both
        if value.dtype.kind in "OV":
            raise TypeError(f"an array of dtype {value.dtype} cannot pass between processes; convert it to numbers")
        arrays.append(np.asarray(value))
        return {"array" if isinstance(value, np.ndarray) else "scalar": len(arrays) - 1}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, list | tuple):
        items = [item if type(item) in PLAIN else pack(item, arrays) for item in value]
        return items if isinstance(value, list) else {"tuple": items}
    if isinstance(value, dict):
        return {"dict": [[pack(key, arrays), pack(item, arrays)] for key, item in value.items()]}
    raise TypeError(
        f"a value of type {type(value).__name__} cannot pass between processes;"
        " use numbers, strings, bytes, lists, tuples, dicts and NumPy arrays"
    )


def unpack(tree: Any, array: Callable[[int], np.ndarray]) -> Any:
    """The value that `pack` turned into `tree`; `array(i)` returns array i."""
    if type(tree) in PLAIN:
        return tree
    if isinstance(tree, list):
        return [item if type(item) in PLAIN else unpack(item, array) for item in tree]
    [(kind, content)] = tree.items()
    match kind:
        case "array":
            return array(content)
        case "scalar":
            return array(content)[()]
        case "bytes":
            return bytes.fromhex(content)
        case "tuple":
            return tuple(unpack(item, array) for item in content)
        case "dict":
            return {unpack(key, array): unpack(item, array) for key, item in content}
    raise ValueError(f"unknown kind {kind!r}")

"""Hugging Face's folder as a checkpoint that has parameters alone: config.json, and model.safetensors or its shards,
which an index may list. What `--export --names huggingface` does, backward: a rank reads only the rows of each tensor
that its own piece of a parameter needs.
"""

import json
import math
import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from glob import escape, glob
from typing import Any, NamedTuple

import numpy as np

from minidist import UsageError
from minidist.checkpoints import files
from minidist.checkpoints.manifest import Manifest
from minidist.checkpoints.names import huggingface
from minidist.checkpoints.pieces import Piece, Shape
from minidist.cli.models import shape_of
from minidist.cli.read import read
from minidist.nn.tensor import Array

STORED = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}  # NumPy has no bfloat16: its bits
BASES = ("transformer.", "model.")  # before a name, unless the file is of the model without a head
BUFFERS = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq", "lm_head.weight")  # no parameters, or a tied one


class Stored(NamedTuple):
    """A tensor in a file."""

    file: str
    dtype: str
    shape: Shape
    offset: int

    def rows(self, first: int, last: int, turned: bool) -> Array:
        """Some rows of our parameter, or, if it is stored transposed, some columns."""
        whole: Array = np.memmap(self.file, STORED[self.dtype], "r", self.offset, self.shape)
        block = np.array(whole[:, first:last].T if turned else whole[first:last], order="C")
        return (block.astype("<u4") << 16).view("<f4") if self.dtype == "BF16" else block


@dataclass
class PretrainedWeights(Manifest):
    """A folder of Hugging Face's, without its arrays."""

    tensors: dict[str, Stored] = field(default_factory=dict)

    @cached_property
    def at(self) -> dict[str, str]:
        """The name of each tensor, by the name that it has with a head."""
        return {prefix + name: name for name in self.tensors for prefix in ("", *BASES)}

    def read(self, name: str, piece: Piece, out: dict[str, Array]) -> None:
        """Fill {"": array} with a piece of a parameter; moments and padding become zero."""
        for array in out.values():
            array.fill(0)
        runs, row = piece.runs(), math.prod(piece.shape[1:])
        for theirs, part in huggingface(name, piece.shape, self.identity).items():
            start = np.maximum(runs[:, 1], part.first * row)
            stop = np.minimum(runs[:, 1] + runs[:, 2], part.last * row)
            if not (some := stop > start).any():
                continue
            first, last = start[some].min() // row, -(-stop[some].max() // row)
            values = self.tensors[self.at[theirs]].rows(first - part.first, last - part.first, part.turned).reshape(-1)
            for (here, there, _), begin, end in zip(runs[some], start[some], stop[some], strict=True):
                out[""][here + begin - there : here + end - there] = values[begin - first * row : end - first * row]

    def check(self, parameters: dict[str, Shape]) -> None:
        """Raise UsageError unless the folder has all of every parameter, and nothing else."""
        wanted: dict[str, Shape] = {}
        for name, shape in parameters.items():
            try:
                parts = huggingface(name, shape, self.identity)
            except KeyError:  # of experts
                raise UsageError(f"is of another model: it has no {name}") from None
            for theirs, part in parts.items():
                stored = (part.last - part.first, *shape[1:])
                wanted[theirs] = stored[::-1] if part.turned else stored
        for theirs, shape in wanted.items():
            if theirs not in self.at:
                raise UsageError(f"has no {theirs}")
            found = self.tensors[self.at[theirs]]
            if found.shape != shape:
                raise UsageError(f"has {theirs} of shape {found.shape}, and its config.json says {shape}")
            if found.dtype not in STORED:
                raise UsageError(f"has {theirs} of {found.dtype:.20}: only {', '.join(STORED)} can be read")
        used = {self.at[theirs] for theirs in wanted}
        if more := [name for name in self.tensors if name not in used and not name.endswith(BUFFERS)]:
            raise UsageError(f"has {more[0]!r:.60}, which is no parameter of such a model here")


def opened(folder: str) -> PretrainedWeights:
    """The description of a folder. Raises UsageError, OSError, SafetensorError."""
    config = os.path.join(folder, "config.json")
    shape = shape_of(read(config), config)
    identity = {"model": shape.family, "heads": shape.a, "kv-heads": shape.kv}
    state = {"steps": 0, "updates": 0, "mixed": False, "loss_scale": {}}
    tensors = {name: stored for file in _files(folder) for name, stored in _tensors(file)}
    return PretrainedWeights(folder, "", {}, identity, state, {}, {}, {}, "F32", 0, {}, [], tensors=tensors)


def _files(folder: str) -> list[str]:
    """The files with its tensors: those that its index names, or all."""
    indexes = sorted(glob(os.path.join(escape(folder), "*.safetensors.index.json")))
    if not indexes:
        return sorted(glob(os.path.join(escape(folder), "*.safetensors")))
    names = read(indexes[0]).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) and name for name in names.values()):
        raise UsageError(f"{indexes[0]} has no weight_map from tensors to files")
    found = [os.path.join(folder, os.path.basename(name)) for name in sorted({*names.values()})]
    if missing := [path for path in found if not os.path.isfile(path)]:
        raise UsageError(f"{missing[0]} is missing, which {os.path.basename(indexes[0])} names")
    return found


def _tensors(path: str) -> Iterable[tuple[str, Stored]]:
    """The tensors of a sound file, which are not read yet."""
    with files.open_safetensors(path), open(path, "rb") as file:  # the library checks the header
        (length,) = struct.unpack("<Q", file.read(8))
        header: dict[str, Any] = json.loads(file.read(length))
    for name, says in header.items():
        if name != "__metadata__":
            begin, _ = says["data_offsets"]
            yield name, Stored(path, says["dtype"], tuple(says["shape"]), 8 + length + begin)

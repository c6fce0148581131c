"""Write a checkpoint's shards as a single file. One process does this, without MPI, and holds one tensor at a time."""

import json
import math
import os
from functools import partial

import numpy as np

from minidist import UsageError
from minidist.checkpoints import files, manifest
from minidist.checkpoints.files import TensorToWrite
from minidist.checkpoints.manifest import Manifest
from minidist.checkpoints.names import configuration, huggingface
from minidist.cli.paths import check_apart, check_room, check_writable
from minidist.mpi import output
from minidist.system.files import is_stream, writing


def as_file(found: Manifest, path: str) -> None:
    """Write all that training needs to resume: parameters, moments, state. Raises OSError."""
    tensors = [
        TensorToWrite(prefix + name, shape, partial(found.whole, prefix, name))
        for prefix in found.prefixes
        for name, shape in found.parameters.items()
    ]
    metadata = {"identity": json.dumps(found.identity), "state": json.dumps(found.state)}
    metadata["blake2b"] = json.dumps(files.checksums(tensors, found.dtype, metadata))
    with writing(path) as file:
        files.write_tensors(file, tensors, found.dtype, metadata)


def as_huggingface(found: Manifest, path: str) -> None:
    """Write the parameters alone, in float32, for transformers, and config.json next to the file: from_pretrained loads
    the folder if the file is its model.safetensors. Raises OSError."""
    tensors = []
    for ours, shape in found.parameters.items():
        nothing = np.broadcast_to(np.float32(0), shape)  # of this shape, in four bytes
        for theirs, turned in huggingface(ours, shape, found.identity).items():
            make = partial(lambda name, part: part(found.whole("", name)), ours, turned)
            tensors.append(TensorToWrite(theirs, turned(nothing).shape, make))
    with writing(path) as file:
        files.write_tensors(file, tensors, "F32", {"format": "pt"})  # transformers requires this
    if not is_stream(path):
        with writing(configuration_beside(path)) as file:
            file.write(json.dumps(configuration(found.parameters, found.identity), indent=2).encode() + b"\n")


def configuration_beside(path: str) -> str:
    return os.path.join(os.path.dirname(path), "config.json")


def check_beside(option: str, path: str) -> None:
    """Raise UsageError if config.json, which transformers needs, would replace a file that is not a model's."""
    beside = configuration_beside(path)
    if is_stream(path) or not os.path.lexists(beside):
        return
    try:
        with open(beside, encoding="utf-8") as file:
            model = "model_type" in json.load(file)
    except (OSError, ValueError, TypeError):
        model = False
    if not model:
        raise UsageError(f"{option} would overwrite {beside}, which is no model's: give the file another folder")


FORMS = {"minidist": as_file, "huggingface": as_huggingface}  # by --names


def to_fp32(folder: str, path: str) -> int:
    """`python -m minidist to-fp32 DIR out.safetensors`: the parameters alone, in float32, by their names. Returns
    the exit status. DeepSpeed leaves a script for that in every checkpoint, zero_to_fp32.py. Raises UsageError."""
    found = manifest.read(folder)
    manifest.check_shards(found)
    shards = {shard.file: f"{found.folder}/{shard.file}" for shard in found.shards}
    check_apart({"to-fp32": path}, {**shards, manifest.NAME: f"{found.folder}/{manifest.NAME}"})
    check_writable("to-fp32", path)
    check_room("to-fp32", path, 4 * sum(map(math.prod, found.parameters.values())))
    tensors = [TensorToWrite(name, shape, partial(found.whole, "", name)) for name, shape in found.parameters.items()]
    try:
        with writing(path) as file:
            files.write_tensors(file, tensors, "F32", {"identity": json.dumps(found.identity)})
    except OSError as error:
        output.lost(path, error)
        return 0
    print(f"{path}: {len(tensors)} tensors, of step {found.state['steps']}")
    return 0

"""Check, before the work starts, that training can resume from the checkpoint of --load. A refusal is one line."""

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from safetensors import SafetensorError

from minidist import UsageError
from minidist.checkpoints import files, huggingface, manifest
from minidist.checkpoints.form import STATE, check_fields, check_state, short
from minidist.checkpoints.manifest import MOMENTS, Manifest, Shape
from minidist.checkpoints.others import name_other
from minidist.cli.loaded import is_huggingface
from minidist.cli.paths import check_folder_takes_files, check_readable, check_writable
from minidist.nn.layers import Unit
from minidist.nn.tensor import Array


def check_folder(option: str, path: str | None) -> None:
    """Raise UsageError unless checkpoints can be made in a folder, which need not exist yet."""
    if path is None:
        return
    path = path.rstrip("/") or "/"
    if path.endswith(".safetensors") or (os.path.exists(path) and not os.path.isdir(path)):
        raise UsageError(f"{option} {path}: a checkpoint is a folder; a single file is made by --export {path}")
    if not os.path.isdir(path):
        check_writable(option, path)
        return
    try:
        check_folder_takes_files(path)
    except OSError as error:
        raise UsageError(f"{option} {path}: cannot write there: {error.strerror}") from None


def check(
    path: str, units: list[Unit], identity: dict[str, Any], moments: int, steps: int, option: str = "--load"
) -> None:
    """Raise UsageError unless a checkpoint, folder or file, holds this model and optimizer, complete, after at most
    `steps` steps. All ranks of this job check it, whatever number of ranks wrote it; they load nothing of it yet.
    option: the option that named it.
    """
    parameters = _shapes(units)
    try:
        if is_huggingface(path):
            huggingface.opened(path).check(parameters)
            return
        if os.path.isdir(path):
            found = manifest.read(path)
            manifest.check_shards(found)
            names = {prefix + name: shape for prefix in found.prefixes for name, shape in found.parameters.items()}
            _check_identity(found.identity, identity)
            _check_shapes(names, parameters, MOMENTS[:moments])
            state = found.state
        else:
            check_readable(option, path)
            if other := name_other(path):
                raise UsageError(f"is {other}")
            state = _check_file(path, parameters, identity, moments)
        if state["steps"] > steps:
            raise UsageError(f"has {short(state['steps'])} steps done: ask for at least as many with --steps")
    except (OSError, SafetensorError):
        raise UsageError(f"cannot read {option} {path}: not a safetensors file, or a damaged one") from None
    except UsageError as error:
        if str(error).startswith(f"cannot read {option}"):
            raise
        colon = ":" if os.path.isdir(path) and str(error).startswith(path.rstrip("/")) else ""
        raise UsageError(f"{option} {path}{colon} {error}") from None


def differences(found: Manifest, seed: int, text: dict[str, Any]) -> list[str]:
    """How a resumed run will differ from the one that was saved, in words: not wrong, but worth a line."""
    said = []
    if found.random.get("seed", seed) != seed:
        said.append(f"saved with --seed {found.random['seed']}: from here on batches and dropout are others")
    if found.text.get("blake2b", text["blake2b"]) != text["blake2b"]:
        said.append(f"saved while training on another text, {found.text['name']}: from here on it is {text['name']}")
    return said


def check_run(option: str, path: str, units: list[Unit], identity: dict[str, Any], text: dict[str, Any]) -> None:
    """Raise UsageError if a folder holds checkpoints of another model, or of training on another text, than those to
    be saved there. Damaged checkpoints are ignored, because they tell nothing."""
    if not os.path.isdir(path):
        return
    for name in manifest.names_in(path)[::-1]:
        try:
            found = manifest.read(os.path.join(path, name))
        except UsageError:
            continue
        try:
            _check_identity(found.identity, identity)
            _check_shapes(found.parameters, _shapes(units), ())
            if found.text.get("blake2b", text["blake2b"]) != text["blake2b"]:
                raise UsageError(f"is of a training on another text, {found.text['name']}")
        except UsageError as error:
            raise UsageError(f"{option} {path}: {name} in it {error}: name another folder") from None
        return


# ---- a single file: everything in it is looked at --------------------------------------------------------------------


def _check_file(path: str, parameters: dict[str, Shape], identity: dict[str, Any], moments: int) -> dict[str, Any]:
    """Check a file of --export; returns its state of training."""
    with files.open_safetensors(path) as file:
        metadata = file.metadata() or {}
        arrays = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        shapes = {name: tuple(array.get_shape()) for name, array in arrays.items()}
        if not {"state", "identity"} <= metadata.keys():
            raise UsageError("was not written by minidist's --export")
        if metadata.keys() - {"state", "identity", "blake2b"}:
            raise UsageError("is damaged: it has metadata that --export does not write")
        _check_identity(_parsed("identity", metadata, identity), identity)
        _check_shapes(shapes, parameters, MOMENTS[:moments])
        state = _parsed("state", metadata, STATE)
        check_state(state)
        content = {name: files.checksum(metadata[name].encode()) for name in ("identity", "state")}
        for name, array in arrays.items():
            if array.get_dtype() not in files.DTYPES:
                raise UsageError(f"is damaged: {name} is of {array.get_dtype()}, and should be of F32 or F64")
            values = file.get_tensor(name)
            _check_values(name, values)
            content[name] = files.checksum(values.data)
    if "blake2b" in metadata and not _says(metadata["blake2b"], content):
        raise UsageError("is damaged: its checksums are not those of its content")
    return state


def _says(text: str, content: dict[str, str]) -> bool:
    """Whether metadata is JSON of this content."""
    with suppress(ValueError, RecursionError):
        return bool(json.loads(text) == content)
    return False


def _parsed(name: str, metadata: dict[str, str], like: dict[str, Any]) -> dict[str, Any]:
    """Metadata: JSON with the same fields as `like`, and values of the same types."""
    try:
        found = json.loads(metadata[name])
    except (ValueError, RecursionError):
        raise UsageError(f"is damaged: its {name} is not JSON") from None
    check_fields(name, found, like)
    return dict(found)


def _check_identity(saved: dict[str, Any], identity: dict[str, Any]) -> None:
    """Raise UsageError for another model. A value that one side (such as a script) does not give counts as equal."""
    for name, value in saved.items():
        if value != identity.get(name, value):
            asked = (
                f"{short(value)} there, {identity.get(name)} here" if name != "characters" else "use the same --data"
            )
            raise UsageError(f"is of another model: it has other {name}: {asked}")


def _check_shapes(shapes: dict[str, Shape], parameters: dict[str, Shape], moments: Sequence[str]) -> None:
    """Raise UsageError unless the arrays are the parameters, and the moments of each."""
    for name, shape in parameters.items():
        if shapes.get(name) != shape:
            seen = f"has {name} of shape {shapes[name]}" if name in shapes else f"has no {name}"
            raise UsageError(f"is of another model: it {seen}, this model's is {shape}")
    if any("/" not in name and name not in parameters for name in shapes):
        raise UsageError("is of another model: it has more parameters than this one")
    if {name.split("/")[0] for name in shapes if "/" in name} != set(moments):
        raise UsageError("was made by another optimizer: use the same --optimizer")
    wanted = parameters | {f"{moment}/{name}": shape for moment in moments for name, shape in parameters.items()}
    for name in {**wanted, **shapes}:
        if shapes.get(name) != wanted.get(name):
            found = f"of shape {shapes[name]}" if name in shapes else "missing"
            should = f"should be of shape {wanted[name]}" if name in wanted else "belongs to no parameter"
            raise UsageError(f"is damaged: {name} is {found}, and {should}")


def _shapes(units: list[Unit]) -> dict[str, Shape]:
    return {parameter.name: parameter.shape for unit in units for parameter in unit.parameters}


def _check_values(name: str, values: Array) -> None:
    if not np.isfinite(values).all():
        raise UsageError(f"is damaged: {name} has values that are not finite")
    if name.startswith("moment2/") and values.min(initial=0) < 0:
        raise UsageError(f"is damaged: {name}, a variance, has negative values")

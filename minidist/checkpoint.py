"""Checkpoints that know nothing of ranks: whole parameters and optimizer state by name, in a safetensors file.

Every rank holds a piece of every unit. To save, the pieces of one unit after another are put together and cut at the
parameters' borders; to load, each rank takes its own piece. So a file written by zero3 on 4 ranks goes on in serial
training, or in data parallel on 3. (DeepSpeed's own files, one for each rank, cannot: they must first be converted.)
"""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as serialize

from minidist import UsageError
from minidist.claims.files import write_output
from minidist.engine import Engine
from minidist.nn.flat import Flat
from minidist.nn.layers import Unit, count_parameters
from minidist.nn.precision import Precision
from minidist.nn.tensor import Array

# Names of the optimizer's arrays in the file; the parameters themselves go by their own name.
MOMENTS = ("moment1", "moment2")


def weights(engine: Engine, writer: bool) -> dict[str, Array]:
    """On rank 0, every parameter by name, in its shape and in the optimizer's precision. All ranks must call.

    A unit is put together on all ranks that share it, but kept only where it is wanted: by the writer, rank 0.
    """
    return _collect(engine, writer, lambda flat: {"": flat.master})


def size(units: list[Unit], precision: Precision, moments: int) -> int:
    """About how many bytes a file has: without the names."""
    return (1 + moments) * count_parameters(units) * np.dtype(precision.updated).itemsize


def save(path: str, engine: Engine, identity: dict[str, Any], writer: bool) -> None:
    """Write everything that training needs to go on; all ranks must call, and rank 0, the writer, writes.

    identity: what makes the model what it is, beside the shapes of its parameters.
    """
    prefixes = [f"{name}/" for name in MOMENTS]
    arrays = weights(engine, writer)
    arrays |= _collect(engine, writer, lambda flat: dict(zip(prefixes, flat.moments, strict=False)))
    if not writer:
        return
    scale = vars(engine.loss_scale)
    state = {"steps": engine.steps, "updates": engine.updates, "mixed": engine.scaled, "loss_scale": scale}
    metadata = {"identity": json.dumps(identity), "state": json.dumps(state)}
    write_output(path, serialize({name: np.ascontiguousarray(array) for name, array in arrays.items()}, metadata))


def _collect(engine: Engine, writer: bool, pieces: Callable[[Flat], dict[str, Array]]) -> dict[str, Array]:
    """Some pieces of every unit, {prefix: piece}, put together and by the parameters' names, on rank 0."""
    found = {}
    for flat in engine.flats:
        for prefix, piece in pieces(flat).items():
            whole = engine.whole_parameters(flat, piece)
            if writer or engine.holds_a_stage:
                found.update({prefix + name: array for name, array in whole.items()})
    return engine.gathered(found)


def check(path: str, units: list[Unit], identity: dict[str, Any], moments: int, steps: int) -> None:
    """Raise UsageError unless the file holds this model and optimizer, with at most `steps` steps behind it."""
    try:
        open(path, "rb").close()  # says why it cannot be read, which safe_open does not
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not a safetensors file"
        raise UsageError(f"cannot read --load {path}: {reason}") from None
    if not {"state", "identity"} <= metadata.keys():
        raise UsageError(f"--load {path} was not written by minidist's --save")
    for name, saved in json.loads(metadata["identity"]).items():
        if saved != identity[name]:
            asked = f"{saved} there, {identity[name]} here" if name != "characters" else "use the same --data"
            raise UsageError(f"--load {path} is of another model: it has other {name}: {asked}")
    for parameter in (parameter for unit in units for parameter in unit.parameters):
        found = shapes.get(parameter.name)
        if found != parameter.shape:
            seen = f"has {parameter.name} of shape {found}" if found else f"has no {parameter.name}"
            raise UsageError(f"--load {path} is of another model: it {seen}, this model's is {parameter.shape}")
    if len([name for name in shapes if "/" not in name]) != sum(len(unit.parameters) for unit in units):
        raise UsageError(f"--load {path} is of another model: it has more parameters than this one")
    if {name.split("/")[0] for name in shapes if "/" in name} != set(MOMENTS[:moments]):
        raise UsageError(f"--load {path} was made by another optimizer: use the same --optimizer")
    done = json.loads(metadata["state"])["steps"]
    if done > steps:
        raise UsageError(f"--load {path} has {done} steps behind it: ask for at least as many with --steps")


def load(path: str, engine: Engine) -> None:
    """Put this rank's piece of everything in the file into the engine."""
    with safe_open(path, framework="numpy") as file:
        names = set(file.keys())
        state: dict[str, Any] = json.loads(file.metadata()["state"])
        for flat in engine.flats:
            whole = np.zeros(flat.padded, flat.master.dtype)
            for prefix, piece in [("", flat.master), *zip((f"{m}/" for m in MOMENTS), flat.moments, strict=False)]:
                for parameter, view in flat.views(whole):
                    if prefix + parameter.name in names:
                        view[...] = parameter.part(file.get_tensor(prefix + parameter.name))
                piece[...] = whole[engine.piece(flat)]
                if prefix == "":
                    flat.param[...] = whole if flat.param.size == flat.padded else whole[engine.piece(flat)]
    engine.steps, engine.updates = state["steps"], state["updates"]
    if engine.scaled and state["mixed"]:
        vars(engine.loss_scale).update(state["loss_scale"])

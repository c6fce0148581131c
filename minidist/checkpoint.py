"""Checkpoints that know nothing of ranks: whole parameters and optimizer state by name, in a safetensors file.

Every rank holds a piece of every unit. To save, the pieces of one unit after another are put together and cut at the
parameters' borders; to load, each rank takes its own piece. So a file written by zero3 on 4 ranks goes on in serial
training, or in data parallel on 3. (DeepSpeed's own files, one for each rank, cannot: they must first be converted.)
"""

import json
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as serialize

from minidist import UsageError
from minidist.engine import Engine
from minidist.nn.layers import Unit
from minidist.nn.tensor import Array
from minidist.report import write_whole

# Names of the optimizer's arrays in the file; the parameters themselves go by their own name.
MOMENTS = ("moment1", "moment2")


def weights(engine: Engine) -> dict[str, Array]:
    """On rank 0, every parameter by name, in its shape and in the optimizer's precision. All ranks must call."""
    found = {}
    for flat in engine.flats.values():
        found.update(engine.whole_parameters(flat, flat.master))
    return engine.gathered(found)


def save(path: str, engine: Engine, vocabulary: str, writer: bool) -> None:
    """Write everything that training needs to go on. All ranks must call; the one with `writer` writes."""
    arrays = weights(engine)
    moments = {}
    for flat in engine.flats.values():
        for name, moment in zip(MOMENTS, flat.moments, strict=False):
            for parameter, whole in engine.whole_parameters(flat, moment).items():
                moments[f"{name}/{parameter}"] = whole
    arrays |= engine.gathered(moments)
    if not writer:
        return
    mixed = engine.precision.mixed
    state = {"steps": engine.steps, "updates": engine.updates, "mixed": mixed, "loss_scale": vars(engine.loss_scale)}
    metadata = {"vocabulary": vocabulary, "state": json.dumps(state)}
    write_whole(path, serialize({name: np.ascontiguousarray(array) for name, array in arrays.items()}, metadata))


def check(path: str, units: list[Unit], vocabulary: str, moments: int, steps: int) -> None:
    """Raise UsageError unless the file holds this model and optimizer, with fewer than `steps` steps behind it."""
    try:
        open(path, "rb").close()  # says why it cannot be read, which safe_open does not
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not a safetensors file"
        raise UsageError(f"cannot read --load {path}: {reason}") from None
    if not {"state", "vocabulary"} <= metadata.keys():
        raise UsageError(f"--load {path} was not written by minidist's --save")
    for parameter in (parameter for unit in units for parameter in unit.parameters):
        found = shapes.get(parameter.name)
        if found != parameter.shape:
            seen = f"has {parameter.name} of shape {found}" if found else f"has no {parameter.name}"
            raise UsageError(f"--load {path} is of another model: it {seen}, this model's is {parameter.shape}")
    if len([name for name in shapes if "/" not in name]) != sum(len(unit.parameters) for unit in units):
        raise UsageError(f"--load {path} is of another model: it has more parameters than this one")
    if {name.split("/")[0] for name in shapes if "/" in name} != set(MOMENTS[:moments]):
        raise UsageError(f"--load {path} was made by another optimizer: use the same --optimizer")
    if metadata["vocabulary"] != vocabulary:
        raise UsageError(f"--load {path} was trained on a text with other characters: use the same --data")
    done = json.loads(metadata["state"])["steps"]
    if done >= steps:
        raise UsageError(f"--load {path} has {done} steps behind it: ask for more than that with --steps")


def load(path: str, engine: Engine) -> None:
    """Put this rank's piece of everything in the file into the engine."""
    with safe_open(path, framework="numpy") as file:
        names = set(file.keys())
        state: dict[str, Any] = json.loads(file.metadata()["state"])
        for flat in engine.flats.values():
            whole = np.zeros(flat.padded, flat.master.dtype)
            for prefix, piece in [("", flat.master), *zip((f"{m}/" for m in MOMENTS), flat.moments, strict=False)]:
                for parameter, view in flat.views(whole):
                    if prefix + parameter.name in names:
                        view[...] = parameter.part(file.get_tensor(prefix + parameter.name))
                piece[...] = whole[engine.piece(flat)]
                if prefix == "":
                    flat.param[...] = whole if flat.param.size == flat.padded else whole[engine.piece(flat)]
    engine.steps, engine.updates = state["steps"], state["updates"]
    if engine.precision.mixed and state["mixed"]:
        vars(engine.loss_scale).update(state["loss_scale"])

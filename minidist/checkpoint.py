"""Checkpoints that know nothing of ranks: whole parameters and optimizer state by name, in a safetensors file.

Every rank holds a piece of every unit. To save, the pieces of one unit after another are put together and cut at the
parameters' borders; to load, each rank takes its own piece. So a file written by zero3 on 4 ranks goes on in serial
training, or in data parallel on 3. (DeepSpeed's own files, one for each rank, cannot: they must first be converted.)
"""

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as serialize

from minidist import UsageError
from minidist.claims.files import check_readable, write_output
from minidist.engine import Engine
from minidist.nn.flat import Flat
from minidist.nn.layers import Unit, count_parameters
from minidist.nn.precision import LossScale, Precision
from minidist.nn.tensor import Array

Shape = tuple[int, ...]
# Names of the optimizer's arrays in the file; the parameters themselves go by their own name.
MOMENTS = ("moment1", "moment2")
# And what else there is, such as:
STATE = {"steps": 0, "updates": 0, "mixed": True, "loss_scale": vars(LossScale())}


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


# ---- before the work: whether a file holds what training can go on from ----------------------------------------------


def check(path: str, units: list[Unit], identity: dict[str, Any], moments: int, steps: int) -> None:
    """Raise UsageError unless the file holds this model and optimizer, whole, with at most `steps` steps behind it."""
    check_readable("--load", path)
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            shapes = {name: tuple(array.get_shape()) for name, array in arrays.items()}
            if not {"state", "identity"} <= metadata.keys():
                raise UsageError("was not written by minidist's --save")
            _check_identity(_parsed("identity", metadata, identity), identity)
            _check_shapes(shapes, {p.name: p.shape for unit in units for p in unit.parameters}, MOMENTS[:moments])
            state = _parsed("state", metadata, STATE)
            _check_state(state)
            for name, array in arrays.items():
                if array.get_dtype() not in ("F32", "F64"):
                    raise UsageError(f"is damaged: {name} is of {array.get_dtype()}, and should be of F32 or F64")
                _check_values(name, file.get_tensor(name))
        if state["steps"] > steps:
            raise UsageError(f"has {_short(state['steps'])} steps behind it: ask for at least as many with --steps")
    except (OSError, SafetensorError):
        raise UsageError(f"cannot read --load {path}: not a safetensors file, or a damaged one") from None
    except UsageError as error:
        raise UsageError(f"--load {path} {error}") from None


def _parsed(name: str, metadata: dict[str, str], like: dict[str, Any]) -> dict[str, Any]:
    """Metadata: JSON with the same fields as `like`, and values of the same types."""
    try:
        found = json.loads(metadata[name])
    except (ValueError, RecursionError):
        raise UsageError(f"is damaged: its {name} is not JSON") from None
    _check_fields(name, found, like)
    return dict(found)


def _check_fields(where: str, found: Any, like: dict[str, Any]) -> None:
    if not isinstance(found, dict) or found.keys() != like.keys():
        raise UsageError(f"is damaged: its {where} should have {', '.join(like)}, and nothing else")
    for name, value in found.items():
        types = (float, int) if isinstance(like[name], float) else (type(like[name]),)
        if type(value) not in types or value in (math.inf, -math.inf) or value != value:
            raise UsageError(f"is damaged: {name} of its {where} is {_short(value)}")
        if isinstance(value, dict):
            _check_fields(name, value, like[name])


def _check_identity(saved: dict[str, Any], identity: dict[str, Any]) -> None:
    for name, value in saved.items():
        if value != identity[name]:
            asked = f"{_short(value)} there, {identity[name]} here" if name != "characters" else "use the same --data"
            raise UsageError(f"is of another model: it has other {name}: {asked}")


def _check_shapes(shapes: dict[str, Shape], parameters: dict[str, Shape], moments: Sequence[str]) -> None:
    """The arrays are the parameters, and the moments of each."""
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


def _check_state(state: dict[str, Any]) -> None:
    """Counters and loss scale are such as training leaves them."""
    scale = state["loss_scale"]
    possible = {
        "steps": state["steps"] >= 0,
        "updates": 0 <= state["updates"] <= state["steps"],
        "scale": 0 < scale["scale"] < 2**1000,
        "minimum": 0 < scale["minimum"] <= scale["scale"],
        "window": scale["window"] > 0,
        "hysteresis": scale["hysteresis"] > 0,
        "forgiven_left": 0 <= scale["forgiven_left"] < scale["hysteresis"],
        "step": scale["step"] >= 0,
        "last_overflow": -1 <= scale["last_overflow"] < max(scale["step"], 1),
    }
    for name, holds in possible.items():
        if not holds:
            raise UsageError(f"is damaged: {name} of its state cannot be {_short({**state, **scale}[name])}")


def _check_values(name: str, values: Array) -> None:
    if not np.isfinite(values).all():
        raise UsageError(f"is damaged: {name} has values that are not finite")
    if name.startswith("moment2/") and values.min(initial=0) < 0:
        raise UsageError(f"is damaged: {name}, a variance, has negative values")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 40 else f"{text[:40]}…"

"""What the JSON of a checkpoint may contain. A checksum shows damage. But a checkpoint may also come from another
program, or be forged, so each field is checked before it is used."""

import math
from typing import Any

from minidist import UsageError
from minidist.checkpoints.files import DTYPES
from minidist.nn.precision import LossScale

LARGEST = 2**53  # the largest whole number: all smaller ones are exact, and fit NumPy's integers

# The state of training, apart from its arrays:
STATE = {"steps": 0, "updates": 0, "mixed": True, "loss_scale": vars(LossScale())}

# What a manifest has: a dictionary has at least these fields, a list any number of such entries.
MANIFEST: dict[str, Any] = {
    "save": str,
    "layout": {"chapter": str, "ranks": int},
    "identity": {},
    "state": {},  # by STATE
    "random": {"seed": int},
    "text": {"position": int},
    "client": {},
    "dtype": str,
    "moments": int,
    "added": [str],
    "parameters": {},
    "shards": [{"file": str, "bytes": int, "blake2b": str, "holds": {}}],
}


def check_manifest(document: Any) -> None:
    """Raise UsageError unless a manifest has the right form, and its pieces are pieces of its parameters."""
    check_form("it", document, MANIFEST)
    require(document.keys() == MANIFEST.keys(), f"it should have {', '.join(MANIFEST)}, and nothing else")
    check_fields("state", document["state"], STATE)
    check_state(document["state"])
    require(document["dtype"] in DTYPES, f"its dtype is {short(document['dtype'])}")
    require(document["moments"] <= 2, f"its moments are {document['moments']}")
    text = document["text"]
    of_text = [text.get(name, "") for name in ("name", "blake2b")]
    require(("name" in text) == ("blake2b" in text), "its text has a name or a checksum, and not both")
    check_form("text", of_text, [str])
    parameters = document["parameters"]
    require(bool(parameters), "it has no parameters")
    for name, shape in parameters.items():
        check_form(f"the shape of {short(name)}", shape, [int])
        require(bool(shape) and math.prod(shape) <= LARGEST, f"{short(name)} has the shape {short(shape)}")
    require(bool(document["shards"]), "it has no shards")
    for shard in document["shards"]:
        check_shard(shard, parameters)


def check_shard(shard: dict[str, Any], parameters: dict[str, list[int]]) -> None:
    """Raise UsageError unless a manifest's entry for a shard is possible."""
    file = shard["file"]
    require(file not in ("", ".", "..") and "/" not in file and file.isprintable(), f"a shard is called {short(file)}")
    require(shard.keys() == MANIFEST["shards"][0].keys(), f"{file} has other fields than a shard")
    for name, piece in shard["holds"].items():
        what = f"the piece of {short(name)} in {file}"
        require(name in parameters, f"{what} is of no parameter")
        require(type(piece) is list and len(piece) == 4, f"{what} is {short(piece)}")
        axis, spans, start, stop = piece
        check_form(what, [axis, start, stop], [int])
        check_form(what, spans, [[int]])
        shape = parameters[name]
        fits = axis < len(shape) and start <= stop and spans and all(len(s) == 2 and s[0] <= s[1] for s in spans)
        require(bool(fits), f"{what} is {short(piece)}, and the shape {short(shape)}")


def check_form(where: str, found: Any, form: Any) -> None:
    """Raise UsageError unless a value is of a type, or has the form of a dictionary or a list: see MANIFEST. Whole
    numbers are from 0 to LARGEST."""
    if isinstance(form, dict):
        require(type(found) is dict, f"{where} is {short(found)}")
        for name, inner in form.items():
            require(name in found, f"{where} has no {name}")
            check_form(f"{where}, {name}," if where != "it" else name, found[name], inner)
    elif isinstance(form, list):
        require(type(found) is list, f"{where} is {short(found)}")
        for entry in found:
            check_form(where, entry, form[0])
    else:
        fits = type(found) is form and (form is not int or 0 <= found <= LARGEST)
        require(fits, f"{where.rstrip(',')} is {short(found)}")


def check_fields(where: str, found: Any, like: dict[str, Any]) -> None:
    """Raise UsageError unless a dictionary has the same fields as `like`, and values of the same types."""
    fits = isinstance(found, dict) and found.keys() == like.keys()
    require(fits, f"its {where} should have {', '.join(like)}, and nothing else")
    for name, value in found.items():
        types = (float, int) if isinstance(like[name], float) else (type(like[name]),)
        odd = type(value) not in types or value in (math.inf, -math.inf) or value != value
        require(not odd, f"{name} of its {where} is {short(value)}")
        if isinstance(value, dict):
            check_fields(name, value, like[name])


def check_state(state: dict[str, Any]) -> None:
    """Raise UsageError unless counters and loss scale have values that training can produce."""
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
        require(holds, f"{name} of its state cannot be {short({**state, **scale}[name])}")


def require(holds: bool, text: str) -> None:
    """Raise UsageError unless `holds`."""
    if not holds:
        raise UsageError(f"is damaged: {text}")


def short(value: Any) -> str:
    """A value in a message, with escapes for characters that cannot be printed, and cut off if it is long."""
    text = repr(value)
    return text if len(text) < 40 else f"{text[:40]}…"

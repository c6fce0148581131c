"""A checkpoint's manifest: a description of the whole, and which shard has which elements.

    DIR/latest                            the name of the newest: step000040
    DIR/step000040/manifest.json          this
    DIR/step000040/rank0-of-4.safetensors one shard a rank: "wte.weight", "moment1/wte.weight", … each (elements,)

A single file of --export is read in the same way: one shard, which has all of every parameter.
"""

import json
import math
import os
import stat
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np
from safetensors import SafetensorError

from minidist import UsageError
from minidist.checkpoints import files, form
from minidist.checkpoints.others import name_other
from minidist.checkpoints.pieces import Piece, Shape, overlaps, whole_piece
from minidist.nn.tensor import Array
from minidist.system.files import is_draft, open_regular

FORMAT = 1
NAME, LATEST = "manifest.json", "latest"
MOMENTS = ("moment1", "moment2")  # names of the optimizer's arrays
PREFIXES = ("", "moment1/", "moment2/")  # before a parameter's name: nothing for the parameter itself


@dataclass
class Shard:
    """A rank's file: which pieces it has of which parameters, and of their moments."""

    file: str
    bytes: int
    blake2b: str
    holds: dict[str, Piece]


@dataclass
class Manifest:
    """A checkpoint, without its arrays."""

    folder: str
    save: str  # an id of this save, which each of its shards has, too
    layout: dict[str, Any]  # of the run that saved: chapter, ranks, axes
    identity: dict[str, Any]  # what defines the model, in addition to its parameters' shapes
    state: dict[str, Any]  # how far training is: steps, updates, loss scale
    random: dict[str, Any]  # batches and dropout of a step are drawn afresh from (seed, step): this is all their state
    text: dict[str, Any]  # the training text, and where in its order of batches training is
    client: dict[str, Any]  # values that a script saved for itself
    dtype: str  # of all arrays, as safetensors calls it
    moments: int  # of each parameter
    parameters: dict[str, Shape]
    shards: list[Shard]
    added: list[str] = field(default_factory=list)  # names of what the engine adds for each parameter
    opened: dict[str, Any] = field(default_factory=dict)  # shards that are being read

    @property
    def prefixes(self) -> tuple[str, ...]:
        """The prefixes of the names of its parameters and moments."""
        return PREFIXES[: 1 + self.moments]

    def read(self, name: str, piece: Piece, out: dict[str, Array]) -> None:
        """Fill arrays (elements,), {prefix: array}, with a piece of a parameter, from all shards that have some of it.
        Of each shard, only the rows that span it are read. Padding becomes zero."""
        mine = piece.runs()
        for array in out.values():
            array.fill(0)
        for shard in self.shards:
            if name not in shard.holds or not len(found := overlaps(mine, shard.holds[name].runs())):
                continue
            start, stop = found[:, 1].min(), (found[:, 1] + found[:, 2]).max()
            file = self.opened.get(shard.file)
            if file is None:
                file = self.opened[shard.file] = files.open_safetensors(os.path.join(self.folder, shard.file))
            for prefix, array in out.items():
                values = files.elements(file, prefix + name, int(start), int(stop))
                for here, there, length in found:
                    array[here : here + length] = values[there - start : there - start + length]
                del values  # before the next one is read

    def whole(self, prefix: str, name: str) -> Array:
        """All of a parameter, or of a moment of it, in its shape."""
        shape = self.parameters[name]
        array: Array = np.empty((math.prod(shape),), files.DTYPES[self.dtype])
        self.read(name, whole_piece(shape), {prefix: array})
        return array.reshape(shape)

    def as_json(self) -> str:
        """The manifest as JSON that people can read, with its checksum."""
        document = {"format": FORMAT, **asdict(self)}
        for unwritten in ("folder", "opened", *(["added"] if not self.added else [])):
            del document[unwritten]
        for shard in document["shards"]:  # a piece as a few numbers; its shape is in `parameters`
            shard["holds"] = {name: [*piece[1:]] for name, piece in shard["holds"].items()}
        fields = [f"{json.dumps(name)}: {_lines(value)}" for name, value in document.items()]
        return "{" + ",\n".join([*fields, f'"checksum": "{_checksum(document)}"']) + "}\n"


def _lines(value: Any) -> str:
    """JSON: a list with a line for each entry, anything else on one line."""
    return "[\n" + ",\n".join(map(json.dumps, value)) + "]" if isinstance(value, list) else json.dumps(value)


def _checksum(document: dict[str, Any]) -> str:
    return blake2b(json.dumps(document, sort_keys=True).encode(), digest_size=16).hexdigest()


def names_in(folder: str) -> list[str]:
    """The checkpoints in a folder, the oldest first."""

    def age(name: str) -> tuple[int, str]:
        return os.stat(os.path.join(folder, name, NAME)).st_mtime_ns, name

    try:
        found = [name for name in os.listdir(folder) if not is_draft(name)]
    except OSError as error:
        raise UsageError(f"{folder} cannot be read: {error.strerror}") from None
    return sorted((name for name in found if os.path.isfile(os.path.join(folder, name, NAME))), key=age)


def tagged_in(folder: str, tag: str) -> list[str]:
    """The checkpoints in a folder that were saved under a tag, as TAG, TAG~2, TAG~3, ..., the oldest first: one, unless
    a job was killed while it replaced it."""
    return [name for name in names_in(folder) if name.partition("~")[0] == tag]


def find_newest(path: str) -> str:
    """The folder of one checkpoint: `path` itself, or the one in it that `latest` names. Raises UsageError, which names
    a checkpoint of another system as what it is."""
    if _is_checkpoint(path):
        return path
    try:
        return _find_latest(path)
    except UsageError:
        if other := name_other(path):
            raise UsageError(f"{path} is {other}") from None
        raise


def _find_latest(path: str) -> str:
    if not os.path.isdir(path):
        raise UsageError(f"{path} is not a folder of checkpoints")
    latest = os.path.join(path, LATEST)
    try:
        with open_regular(latest) as file:
            name = file.read(100).decode().strip()
    except FileNotFoundError:
        others = _others(path)
        what = f"has no file {LATEST}{others}" if others else f"has no checkpoint: there is no file {LATEST} in it"
        raise UsageError(f"{path} {what}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{latest} cannot be read: {getattr(error, 'strerror', 'it is damaged')}") from None
    if os.path.basename(name) != name or not _is_checkpoint(os.path.join(path, name)):
        raise UsageError(f"{latest} names a checkpoint that is not there{_others(path)}")
    return os.path.join(path, name)


def _is_checkpoint(folder: str) -> bool:
    """Whether a folder has a manifest. Raises UsageError if this user may not look."""
    try:
        return stat.S_ISREG(os.stat(os.path.join(folder, NAME)).st_mode)
    except PermissionError as error:
        raise UsageError(f"{folder} cannot be read: {error.strerror}") from None
    except (OSError, ValueError):  # there is none, or the name is invalid
        return False


def _others(folder: str) -> str:
    """The existing checkpoints, for a message that one is missing."""
    names = names_in(folder)
    return f"; {', '.join(names)} {'is' if len(names) == 1 else 'are'} there" if names else ""


def read(path: str) -> Manifest:
    """The manifest of a checkpoint, or of the newest in a folder. Raises UsageError in one line that names the file."""
    folder = find_newest(path)
    file = os.path.join(folder, NAME)
    try:
        with open_regular(file) as stream:
            document = json.load(stream, parse_constant=float.fromhex)  # refuses NaN, which is no JSON
        checksum = document.pop("checksum")
        if checksum != _checksum(document):
            raise ValueError
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError):
        raise UsageError(f"{file} is damaged: its checksum is not that of its content") from None
    if document.pop("format", FORMAT) != FORMAT:
        raise UsageError(f"{file} was written by another version of minidist")
    document.setdefault("client", {})  # which the first checkpoints did not have
    document.setdefault("added", [])  # which most do not have
    try:
        form.check_manifest(document)
    except UsageError as error:
        raise UsageError(f"{file} {error}") from None
    parameters = {name: tuple(shape) for name, shape in document["parameters"].items()}
    for shard in document["shards"]:
        for name, (axis, spans, start, stop) in shard["holds"].items():
            shard["holds"][name] = Piece(parameters[name], axis, tuple(map(tuple, spans)), start, stop)
    shards = [Shard(**shard) for shard in document["shards"]]
    return Manifest(**{**document, "folder": folder, "parameters": parameters, "shards": shards})


def check_shards(manifest: Manifest) -> None:
    """Raise UsageError, in one line, unless all shards are sound, and together have all of every parameter."""
    for shard in manifest.shards:
        check_shard(manifest, shard)
    check_coverage(manifest)


def check_coverage(manifest: Manifest) -> None:
    """Raise UsageError, in one line, unless the shards, which are sound, together have every element."""
    for name, shape in manifest.parameters.items():
        runs = [shard.holds[name].runs()[:, 1:] for shard in manifest.shards if name in shard.holds]
        begin, length = np.concatenate([np.zeros((0, 2), int), *runs]).T
        order, size = np.argsort(begin), math.prod(shape)
        ends = np.concatenate([[0], np.maximum.accumulate((begin + length)[order])])
        if (begin[order] > ends[:-1]).any() or ends[-1] != size or (length > size).any():
            file = os.path.join(manifest.folder, NAME)
            raise UsageError(f"{file} is damaged: its shards do not have all of {form.short(name)}")


def check_shard(manifest: Manifest, shard: Shard) -> None:
    """Raise UsageError, in one line, unless a shard exists, belongs to this save, and is as it was written."""
    path = os.path.join(manifest.folder, shard.file)
    try:
        size = os.stat(path).st_size
        with files.open_safetensors(path) as file:
            save = (file.metadata() or {}).get("save")
            held = {name: (file.get_slice(name).get_dtype(), file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise UsageError(f"{path} is missing") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None
    except SafetensorError:
        save, held = manifest.save, None  # no header to tell it
    if save != manifest.save:
        raise UsageError(f"{path} is of another checkpoint than {NAME} next to it")
    if size != shard.bytes:
        raise UsageError(f"{path} is damaged: it has {size} bytes and should have {shard.bytes}")
    if files.checksum_of(path) != shard.blake2b:
        raise UsageError(f"{path} is damaged: its checksum is not that of its content")
    prefixes = [*manifest.prefixes, *(f"{name}/" for name in manifest.added)]
    pieces = {prefix + name: piece for prefix in prefixes for name, piece in shard.holds.items()}
    if held != {name: (manifest.dtype, [piece.stop - piece.start]) for name, piece in pieces.items()}:
        raise UsageError(f"{path} is damaged: it has other arrays than {NAME} next to it says")


def read_single_file(path: str) -> Manifest:
    """The manifest of a single file, which must be sound."""
    with files.open_safetensors(path) as file:
        metadata = file.metadata() or {}
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        dtype = next((file.get_slice(name).get_dtype() for name in shapes), "F32")
    parameters = {name: shape for name, shape in shapes.items() if "/" not in name}
    folder, name = os.path.split(path)
    shard = Shard(name, os.path.getsize(path), "", {name: whole_piece(shape) for name, shape in parameters.items()})
    identity, state = (json.loads(metadata.get(each, "{}")) for each in ("identity", "state"))
    moments = len({name.split("/")[0] for name in shapes if "/" in name})
    return Manifest(folder, "", {}, identity, state, {}, {}, {}, dtype, moments, parameters, [shard])

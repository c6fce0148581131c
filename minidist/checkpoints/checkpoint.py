"""Checkpoints: every rank writes what it holds, and any number of ranks, in any layout, can continue from it.

    mpirun -n 4 python -m minidist.zero3 --save run --save-every 50 --keep 2
    mpirun -n 8 python -m minidist.parallel3d --dp 2 --pp 2 --tp 2 --load run

A rank holds a piece of every unit: ZeRO's shard of it, tensor parallelism's part, or nothing, if the pipeline gave the
unit to another stage. To put the model together before writing, one rank would have to hold all of it, and the other
chapters avoid exactly that. So each rank writes its own shard, and a manifest says which elements of which parameter
are where (`minidist/checkpoints/pieces.py`). A rank that loads looks up its own elements in the manifest and reads just
these, from any number of shards: it never holds more than its shard and a part of one unit.

DeepSpeed (engine.py, save_checkpoint) does the same with other files. They correspond as follows:

    DIR/latest                      DIR/latest                 names the newest
    DIR/global_step40/              DIR/step000040/            one checkpoint:
      mp_rank_00_model_states.pt      manifest.json            counters, loss scale, where each piece is
      zero_pp_rank_1_mp_rank_00_      rank1-of-4.safetensors   rank 1's piece of the master copy and its moments
        optim_states.pt
    DIR/zero_to_fp32.py             python -m minidist to-fp32 DIR FILE   only the weights, in one file

DeepSpeed's shards fit the number of ranks that wrote them. It refuses another number (ZeRORuntimeException) until they
have been converted into a "universal checkpoint", with a folder for each parameter. minidist's shards are always read
by element, as in PyTorch's Distributed Checkpoint. The two-byte parameters with which the model computes are not
written: they are the master copy, rounded.

A job may be killed at any moment, and its last checkpoint must still load. Hence the order of steps in `publish`.
"""

import errno
import itertools
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from minidist import UsageError, ring
from minidist.checkpoints import convert, files, huggingface, manifest
from minidist.checkpoints.checks import check, check_folder, check_run, differences  # noqa: F401 (had by its former name)
from minidist.checkpoints.convert import check_beside  # noqa: F401 (likewise)
from minidist.checkpoints.files import TensorToWrite
from minidist.checkpoints.manifest import Manifest, Shard
from minidist.checkpoints.pieces import Piece, pieces
from minidist.cli.loaded import is_huggingface
from minidist.engine import Engine
from minidist.mpi import output
from minidist.nn.flat import Flat
from minidist.nn.layers import Unit, count_parameters
from minidist.nn.precision import Precision
from minidist.nn.tensor import Array
from minidist.system import files as disk
from minidist.system.files import replacing

# ---- save ------------------------------------------------------------------------------------------------------------


def save(
    folder: str, engine: Engine, comm: Any, about: dict[str, Any], keep: int | None = None, tag: str | None = None
) -> None:
    """Write a checkpoint into `folder`; all ranks of `comm` must call this. If it fails, a line says so, training goes
    on, and the folder's content stays unchanged.

    about: what else to record about the run: `layout`, `identity`, `text`, `client` (see `Manifest`).
    keep: how many checkpoints may stay in the folder: the oldest are removed. None: any number.
    tag: the checkpoint's name, instead of step000040; it replaces an older one of this name.
    """
    engine.settle()
    step = os.path.join(folder, tag or f"step{engine.steps:06d}")
    with draft_folder(disk.draft_of(step), comm) as draft:
        try:
            found = write_shards(draft, engine, comm, about)  # under a name that is never loaded
            if found:
                publish(folder, found, os.path.basename(step), keep, replaces=tag)
        except OSError as error:
            output.lost((error.filename or step).replace(draft, step), error)


def write_shards(draft: str, engine: Engine, comm: Any, about: dict[str, Any]) -> Manifest | None:
    """Write every rank's shard, synced, into a new folder; returns, on rank 0, the manifest. Raises OSError, only on
    rank 0, if a rank could not write its shard."""
    mine = {name: held for flat in engine.flats for name, held in collect_pieces(engine, flat).items()}
    everyone = comm.all_gather_object({name: piece for name, (piece, _) in mine.items()})
    kept = share_out(everyone)[comm.rank]

    save = comm.broadcast_object(secrets.token_hex(8))
    file, dtype = f"rank{comm.rank}-of-{comm.size}.safetensors", np.dtype(engine.precision.updated)
    name_of = {size: name for name, size in files.DTYPES.items()}
    tensors = [
        TensorToWrite(prefix + name, array.shape, partial(np.asarray, array))
        for name in kept
        for prefix, array in mine[name][1].items()
    ]
    written: Shard | OSError
    try:
        disk.make_own_folder(draft)
        with replacing(f"{draft}/{file}") as shard:
            written = Shard(file, *files.write_tensors(shard, tensors, name_of[dtype], {"save": save}), kept)
    except OSError as error:
        written = error
    shards = comm.gather_object(written)
    if comm.rank > 0:
        return None
    for shard in shards:
        if isinstance(shard, OSError):
            raise shard
        if not os.path.exists(f"{draft}/{shard.file}"):  # it is on the disk of another host
            raise FileNotFoundError(errno.ENOENT, "all ranks must see the same folder", f"{draft}/{shard.file}")
    scale = dict(vars(engine.loss_scale))
    return Manifest(
        folder=draft,
        save=save,
        state={"steps": engine.steps, "updates": engine.updates, "mixed": engine.scaled, "loss_scale": scale},
        random={"seed": engine.settings.seed, "step": engine.steps},
        dtype=name_of[dtype],
        moments=engine.settings.optimizer.moments,
        added=[*engine.flats[0].added, *names_of_own(engine.flats[0])],
        parameters={name: piece.shape for held in everyone for name, piece in held.items()},
        shards=shards,
        layout=about["layout"],
        identity=about["identity"],
        text={**about["text"], "position": engine.steps},  # each step draws one batch
        client=about.get("client", {}),
    )


def collect_pieces(engine: Engine, flat: Flat) -> dict[str, tuple[Piece, dict[str, Array]]]:
    """What this rank could write of a Flat: a piece of every parameter, with its values, its moments, and what the
    engine adds.

    These are the elements that its optimizer updates. In data parallelism, where every rank updates all, a chunk. If
    each rank has an array of its own, a chunk of everyone's.
    """
    here = engine.piece(flat)
    mine = ring.chunk(flat.padded, flat.comm.size, flat.comm.rank) if flat.comm and flat.shards > 1 else here
    chunk = slice(mine.start - here.start, mine.stop - here.start)
    states = {prefix: array[chunk] for prefix, array in flat.states.items()}
    for i in range(len(flat.moments), engine.settings.optimizer.moments):  # other Flats have more
        states[f"moment{i + 1}/"] = np.broadcast_to(flat.master.dtype.type(0), states[""].shape)
    for name, array in flat.own.items():
        with flat.comm.phase("checkpoint"):
            chunks = ring.all_to_all(flat.comm, array.reshape(flat.comm.size, -1))
        states |= {f"{name}.{rank}/": of_rank for rank, of_rank in enumerate(chunks)}
    return {
        name: (piece, {prefix: array[at] for prefix, array in states.items()}) for name, piece, at in pieces(flat, mine)
    }


def names_of_own(flat: Flat) -> list[str]:
    """Names of the arrays of which each rank has one of its own."""
    return [f"{name}.{rank}" for name in flat.own for rank in range(flat.comm.size)]


def share_out(offered: list[dict[str, Piece]]) -> list[dict[str, Piece]]:
    """For each rank, which of its offered pieces it writes. If several ranks hold the same piece (a copy per host, two
    stages with a tied embedding, tensor-parallel ranks with the same norms), the first of them writes it."""
    taken: set[tuple[str, Piece]] = set()
    shares = []
    for pieces_of in offered:
        shares.append({name: piece for name, piece in pieces_of.items() if (name, piece) not in taken})
        taken |= pieces_of.items()
    return shares


def publish(folder: str, found: Manifest, name: str, keep: int | None, replaces: str | None = None) -> None:
    """Turn a folder of shards into a checkpoint. If the job is killed before or during any of these lines, `latest`
    still names a whole checkpoint: this one, or the one before. Raises OSError."""
    disk.write_whole(os.path.join(found.folder, manifest.NAME), found.as_json().encode())  # all content is on the disk;
    disk.open_to_readers(found.folder)
    name = free_name(folder, name)
    os.rename(found.folder, os.path.join(folder, name))  # only then it gets the name under which it is read;
    disk.sync_folder(folder)
    disk.write_whole(os.path.join(folder, manifest.LATEST), f"{name}\n".encode())  # only now it is the newest;
    others = [other for other in manifest.names_in(folder) if other != name]
    replaced = [old for old in manifest.tagged_in(folder, replaces) if old != name] if replaces else []
    too_many = len(others) + 1 - keep if keep else 0
    # and only then old ones may go: they lose their names first, so that no reader sees half of one
    for old in dict.fromkeys([*replaced, *others[: max(too_many, 0)]]):
        os.rename(os.path.join(folder, old), disk.draft_of(os.path.join(folder, old)))
    for left in filter(disk.is_draft, os.listdir(folder)):  # together with what a killed job has left
        disk.remove(os.path.join(folder, left))


def free_name(folder: str, name: str) -> str:
    """The name, or, if an earlier run has taken it, the first of NAME~2, NAME~3, … that is free."""
    names = (name if i == 1 else f"{name}~{i}" for i in itertools.count(1))
    return next(name for name in names if not os.path.lexists(os.path.join(folder, name)))


@contextmanager
def draft_folder(name: str, comm: Any) -> Iterator[str]:
    """A name for a folder, the same on all ranks: rank 0's. At the end the folder is removed, unless it was renamed."""
    draft = comm.broadcast_object(name)
    try:
        yield draft
    finally:
        if comm.rank == 0:
            disk.remove(draft)
    comm.broadcast_object(None)  # no rank goes on before that is done


# ---- load ------------------------------------------------------------------------------------------------------------


def load(path: str, engine: Engine) -> None:
    """Load this rank's piece of everything into the engine, from a checkpoint of any layout or a file of `export`. All
    ranks must call this. `check` has already checked the files."""
    found = opened(path)
    for flat in engine.flats:
        check_added(path, flat, found)
        own = {f"{name}.{flat.comm.rank}/": array for name, array in flat.own.items()}
        for name, piece, at in pieces(flat, engine.piece(flat)):
            found.read(name, piece, {prefix: array[at] for prefix, array in (flat.states | own).items()})
        engine.refresh(flat)
    engine.after_update()  # as at the end of a step: ranks that hold more than their shard gather the rest
    state = found.state
    engine.steps, engine.updates = state["steps"], state["updates"]
    if engine.scaled and state["mixed"]:
        engine.loss_scale.resume(state["loss_scale"])


def check_added(path: str, flat: Flat, found: Manifest) -> None:
    """Raise UsageError if a checkpoint has not what the engine adds."""
    for name in flat.own:
        n = sum(each.startswith(f"{name}.") for each in found.added)
        if n not in (0, flat.comm.size):
            raise UsageError(f"{path} was saved on {n} ranks, each with its own {' and '.join(flat.own)}: use as many")
    if missing := {*flat.added, *names_of_own(flat)} - set(found.added):
        raise UsageError(f"{path} has no {', '.join(sorted(missing))}: it was saved by another chapter")


def tagged(folder: str, tag: str) -> str:
    """The checkpoint in a folder that was last saved under a tag. Raises UsageError if there is none."""
    if names := manifest.tagged_in(folder, tag) if os.path.isdir(folder) else []:
        return os.path.join(folder, names[-1])
    raise UsageError(f"{folder} has no checkpoint with the tag {tag}")


def opened(path: str) -> Manifest:
    """The manifest of a folder, of a single file, or of another library's folder."""
    if is_huggingface(path):
        return huggingface.opened(path)
    return manifest.read(path) if os.path.isdir(path) else manifest.read_single_file(path)


# ---- one file --------------------------------------------------------------------------------------------------------


def export(path: str, engine: Engine, comm: Any, about: dict[str, Any], names: str | None = None) -> None:
    """Write a single file for `load`, or, with `names`, for another library; all ranks must call it. Every rank writes
    its shard into a draft folder next to it, and rank 0 copies tensor after tensor: no rank ever holds the model."""
    with draft_folder(disk.draft_beside(path) if comm.rank == 0 else "", comm) as draft:
        try:
            found = write_shards(draft, engine, comm, about)
            if found:
                convert.FORMS[names or "minidist"](found, path)
        except OSError as error:
            output.lost(path, error)


def weights(engine: Engine, writer: bool) -> dict[str, Array]:
    """On rank 0, the writer, every parameter by name, in its shape and the optimizer's precision: a sample needs the
    model in one place. All ranks must call this. The ranks that share a unit put it together, and one of them keeps it.
    """
    found = {}
    for flat in engine.flats:
        whole = engine.whole_parameters(flat, flat.master)
        if writer or engine.holds_a_stage:
            found.update(whole)
    return engine.collect_on_rank_0(found)


def size(units: list[Unit], precision: Precision, moments: int) -> int:
    """About how many bytes a checkpoint has (names are not counted)."""
    return (1 + moments) * count_parameters(units) * np.dtype(precision.updated).itemsize

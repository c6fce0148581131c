"""Checkpoints: every rank writes what it holds, and any number of ranks, laid out in any way, goes on from it.

    mpirun -n 4 python -m minidist.zero3 --save run --save-every 50 --keep 2
    mpirun -n 8 python -m minidist.parallel3d --dp 2 --pp 2 --tp 2 --load run

A rank holds a piece of every unit: ZeRO's shard of it, tensor parallelism's part, or none because the pipeline gave the
unit to others. To put the model together before it is written would need a rank that holds all of it, and that is what
the other chapters have done away with. So each rank writes its own shard, and a manifest says which elements of which
parameter are where (`minidist/checkpoints/pieces.py`). Whoever loads asks the manifest where his own elements are, and
reads just these from however many shards: he never holds more than his shard and some of one unit.

DeepSpeed (engine.py, save_checkpoint) does the same with other files, and here is what stands for each:

    DIR/latest                      DIR/latest                 which is the newest
    DIR/global_step40/              DIR/step000040/            one checkpoint:
      mp_rank_00_model_states.pt      manifest.json            counters, loss scale, where things are
      zero_pp_rank_1_mp_rank_00_      rank1-of-4.safetensors   rank 1's piece of the master copy and its moments
        optim_states.pt
    DIR/zero_to_fp32.py             python -m minidist to-fp32 DIR FILE   the weights alone, in one file

Its shards fit the number of ranks that wrote them: another number is refused (ZeRORuntimeException), until they have
been converted into a "universal checkpoint", a folder for each parameter. Ours are read by elements from the start, as
PyTorch's Distributed Checkpoint does. Parameters as the model computes with them, two bytes each, are not written at
all: they are the master copy, rounded.

A job may be killed at any moment, and what it saved last must still load. Hence the order of things in `publish`.
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
from minidist.checkpoints import convert, files, manifest
from minidist.checkpoints.checks import check, check_folder, check_run, differences
from minidist.checkpoints.files import Tensor
from minidist.checkpoints.manifest import Manifest, Shard
from minidist.checkpoints.pieces import Piece, pieces
from minidist.engine import Engine
from minidist.files import (
    draft_beside,
    draft_of,
    make_own_folder,
    open_to_readers,
    remove,
    replacing,
    sync_folder,
    write_whole,
)
from minidist.mpi import output
from minidist.nn.flat import Flat
from minidist.nn.layers import Unit, count_parameters
from minidist.nn.precision import Precision
from minidist.nn.tensor import Array

__all__ = [
    "check",
    "check_folder",
    "check_run",
    "differences",
    "export",
    "load",
    "opened",
    "save",
    "size",
    "tagged",
    "weights",
]

# ---- save ------------------------------------------------------------------------------------------------------------


def save(
    folder: str,
    engine: Engine,
    comm: Any,
    about: dict[str, Any],
    keep: int | None = None,
    tag: str | None = None,
) -> None:
    """Write a checkpoint into `folder`; all ranks of `comm` must call. If that cannot be, a line says so, the work goes
    on, and what was in the folder is as it was.

    about: what training says of itself beside its engine: `layout`, `identity`, `text`, `client` (see `Manifest`).
    keep: how many checkpoints may be in the folder afterwards: the oldest go. None: any number.
    tag: the checkpoint's name, instead of step000040; an older one of this name goes.
    """
    engine.settle()
    step = os.path.join(folder, tag or f"step{engine.steps:06d}")
    with draft_folder(draft_of(step), comm) as draft:
        try:
            found = write_shards(draft, engine, comm, about)  # under a name that nobody loads
            if found:
                publish(folder, found, os.path.basename(step), keep, replaces=tag)
        except OSError as error:
            output.lost((error.filename or step).replace(draft, step), error)


def write_shards(draft: str, engine: Engine, comm: Any, about: dict[str, Any]) -> Manifest | None:
    """Every rank's shard, synced, in a new folder: on rank 0, the manifest to be. Raises OSError, on rank 0 alone, if
    some rank could not write its shard."""
    mine = {name: held for flat in engine.flats for name, held in collect_pieces(engine, flat).items()}
    everyone = comm.all_gather_object({name: piece for name, (piece, _) in mine.items()})
    kept = share_out(everyone)[comm.rank]

    save = comm.broadcast_object(secrets.token_hex(8))
    file, dtype = f"rank{comm.rank}-of-{comm.size}.safetensors", np.dtype(engine.precision.updated)
    name_of = {size: name for name, size in files.DTYPES.items()}
    tensors = [
        Tensor(prefix + name, array.shape, partial(np.asarray, array))
        for name in kept
        for prefix, array in zip(manifest.PREFIXES, mine[name][1], strict=False)
    ]
    written: Shard | OSError
    try:
        make_own_folder(draft)
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
        parameters={name: piece.shape for held in everyone for name, piece in held.items()},
        shards=shards,
        layout=about["layout"],
        identity=about["identity"],
        text={**about["text"], "position": engine.steps},  # batches are drawn one a step
        client=about.get("client", {}),
    )


def collect_pieces(engine: Engine, flat: Flat) -> dict[str, tuple[Piece, list[Array]]]:
    """What this rank could write of a Flat: of every parameter a piece, and what is there of it and of its moments.

    That is what its optimizer updates. In data parallelism, where this is everything on every rank, a chunk of it.
    """
    here = engine.piece(flat)
    mine = ring.chunk(flat.padded, flat.comm.size, flat.comm.rank) if flat.comm else here
    chunk = slice(mine.start - here.start, mine.stop - here.start)
    return {
        name: (piece, [array[chunk][at] for array in (flat.master, *flat.moments)])
        for name, piece, at in pieces(flat, mine)
    }


def share_out(offered: list[dict[str, Piece]]) -> list[dict[str, Piece]]:
    """What each rank is to write of what it offers. Of ranks that have the same piece (hosts with a copy each, two
    stages with a tied embedding, tensor-parallel ranks with the same norms) the first does."""
    taken: set[tuple[str, Piece]] = set()
    shares = []
    for pieces_of in offered:
        shares.append({name: piece for name, piece in pieces_of.items() if (name, piece) not in taken})
        taken |= pieces_of.items()
    return shares


def publish(folder: str, found: Manifest, name: str, keep: int | None, replaces: str | None = None) -> None:
    """Make a checkpoint of a folder of shards. Killed before any of these lines, or in it, the job leaves a folder of
    which `latest` names a checkpoint that is whole: this one, or the one before. Raises OSError."""
    write_whole(os.path.join(found.folder, manifest.NAME), found.as_json().encode())  # all of it is on the disk,
    open_to_readers(found.folder)
    name = free_name(folder, name)
    os.rename(found.folder, os.path.join(folder, name))  # so that whoever sees the name sees all of it,
    sync_folder(folder)
    write_whole(os.path.join(folder, manifest.LATEST), f"{name}\n".encode())  # and only now it is the newest,
    others = [other for other in manifest.names_in(folder) if other != name]
    replaced = [old for old in manifest.tagged_in(folder, replaces) if old != name] if replaces else []
    too_many = len(others) + 1 - keep if keep else 0
    for old in dict.fromkeys(
        [*replaced, *others[: max(too_many, 0)]]
    ):  # and the oldest may go: their names first, so that none is seen half there
        os.rename(os.path.join(folder, old), draft_of(os.path.join(folder, old)))
    for left in manifest.drafts_in(folder):  # and with them what a job that was killed has left
        remove(os.path.join(folder, left))


def free_name(folder: str, name: str) -> str:
    """The name, or, where a run came this way before, the first of NAME~2, NAME~3, … that is not taken."""
    names = (name if i == 1 else f"{name}~{i}" for i in itertools.count(1))
    return next(name for name in names if not os.path.lexists(os.path.join(folder, name)))


@contextmanager
def draft_folder(name: str, comm: Any) -> Iterator[str]:
    """A name for a folder, the same on all ranks: rank 0's. Afterwards no such folder is there, unless it was
    renamed."""
    draft = comm.broadcast_object(name)
    try:
        yield draft
    finally:
        if comm.rank == 0:
            remove(draft)
    comm.broadcast_object(None)  # nobody goes on before it is done


# ---- load ------------------------------------------------------------------------------------------------------------


def load(path: str, engine: Engine) -> None:
    """Put this rank's piece of everything into the engine, from a checkpoint of any layout, or a file of `export`. All
    ranks must call. What `check` has found sound is taken as it is."""
    found = opened(path)
    for flat in engine.flats:
        for name, piece, at in pieces(flat, engine.piece(flat)):
            arrays = [array[at] for array in (flat.master, *flat.moments)]
            found.read(name, piece, dict(zip(manifest.PREFIXES, arrays, strict=False)))
        engine.refresh(flat)
    engine.after_update()  # as at the end of a step: whoever keeps more than his shard gets it from the others
    state = found.state
    engine.steps, engine.updates = state["steps"], state["updates"]
    if engine.scaled and state["mixed"]:
        engine.loss_scale.resume(state["loss_scale"])


def tagged(folder: str, tag: str) -> str:
    """The checkpoint in a folder that was saved last under a tag. Raises UsageError if there is none."""
    if names := manifest.tagged_in(folder, tag) if os.path.isdir(folder) else []:
        return os.path.join(folder, names[-1])
    raise UsageError(f"{folder} has no checkpoint with the tag {tag}")


def opened(path: str) -> Manifest:
    """The manifest of a folder, or of a single file."""
    return manifest.read(path) if os.path.isdir(path) else manifest.read_single_file(path)


# ---- one file --------------------------------------------------------------------------------------------------------


def export(path: str, engine: Engine, comm: Any, about: dict[str, Any], names: str | None = None) -> None:
    """Write a single file, for `load`, or by `names` for another library; all ranks must call. Every rank writes its
    shard beside it, and rank 0 copies tensor after tensor: so nobody ever holds the model."""
    with draft_folder(draft_beside(path) if comm.rank == 0 else "", comm) as draft:
        try:
            found = write_shards(draft, engine, comm, about)
            if found:
                convert.FORMS[names or "minidist"](found, path)
        except OSError as error:
            output.lost(path, error)


def weights(engine: Engine, writer: bool) -> dict[str, Array]:
    """On rank 0, the writer, every parameter by name, in its shape and in the optimizer's precision: for a sample,
    which needs the model in one place. All ranks must call. All that share a unit put it together, and one keeps it."""
    found = {}
    for flat in engine.flats:
        whole = engine.whole_parameters(flat, flat.master)
        if writer or engine.holds_a_stage:
            found.update(whole)
    return engine.gathered(found)


def size(units: list[Unit], precision: Precision, moments: int) -> int:
    """About how many bytes a checkpoint has: without the names."""
    return (1 + moments) * count_parameters(units) * np.dtype(precision.updated).itemsize

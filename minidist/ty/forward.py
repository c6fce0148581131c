"""One forward of a chapter's own model with types: which axes there are, what parameters are, and what a stage gets."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from minidist.layout import Layout
from minidist.nn.layers import Batch, micro_batches
from minidist.nn.mixture import EXPERTS
from minidist.nn.tensor import Parameter, Tensor, watched
from minidist.pp.instructions import ACTIVATION, Receive, Send
from minidist.spmd_types import SAME, I, P, R, V
from minidist.ty.watch import Alarm, Types, Watch

PIPELINE = "pipeline"  # along it, ranks have different units: nothing is joined, but some parameters are shared


# ---- axes ------------------------------------------------------------------------------------------------------------


def axes_of(layout: Layout) -> dict[str, list[list[int]]]:
    """The groups of ranks along each axis of more than one rank. Ranks that divide experts are a part of the data or
    context axis, and an axis of their own where they fill it."""
    if layout.replicas:
        return {PIPELINE: [list(range(layout.ranks))]}
    sizes = {"host": layout.hosts, "data": layout.shard, PIPELINE: layout.pp, "context": layout.cp, "tensor": layout.tp}
    names, shape = list(sizes), list(sizes.values())
    for axis, inner in ("context", layout.ep), ("data", layout.ep // layout.cp):
        fills = 1 < inner < sizes[axis] and sizes[axis] % inner == 0
        if fills and (axis == "context" or layout.ep % layout.cp == 0):
            at = names.index(axis)
            shape[at : at + 1] = sizes[axis] // inner, inner
            names.insert(at + 1, "expert")
            break
    ranks = np.arange(layout.ranks - layout.servers).reshape(shape)
    along = {name: np.moveaxis(ranks, i, -1).reshape(-1, shape[i]) for i, name in enumerate(names)}
    return {name: groups.tolist() for name, groups in along.items() if groups.shape[1] > 1}


# ---- parameters ------------------------------------------------------------------------------------------------------


Held = dict[tuple[Any, ...], str]  # what tells a parameter's part from others -> its name


def key_of(parameter: Parameter) -> tuple[Any, ...]:
    return parameter.name, parameter.spans()


def parameter_types(engine: Any, axes: dict[str, frozenset[int]], everyone: dict[int, Held], watch: Watch) -> None:
    """Each parameter's types. What ranks update apart, and average later (local SGD), is each rank's own: V."""
    for flat in engine.flats:
        sums = [set(comm.world_ranks) for comm in (flat.comm, *flat.sum_over.values()) if comm is not None]
        apart = sums[:1] if not engine.sums_gradients else []
        for parameter in flat.parameters:
            key, types = key_of(parameter), watch.parameters.setdefault(id(parameter), {})
            for axis, ranks in axes.items():
                holders = {rank for rank in ranks if key in everyone[rank]}
                own = any(ranks <= each for each in apart)
                types[axis] = V if own else parameter_type(parameter, axis, ranks, holders, sums, everyone, watch)


def parameter_type(
    parameter: Parameter,
    axis: str,
    ranks: frozenset[int],
    holders: set[int],
    sums: list[set[int]],
    everyone: dict[int, Held],
    watch: Watch,
) -> str:
    """A parameter's type along an axis, from which ranks hold it and over which its gradient is summed."""
    if axis == PIPELINE:
        if len(holders) > 1 and not any(holders <= each for each in sums):
            what = f"I, used on {len(holders)} stages: its gradient would stay partial"
            watch.alarms.append(Alarm(axis, what, parameter.name))
        return I
    summed = any(ranks <= each for each in sums)
    if holders == ranks:
        return R if summed else I
    if summed:
        watch.alarms.append(Alarm(axis, "V: its gradient is summed over ranks that hold another part", parameter.name))
    elsewhere = any(parameter.name in everyone[rank].values() for rank in ranks - holders)
    return V if elsewhere or (parameter.group == EXPERTS and axis != "tensor") else P  # a summand that one rank adds


# ---- the forward -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WatchedBatch(Batch):
    """A batch that looks at what is added to the loss."""

    watch: Watch | None = None

    def add_loss(self, loss: Tensor) -> None:
        super().add_loss(loss)
        assert self.watch
        for axis, kind in self.watch.types_of(loss).items():
            if kind == R:
                self.watch.alarm(axis, "R added to the loss: each rank would add the whole of it", "a loss")


def look(driver: Any, job: Any, comm: Any) -> Watch:
    """Run one forward of a micro-batch with types. All ranks must call this; each returns what it has seen."""
    engine, world = driver.engine, list(getattr(comm, "world_ranks", [0]))
    mine = {axis: next(g for g in of if comm.rank in g) for axis, of in axes_of(job.layout).items()}
    axes = {axis: frozenset(world[rank] for rank in group) for axis, group in mine.items()}
    watch = Watch({axis: ranks for axis, ranks in axes.items() if axis != PIPELINE})
    watch.place = lambda: engine.device.doing.removeprefix("in ").partition(",")[0]
    x, y = job.batch(0)
    x, y = micro_batches(x, y, job.settings.accumulate)[0]
    engine.training = False
    batch = engine.share_of(x, y, key=(job.settings.seed, 0, 0))
    batch = WatchedBatch(**vars(batch), watch=watch)
    held = {key_of(parameter): parameter.name for flat in engine.flats for parameter in flat.parameters}
    tokens = batch.tokens.tobytes(), batch.tokens.shape
    everyone = dict(zip(world, comm.all_gather_object((tokens, held)), strict=True))
    for axis, ranks in watch.axes.items():
        watch.entering[axis] = SAME if all(everyone[rank][0] == tokens for rank in ranks) else V
    parameter_types(engine, axes, {rank: of for rank, (_, of) in everyone.items()}, watch)
    with watched(watch):
        if hasattr(driver, "stage"):
            run_stages(driver, batch, watch)
        else:
            engine.run(engine.segments, batch.tokens, batch, keep=False)
            check_loss(watch, engine)
    if world != [0]:
        watch.compare(comm)
    return watch


def run_stages(driver: Any, batch: Batch, watch: Watch) -> None:
    """A forward through the stages. The types of what a stage receives come from the stage that sends it."""
    at, links, engine = driver.at, driver.links, driver.engine
    h, wire = batch.tokens, links.comms[ACTIVATION]
    own: Types = {}
    rows = driver.segments[:1] if at.shape == "cross" else driver.segments
    for chunk, of_chunk in enumerate(rows if at.replica == 0 else ()):
        if not at.is_first(chunk):
            arrives = Receive(ACTIVATION, 0, chunk)
            h = engine.widened(links.receive(arrives, driver.room_for(batch)))
            source = at.peer(arrives)
            watch.entering = own if source == wire.rank else wire.recv_object(source)
        h, _ = engine.run(of_chunk, h, batch, keep=False)
        if at.is_last(chunk):
            check_loss(watch, engine)
        else:
            leaves = Send(ACTIVATION, 0, chunk)
            links.send(leaves, driver.stored(h))
            own, dest = watch.result[1], at.peer(leaves)
            if dest != wire.rank:
                wire.send_object(own, dest)
    links.wait()


def check_loss(watch: Watch, engine: Any) -> None:
    """The loss of a rank is a summand along the axes that share the batch; along the tensor axis it is the same on all
    ranks, and one rank counts it."""
    for axis, kind in watch.result[1].items():
        if axis == "tensor" and kind != I:
            watch.alarm(axis, f"{kind} as the loss, where I is due: each rank's gradient would be its own", "the loss")
        elif axis != "tensor" and kind not in (V, P):
            watch.alarm(axis, f"{kind} as the loss: ranks have the same rows, and would count them N times", "the loss")

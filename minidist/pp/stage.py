"""The part of the model that one worker of a pipeline has: its units, in chunks, and the ranks it shares them with."""

from collections.abc import Sequence
from dataclasses import dataclass

from minidist.mpi.comm import Comm
from minidist.nn.layers import Head, Unit, flats_of
from minidist.pp.instructions import StagePlace


@dataclass(frozen=True)
class Stage:
    """The units of one worker, in chunks, and where it stands."""

    at: StagePlace
    chunks: list[list[Unit]]
    pipe: Comm
    width: int  # of what crosses from stage to stage (B, T, C)
    pieces: int = 1  # with sequence parallelism a rank has, and sends, one of that many pieces of the positions

    @property
    def units(self) -> list[Unit]:
        """All units in the model's order, so that two workers with the same units have them in the same order."""
        rows = sorted(range(len(self.chunks)), key=self.at.positions.__getitem__)
        return [unit for row in rows for unit in self.chunks[row]]


def stage_of(units: list[Unit], pipe: Comm, parts: Sequence[range], at: StagePlace, pieces: int = 1) -> Stage:
    """A worker's stage. parts: which units each part of the model has; the worker's place says which parts it has.

    Ranks that hold the same Flat sum its gradients. These are replicas of a stage; in a cross, the two workers that
    have the same two stages; or those with the model's first and last part, if the head is tied to the embedding. Then
    the last has a copy of the matrix, and the first counts it in the norm. (In a V both parts are on one worker.)
    """
    head = units[-1]
    assert isinstance(head, Head)
    chunks = [[units[i] for i in parts[part]] for part in at.positions]
    stage = Stage(at, chunks, pipe, head.weight.shape[1], pieces)
    crossed, ends = at.shape == "cross", {at.holder(0, 0), at.holder(at.parts - 1, 0)}
    pair = min(at.stage, at.stages - 1 - at.stage)
    sharers = pipe.split(at.stage if at.replicas else pair if crossed else int(at.stage in ends))
    own = [flat for unit in (chunks[0] if crossed else stage.units) for flat in unit.flats]  # each is in one chunk 0
    for flat in flats_of(stage.units):
        if at.copies > 1 or at.replicas or (flat in head.reads and flat not in head.flats and len(ends) > 1):
            flat.sum_over["shared gradients"] = sharers
        flat.counted = flat.counted and flat in own
    return stage

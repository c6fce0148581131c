"""The part of the model that one worker of a pipeline has: its units, in chunks, and the ranks it shares them with."""

from collections.abc import Sequence
from dataclasses import dataclass

from minidist.mpi.comm import Comm
from minidist.nn.layers import Head, Unit, flats_of
from minidist.pp.schedules import Place


@dataclass(frozen=True)
class Stage:
    """The units of one worker, in chunks, and where it stands."""

    at: Place
    chunks: list[list[Unit]]
    pipe: Comm
    width: int  # of what crosses from stage to stage (B, T, C)
    pieces: int = 1  # with sequence parallelism a rank has, and sends, one of that many pieces of the positions

    @property
    def units(self) -> list[Unit]:
        return [unit for chunk in self.chunks for unit in chunk]


def stage_of(units: list[Unit], pipe: Comm, parts: Sequence[range], at: Place, pieces: int = 1) -> Stage:
    """A worker's stage. parts: which units each of the v·p chunks has: chunk c of stage s those of parts[c·p + s].

    Ranks that hold the same Flat sum its gradients. These are replicas of a stage; or the first and the last stage, if
    the head is tied to the embedding. Then the last stage has a copy of the matrix; the first counts it in the norm.
    """
    head = units[-1]
    assert isinstance(head, Head)
    chunks = [[units[i] for i in part] for part in parts[at.stage :: at.stages]]
    stage = Stage(at, chunks, pipe, head.weight.shape[1], pieces)
    sharers = pipe.split(at.stage if at.replicas else int(at.stage in (0, at.stages - 1)))
    own = [flat for unit in stage.units for flat in unit.flats]
    for flat in flats_of(stage.units):
        if at.replicas or (flat in head.reads and flat not in head.flats):
            flat.sum_over["shared gradients"] = sharers
        flat.counted = flat.counted and flat in own
    return stage

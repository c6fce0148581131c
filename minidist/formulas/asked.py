"""What a run of training is asked to do: known before it begins, and all that formulas read."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from minidist.formulas.profile import PAPER, Profile
from minidist.layout import Layout, Place
from minidist.papers.mixed_precision import BYTES, MOMENTS, Bytes
from minidist.papers.models import Model

# ---- what single chapters add: the defaults are those of a chapter without it ----------------------------------------


@dataclass(frozen=True)
class Sharding:
    """How FSDP gathers units, and reduces gradients."""

    strategy: str = "full_shard"
    backward_prefetch: str = "none"
    forward_prefetch: bool = False
    prefetch: int = 1  # units that are gathered ahead
    no_sync: bool = False  # gradients are reduced once for all micro-batches


@dataclass(frozen=True)
class Averaging:
    """How seldom local SGD averages, and the optimizer outside of it."""

    every: int = 1
    lr: float = 1.0
    momentum: float = 0.0


@dataclass(frozen=True)
class Compression:
    """What is left of gradients that are sent."""

    compressor: str = ""
    density: float = 1.0
    rank: int = 1
    feedback: bool = True
    begun: bool = True  # before the last step


# ---- a run -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A run: the model, the layout of its ranks, the batch, and what is kept and divided."""

    chapter: str
    model: Model
    layout: Layout
    context: int  # s: positions of a sequence
    batch: int  # sequences of a step
    accumulate: int = 1  # micro-batches of a step
    validate: int = 0  # batches
    precision: str = "mixed"
    grad_dtype: str = "stored"  # or "fp32": gradients are added up, and summed over the ranks, in float32
    tiled: bool = False  # attention in tiles: no probabilities are kept, but their log-sum-exp
    profile: Profile = PAPER  # what a system holds: a plan's question; the chapters hold what the papers say
    optimizer: str = "adamw"
    dropout: float = 0.0
    recompute: str = "none"  # a policy of `papers/chen.py`
    zero: int = 0  # the stage of ZeRO; 0: every rank has all model states of its part of the model
    reduce: str = "ring"  # or through a server
    bucket_size: int | None = None  # elements of the buffer for gradients
    keep_last: bool = False  # ZeRO-3: the last unit stays gathered
    ahead: int = 0  # elements that may be gathered ahead (DeepSpeed), ...
    live: int | None = None  # but not if more than these would be gathered
    sequence_parallel: bool = False  # tensor-parallel ranks cut by positions what they do not cut by heads or width
    gather_logits: bool = False  # tensor-parallel ranks gather whole logits for the loss
    attention: str = "ring"  # how queries meet keys and values of other context ranks
    positions: str = "zigzag"  # which of these each context rank has
    capacity: float | None = None  # an expert's room, times the mean of rows; None: any
    balance: float = 0.0  # the factor of the balance loss
    host_limit: int | None = None  # hosts to which a token may go
    activations: str = "device"  # ZeRO-R: where checkpoints are
    scattered: bool = False  # each of them for itself
    parameters: str = "device"  # offload: where their shard is
    delayed_update: int | None = None
    sharding: Sharding = Sharding()
    averaging: Averaging = Averaging()
    compression: Compression = Compression()
    ranks_per_host: int | None = None
    block: int = 0  # ZeRO++: elements that share a scale
    divide: str = ""  # Muon: whole matrices are shared out, or elements of each
    virtual: int = 1  # ranges of keys that a parameter server has of the ring of hashes
    save_every: int | None = None  # steps after which a stream without a flush is drained
    only: tuple[Place, ...] = ()  # the places of the ranks that are asked about; none: all ranks

    @property
    def ranks(self) -> int:
        """N: the number of ranks that are asked about."""
        return len(self.only) or self.layout.ranks

    @property
    def bytes(self) -> Bytes:
        """The bytes that a number takes."""
        return BYTES[self.precision]

    @property
    def gradient_bytes(self) -> int:
        """The bytes of a gradient that is held or sent."""
        return self.bytes.gradient(self.grad_dtype)

    def width(self, phase: str) -> int:
        """The bytes of an element that is sent along the data axis in a phase."""
        return self.gradient_bytes if "gradients" in phase else self.bytes.stored

    @property
    def optimizer_bytes(self) -> int:
        """The papers' K: bytes of optimizer state per parameter."""
        return self.bytes.optimizer(MOMENTS[self.optimizer])

    @cached_property
    def places(self) -> Sequence[Place]:
        """Where each rank stands, as Megatron numbers them (PTD, section 3): tensor is innermost, then context,
        pipeline and data. The layout is asked only for sizes, so that claims fail if it numbers ranks differently."""
        at = self.layout
        if self.only:
            return self.only
        if at.replicas:  # PipeDream: those of the first stage come first
            return [Place(0, 0, stage, 0, 0) for stage, workers in enumerate(at.replicas) for _ in range(workers)]
        return [Place(*place) for place in itertools.product(*map(range, (at.hosts, at.shard, at.pp, at.cp, at.tp)))]

    @property
    def data_shares(self) -> list[int]:
        """Which share of the sequences each rank works on."""
        return [place.host * self.layout.shard + place.shard for place in self.places]

    @property
    def stages(self) -> list[int]:
        """Each rank's stage, from 1."""
        return [place.pipeline + 1 for place in self.places]

    @property
    def scheme(self) -> str | None:
        """How queries meet the keys and values of other ranks, if ranks divide the sequences."""
        return self.attention if self.chapter == "context_parallel" or self.layout.cp > 1 else None

    @property
    def keeps_no_core(self) -> bool:
        """Whether layers keep log-sum-exps in place of probabilities."""
        return self.tiled or self.scheme is not None

    @property
    def staged(self) -> bool:
        """Whether a schedule's stages divide the units, even if there is just one."""
        return self.layout.pp > 1 or self.chapter == "pipeline"

    @property
    def passes(self) -> int:
        """The micro-batches of a step that pass through a rank's units: in a crossed pipeline, half of all."""
        if self.layout.pp == 1:
            return self.accumulate
        from minidist.papers import pipelines  # nine papers

        return self.accumulate // pipelines.copies(self.layout.schedule)

    @property
    def dividing(self) -> int:
        """G: the number of ranks that divide model states. Ranks that divide the sequences do, too."""
        return self.layout.shard * self.layout.cp

    @property
    def micro_batch(self) -> int:
        """Sequences of a micro-batch, over all ranks."""
        return self.batch // self.accumulate

    @property
    def rows(self) -> int:
        """b: sequences of a data-parallel rank in a micro-batch."""
        return self.micro_batch // self.layout.dp

    def routed(self, name: str) -> list[Any] | None:
        """What routers chose, by rank: only a run knows."""
        return None

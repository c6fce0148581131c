"""What a run of training was asked to do, from which promises follow, and what it did, which checks them."""

import argparse
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from minidist.claims.claim import Claim, claims_as_rows
from minidist.layout import Layout, Place
from minidist.papers import pipelines
from minidist.papers.mixed_precision import BYTES, MOMENTS, Bytes
from minidist.papers.models import Model


@dataclass(frozen=True)
class Asked:
    """What a run of training is asked to do: known before it begins, and all that the formulas need."""

    chapter: str
    options: argparse.Namespace
    layout: Layout
    vocabulary: int  # V, of the text

    @property
    def ranks(self) -> int:
        """N: the number of ranks."""
        return self.layout.ranks

    @property
    def model(self) -> Model:
        """The model, as its paper counts its parameters."""
        return model_of(self.options, self.vocabulary)

    @property
    def bytes(self) -> Bytes:
        """The bytes that a number takes."""
        return BYTES[self.options.precision]

    @property
    def optimizer_bytes(self) -> int:
        """The papers' K: bytes of optimizer state per parameter."""
        return self.bytes.optimizer(MOMENTS[self.options.optimizer])

    @cached_property
    def places(self) -> list[Place]:
        """Where each rank stands, as Megatron numbers them (PTD, section 3): tensor is innermost, then context,
        pipeline and data. The layout is asked only for sizes, so that claims fail if it numbers ranks differently."""
        at = self.layout
        if at.replicas:  # PipeDream: those of the first stage come first
            return [Place(0, 0, stage, 0, 0) for stage, workers in enumerate(at.replicas) for _ in range(workers)]
        return [Place(*place) for place in itertools.product(*map(range, (at.hosts, at.shard, at.pp, at.cp, at.tp)))]

    @property
    def data_shares(self) -> list[int]:
        """Which share of the sequences each rank works on."""
        return [place.host * self.layout.shard + place.shard for place in self.places]

    @property
    def scheme(self) -> str | None:
        """How queries meet the keys and values of other ranks, if ranks divide the sequences."""
        divides = self.chapter == "context_parallel" or self.layout.cp > 1
        return str(self.options.scheme) if divides else None

    @property
    def zero(self) -> int:
        """The stage of ZeRO; 0: every rank has all model states of its part of the model."""
        return int(vars(self.options).get("zero", {"zero1": 1, "zero2": 2, "zero3": 3}.get(self.chapter, 0)))

    @property
    def staged(self) -> bool:
        """Whether a schedule's stages divide the units, even if there is just one."""
        return self.layout.pp > 1 or self.chapter == "pipeline"

    @property
    def passes(self) -> int:
        """The micro-batches of a step that pass through a rank's units: in a crossed pipeline, half of all."""
        return self.options.accumulate // (pipelines.copies(self.layout.schedule) if self.layout.pp > 1 else 1)

    @property
    def gather_logits(self) -> bool:
        """Whether tensor-parallel ranks gather whole logits for the loss."""
        return vars(self.options).get("gather_logits", False)

    @property
    def sequence_parallel(self) -> bool:
        """Whether tensor-parallel ranks cut by positions what they do not cut by heads or width."""
        return vars(self.options).get("sequence_parallel", False)


@dataclass(frozen=True)
class Run(Asked):
    """What a run of training did, as rank 0 knows it at the end."""

    loss: list[float]  # per step, of the global batch
    validation_loss: float
    unigram_entropy: float
    step_ms: dict[str, float]
    sent: list[dict[str, dict[str, int]]]  # per rank: {phase: {"bytes", "messages"}} of the last step that updated
    sent_to: list[dict[int, int]]  # per rank: bytes by receiver, in the same step
    received: list[int]  # per rank: bytes that arrived in the same step, from all ranks, in all phases
    memory: list[dict[str, int]]  # per rank: bytes
    counted: list[dict[str, Any]]  # per rank: what else the chapter's engine has counted
    below: list[dict[str, dict[str, int]]]  # per rank: bytes in each memory below the device: {"host": {kind: bytes}}
    moved: list[dict[str, dict[str, dict[str, int]]]]  # per rank, in the same step: {"device to host": {phase: …}}

    def sent_in(self, *names: str, count: str = "bytes") -> list[int]:
        """Bytes (or messages) that each rank sent in the named phases together."""
        return [sum(phases.get(name, {count: 0})[count] for name in names) for phases in self.sent]

    def sent_by(self, rank: int) -> int:
        """Bytes that a rank sent, in all phases."""
        return sum(phase["bytes"] for phase in self.sent[rank].values())

    def memory_of(self, kind: str, pool: str = "device") -> list[int]:
        """Bytes of a kind that each rank held on its device, or in a memory below it."""
        return [held[kind] for held in (self.memory if pool == "device" else [rank[pool] for rank in self.below])]

    def moved_in(self, direction: str, *names: str) -> list[int]:
        """Bytes that each rank moved in a direction ("device to host"), in the named phases, or by default in all."""
        of_ranks = [rank.get(direction, {}) for rank in self.moved]
        return [sum(phases[name]["bytes"] for name in names or phases if name in phases) for phases in of_ranks]

    def as_json(self, claims: Sequence[Claim]) -> dict[str, Any]:
        """The report for machines."""
        return {
            "chapter": self.chapter,
            "ranks": self.ranks,
            "parameters": self.model.parameters(),
            "precision": self.options.precision,
            "steps": len(self.loss),
            "loss": [_finite(loss) for loss in self.loss],
            "validation_loss": _finite(self.validation_loss),
            "unigram_entropy": self.unigram_entropy,
            "step_ms": self.step_ms,
            "claims": claims_as_rows(claims),
            "sent": self.sent,
            "sent_to": self.sent_to,
            "received": self.received,
            "memory": self.memory,
            **({"counted": self.counted} if any(self.counted) else {}),
            **({"below": self.below} if any(held["all"] for rank in self.below for held in rank.values()) else {}),
            **({"moved": self.moved} if any(self.moved) else {}),
        }


def model_of(options: argparse.Namespace, vocabulary: int) -> Model:
    """The model that a command line and a text ask for."""
    o, tied = options, options.model == "gpt" and not options.untied
    experts = vars(o).get("experts") or 0, vars(o).get("top") or 1  # not all chapters have these options
    shape = o.model, vocabulary, o.context, o.width, o.layers, o.heads, o.kv_heads or o.heads, tied
    return Model(*shape, *experts, apart=vars(o).get("persist", 0))


def _finite(value: float) -> float | None:
    """None for a loss that has become infinite or NaN, because JSON has no word for these."""
    return value if math.isfinite(value) else None

"""What a run of training did: what every claim about it is counted from."""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from minidist.claims.claim import Claim, claims_as_rows
from minidist.nn.precision import Precision


@dataclass(frozen=True)
class Run:
    """What a run of training did, as rank 0 knows it at the end."""

    chapter: str
    options: argparse.Namespace
    ranks: int
    precision: Precision
    moments: int  # arrays of optimizer state
    parameters: int  # Ψ
    vocabulary: int
    unit_sizes: list[int]  # each unit's parameters, padded to a multiple of the number of ranks
    tied: bool  # the head reads the embedding's matrix
    loss: list[float]  # of the global batch, for each step
    validation_loss: float
    unigram_entropy: float
    step_ms: dict[str, float]
    sent: list[dict[str, dict[str, int]]]  # per rank: {phase: {"bytes", "messages"}} of the last step that updated
    sent_to: list[dict[int, int]]  # per rank: bytes by the receiver, in the same step
    memory: list[dict[str, int]]  # per rank: bytes
    counted: list[dict[str, Any]]  # per rank: what else the chapter's engine has counted

    @property
    def padded(self) -> int:
        """Ψ with the padding."""
        return sum(self.unit_sizes)

    @property
    def read_by_head(self) -> int:
        """Parameters that the last unit reads."""
        return self.unit_sizes[-1] + (self.unit_sizes[0] if self.tied else 0)

    def sent_in(self, *names: str, count: str = "bytes") -> list[int]:
        """Bytes (or messages) that each rank sent in some phases together."""
        return [sum(phases.get(name, {count: 0})[count] for name in names) for phases in self.sent]

    def sent_by(self, rank: int) -> int:
        """Bytes that a rank sent, in all phases."""
        return sum(phase["bytes"] for phase in self.sent[rank].values())

    def memory_of(self, kind: str) -> list[int]:
        """Bytes of a kind that each rank held."""
        return [held[kind] for held in self.memory]

    def as_json(self, claims: Sequence[Claim]) -> dict[str, Any]:
        """The report for machines."""
        return {
            "chapter": self.chapter,
            "ranks": self.ranks,
            "parameters": self.parameters,
            "precision": self.precision.name,
            "steps": len(self.loss),
            "loss": [_finite(loss) for loss in self.loss],
            "validation_loss": _finite(self.validation_loss),
            "unigram_entropy": self.unigram_entropy,
            "step_ms": self.step_ms,
            "claims": claims_as_rows(claims),
            "sent": self.sent,
            "sent_to": self.sent_to,
            "memory": self.memory,
            **({"counted": self.counted} if any(self.counted) else {}),
        }


def _finite(value: float) -> float | None:
    """JSON has no word for a loss that is not a number any more."""
    return value if math.isfinite(value) else None

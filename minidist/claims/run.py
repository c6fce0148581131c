"""What a run of training did, which checks what was promised of it."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from minidist.claims.claim import Claim, claims_as_rows
from minidist.cli.paths import finite
from minidist.formulas.asked import Asked


@dataclass(frozen=True, kw_only=True)
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
    host: Sequence[int] = ()  # per rank, if it is known
    clip: float = 1.0  # the largest norm of gradients; 0: any

    def routed(self, name: str) -> list[Any]:
        """What routers chose, by rank."""
        return [of[name] for of in self.counted]

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
            "precision": self.precision,
            "steps": len(self.loss),
            "loss": [finite(loss) for loss in self.loss],
            "validation_loss": finite(self.validation_loss),
            "unigram_entropy": self.unigram_entropy,
            "step_ms": self.step_ms,
            "claims": claims_as_rows(claims),
            **{name: getattr(self, name) for name in ("sent", "sent_to", "received", "memory")},
            **({"counted": self.counted} if any(self.counted) else {}),
            **({"below": self.below} if any(held["all"] for rank in self.below for held in rank.values()) else {}),
            **({"moved": self.moved} if any(self.moved) else {}),
        }


def nothing_else(run: Run, expected: float, control: int = 0) -> list[Claim]:
    """That all ranks together sent and received this many bytes. control: bytes that do not count."""
    payload = sum(run.sent_by(rank) for rank in range(run.ranks)) - control
    return [
        Claim("together", name, "nothing else", expected, counted, "bytes", "all ranks")
        for name, counted in (("total sent", payload), ("total received", sum(run.received)))
    ]


def run_of(asked: Asked, **did: Any) -> Run:
    """The run that was asked for, with what it did."""
    return Run(**{each.name: getattr(asked, each.name) for each in fields(asked)}, **did)

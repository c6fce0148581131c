"""What a system holds, as named assumptions: the profile `paper` is what the chapters hold, `megatron` what
Megatron-LM does. `profiles.toml` says what each assumption means, and where it comes from."""

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

RESERVE = 0.08  # of a device: what the allocator keeps for reuse, the CUDA context and NCCL take in addition (README)


@dataclass(frozen=True)
class Profile:
    """A value for each assumption."""

    name: str  # of the profile that these values come from: it chooses the formulas
    grad_dtype: str
    attention: str
    loss: str
    stand_ins: str
    transient: str
    vocabulary: str
    workspaces: str
    sent_gradient: str

    @property
    def values(self) -> dict[str, str]:
        """The value of each assumption."""
        return {name: value for name, value in asdict(self).items() if name in ASSUMPTIONS}

    @property
    def reserve(self) -> float:
        """The share of a device that is left free."""
        return RESERVE if self.name == "megatron" else 0.0


class Assumption(NamedTuple):
    """What can be assumed, its value in each profile, and where that comes from."""

    meaning: str
    paper: str
    megatron: str
    source: str

    @property
    def choices(self) -> tuple[str, str]:
        return self.paper, self.megatron


ASSUMPTIONS = {
    name: Assumption(**of)
    for name, of in tomllib.loads(Path(__file__).with_name("profiles.toml").read_text("utf-8")).items()
}
PAPER, MEGATRON = (
    Profile(profile, **{name: getattr(of, profile) for name, of in ASSUMPTIONS.items()})
    for profile in ("paper", "megatron")
)
PROFILES = {profile.name: profile for profile in (PAPER, MEGATRON)}


def in_words(values: Mapping[str, str]) -> str:
    """Values of assumptions, by the names of their options."""
    return ", ".join(f"{name.replace('_', '-')} {value}" for name, value in values.items())


def usual(precision: str) -> Profile:
    """The profile if none is named: a system's for numbers of 2 bytes, the papers' for others."""
    return MEGATRON if precision in ("bf16", "mixed") else PAPER

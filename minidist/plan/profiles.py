"""What a system holds, as options: `minidist/formulas/profile.py` says what each assumption means."""

from dataclasses import dataclass, replace
from typing import Any

from minidist.cli.fields import HIDDEN, choice
from minidist.formulas.profile import ASSUMPTIONS, PROFILES, Profile, usual


def assumed(name: str, help: str = HIDDEN) -> Any:
    """An assumption with a value other than the profile's."""
    return choice(ASSUMPTIONS[name].choices, None, help)


@dataclass(frozen=True, kw_only=True)
class ProfileOptions:
    """What the system holds: `formulas/profile.py`."""

    profile: str | None = choice(PROFILES, None, "what a system holds; default: megatron, for fp32 paper")
    grad_dtype: str | None = assumed("grad_dtype", "gradients: stored as parameters, or fp32")
    attention: str | None = assumed("attention", "tiled, or its scores whole")
    loss: str | None = assumed("loss", "fused, or logits also in float32: whole")
    stand_ins: str | None = assumed("stand_ins")
    transient: str | None = assumed("transient")
    vocabulary: str | None = assumed("vocabulary")
    workspaces: str | None = assumed("workspaces")
    sent_gradient: str | None = assumed("sent_gradient")

    def of(self, precision: str) -> Profile:
        """The profile that is named, or usual for the precision, with the assumptions that are given."""
        found = PROFILES[self.profile] if self.profile else usual(precision)
        given = {name: value for name in ASSUMPTIONS if (value := getattr(self, name))}
        return replace(found, **given)

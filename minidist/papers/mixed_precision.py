"""Bytes of a number: Micikevicius et al., "Mixed precision training", ICLR 2018, arXiv 1710.03740. And an optimizer's
state: Kingma & Ba, "Adam", ICLR 2015.

Mixed precision keeps parameters, gradients and activations in 2 bytes each, and in addition a float32 master copy of
the parameters (Micikevicius, section 3.1), which Adam updates in float32: ZeRO's 2, 2 and K = 12 (Rajbhandari et al.,
section 3.1). The other two keep everything in one format.
"""

from typing import NamedTuple

from minidist.papers.figure import SECOND, Figure


class Bytes(NamedTuple):
    """Bytes of one element."""

    stored: int  # a parameter, a gradient, an activation that is kept; each of them on the wire
    computed: int  # in arithmetic
    master: int  # the copy of a parameter that is updated; 0: the parameter itself is
    moment: int  # each array of an optimizer's state

    def gradient(self, dtype: str) -> int:
        """Bytes of a gradient that is held or sent: as parameters are stored ("stored"), or "fp32"."""
        return 4 if dtype == "fp32" else self.stored

    def optimizer(self, moments: int) -> int:
        """The papers' K: bytes of optimizer state per parameter."""
        return self.master + moments * self.moment


BYTES = {
    "mixed": Bytes(2, 4, 4, 4),
    "bf16": Bytes(2, 4, 4, 4),  # bfloat16 in the place of float16
    "fp32": Bytes(4, 4, 0, 4),
    "fp64": Bytes(8, 8, 0, 8),
}
MOMENTS = {"adamw": 2, "sgd": 1, "plain sgd": 0}  # Adam's two (Kingma & Ba, algorithm 1); SGD's momentum, or none


# ---- what they print -------------------------------------------------------------------------------------------------

MORE = Figure(
    "Micikevicius §3.1", "weights and their master copy, more memory", "50", "%", "(2 + 4)/4 - 1", evidence=SECOND
)
FIGURES = [MORE]

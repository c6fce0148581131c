"""A published run, and the devices of such runs. Links are those of Ring Attention's table 2 for A100 (300 and 12.5
GB/s); for H100, 450 and 50 GB/s are assumed.
"""

from typing import NamedTuple

from minidist.papers import llama3, ptd
from minidist.papers.figure import Figure
from minidist.papers.models import Model
from minidist.plan.choice import Choice, Wanted
from minidist.plan.show import GB
from minidist.plan.time import Cluster

A100 = Cluster(0, 80 * GB, 8, ptd.A100, 300e9, 12.5e9)
H100 = Cluster(0, 80 * GB, 8, llama3.H100, 450e9, 50e9)


class Published(NamedTuple):
    """A run by others: its layout as printed, and the seconds of a step, from what was measured."""

    name: str
    wanted: Wanted
    choice: Choice
    cluster: Cluster
    seconds: float
    printed: Figure
    reason: str = ""  # why the model is off by more than 15 %
    fitted: bool = False  # whether the ceiling was set on it
    open: bool = False  # micro-batch and chunks are not printed: the model takes the best


def gpt(layers: int, h: int, heads: int, v: int = 51_200, s: int = 2048) -> Model:
    return Model("gpt", v, s, h, layers, heads, heads, True)

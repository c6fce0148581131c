"""The axes that a configuration has next to the data axis: ranks that share each layer, each sequence, or the experts.

    DeepSpeed                                  Accelerate            here
    tensor_parallel.autotp_size                tp_size               tp, as in `minidist/tensor_parallel.py`
    sequence_parallel_size                     sp_size               cp, with --scheme ulysses
                                               cp_size               cp, with --scheme all-gather or ring
                                               megatron_lm_pp_degree pp, as in `minidist/pipeline.py`
    expert_parallel.autoep_size                                      ep, as in `minidist/expert_parallel.py`

`minidist/parallel3d.py` runs them, next to any stage of ZeRO.
"""

from typing import NamedTuple

from minidist import UsageError
from minidist.deepspeed.config import Config
from minidist.layout import Layout

SEQUENCE, TENSOR, EXPERTS = "sequence_parallel_size", "tensor_parallel.autotp_size", "expert_parallel.autoep_size"


class Axes(NamedTuple):
    """The number of ranks along each of these axes."""

    tp: int = 1
    cp: int = 1
    scheme: str = "ring"  # how the queries of context ranks meet the keys of others
    ep: int = 1  # of the data and context ranks
    top: int = 2  # experts of a token
    pp: int = 1  # stages, which run 1F1B
    sequence: bool = False  # tensor ranks cut by positions what they do not cut by heads

    @property
    def used(self) -> bool:
        """Whether there are any."""
        return self.together * self.ep > 1

    @property
    def together(self) -> int:
        """The number of ranks that work on the same sequences."""
        return self.tp * self.cp * self.pp

    def layout(self, ranks: int, shard: int | None, accumulate: int) -> Layout:
        """The grid of all ranks. shard: the data ranks that share one copy of the model; None: all."""
        dp = ranks // self.together
        hosts = dp // (shard or dp)
        return Layout(dp=dp, tp=self.tp, cp=self.cp, ep=self.ep, hosts=hosts, micro_batches=accumulate)

    def arguments(self, ranks: int, shard: int | None, accumulate: int) -> list[str]:
        """The options of `minidist.parallel3d` for these axes."""
        words = ["--dp", str(ranks // self.together), "--pp", str(self.pp), "--tp", str(self.tp)]
        words += ["-m", str(accumulate)] if self.pp > 1 else []
        words += ["--sequence-parallel"] if self.sequence else []
        words += ["--cp", str(self.cp), "--scheme", self.scheme] if self.cp > 1 else []
        words += ["--ranks-per-host", str(shard)] if shard else []
        experts = ["--experts", str(max(8, self.ep)), "--ep", str(self.ep), "--top", str(self.top)]
        return words + (experts if self.ep > 1 else [])


ONLY_DATA = Axes()


def axes_of(config: Config, outer: Axes, ranks: int, shard: int | None) -> Axes:
    """The axes of DeepSpeed's keys, or those of Accelerate, which are around it. Raises UsageError if they cannot
    divide the ranks, or contradict each other."""
    tp, cp = max(1, config[TENSOR]), config[SEQUENCE]
    ep = config[EXPERTS] if config["expert_parallel.enabled"] else outer.ep
    for path, inner, around in ((TENSOR, tp, outer.tp), (SEQUENCE, cp, outer.cp)):
        if inner > 1 and around not in (1, inner):
            raise UsageError(f"{path} is {inner}, and parallelism_config says {around}: leave one of them out")
    top = config["expert_parallel.top_k"]
    axes = outer._replace(
        tp=max(tp, outer.tp),
        cp=max(cp, outer.cp),
        scheme="ulysses" if cp > 1 else outer.scheme,
        ep=ep,
        top=2 if top in (None, "auto") else top,
    )
    if ranks % axes.together:
        each = (axes.tp, "tensor ranks"), (axes.cp, "context ranks"), (axes.pp, "stages")
        sizes = " x ".join(f"{n} {what}" for n, what in each if n > 1)
        raise UsageError(f"{ranks} ranks cannot be divided by {sizes}: use {axes.together}, or a multiple")
    among = (shard or ranks // axes.together) * axes.cp
    if among % ep:
        raise UsageError(f"{EXPERTS} {ep} does not divide the {among} ranks that share the model states")
    return axes

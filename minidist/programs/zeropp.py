"""ZeRO++ as a program: its options, and what the paper says of its runs."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from minidist import UsageError, zeropp
from minidist.cli.fields import whole
from minidist.cli.shared import Line
from minidist.command import Job
from minidist.layout import Layout
from minidist.nn.flat import Flat
from minidist.nn.layers import Tokens, micro_batches
from minidist.nn.tensor import Array
from minidist.programs.axes import nearest_divisor
from minidist.programs.chapter import Chapter
from minidist.programs.serial import Serial, Shares


@dataclass(frozen=True, kw_only=True)
class ZeROppOptions:
    stage: ClassVar[int] = 3
    ranks_per_host: int | None = whole("G", "of one host; default: half of all")
    block: int = whole("N", "elements that share a scale", 256)


# ---- one process -----------------------------------------------------------------------------------------------------


class Rounded(Shares):
    """Serial training with parameters and gradients that are rounded as ZeRO++ does, for w ranks on hosts of g."""

    def __init__(self, job: Job[ZeROppOptions], w: int) -> None:
        super().__init__(job, w)
        self.g, self.block = job.own.ranks_per_host or 1, job.own.block

    def cut(self, x: Array) -> Array:
        """By shards, (w, c), with zeros at the end."""
        c = -(-x.size // self.n)
        return np.pad(x, (0, self.n * c - x.size)).reshape(self.n, c)

    def rounded(self, rows: Array, most: int) -> Array:
        found = np.empty_like(rows)
        for row, to in zip(rows, found, strict=True):
            for start in range(0, row.size, self.block):
                block = row[start : start + self.block]
                scale = float(np.float32(np.abs(block).max() / most))
                to[start : start + self.block] = np.round(block / (scale or 1)) * scale
        return found

    def parameters_of(self, flat: Flat) -> Array:
        return self.rounded(self.cut(flat.param), 127).ravel()[: flat.size]

    def train_batch(self, x: Tokens, y: Tokens) -> float:
        loss, total = 0.0, {flat: np.zeros(flat.size) for flat in self.flats}
        for numbered in enumerate(micro_batches(x, y, self.settings.accumulate)):
            own, gradients = self.by_share([numbered])
            loss += own
            for flat, of_ranks in gradients.items():
                total[flat] += self.summed([self.cut(each) for each in of_ranks]).ravel()[: flat.size]
        for flat in self.flats:
            flat.grad[...] = total[flat]
        self.apply_gradients()
        return loss

    def summed(self, gradients: list[Array]) -> Array:
        """The shards (w, c) of the sum: of each host first, then of all."""
        hosts, c = self.n // self.g, gradients[0].shape[1]
        of_hosts = []
        for host in range(hosts):
            sums = np.zeros((self.g, hosts * c))  # by place within a host: the shards of that place on all hosts
            for gradient in gradients[host * self.g : (host + 1) * self.g]:
                by_place = np.stack([gradient[place :: self.g].ravel() for place in range(self.g)])
                sums += self.rounded(by_place, 7)
            of_hosts.append(sums.reshape(self.g, hosts, c))
        found = np.zeros((self.n, c))
        for place in range(self.g):
            for host in range(hosts):
                found[host * self.g + place] = sum(self.rounded(of[place, host][None], 7)[0] for of in of_hosts)
        return found


# ---- the chapter -----------------------------------------------------------------------------------------------------


class ZeROppChapter(Chapter[ZeROppOptions]):
    name, doc, options = "zeropp", zeropp.__doc__, ZeROppOptions
    cases = {"": "--block 64"}

    def complete(self, line: Line[ZeROppOptions], layout: Layout) -> Line[ZeROppOptions]:
        n, g = layout.dp, line.own.ranks_per_host
        g = g or (n if n % 2 else n // 2)
        if n % g:
            raise UsageError(f"{n} ranks are no hosts of {g} each: use --ranks-per-host {nearest_divisor(n, g)}")
        return replace(line, own=replace(line.own, ranks_per_host=g))

    def make(self, job: Job[ZeROppOptions], comm: Any) -> zeropp.ZeROpp:
        return zeropp.ZeROpp(job.units, job.settings, comm, job.own.ranks_per_host or 1, job.own.block)

    def serial(self, job: Job[ZeROppOptions]) -> Serial:
        return Serial(lambda small: Rounded(small, job.layout.dp), plain=False)


CHAPTER = ZeROppChapter()

"""ZeRO++ as a program: its options, and what the paper says of its runs."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from minidist import UsageError, zeropp
from minidist.claims.claim import Claim, on_each_rank
from minidist.claims.letters import Letters
from minidist.claims.published import print_zero_closing, zero_letters
from minidist.claims.run import Run, nothing_else
from minidist.claims.zero import memory_claims
from minidist.cli.fields import whole
from minidist.cli.shared import Line
from minidist.cli.tables import say
from minidist.command import Job
from minidist.engine import Engine
from minidist.layout import Layout
from minidist.nn.flat import Flat
from minidist.nn.layers import Tokens, micro_batches
from minidist.nn.tensor import Array
from minidist.papers import zeropp as paper
from minidist.papers.collectives import chunk_sizes
from minidist.programs.axes import nearest_divisor
from minidist.programs.chapter import Chapter
from minidist.programs.serial import Serial


@dataclass(frozen=True, kw_only=True)
class ZeROppOptions:
    stage: ClassVar[int] = 3
    ranks_per_host: int | None = whole("G", "of one host; default: half of all")
    block: int = whole("N", "elements that share a scale", 256)


# ---- what the paper says ---------------------------------------------------------------------------------------------


def claims(run: Run) -> list[Claim]:
    """ZeRO-3's memory and the second copy; what is sent in each phase, and what leaves a host."""
    w, g, a, p = run.ranks, run.ranks_per_host or 1, run.accumulate, run.bytes.stored
    h, units = w // g, run.model.units(w)
    shards = [unit // w for unit in units]
    copy = p * sum(paper.second_copy(unit, g) for unit in units)
    times = f"{a}" * (a > 1)
    sent = {
        "all-gather forward": ("1", f"{times}Ψ(W-1)/W", sum(paper.forward(c, w) for c in shards)),
        "all-gather backward": ("2", f"{times}{p}Ψ(G-1)/G", sum(paper.backward(unit, g, p) for unit in units)),
        "all-to-all within hosts": ("3", f"{times}Ψ/2·(G-1)/G", sum(paper.within(c, h, g) for c in shards)),
        "all-to-all across hosts": ("3", f"{times}Ψ/2G·(H-1)/H", sum(paper.across(c, h) for c in shards)),
        "scales": ("1", "4 a block", sum(paper.scales(c, w, g, run.block) for c in shards)),
    }
    norm = 8 * (w - 1)
    edges = a * sum(paper.leaving(c, w, g, run.block) for c in shards) + norm * (h > 1)
    left = on_each_rank("ZeRO++ table 1", "leaves a host", "edges between hosts", edges, leaving(run), "bytes")
    return [
        *memory_claims(run, stage=3),
        on_each_rank("ZeRO++ §3.2", "second copy", f"{p}Ψ/G", copy, run.memory_of("secondary"), "bytes"),
        *(
            on_each_rank(f"ZeRO++ §3.{section}", phase, formula, a * expected, run.sent_in(phase), "bytes")
            for phase, (section, formula, expected) in sent.items()
        ),
        on_each_rank("arithmetic", "norms", "8(W-1)", norm, run.sent_in("norm"), "bytes"),
        replace(left, scope="all ranks"),
        *nothing_else(run, w * (norm + a * sum(expected for *_, expected in sent.values()))),
    ]


def leaving(run: Run) -> list[int]:
    """Bytes that left each host."""
    g = run.ranks_per_host or 1
    found = [0] * (run.ranks // g)
    for rank, of_rank in enumerate(run.sent_to):
        found[rank // g] += sum(n for to, n in of_rank.items() if to // g != rank // g)
    return found


def print_closing(run: Run) -> None:
    w, g = run.ranks, run.ranks_per_host or 1
    m = 2 * run.model.parameters(w) * run.accumulate
    print_zero_closing(run)
    if w > g:
        say(
            f"Of M = 2Ψ bytes, {max(leaving(run)) / m:.3f} left a host, and a rank sent {run.sent_by(0) / m:.2f} in all"
            f" (the formulas, without scales: {paper.leaves_a_host(w, g):.3f} and {paper.on_all_links(w, g):.2f})."
            f" ZeRO-3 sends {paper.leaves_a_host_with_zero3(w):.3f} on each edge of its rings. On many hosts of many"
            " ranks that becomes the paper's 0.75 and 3."
        )


# ---- one process -----------------------------------------------------------------------------------------------------


class Rounded(Engine):
    """Serial training with parameters and gradients that are rounded as ZeRO++ does, for w ranks on hosts of g."""

    def __init__(self, job: Job[ZeROppOptions], w: int) -> None:
        super().__init__(job.units, job.settings)
        self.w, self.g, self.block = w, job.own.ranks_per_host or 1, job.own.block
        self.share: int | None = None  # whose rows are worked on; None: all rows

    def cut(self, x: Array) -> Array:
        """By shards, (w, c), with zeros at the end."""
        c = -(-x.size // self.w)
        return np.pad(x, (0, self.w * c - x.size)).reshape(self.w, c)

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

    def rows(self, n: int) -> range:
        if self.share is None:
            return range(n)
        sizes = chunk_sizes(n, self.w)
        first = sum(sizes[: self.share])
        return range(first, first + sizes[self.share])

    def train_batch(self, x: Tokens, y: Tokens) -> float:
        loss, total = 0.0, {flat: np.zeros(flat.size) for flat in self.flats}
        for k, part in enumerate(micro_batches(x, y, self.settings.accumulate)):
            self.micro_batch, of_ranks = k, {flat: list[Array]() for flat in self.flats}
            for share in range(self.w):
                self.share = share
                own = self.forward(*part)
                self.backward(own)
                loss += own.value
                for flat in self.flats:
                    of_ranks[flat].append(self.cut(flat.grad))
                    flat.grad.fill(0)
            for flat, gradients in of_ranks.items():
                total[flat] += self.summed(gradients).ravel()[: flat.size]
        self.share = None
        for flat in self.flats:
            flat.grad[...] = total[flat]
        self.apply_gradients()
        return loss

    def summed(self, gradients: list[Array]) -> Array:
        """The shards (w, c) of the sum: of each host first, then of all."""
        hosts, c = self.w // self.g, gradients[0].shape[1]
        of_hosts = []
        for host in range(hosts):
            sums = np.zeros((self.g, hosts * c))  # by place within a host: the shards of that place on all hosts
            for gradient in gradients[host * self.g : (host + 1) * self.g]:
                by_place = np.stack([gradient[place :: self.g].ravel() for place in range(self.g)])
                sums += self.rounded(by_place, 7)
            of_hosts.append(sums.reshape(self.g, hosts, c))
        found = np.zeros((self.w, c))
        for place in range(self.g):
            for host in range(hosts):
                found[host * self.g + place] = sum(self.rounded(of[place, host][None], 7)[0] for of in of_hosts)
        return found


# ---- the chapter -----------------------------------------------------------------------------------------------------


class ZeROppChapter(Chapter[ZeROppOptions]):
    name, doc, options = "zeropp", zeropp.__doc__, ZeROppOptions
    claims, closing = staticmethod(claims), staticmethod(print_closing)
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

    def letters(self, run: Run) -> Letters:
        return {"W": "ranks", "G": "ranks of a host", "H": "hosts", **zero_letters(run)}


CHAPTER = ZeROppChapter()

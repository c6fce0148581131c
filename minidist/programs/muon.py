"""Muon as a program: its options, and what its papers say of its runs."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from minidist import UsageError, muon
from minidist.claims.claim import Claim, on_each_rank
from minidist.claims.letters import Letters
from minidist.claims.published import print_zero_closing, zero_letters
from minidist.claims.run import Run
from minidist.cli.fields import choice
from minidist.command import Job
from minidist.engine import Engine
from minidist.nn.flat import Flat
from minidist.nn.layers import Block
from minidist.nn.tensor import Array
from minidist.papers import muon as paper
from minidist.programs.chapter import Chapter
from minidist.programs.serial import Serial

MOMENTUM = 0.95


@dataclass(frozen=True, kw_only=True)
class MuonOptions:
    divide: str = choice(("matrices", "elements"), "matrices", "whole matrices, or shards of each")


# ---- what the papers say ---------------------------------------------------------------------------------------------


def claims(run: Run) -> list[Claim]:
    """ZeRO-1's memory with Muon's state; what is sent, by phase and together."""
    n, model, p, g = run.ranks, run.model, run.bytes.stored, run.gradient_bytes
    k = run.bytes.master + run.bytes.moment  # of Muon's state, the master copy included; AdamW's has a moment more
    matrices, rest = paper.matrices(model), paper.padded_sum(paper.others(model), n)
    whole = run.divide == "matrices"
    psi = sum(matrices) if whole else paper.padded_sum(matrices, n)
    owned = paper.shares(matrices, n) if whole else [psi // n] * n
    states = [k * own + (k + run.bytes.moment) * rest // n for own in owned]
    # A reduce-scatter sends every part but one's own, an all-gather every part but the right neighbor's.
    halves = rest * (n - 1) // n
    wide = 8 if run.precision == "fp64" else paper.GATHERED
    phases = {
        "reduce-scatter gradients": (f"{g}(Ψ - own)", [g * (psi - own + halves) for own in owned]),
        "all-gather momentum": (f"{wide}Ψ_m(N-1)/N", [wide * psi * (n - 1) // n] * n),
        "all-gather parameters": (f"{p}(Ψ - next)", [p * (psi - owned[(r + 1) % n] + halves) for r in range(n)]),
    }
    if whole:
        del phases["all-gather momentum"]
    total = [sum(sent[rank] for _, sent in phases.values()) + 8 * (n - 1) for rank in range(n)]
    formula = f"{k}own + {k + run.bytes.moment}Ψ_a/N"
    return [
        on_each_rank("ZeRO §5.1", "parameters", f"{p}Ψ", p * (psi + rest), run.memory_of("parameters"), "bytes"),
        on_each_rank("ZeRO §5.1", "gradients", f"{g}Ψ", g * (psi + rest), run.memory_of("gradients"), "bytes"),
        on_each_rank("Moonlight §2.3", "optimizer", formula, states, run.memory_of("optimizer"), "bytes"),
        *(
            on_each_rank("Moonlight §2.3", phase, formula, expected, run.sent_in(phase), "bytes")
            for phase, (formula, expected) in phases.items()
        ),
        on_each_rank("arithmetic", "norms", "8(N-1)", 8 * (n - 1), run.sent_in("norm"), "bytes"),
        on_each_rank("arithmetic", "sent", "nothing else", total, [run.sent_by(rank) for rank in range(n)], "bytes"),
        Claim("together", "total received", "nothing else", sum(total), sum(run.received), "bytes", "all ranks"),
    ]


# ---- one process -----------------------------------------------------------------------------------------------------


class SerialMuon(Engine):
    """Serial training with Muon's update, by singular values: what Newton-Schulz's polynomial does to each of them."""

    def update(self, flat: Flat, grad: Array, scale: float) -> None:
        blocks = {parameter for unit in self.units if isinstance(unit, Block) for parameter in unit.parameters}
        adam, lr = self.settings.optimizer, self.settings.learning_rate(self.updates)
        arrays = [flat.views(each) for each in (flat.master, grad, *flat.moments)]
        for (parameter, param), (_, g), (_, m), (_, v) in zip(*arrays, strict=True):
            if parameter in blocks and parameter.decays:
                m[...] = MOMENTUM * m + g * scale
                u, s, vt = np.linalg.svd(m, full_matrices=False)
                s = s / (np.linalg.norm(s) + 1e-7)
                for _ in range(muon.STEPS):
                    s = muon.A * s + muon.B * s**3 + muon.C * s**5
                param *= 1 - lr * adam.weight_decay
                param -= lr * 0.2 * math.sqrt(max(m.shape)) * (u * s) @ vt
            else:
                flats = [np.ascontiguousarray(each).ravel() for each in (param, g, m, v)]
                decayed = param.size * parameter.decays
                adam.update(flats[0], flats[1], flats[2:], scale=scale, lr=lr, step=self.updates + 1, decayed=decayed)
                for to, of in zip((param, m, v), (flats[0], *flats[2:]), strict=True):
                    to[...] = of.reshape(to.shape)


# ---- the chapter -----------------------------------------------------------------------------------------------------


class MuonChapter(Chapter[MuonOptions]):
    name, doc, options = "muon", muon.__doc__, MuonOptions
    claims = staticmethod(claims)
    cases = {"matrices": "--divide matrices", "elements": "--divide elements"}

    def checked(self, job: Job[MuonOptions]) -> Job[MuonOptions]:
        if job.training.optimizer != "adamw":
            raise UsageError("Muon leaves embedding, head, norms and biases to AdamW: use --optimizer adamw")
        return job

    def make(self, job: Job[MuonOptions], comm: Any) -> muon.Muon:
        return muon.Muon(job.units, job.settings, comm, job.own.divide, MOMENTUM)

    def serial(self, job: Job[MuonOptions]) -> Serial:
        return Serial(lambda small: SerialMuon(small.units, small.settings))

    closing = staticmethod(print_zero_closing)

    def letters(self, run: Run) -> Letters:
        return {
            "own": "matrices of this rank",
            "next": "those of the rank to the right",
            "Ψ_m": "elements of the blocks' matrices",
            "Ψ_a": "of all else: AdamW's",
            **zero_letters(run),
        }


CHAPTER = MuonChapter()

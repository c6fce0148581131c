"""Muon as a program: its options, and what its papers say of its runs."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from minidist import UsageError, muon
from minidist.cli.fields import choice
from minidist.command import Job
from minidist.engine import Engine
from minidist.nn.flat import Flat
from minidist.nn.layers import Block
from minidist.nn.optim import AdamW
from minidist.nn.tensor import Array
from minidist.programs.chapter import Chapter
from minidist.programs.serial import Serial

ENGINES = {"matrices": muon.WholeMatrices, "elements": muon.Muon}


@dataclass(frozen=True, kw_only=True)
class MuonOptions:
    divide: str = choice(ENGINES, "matrices", "whole matrices, or shards of each")


# ---- one process -----------------------------------------------------------------------------------------------------


class SerialMuon(Engine):
    """Serial training with Muon's update, by singular values: what Newton-Schulz's polynomial does to each of them."""

    def update(self, flat: Flat, grad: Array, scale: float) -> None:
        blocks = {parameter for unit in self.units if isinstance(unit, Block) for parameter in unit.parameters}
        adam, lr = self.settings.optimizer, self.settings.learning_rate(self.updates)
        arrays = [flat.views(each) for each in (flat.master, grad, *flat.moments)]
        assert isinstance(adam, AdamW)
        for (parameter, param), (_, g), (_, m), (_, v) in zip(*arrays, strict=True):
            if parameter in blocks and parameter.decays:
                m[...] = muon.MOMENTUM * m + g * scale
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
    cases = {"matrices": "--divide matrices", "elements": "--divide elements"}

    def checked(self, job: Job[MuonOptions]) -> Job[MuonOptions]:
        if job.training.optimizer != "adamw":
            raise UsageError("Muon leaves embedding, head, norms and biases to AdamW: use --optimizer adamw")
        return job

    def make(self, job: Job[MuonOptions], comm: Any) -> muon.Muon:
        return ENGINES[job.own.divide](job.units, job.settings, comm)

    def serial(self, job: Job[MuonOptions]) -> Serial:
        return Serial(lambda small: SerialMuon(small.units, small.settings))


CHAPTER = MuonChapter()

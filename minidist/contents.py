"""The table of contents: lists the chapters, and finds a chapter's program by name.

A chapter is three files. `minidist/zero3.py` is the algorithm, and needs only the engine. `minidist/programs/zero3.py`
makes it a program with options, and `minidist/claims/zero3.py` compares what its paper promises with what was counted.
They meet in one value, a `Chapter` (`minidist/programs/chapter.py`). It is imported only when it is used, so the table
needs no NumPy.
"""

from __future__ import annotations  # python -m minidist must reach the doctor from a Python that is too old

import importlib
import re
from typing import NamedTuple


class Entry(NamedTuple):
    """A chapter's line: its module's name, what it implements, and the command that runs it."""

    name: str
    paper: str
    launch: str


USUAL = "mpirun -n 4 python -m minidist.{}"  # most chapters' launch line

# In the order in which a reader meets them: name, paper, and the launch line if it is another than the usual one.
CHAPTERS = tuple(
    Entry(name, paper, *launch or [USUAL.format(name)])
    for name, paper, *launch in (
        (
            "mapreduce",
            "Dean & Ghemawat, MapReduce, OSDI 2004",
            "mpirun -n 4 python -m minidist.mapreduce wordcount FILE",
        ),
        ("train", "serial training in one process: the reference for all others", "python -m minidist.train"),
        ("parameter_server", "Li et al., OSDI 2014; Ho et al., NIPS 2013 (SSP)"),
        ("ring", "Patarasuk & Yuan 2009; Thakur, Rabenseifner & Gropp 2005"),
        ("data_parallel", "Li et al., VLDB 2020; Sergeev & Del Balso, Horovod, 2018"),
        ("local_sgd", "Stich, ICLR 2019; DiLoCo, 2023: averaging every H steps"),
        ("compression", "1-bit Adam 2021; Deep Gradient Compression 2018; PowerSGD 2019"),
        ("zero1", "Rajbhandari et al., ZeRO, SC 2020, §5.1: optimizer states"),
        ("zero2", "Rajbhandari et al., ZeRO, SC 2020, §5.2: gradients, too"),
        ("zero3", "Rajbhandari et al., ZeRO, SC 2020, §5.3: parameters, too"),
        ("muon", "Jordan et al. 2024; Moonlight, 2025: needs whole matrices"),
        ("fsdp", "Zhao et al., PyTorch FSDP, VLDB 2023: prefetching, hosts"),
        (
            "zeropp",
            "Wang et al., ZeRO++, 2023: int8, int4, a second copy per host",
            "mpirun -n 8 python -m minidist.zeropp --ranks-per-host 4",
        ),
        ("offload", "Ren et al., ZeRO-Offload, ATC 2021: the update in host memory"),
        ("infinity", "Rajbhandari et al., ZeRO-Infinity, SC 2021: states in files"),
        ("tensor_parallel", "Shoeybi et al., Megatron-LM, 2019; Korthikanti et al. 2022"),
        ("spmd_types", "Megatron-LM, mappings.py; spmd_types, 2026: gradients' types"),
        ("expert_parallel", "Lepikhin et al., GShard, 2020; Fedus et al. 2021: experts"),
        (
            "zero_r",
            "Rajbhandari et al., ZeRO, SC 2020, §6: activations, buffers",
            "mpirun -n 8 python -m minidist.zero_r --tp 2",
        ),
        ("context_parallel", "Ring Attention 2023; DeepSpeed-Ulysses 2023; Llama 3, 2024"),
        ("pipeline", "GPipe 2019; PipeDream 2019; Megatron-LM 2021; Zero Bubble 2023"),
        (
            "parallel3d",
            "Narayanan et al., Megatron-LM, SC 2021: all axes at once",
            "mpirun -n 8 python -m minidist.parallel3d",
        ),
    )
)


def in_one_process(launch: str) -> str:
    """A launch line without mpirun: its ranks are in one process."""
    return re.sub(r"^mpirun -n (\d+) (.*)$", r"\2 --ranks \1", launch)


def run(name: str) -> None:
    """Run a chapter on the ranks that its command line asks for. Each chapter's file ends in this call."""
    programs = importlib.import_module("minidist.programs.chapter")
    programs.start(programs.find(name))

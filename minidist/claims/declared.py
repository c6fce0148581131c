"""Sizes of published models: what their units declare is counted. Nothing is allocated."""

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from minidist.claims.reports import count_here
from minidist.exchange.one_process import run_ranks
from minidist.nn.gpt import GPTConfig, gpt
from minidist.nn.layers import count_parameters
from minidist.nn.llama import LlamaConfig
from minidist.nn.llama import llama as llama_units
from minidist.papers import deepspeed_moe, gpipe, korthikanti, llama, megatron, mixtral, ptd
from minidist.papers.figure import Figure


class Job(NamedTuple):
    """A chapter's command line, and for each figure, how to read it from the report, in the figure's unit. Without a
    line there is no report: what is read has ranks of its own, or needs none."""

    ranks: int
    line: str
    gives: Sequence[tuple[Figure, Callable[[Any], float]]]


def report_on(ranks: int, line: str) -> Any:
    """What a chapter reports of these ranks of one process. Raises UsageError if they leave no report."""
    return count_here(ranks, f"{line} --no-prove --timeout 0")  # on a busy machine, a thousand ranks may be silent long


def sent(report: Any, phase: str, what: str = "bytes", rank: int = 0) -> float:
    """Bytes, or messages, that a rank sends in a phase; 0 if there is none."""
    return float(report["sent"][rank].get(phase, {what: 0})[what])


def declared(scale: float, v: int, s: int, layers: int, h: int) -> Callable[[Any], float]:
    """The parameters of a GPT, summed over what its units declare, in the given unit. Nothing is allocated."""
    config = GPTConfig(v, s, layers, h // 64, h)
    return lambda _: count_parameters(gpt(config)) / scale


def llama_declared(name: str) -> Callable[[Any], float]:
    """The parameters of a Llama, summed over what its units declare."""
    of = llama.MODELS[name]
    config = LlamaConfig(of.v, of.s, of.layers, of.a, of.kv, of.h, of.f)
    return lambda _: count_parameters(llama_units(config))


def models() -> Job:
    """The sizes of published models, to the unit or as printed. One process counts them."""
    small, sizes = megatron.FIGURES[-1], zip(llama.FIGURES, llama.PRINTED, strict=True)
    gives = [(small, declared(1, 50_257, 1024, 12, 768))]
    gives += [(figure, llama_declared(name)) for figure, name in sizes]
    gives += [(row.size, declared(1e9, megatron.VOCABULARY, 1024, row.layers, row.h)) for row in megatron.TABLE_1]
    gives += [(row.size, declared(1e9, 51_200, 2048, row.layers, row.h)) for row in ptd.TABLE_1]
    gives.append((ptd.GPT_3, declared(1e9, 51_200, 2048, 96, 12_288)))
    for figure, of in zip(korthikanti.SIZES, korthikanti.TABLE_3.values(), strict=True):
        scale = 1e12 if figure.unit.startswith("T") else 1e9
        gives.append((figure, declared(scale, 51_200, 2048, of.layers, of.h)))
    return Job(1, "", gives)


def gpipes() -> Job:
    """The sizes of table 1's Transformers, summed over what their units declare, without learned positions and a last
    norm, which they do not have. And the memory of those on one accelerator, at the bytes per parameter that one rank
    holds: like RMSProp, SGD with momentum keeps one number for each."""
    scales = {"M parameters": 1e6, "B parameters": 1e9}

    def size(layers: int) -> int:
        units = gpt(GPTConfig(32_000, 1, layers, 16, 2048, tied=False))
        sizes = {parameter.name: parameter.size for unit in units for parameter in unit.parameters}
        return sum(n for name, n in sizes.items() if not name.startswith(("wpe.", "head.norm.")))

    def sized(layers: int, scale: float) -> Callable[[Any], float]:
        return lambda _: size(layers) / scale

    def memory(layers: int) -> Callable[[Any], float]:
        def read(report: Any) -> float:
            [held] = report["memory"]
            each = sum(held[kind] for kind in ("parameters", "gradients", "optimizer")) / report["parameters"]
            return float(each * size(layers) / 2**30)

        return read

    gives = [(figure, sized(layers, scales[figure.unit])) for layers, figure in gpipe.SIZES.items()]
    gives += [(held, memory(layers)) for layers, (_, held) in zip((3, 13), gpipe.TABLE_1, strict=False)]
    line = "data_parallel --precision fp32 --optimizer sgd --steps 1 --layers 1 --width 16 --context 4 --validate 0"
    return Job(1, f"{line} --batch 1", gives)


@functools.cache
def held_by_ranks() -> dict[str, list[Any]]:
    """Published mixtures, declared on 8 ranks that divide the experts: what each rank holds."""
    names = [*mixtral.SHAPES, *map(str, range(len(deepspeed_moe.WIDTHS)))]
    program = importlib.import_module("minidist.programs.expert_parallel")
    found = run_ranks(lambda comm: program.count_published(comm, names), 8)
    return dict(zip(names, map(list, zip(*found, strict=True)), strict=True))


def mixtures() -> Job:
    """The sizes of published mixtures: all parameters, the dense ones counted once; and those that a token uses."""

    def everything(name: str, gates: bool) -> Callable[[Any], float]:
        def read(_: Any) -> float:
            of = held_by_ranks()[name]
            dense = of[0]["dense"] - of[0]["routers"] * (not gates)  # the same on every rank
            return (dense + sum(rank["experts"] for rank in of)) / 1e9

        return read

    def of_token(name: str) -> Callable[[Any], float]:
        return lambda _: held_by_ranks()[name][0]["of a token"] / 1e9

    gives = [(figure, everything(str(i), gates=False)) for i, figure in enumerate(deepspeed_moe.FIGURES)]
    for name, (whole, active) in mixtral.SIZES.items():
        gives += [(whole, everything(name, gates=True)), (active, of_token(name))]
    return Job(8, "", gives)

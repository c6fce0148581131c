"""How fast minidist is, side by side: ratios of time, ours over theirs, measured in turn.

    python -m minidist.bench
    python -m minidist.bench --only step --json bench.json
    python -m minidist.bench --run tinyshakespeare.txt

A ratio below 1 means that minidist is faster. PyTorch and gloo are measured where PyTorch is installed. Close other
programs first: four ranks on two cores leave nothing for them.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from minidist import UsageError
from minidist.bench.measure import Row, alternate, compare
from minidist.bench.ranks import HAS_TORCH, one_step
from minidist.claims.files import check_writable, write_json
from minidist.claims.tables import mark, show, table_of
from minidist.cli.options import Parser, in_one_process
from minidist.data import Corpus, load
from minidist.engine import Engine, Settings
from minidist.memory.allocator import keep_freed_memory
from minidist.mpi.launch import launch
from minidist.nn.gpt import GPTConfig, gpt
from minidist.nn.ops import BLOCK, blocks
from minidist.nn.optim import AdamW, CosineSchedule, InThreads
from minidist.nn.precision import PRECISIONS

# nanoGPT's setting for a laptop, and a wider one. {model}, batch, pairs of steps to measure
Setting = tuple[dict[str, Any], int, int]
SMALL: Setting = ({"vocabulary": 65, "context": 64, "layers": 4, "heads": 4, "width": 128, "bias": False}, 12, 60)
WIDE: Setting = ({"vocabulary": 65, "context": 256, "layers": 6, "heads": 6, "width": 384, "bias": False}, 4, 12)
MISSING = "no PyTorch here"


def training_step() -> Iterator[Row]:
    """One process, one core: a step of the same model in PyTorch eager."""
    for title, (config, batch, pairs), target in (("step, width 128", SMALL, 1.0), ("step, width 384", WIDE, 1.0)):
        if not HAS_TORCH:
            yield Row(title, "PyTorch eager", None, None, target, MISSING)
            continue
        from minidist.bench import pytorch

        pytorch.one_thread()
        sizes = GPTConfig(**config)
        tokens = np.random.default_rng(0).integers(0, sizes.vocabulary, (batch, sizes.context + 1))
        engine = Engine(gpt(sizes), Settings(PRECISIONS["fp32"], AdamW(weight_decay=0.1)))
        theirs = pytorch.Step(pytorch.GPT(sizes))
        times = alternate(partial(one_step, engine, tokens), partial(theirs, tokens[:, :-1], tokens[:, 1:]), pairs)
        yield compare(title, "PyTorch eager", *times, target, "ms")


PUBLISHED = 1.88  # what nanoGPT's README says that its run on a CPU comes to


def whole_run(corpus: Corpus) -> Iterator[Row]:
    """nanoGPT's run for a laptop, 2,000 steps of SMALL on tiny Shakespeare, from the same start beside PyTorch's."""
    config, batch, _ = SMALL
    title = "nanoGPT's CPU run, 2000 steps"
    if not HAS_TORCH:
        yield Row(title, "PyTorch eager", None, None, 1.0, MISSING)
        return
    from minidist.bench import pytorch

    pytorch.one_thread()
    sizes = GPTConfig(**config | {"vocabulary": len(corpus.vocabulary)})
    rate, beta2 = CosineSchedule(peak=1e-3, floor=1e-4, warmup=100, total=2000), 0.99
    ours = Engine(gpt(sizes), Settings(PRECISIONS["fp32"], AdamW(beta2=beta2, weight_decay=0.1), rate))
    named = {name: a for flat in ours.flats for name, a in ours.whole_parameters(flat, flat.param).items()}
    theirs = pytorch.Step(pytorch.GPT(sizes).start_from(named), beta2)
    times: tuple[list[float], list[float]] = ([], [])
    for step in range(rate.total):
        x, y = corpus.batch(batch, sizes.context, key=(0, step))
        steps: tuple[Callable[..., object], ...] = (ours.train_batch, partial(theirs, lr=rate(step)))
        for function, taken in zip(steps, times, strict=True):
            begin = time.perf_counter()
            function(x, y)
            taken.append(time.perf_counter() - begin)
    row = compare(title, "PyTorch eager", *times, 1.0, "s")
    row.note = f"{sum(times[0]):.0f} / {sum(times[1]):.0f} s"
    yield row
    held_out = corpus.validation_batch(1600, sizes.context)  # spread evenly: almost all of it
    loss, their_loss = ours.evaluate(*held_out), theirs.loss(*held_out).item()
    for beside, other, target in (("PyTorch eager", their_loss, None), ("published", PUBLISHED, 1.0)):
        yield Row("nanoGPT's CPU run: loss", beside, loss / other, None, target, f"{loss:.3f} / {other:.3f}")


def adam() -> Iterator[Row]:
    """AdamW alone, on ten million parameters, as ZeRO-Offload's host runs it: in one thread and in two."""
    titles = {1: "AdamW, 10 M", 2: "AdamW, 10 M, 2 threads"}
    if not HAS_TORCH:
        yield from (Row(title, "PyTorch fused", None, None, {1: 1.5}.get(n), MISSING) for n, title in titles.items())
        return
    import torch

    n = 10_000_000
    param, grad = np.ones(n, np.float32), np.full(n, 1e-3, np.float32)
    state = [np.zeros(n, np.float32) for _ in range(2)]
    tensor = torch.ones(n, requires_grad=True)
    tensor.grad = torch.full((n,), 1e-3)

    def thirteen_passes() -> None:
        """As many as AdamW needs without a compiler that fuses them, in blocks that stay in the cache."""
        for p, g, m in blocks(param, grad, state[0]):
            for _ in range(13):
                np.multiply(p, g, out=m)

    for threads, title in titles.items():
        torch.set_num_threads(threads)
        ours = InThreads(AdamW(weight_decay=0.1), [np.empty(BLOCK, np.float32) for _ in range(threads)])
        update = partial(ours.update, param, grad, state, scale=1.0, lr=1e-3, step=10, decayed=n)
        for beside, fused, target in (("PyTorch fused", True, {1: 1.5}.get(threads)), ("PyTorch", False, None)):
            theirs = torch.optim.AdamW([tensor], lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=fused)
            yield compare(title, beside, *alternate(update, theirs.step, pairs=20), target, "ms")
        if threads == 1:
            yield compare(title, "13 products in NumPy", *alternate(update, thirteen_passes, pairs=20), None, "ms")


# The ring's targets by size: beside MPI's own, beside gloo.
TARGETS = {"64 KiB": (2.0, None), "1 MiB": (None, None), "4 MiB": (0.8, 0.3), "32 MiB": (0.8, 0.3)}


def collectives() -> Iterator[Row]:
    """The ring beside MPI's own all-reduce, gloo's, and a copy of the bytes that must move.

    In three jobs: where a process's memory lies differs from job to job, and with it a short message's time by a fifth.
    """
    sizes = {"64 KiB": 1 << 16, "1 MiB": 1 << 20, "4 MiB": 1 << 22, "32 MiB": 1 << 25}
    for n in (2, 4):
        jobs = [on_ranks("all_reduces", n, list(sizes.values()))[0] for _ in range(3)]
        for label, nbytes in sizes.items():
            found, title = [job[str(nbytes)] for job in jobs], f"ring, {label}, {n} ranks"
            times = {name: [seconds for job in found for seconds in job[name]] for name in found[0]}
            beside_mpi, beside_gloo = TARGETS[label]
            yield compare(title, "MPI Allreduce", times["ring"], times["mpi"], beside_mpi, "ms")
            if "gloo" in times:
                yield compare(title, "gloo", times["ring"], times["gloo"], beside_gloo, "ms")
            else:
                yield Row(title, "gloo", None, None, beside_gloo, MISSING)
            yield compare(title, "its bare messages, sums", times["ring"], times["bare"], None, "ms")
            yield compare(title, "MPI, both in place", times["ring in place"], times["mpi in place"], None, "ms")
            if label == "32 MiB":
                yield compare(title, "memcpy of its bytes", times["ring"], times["copy"], None, "ms")


def parallel_steps() -> Iterator[Row]:
    """Data parallelism beside PyTorch DDP, ZeRO-3 beside FSDP2, and ZeRO-3 beside data parallelism."""
    config, batch, _ = SMALL
    for n, ours, beside, theirs, target, precision in (
        (2, "data_parallel", "PyTorch DDP, gloo", "ddp", 0.9, "fp32"),
        (2, "zero3", "PyTorch FSDP2, gloo", "fsdp", 0.5, "fp32"),
        (4, "zero3", "PyTorch FSDP2, gloo", "fsdp", 0.5, "fp32"),
        (4, "zero3", "data_parallel", "data_parallel", 1.35, "mixed"),
    ):
        title = f"{ours}, {n} ranks, {precision}"
        if theirs in ("ddp", "fsdp") and not HAS_TORCH:
            yield Row(title, beside, None, None, target, MISSING)
            continue
        times = on_ranks("steps", n, [ours, theirs], config, batch, precision)[0]
        yield compare(title, beside, times[ours], times[theirs], target, "ms")


def memory() -> Iterator[Row]:
    """Peak resident memory of a rank, ZeRO-3's beside data parallelism's, without what it had before there was a model.

    Of it, what the engines count as held for the model; the rest is activations, float32 workspace and the start's
    random numbers. That should be the same for both: then memory falls as the formula says, plus a constant.
    """
    config = {"vocabulary": 512, "context": 32, "layers": 8, "heads": 8, "width": 512}
    n, mib, found = 4, 2**20, {}
    for name in ("zero3", "data_parallel"):
        ranks = launch("minidist.bench.ranks:resident", n, name, config, 8, timeout=300).values
        grown = max(rank["after"] - rank["before"] for rank in ranks) / mib
        states = sum(ranks[0][kind] for kind in ("parameters", "gradients", "optimizer", "transient")) / mib
        found[name] = {"peak memory": grown, "model states": states, "the rest": grown - states}
    for what, ours in found["zero3"].items():
        theirs = found["data_parallel"][what]
        note = f"{ours:.0f} / {theirs:.0f} MiB"
        yield Row(f"zero3, {n} ranks: {what}", "data_parallel", ours / theirs, None, None, note)


def start() -> Iterator[Row]:
    """From the command to the end of the first step."""
    mpirun = os.path.join(os.path.dirname(sys.executable), "mpirun")
    launcher = mpirun if os.path.exists(mpirun) else "mpirun"
    command = [launcher, "-n", "4", sys.executable, "-m", "minidist.zero3", "--steps", "1"]
    seconds = []
    for _ in range(5):
        begin = time.perf_counter()
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
            assert process.stdout is not None
            next(line for line in process.stdout if line.startswith("step"))
            seconds.append(time.perf_counter() - begin)
            process.stdout.read()
    yield compare("start of zero3, 4 ranks", "1 s", seconds, [1.0] * len(seconds), 1.5, "s")


def word_count() -> Iterator[Row]:
    """MapReduce with a master and two workers beside one process, and beside the shell's tools."""
    from minidist.bench import mapreduce

    with tempfile.TemporaryDirectory() as folder:
        text, output, other = Path(folder) / "text", Path(folder) / "output", Path(folder) / "other"
        mapreduce.write_text(text, 200_000_000)
        megabytes = text.stat().st_size / 1e6
        for beside, theirs in (
            ("a Counter in one process", mapreduce.one_counter),
            ("sort | uniq -c in C", partial(mapreduce.sort_and_uniq, locale="C")),
            ("sort | uniq -c, own locale", partial(mapreduce.sort_and_uniq, locale=None)),
        ):
            times = alternate(partial(mapreduce.ours, text, output), partial(theirs, text, other), pairs=3, warm_up=0)
            row = compare(f"word count, {mapreduce.RANKS} ranks", beside, *times, 1.0, "s")
            speeds = [megabytes / statistics.median(seconds) for seconds in times]
            row.note = f"{speeds[0]:.1f} / {speeds[1]:.1f} MB/s"
            if theirs is mapreduce.one_counter and not mapreduce.same_counts(output, other):
                raise AssertionError("MapReduce and the Counter do not agree")
            yield row


Section = Callable[[], Iterator[Row]]
SECTIONS: dict[str, Section] = {
    "step": training_step,
    "adam": adam,
    "ring": collectives,
    "parallel": parallel_steps,
    "memory": memory,
    "mapreduce": word_count,
    "start": start,
}


def on_ranks(function: str, n: int, *args: Any) -> list[Any]:
    """Run a function of minidist.bench.ranks; its last argument is a file in which gloo's processes meet."""
    with tempfile.TemporaryDirectory() as folder:
        return launch(f"minidist.bench.ranks:{function}", n, *args, os.path.join(folder, "store"), timeout=600).values


def print_rows(rows: list[Row]) -> None:
    """The table of ratios. What stands beside the same thing stands under one heading."""
    table = table_of(left=("what, and beside what",), right=("ours / theirs", "ratio", "quartiles", "target", ""))
    name = ""
    for row in rows:
        if row.name != name:
            name = row.name
            table.add_row(f"[bold]{name}[/]")
        ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
        spread = "" if row.spread is None else f"{row.spread[0]:.2f}-{row.spread[1]:.2f}"
        target = "" if row.target is None else f"≤ {row.target:g}"
        reached = "" if row.reached is None else mark(row.reached)
        table.add_row(f"  {row.beside}", row.note, ratio, spread, target, reached)
    show("Ours, as a multiple of theirs: below 1 minidist takes less", table)


def prepare(arguments: list[str]) -> tuple[dict[str, Section], str | None]:
    """What to measure, and where to write the rows."""
    parser = Parser("bench", __doc__ or "")
    names = ", ".join(SECTIONS)
    parser.add_argument(
        "--only", choices=tuple(SECTIONS), action="append", metavar="NAME", help=f"only this; may be repeated: {names}"
    )
    parser.add_argument(
        "--run", metavar="FILE", help="nothing else but nanoGPT's CPU run on this text: tiny Shakespeare"
    )
    parser.add_argument("--json", metavar="FILE", help="write the rows for machines; - is standard output")
    options = parser.parse_args(arguments)
    check_writable("--json", options.json if options.json != "-" else None)
    if options.run and options.only:
        raise UsageError("--run measures nothing else: leave --only away")
    if options.run:
        corpus = load(options.run, SMALL[0]["context"])
        return {"run": partial(whole_run, corpus)}, options.json
    return {name: SECTIONS[name] for name in options.only or SECTIONS}, options.json


def main() -> None:
    sections, json = prepare(sys.argv[1:])
    keep_freed_memory()
    rows: list[Row] = []
    for name, section in sections.items():
        print(f"measuring: {name} ...", file=sys.stderr, flush=True)
        rows += section()
    if json:
        keys = ("name", "beside", "ratio", "spread", "target", "reached")
        write_json(json, [{key: getattr(row, key) for key in keys} for row in rows])
    if json != "-":
        print_rows(rows)


if __name__ == "__main__":
    sys.exit(in_one_process(main))

"""From a command line to a job: the options of every training chapter; a one-line message refuses what cannot work.

A chapter adds its own options to `parser`; `prepare` checks all options, and the files that they name, before ranks
allocate anything.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from minidist import UsageError, checkpoint, data, how_to_install, unix
from minidist.checkpoints.convert import FORMS, check_beside
from minidist.cli.options import Parser, at_least, memory_size, path_name, some_text, timeout, within
from minidist.cli.paths import check_apart, check_room, check_writable
from minidist.engine import Settings
from minidist.layout import Layout
from minidist.memory import plot, witness
from minidist.memory.kernel import Pages
from minidist.memory.recompute import POLICIES, interval
from minidist.mpi import environment
from minidist.mpi.environment import local_ranks
from minidist.mpi.stops import TIMEOUT
from minidist.nn.gpt import GPTConfig, gpt
from minidist.nn.layers import Unit, count_parameters
from minidist.nn.llama import LlamaConfig, hidden_width, llama
from minidist.nn.mixture import Routing, with_experts
from minidist.nn.optim import SGD, AdamW, CosineSchedule, Optimizer
from minidist.nn.precision import NAMES, precision

Options = argparse.Namespace
LONGEST_SAMPLE = 100_000  # characters: a minute or two of a small model


def parser(doc: str, chapter: str) -> Parser:
    """The options that all chapters share."""
    made = Parser(chapter, doc)
    add = made.add_argument_group("model").add_argument
    add("--model", choices=("gpt", "llama"), metavar="NAME", default="gpt", help="gpt or llama")
    add("--layers", type=at_least(1, at_most=10_000), metavar="N", default=4, help="transformer blocks")
    add("--width", type=at_least(1), metavar="N", default=64, help="of the residual stream")
    add("--heads", type=at_least(1), metavar="N", default=4, help="attention heads")
    add("--kv-heads", type=at_least(1), metavar="N", help="llama: key/value heads; default: as many as heads")
    add("--context", type=at_least(1), metavar="N", default=64, help="characters in a sequence")
    add("--untied", action="store_true", help="gpt: a head of its own, not the embedding's matrix")
    add("--dropout", type=within(0, 0.99), metavar="P", default=0.0, help="share of activations zeroed; default: 0")
    training = made.add_argument_group("training")
    add = training.add_argument
    add("--steps", type=at_least(0), metavar="N", default=200, help="updates; --timeout S if a rank is silent")
    add("--timeout", type=timeout, metavar="S", default=TIMEOUT, help=argparse.SUPPRESS)
    add("--batch", type=at_least(1, at_most=10**9), metavar="N", default=16, help="sequences in a step, over all ranks")
    made.ranks(training)
    add("--validate", type=at_least(0, at_most=10**6), metavar="K", default=8, help="batches at the end; 0: none")
    add("--accumulate", type=at_least(1), metavar="N", default=1, help="micro-batches in a step")
    add("--recompute", type=recomputation, metavar="WHAT", default="none", help="selective, full, every:K, sqrt or log")
    add("--precision", choices=NAMES, metavar="NAME", default="mixed", help="mixed (fp16), bf16, fp32, fp64")
    add("--optimizer", choices=("adamw", "sgd"), metavar="NAME", default="adamw", help="adamw, or sgd with momentum")
    add("--lr", type=within(0, 1e3), metavar="X", default=3e-3, help="learning rate after warm-up")
    add("--min-lr", type=within(0, 1e3), metavar="X", default=3e-4, help="at the end of the cosine")
    add("--warmup", type=at_least(0), metavar="N", default=20, help="steps of warm-up")
    add("--weight-decay", type=within(0, 1e3), metavar="X", default=0.1, help="decoupled, on matrices")
    add("--clip", type=within(0, 1e9), metavar="X", default=1.0, help="largest norm of gradients; 0: any")
    add("--seed", type=at_least(0), metavar="N", default=0, help="of parameters, batches, dropout and sampling")
    files = made.add_argument_group("text and files")
    add = files.add_argument
    add(
        "--data",
        type=path_name,
        metavar="FILE",
        help="a UTF-8 text, or JSONL: its --text-field NAME; default: help pages of Python",
    )
    add(
        "--sample",
        type=at_least(0, LONGEST_SAMPLE),
        metavar="N",
        default=0,
        help="rank 0 prints N characters that the model writes",
    )
    unlisted = argparse.SUPPRESS  # another option's help names them
    add("--text-field", type=some_text, metavar="NAME", help=unlisted)
    add("--save", type=path_name, metavar="DIR", help="a checkpoint at the end; --save-every K; --keep K newest")
    add("--save-every", type=at_least(1), metavar="K", help=unlisted)
    add("--keep", type=at_least(1), metavar="K", help=unlisted)
    add("--load", type=path_name, metavar="DIR", help="go on from a checkpoint, or a file of --export")
    made.output("--export", group=files, help="one file (safetensors); --names huggingface: for them")
    add("--names", choices=tuple(FORMS), metavar="NAME", help=unlisted)
    made.output("--json", group=files, help="write the report for machines; - is standard output")
    add("--device-memory", type=memory_size, metavar="SIZE", help="that a rank can hold, such as 1500KB; --host-memory")
    add("--host-memory", type=memory_size, metavar="SIZE", help=unlisted)
    made.output("--memory-plot", group=files, help="draw what it holds; --witness: check it (slow)")
    add("--witness", action="store_true", help=unlisted)
    made.renamed("--text", "--data")
    return made


def recomputation(text: str) -> str:
    """An argument type: one of POLICIES, with a number for K in every:K."""
    every, _, k = text.rpartition(":")
    if every == "every" and k.isascii() and k.isdecimal() and int(k) > 0:
        return f"every:{int(k)}"
    if text in POLICIES and text != "every:K":
        return text
    if text.startswith("every"):
        raise argparse.ArgumentTypeError(
            f"must be every:K with a whole number K from 1 on, such as every:2, not {text!r}"
        )
    raise argparse.ArgumentTypeError(f"must be one of {', '.join(POLICIES)}, not {text!r}")


@dataclass
class Job:
    """Checked input: nothing in it is large, and no work has been done."""

    chapter: str
    options: Options
    corpus: data.Corpus
    units: list[Unit]  # declared, not allocated
    settings: Settings
    layout: Layout
    reserved: Any = None  # what only this rank uses: ZeRO-Infinity's folder
    began: Pages | None = None  # the process's memory when --witness began to trace


def prepare(
    made: Parser,
    arguments: Sequence[str],
    ranks: int,
    layout: Layout | None = None,
    optimizer: Optimizer | None = None,
    states: int = 16,
) -> Job:
    """Parse and check. Raises UsageError for anything that cannot work, before anything is allocated.

    layout: the ranks' layout, if they do not all share the batch. optimizer: replaces the options' optimizer.
    states: the least bytes that memory must hold per parameter, with its gradient and optimizer state.
    """
    options = made.parse_args(arguments)
    layout = layout or Layout(dp=ranks)
    sharing = layout.dp
    if options.batch % options.accumulate:
        raise UsageError(f"--batch {options.batch} is not divisible by --accumulate {options.accumulate}")
    if options.batch // options.accumulate < sharing:
        micro = f" in {options.accumulate} micro-batches" if options.accumulate > 1 else ""
        needed = sharing * options.accumulate
        raise UsageError(
            f"--batch {options.batch}{micro} is too small for {sharing} ranks: use at least --batch {needed}"
        )
    if options.sample and options.json == "-":
        raise UsageError("--sample and --json - both want standard output: give --json a file")
    check_interval(options.recompute, options.layers)
    if options.kv_heads and options.model != "llama":
        raise UsageError("--kv-heads is of --model llama")
    if options.untied and options.model != "gpt":
        raise UsageError(f"--untied is of --model gpt: a {options.model} has a head of its own anyway")
    for option, needed in (("save_every", "save"), ("keep", "save"), ("names", "export"), ("text_field", "data")):
        if vars(options)[option] and not vars(options)[needed]:
            raise UsageError(f"--{option.replace('_', '-')} needs --{needed}")
    paths = {option: vars(options)[option[2:].replace("-", "_")] for option in made.outputs}
    outputs = {option: path if path and path != "-" else None for option, path in paths.items()}
    if options.memory_plot:
        plot.check("--memory-plot", options.memory_plot)
        if options.steps == 0:
            raise UsageError("--memory-plot has no step to draw: ask for --steps 1 or more")
    check_apart({**outputs, "--save": options.save}, {"--data": options.data})
    check_apart({**outputs, "--export": None}, {"--load": options.load})  # --export may replace what was loaded
    for option, path in outputs.items():
        check_writable(option, path)
    checkpoint.check_folder("--save", options.save)
    corpus = data.load(options.data, options.context, options.text_field)
    units = declare(options, len(corpus.vocabulary))
    check_memory(options, units, layout, states)
    try:
        stored = precision(options.precision)
    except ImportError:
        raise UsageError(f"--precision bf16 needs ml_dtypes: {how_to_install('bf16')}") from None
    if optimizer is None and options.optimizer == "adamw":
        optimizer = AdamW(weight_decay=options.weight_decay)
    elif optimizer is None:
        optimizer = SGD(momentum=0.9, weight_decay=options.weight_decay)
    nbytes = checkpoint.size(units, stored, optimizer.moments)
    check_room("--save", options.save, nbytes)
    check_room("--export", options.export, 2 * nbytes)  # with the shards that it is made from
    if options.names == "huggingface":
        check_beside("--export", options.export)
    if options.save:
        checkpoint.check_run("--save", options.save, units, identity(options, corpus), text_of(corpus))
    if options.load:
        checkpoint.check(options.load, units, identity(options, corpus), optimizer.moments, options.steps)
    settings = Settings(
        precision=stored,
        optimizer=optimizer,
        learning_rate=CosineSchedule(options.lr, min(options.lr, options.min_lr), options.warmup, options.steps),
        clip=options.clip,
        accumulate=options.accumulate,
        bucket_size=vars(options).get("bucket_size"),  # an option of chapters on the data axis
        recompute=options.recompute,
        seed=options.seed,
        capacity=options.device_memory,
        host_capacity=options.host_memory,
    )
    if options.witness and environment.ranks_here > 1:
        ranks_here = f"--ranks {environment.ranks_here}"
        raise UsageError(f"--witness counts what a process holds, and {ranks_here} share one: leave one of them out")
    began = witness.begin() if options.witness else None
    return Job(made.prog.rsplit(".", 1)[-1], options, corpus, units, settings, layout, began=began)


def declare(options: Options, vocabulary: int) -> list[Unit]:
    """The model's units. Raises UsageError for sizes that do not fit together."""
    units = declare_dense(options, vocabulary)
    if not vars(options).get("experts"):  # not all chapters have the option
        return units
    return with_experts(units, options.experts, Routing(options.top, options.capacity, options.balance))


def declare_dense(options: Options, vocabulary: int) -> list[Unit]:
    """The model's units, without experts."""
    sizes = {name: getattr(options, name) for name in ("context", "layers", "heads", "width", "dropout")}
    try:
        if options.model == "gpt":
            return gpt(GPTConfig(vocabulary=vocabulary, tied=not options.untied, **sizes))
        hidden = hidden_width(options.width)
        kv_heads = options.kv_heads or options.heads
        return llama(LlamaConfig(vocabulary=vocabulary, kv_heads=kv_heads, hidden=hidden, **sizes))
    except ValueError as error:
        raise UsageError(str(error)) from None


def check_interval(recompute: str, layers: int) -> None:
    """Raise UsageError if an interval has more layers than the model."""
    if recompute.startswith("every:") and interval(recompute, layers) > layers:
        raise UsageError(f"--recompute {recompute} is more than the {layers} layers that there are: use every:{layers}")


def identity(options: Options, corpus: data.Corpus) -> dict[str, Any]:
    """What distinguishes models whose parameters have the same shapes: recorded in a checkpoint."""
    heads, kv_heads = options.heads, options.kv_heads or options.heads
    routed = {"top": options.top} if vars(options).get("experts") else {}
    return {"model": options.model, "heads": heads, "kv-heads": kv_heads, **routed, "characters": corpus.vocabulary}


def about(job: Job, ranks: int) -> dict[str, Any]:
    """What a checkpoint records about the run that saves it."""
    options, corpus = job.options, job.corpus
    named = [axis for axis in ("dp", "pp", "tp", "cp", "ep") if axis in vars(options)]
    axes: dict[str, int] = {axis: getattr(job.layout, axis) for axis in named}
    axes |= {"zero": options.zero} if "zero" in vars(options) else {}
    return {
        "layout": {"chapter": job.chapter, "ranks": ranks, **axes},
        "identity": identity(options, corpus),
        "text": text_of(corpus),
    }


def say_at_start(job: Job, rank: int, ranks: int) -> None:
    """Print, one per line, how the text was read, and how this run differs from the saved run that it continues."""
    if rank == 0 and job.corpus.note:
        print(f"minidist: {job.corpus.note}", file=sys.stderr)
    if rank == 0 and job.options.load:
        found, text = checkpoint.opened(job.options.load), about(job, ranks)["text"]
        for difference in checkpoint.differences(found, job.settings.seed, text):
            print(f"minidist: --load {job.options.load} was {difference}", file=sys.stderr)


def text_of(corpus: data.Corpus) -> dict[str, Any]:
    """What a checkpoint records about the text."""
    return {"name": corpus.name, "blake2b": corpus.checksum()}


def check_memory(options: Options, units: list[Unit], layout: Layout, states: int) -> None:
    """Raise UsageError for a model or a batch that this machine could not hold even if it held nothing else.

    states: bytes per parameter, with its gradient and optimizer state."""
    ranks = layout.ranks
    b, s, h = options.batch / ranks, options.context, options.width
    a = 0 if layout.cp > 1 else options.heads  # heads whose scores are held: with cp, only a tile's are
    stored, computed = {"fp32": (4, 4), "fp64": (8, 8)}.get(options.precision, (2, 4))  # bytes
    kept = options.layers if options.recompute == "none" else 0
    activations = stored * b / options.accumulate * (options.layers * s * h + kept * a * s * s)
    most = b if options.validate else b / options.accumulate  # validation runs a whole batch at once
    scores = computed * most * a * s * s  # of one layer
    drawn = max(options.validate, 1) * options.batch  # where sequences begin, on every rank: int64
    tokens = 12 * s * most + 8 * drawn  # a rank's own token numbers: int32, indexed by int64
    needed = (states * count_parameters(units) / ranks + max(activations, scores) + tokens) * min(ranks, local_ranks())
    if needed > (present := unix.memory()):
        raise UsageError(
            f"this model, --context and --batch need at least {needed / 1e9:,.0f} GB on this machine,"
            f" which has {present / 1e9:,.0f} GB"
        )

"""The training loop of every chapter, and serial training, the truth to which the others are compared.

    python -m minidist.train
    python -m minidist.train --data my.txt --steps 2000 --sample 500

Serial training needs no MPI. The options are the same in every chapter, and so are data, model and losses.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

import numpy as np

from minidist import UsageError, checkpoint, data
from minidist.checkpoints.convert import FORMS
from minidist.claims import needs
from minidist.claims.claim import Claim
from minidist.claims.files import check_apart, check_room, check_writable, write_json, write_output
from minidist.claims.published import print_zero_closing
from minidist.claims.run import Asked, Run
from minidist.claims.tables import print_report
from minidist.claims.witness import print_witness, witness_claims
from minidist.cli.options import Parser, at_least, in_one_process, memory_size, ranks_here, within
from minidist.cli.progress import Progress
from minidist.engine import Engine, Settings
from minidist.memory import plot, witness
from minidist.memory.allocator import keep_freed_memory
from minidist.memory.recompute import POLICIES, interval
from minidist.mpi.run import run
from minidist.nn.gpt import GPTConfig, gpt
from minidist.nn.layers import Unit, count_parameters
from minidist.nn.llama import LlamaConfig, hidden_width, llama
from minidist.nn.optim import SGD, AdamW, CosineSchedule, Optimizer
from minidist.nn.precision import NAMES, precision
from minidist.nn.sample import generate
from minidist.nn.tensor import Array

Options = argparse.Namespace
MakeEngine = Callable[[list[Unit], Settings, Any, Options], Engine]
Closing = Callable[[Run], None]
VALIDATION_BATCHES = 8


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
    add(
        "--dropout",
        type=within(0, 0.99),
        metavar="P",
        default=0.0,
        help="share of activations that are zeroed; default: 0",
    )
    add = made.add_argument_group("training").add_argument
    add("--steps", type=at_least(0), metavar="N", default=200, help="updates")
    add("--batch", type=at_least(1, at_most=10**9), metavar="N", default=16, help="sequences in a step, over all ranks")
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
    add = made.add_argument_group("text and files").add_argument
    add("--data", metavar="FILE", help="a UTF-8 text; default: help pages of Python")
    add("--sample", type=at_least(0), metavar="N", default=0, help="print N characters that the trained model writes")
    unlisted = argparse.SUPPRESS  # named beside the option that they are of
    add("--save", metavar="DIR", help="a checkpoint at the end; --save-every K; --keep K newest")
    add("--save-every", type=at_least(1), metavar="K", help=unlisted)
    add("--keep", type=at_least(1), metavar="K", help=unlisted)
    add("--load", metavar="DIR", help="go on from a checkpoint, or a file of --export")
    add("--export", metavar="FILE", help="one file (safetensors); --names huggingface: for them")
    add("--names", choices=tuple(FORMS), metavar="NAME", help=unlisted)
    add("--json", metavar="FILE", help="write the report for machines; - is standard output")
    add("--device-memory", type=memory_size, metavar="SIZE", help="that a rank can hold, such as 1500KB; --host-memory")
    add("--host-memory", type=memory_size, metavar="SIZE", help=unlisted)
    add("--memory-plot", metavar="FILE", help="draw what it holds; --witness: check it (slow)")
    add("--witness", action="store_true", help=unlisted)
    made.renamed("--text", "--data")
    return made


def recomputation(text: str) -> str:
    """An argument type: one of POLICIES, where every:K is every:2 or the like."""
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


# ---- before the work -------------------------------------------------------------------------------------------------


@dataclass
class Job:
    """Checked input: nothing of it is large, and no work has been done."""

    chapter: str
    options: Options
    corpus: data.Corpus
    units: list[Unit]  # declared, not allocated
    settings: Settings


def prepare(made: Parser, arguments: Sequence[str], ranks: int, sharing: int | None = None) -> Job:
    """Parse and check. Raises UsageError for whatever cannot work, before anything is allocated.

    sharing: how many ranks share out a batch, where they are not all of them.
    """
    options = made.parse_args(arguments)
    sharing = sharing or ranks
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
    for option, needed in (("save_every", "save"), ("keep", "save"), ("names", "export")):
        if vars(options)[option] and not vars(options)[needed]:
            raise UsageError(f"--{option.replace('_', '-')} is of --{needed}: use both")
    outputs = {"--json": options.json if options.json != "-" else None, "--export": options.export}
    outputs["--trace"] = vars(options).get("trace")  # of pipelines
    outputs |= {
        f"--{name}": vars(options).get(name.replace("-", "_")) or None for name in ("arena-plot", "configurations")
    }
    outputs["--memory-plot"] = options.memory_plot
    if options.memory_plot:
        plot.check("--memory-plot", options.memory_plot)
        if options.steps == 0:
            raise UsageError("--memory-plot has no step to draw: ask for --steps 1 or more")
    check_apart({**outputs, "--save": options.save}, {"--data": options.data})
    check_apart({**outputs, "--export": None}, {"--load": options.load})  # to write where training came from is usual
    for option, path in outputs.items():
        check_writable(option, path)
    checkpoint.check_folder("--save", options.save)
    corpus = data.load(options.data, options.context)
    units = declare(options, len(corpus.vocabulary))
    check_memory(options, units, ranks)
    try:
        stored = precision(options.precision)
    except ImportError:
        raise UsageError("--precision bf16 needs ml_dtypes: pip install '.[bf16]'") from None
    optimizer: Optimizer
    if options.optimizer == "adamw":
        optimizer = AdamW(weight_decay=options.weight_decay)
    else:
        optimizer = SGD(momentum=0.9, weight_decay=options.weight_decay)
    nbytes = checkpoint.size(units, stored, optimizer.moments)
    check_room("--save", options.save, nbytes)
    check_room("--export", options.export, 2 * nbytes)  # with the shards of which it is made
    if options.load:
        checkpoint.check(options.load, units, identity(options, corpus), optimizer.moments, options.steps)
    settings = Settings(
        precision=stored,
        optimizer=optimizer,
        learning_rate=CosineSchedule(options.lr, min(options.lr, options.min_lr), options.warmup, options.steps),
        clip=options.clip,
        accumulate=options.accumulate,
        bucket_size=vars(options).get("bucket_size"),  # of chapters on the data axis
        recompute=options.recompute,
        seed=options.seed,
        capacity=options.device_memory,
        host_capacity=options.host_memory,
    )
    if options.witness:
        witness.begin()
    return Job(made.prog.rsplit(".", 1)[-1], options, corpus, units, settings)


def declare(options: Options, vocabulary: int) -> list[Unit]:
    """The model's units. Raises UsageError for sizes that do not fit one another."""
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
    """Raise UsageError for more layers in an interval than the model has."""
    if recompute.startswith("every:") and interval(recompute, layers) > layers:
        raise UsageError(f"--recompute {recompute} is more than the {layers} layers that there are: use every:{layers}")


def identity(options: Options, corpus: data.Corpus) -> dict[str, Any]:
    """What makes two models of the same shapes different ones: for a checkpoint."""
    heads, kv_heads = options.heads, options.kv_heads or options.heads
    return {"model": options.model, "heads": heads, "kv-heads": kv_heads, "characters": corpus.vocabulary}


def about(job: Job, ranks: int) -> dict[str, Any]:
    """What a checkpoint says of the run that makes it."""
    options, corpus = job.options, job.corpus
    axes = {axis: vars(options)[axis] for axis in ("dp", "pp", "tp", "zero") if vars(options).get(axis) is not None}
    return {
        "layout": {"chapter": job.chapter, "ranks": ranks, **axes},
        "identity": identity(options, corpus),
        "text": {"name": corpus.name, "blake2b": corpus.checksum()},
    }


def check_memory(options: Options, units: list[Unit], ranks: int) -> None:
    """Raise UsageError for a model or a batch that this machine cannot hold, were nothing else to be held."""
    b, s, h, a = options.batch / ranks, options.context, options.width, options.heads
    stored, computed = {"fp32": (4, 4), "fp64": (8, 8)}.get(options.precision, (2, 4))  # bytes
    kept = options.layers if options.recompute == "none" else 0
    states = 16 * count_parameters(units) / ranks  # the same in each precision, about
    activations = stored * b / options.accumulate * (options.layers * s * h + kept * a * s * s)
    scores = computed * b * a * s * s  # of one layer, in validation, which takes a batch at once
    tokens = 12 * (s + 1) * VALIDATION_BATCHES * options.batch  # their numbers, on every rank: int32, found by int64
    needed = (states + max(activations, scores) + tokens) * min(ranks, ranks_here())
    present = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > present:
        raise UsageError(
            f"this model, --context and --batch need at least {needed / 1e9:,.0f} GB on this machine,"
            f" which has {present / 1e9:,.0f} GB"
        )


# ---- the work -------------------------------------------------------------------------------------------------------


@dataclass
class History:
    """What one rank saw of the training."""

    losses: list[float]  # of the global batch, on rank 0
    milliseconds: list[float]  # of each step
    sent: dict[str, dict[str, int]] | None = None  # by phase, in the last step that updated; None: every one overflowed
    sent_to: dict[int, int] = field(default_factory=dict)  # bytes, by the receiver's rank in the world, in that step
    received: int = 0  # bytes that arrived in that step
    moved: dict[str, Any] = field(default_factory=dict)  # over this rank's links in that step, by direction and phase
    held: dict[str, plot.History] = field(default_factory=dict)  # by pool, in the course of one step, to be drawn


class Driver(Protocol):
    """What takes an engine through a step: the engine itself, or a pipeline's schedule."""

    def train_batch(self, x: Array, y: Array) -> float: ...

    def evaluate(self, x: Array, y: Array) -> float: ...

    def counted(self) -> dict[str, Any]: ...


def run_job(
    job: Job,
    engine: Engine,
    comm: Any,
    claims: Callable[[Run], list[Claim]],
    closing: Closing = print_zero_closing,
    driver: Driver | None = None,
    look: Callable[[], dict[str, Any]] = dict,
) -> int:
    """Train, validate, report; the exit status: 1 if a claim does not hold. comm: a Comm, or Alone.

    look: what else is to be counted on each rank, once training is over and nothing of it can change any more.
    """
    keep_freed_memory()
    driver = driver or engine
    options, corpus = job.options, job.corpus
    watching = witness.Witness(engine.device, engine.host) if options.witness else None
    if options.load:
        checkpoint.load(options.load, engine)
        say_differences(job, comm)
    try:
        history = train(job, engine, driver, comm)
    except OverflowError as error:  # on every rank alike
        if comm.rank == 0:
            print(f"minidist: error: {error}", file=sys.stderr)
        return 1
    seen = {"witness": watching.close()} if watching else {}
    validation, memory = validate(driver, corpus, options), engine.memory()
    below = {pool.name: pool.peak for pool in engine.pools if pool is not engine.device}
    counted = {**driver.counted(), **look(), **seen}
    wire = history.sent or {}, history.sent_to, history.received
    everyone = comm.gather_object((validation, *wire, memory, counted, below, history.moved))
    held = comm.gather_object(history.held) if options.memory_plot else None
    if options.save:
        checkpoint.save(options.save, engine, comm, about(job, comm.size), options.keep)
    if options.export:
        checkpoint.export(options.export, engine, comm, about(job, comm.size), options.names)
    weights = checkpoint.weights(engine, writer=comm.rank == 0) if options.sample else {}
    if comm.rank > 0:
        return comm.broadcast_object(None)  # what rank 0 returns
    run = summarise(job, history, everyone)
    complete = history.sent is not None  # a step that overflows sends less than the papers say
    checked = [*claims(run), *witness_claims(run)] if complete else []
    if options.json != "-":
        with suppress(BrokenPipeError, SystemExit):  # the reader (head, less) has left; rich says so by SystemExit
            print_report(run, checked, closing)
            print_witness(run)
    if options.json:
        write_json(options.json, run.as_json(checked))
    if held and history.losses:
        schedule = vars(options).get("schedule")  # of pipelines
        title = f"{job.chapter}{f', {schedule}' * bool(schedule)}: what a rank holds in the course of a step"
        write_output(options.memory_plot, plot.draw(held, title, plot.format_of(options.memory_plot)))
    if options.sample:
        units = declare(options, len(corpus.vocabulary))
        tokens = generate(units, weights, options.sample, options.context, options.seed)
        print("\nThe model writes:\n" + corpus.decode(tokens))
    if not complete and history.losses:
        print("minidist: error: no step updated the parameters, so nothing was checked: lower --lr", file=sys.stderr)
    return comm.broadcast_object(0 if all(claim.holds for claim in checked) and (complete or not history.losses) else 1)


def say_needs(job: Job, comm: Any, estimate: needs.Estimate | None) -> None:
    """With --device-memory, before anything is allocated: what formulas say will be needed of it."""
    options = job.options
    if comm.rank > 0 or options.device_memory is None or options.json == "-":
        return
    if estimate is None:
        print(f"What {job.chapter} will need of its devices no formula says.")
        return
    asked = Asked(job.chapter, options, comm.size, len(job.corpus.vocabulary))
    print(needs.in_words(estimate(asked), options.device_memory))


def say_differences(job: Job, comm: Any) -> None:
    """In a line each, in what a run that goes on is not the run that was saved."""
    found, text = checkpoint.opened(job.options.load), about(job, comm.size)["text"]
    for difference in checkpoint.differences(found, job.settings.seed, text) if comm.rank == 0 else ():
        print(f"minidist: --load {job.options.load} was {difference}", file=sys.stderr)


def train(job: Job, engine: Engine, driver: Driver, comm: Any) -> History:
    """The training loop. Raises OverflowError if the gradients overflow at every loss scale."""
    options = job.options
    drawn = (engine.steps + options.steps) // 2 if options.memory_plot else None  # when no schedule begins or ends
    history = History([], [])
    progress = Progress(options.steps, shown=comm.rank == 0 and options.json != "-")
    try:
        for step in range(engine.steps, options.steps):
            begin, updates = time.perf_counter(), engine.updates
            comm.ledger.reset()
            for link in engine.links:
                link.reset()
            with plot.recorded(engine.pools) if step == drawn else nullcontext(history.held) as history.held:
                loss = train_step(driver, job.corpus, options, step)
            history.milliseconds.append(1000 * (time.perf_counter() - begin))
            if engine.updates > updates:
                history.sent = comm.ledger.by_phase()  # control messages too, if a step should send any
                history.sent_to, history.received = comm.ledger.by_peer(), comm.ledger.received
                history.moved = {way: phases for link in engine.links for way, phases in link.by_phase().items()}
            parts = comm.gather_object(loss)
            if comm.rank == 0:
                history.losses.append(sum(parts))
                progress.update(step + 1, history.losses[-1], history.milliseconds[-1], engine.loss_scale.scale)
            if options.save_every and (step + 1) % options.save_every == 0 and step + 1 < options.steps:
                checkpoint.save(options.save, engine, comm, about(job, comm.size), options.keep)
        engine.settle()
    finally:
        progress.close()
    return history


def summarise(job: Job, history: History, everyone: list[Any]) -> Run:
    """The run, for the report.

    everyone: of each rank, its part of the validation loss, what it sent, received and held, what else it counted,
    and what it held below its device and moved there and back.
    """
    validation, sent, sent_to, received, memory, counted, below, moved = zip(*everyone, strict=True)
    return Run(
        chapter=job.chapter,
        options=job.options,
        ranks=len(everyone),
        vocabulary=len(job.corpus.vocabulary),
        loss=history.losses,
        validation_loss=sum(validation),
        unigram_entropy=job.corpus.unigram_entropy(),
        step_ms={
            "median": statistics.median(history.milliseconds or [0.0]),
            "min": min(history.milliseconds, default=0.0),
        },
        sent=list(sent),
        sent_to=list(sent_to),
        received=list(received),
        memory=list(memory),
        counted=list(counted),
        below=list(below),
        moved=list(moved),
    )


def train_step(driver: Driver, corpus: data.Corpus, options: Options, step: int) -> float:
    """One step over the step's global batch; this rank's part of its loss."""
    return driver.train_batch(*corpus.batch(options.batch, options.context, key=(options.seed, step)))


def validate(driver: Driver, corpus: data.Corpus, options: Options) -> float:
    """This rank's part of the mean loss over a fixed part of the validation text."""
    x, y = corpus.validation_batch(VALIDATION_BATCHES * options.batch, options.context)
    parts = zip(np.split(x, VALIDATION_BATCHES), np.split(y, VALIDATION_BATCHES), strict=True)
    return sum(driver.evaluate(*part) for part in parts) / VALIDATION_BATCHES


# ---- entry points ----------------------------------------------------------------------------------------------------


def main(
    chapter: str,
    doc: str | None,
    make_engine: MakeEngine,
    claims: Callable[[Run], list[Claim]],
    add_options: Callable[[Parser], None] = lambda parser: None,
    closing: Closing = print_zero_closing,
    check: Callable[[Job], None] = lambda job: None,
    estimate: needs.Estimate | None = None,
) -> NoReturn:
    """Run a chapter on the ranks that mpirun started. check: raises UsageError for what its own options cannot be.
    estimate: what it will need, if formulas say so."""
    made = parser(doc or "", chapter)  # python -OO drops docstrings
    add_options(made)

    def checked(comm: Any) -> Job:
        job = prepare(made, sys.argv[1:], comm.size)
        check(job)
        return job

    def work(comm: Any, job: Job) -> int:
        say_needs(job, comm, estimate)
        return run_job(job, make_engine(job.units, job.settings, comm, job.options), comm, claims, closing)

    run(prepare=checked, main=work)


class NoLedger:
    """Nothing is sent, nothing to count."""

    received = 0

    def reset(self) -> None: ...

    def by_phase(self) -> dict[str, dict[str, int]]:
        return {}

    def by_peer(self) -> dict[int, int]:
        return {}


class Alone:
    """What the loop asks of a communicator, for the only rank there is."""

    rank, size, ledger = 0, 1, NoLedger()

    def gather_object(self, value: Any) -> list[Any]:
        return [value]

    def broadcast_object(self, value: Any) -> Any:
        return value

    def all_gather_object(self, value: Any) -> list[Any]:
        return [value]


def serial() -> int:
    """Train on one process, without MPI; the exit status."""
    launched = int(os.environ.get("PMI_SIZE") or os.environ.get("OMPI_COMM_WORLD_SIZE") or 1)
    if launched > 1:
        raise UsageError("this is serial training: leave mpirun away, or take minidist.data_parallel")
    job = prepare(parser(__doc__ or "", "train"), sys.argv[1:], ranks=1)
    say_needs(job, Alone(), needs.of_data_axis(0))
    return run_job(job, Engine(job.units, job.settings), Alone(), lambda run: [])


if __name__ == "__main__":
    sys.exit(in_one_process(serial))

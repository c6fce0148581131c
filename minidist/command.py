"""From a command line to a job: what every chapter checks; a one-line message refuses what cannot work.

`minidist/cli/shared.py` has the options that all chapters share. `prepare` checks these, and the files that they name,
before ranks allocate anything. Each check is about one concern, or about two.
"""

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from minidist import UsageError, checkpoints, how_to_install
from minidist.cli.fields import all_fields, outputs
from minidist.cli.paths import check_apart, check_room, check_writable
from minidist.cli.shared import DENSE, FileOptions, Line, MixtureOptions, ModelOptions, Own, TrainingOptions, mixture_of
from minidist.engine import Settings
from minidist.layout import Layout
from minidist.memory import plot, witness
from minidist.memory.kernel import Pages
from minidist.memory.recompute import interval
from minidist.mpi import environment
from minidist.mpi.environment import local_ranks
from minidist.nn.gpt import GPTConfig, gpt
from minidist.nn.layers import Tokens, Unit, count_parameters
from minidist.nn.llama import LlamaConfig, hidden_width, llama
from minidist.nn.mixture import Routing, with_experts
from minidist.nn.optim import SGD, AdamW, CosineSchedule, Optimizer
from minidist.nn.precision import Precision, precision
from minidist.system import unix
from minidist.text import data

if TYPE_CHECKING:  # an algorithm that needs a Job loads no claim
    from minidist.claims.proof import Proof


@dataclass(kw_only=True)
class Job(Line[Own]):
    """Checked input: nothing in it is large, and no work has been done."""

    chapter: str
    corpus: data.Corpus
    units: list[Unit]  # declared, not allocated
    settings: Settings
    layout: Layout
    reserved: Any = None  # what only this rank uses: ZeRO-Infinity's folder
    began: Pages | None = None  # the process's memory when --witness began to trace
    proof: "Proof | None" = None  # that its numbers are those of one process

    @property
    def vocabulary(self) -> int:
        """V, of the text."""
        return len(self.corpus.vocabulary)

    @property
    def identity(self) -> dict[str, Any]:
        return identity(self.model, mixture_of(self.own), self.corpus)

    def declared(self) -> list[Unit]:
        """The model's units once more, without arrays."""
        return declare(self.model, self.vocabulary, mixture_of(self.own))

    def batch(self, step: int, sequences: int | None = None) -> tuple[Tokens, Tokens]:
        """The global batch of a step; or some sequences, drawn likewise."""
        sequences = sequences or self.training.batch
        return self.corpus.batch(sequences, self.model.context, key=(self.training.seed, step))


def prepare(
    chapter: str, line: Line[Own], layout: Layout, optimizer: Optimizer | None = None, states: int = 16
) -> Job[Own]:
    """Check what is common to all chapters. Raises UsageError for anything that cannot work, before anything is
    allocated.

    optimizer: replaces the options' optimizer. states: the least bytes that memory must hold per parameter, with its
    gradient and optimizer state.
    """
    model, training, files, own = line.model, line.training, line.files, line.own
    check_batch(training, layout.dp)
    check_standard_output(files)
    check_interval(training.recompute, model.layers)
    check_family(model)
    check_gradients(training)
    check_companions(files)
    check_plot(files, training.steps)
    check_outputs(files, outputs(files, own))
    v = model.sizes.vocabulary if model.sizes else 0
    corpus = data.load(files.data, model.context, files.text_field, v)
    units = declare(model, len(corpus.vocabulary), mixture_of(own))
    check_memory(model, training, units, layout, states)
    optimizer = optimizer or optimizer_of(training)
    settings = Settings(
        precision=precision_of(training),
        optimizer=optimizer,
        learning_rate=CosineSchedule(training.lr, min(training.lr, training.min_lr), training.warmup, training.steps),
        clip=training.clip,
        accumulate=training.accumulate,
        recompute=training.recompute,
        tiled=training.attention == "tiled",
        seed=training.seed,
        capacity=files.device_memory,
        host_capacity=files.host_memory,
    )
    check_checkpoints(files, units, identity(model, mixture_of(own), corpus), corpus, settings, training.steps)
    began = begin_witness() if files.witness else None
    kept: dict[str, Any] = {"model": model, "training": training, "files": files, "own": own, "began": began}
    return Job(chapter=chapter, corpus=corpus, units=units, settings=settings, layout=layout, **kept)


# ---- checks ----------------------------------------------------------------------------------------------------------


def check_batch(training: TrainingOptions, sharing: int) -> None:
    """Raise UsageError unless the batch can be divided into micro-batches, and each of these over the ranks."""
    batch, accumulate = training.batch, training.accumulate
    if batch % accumulate:
        raise UsageError(f"--batch {batch} is not divisible by --accumulate {accumulate}")
    if batch // accumulate < sharing:
        micro = f" in {accumulate} micro-batches" if accumulate > 1 else ""
        needed = sharing * accumulate
        raise UsageError(f"--batch {batch}{micro} is too small for {sharing} ranks: use at least --batch {needed}")


def check_standard_output(files: FileOptions) -> None:
    if files.sample and files.quiet:
        raise UsageError("--sample and --json - both want standard output: give --json a file")


def check_interval(recompute: str, layers: int) -> None:
    """Raise UsageError if an interval has more layers than the model."""
    if recompute.startswith("every:") and interval(recompute, layers) > layers:
        raise UsageError(f"--recompute {recompute} is more than the {layers} layers that there are: use every:{layers}")


def check_gradients(training: TrainingOptions) -> None:
    """Raise UsageError if gradients would be rounded that are not otherwise."""
    if training.grad_dtype == "fp32" and training.precision == "fp64":
        raise UsageError("--grad-dtype fp32 would round the gradients of --precision fp64: leave it out")


def check_family(model: ModelOptions) -> None:
    """Raise UsageError for options of the other model."""
    if model.kv_heads and model.name != "llama":
        raise UsageError("--kv-heads works only with --model llama")
    if model.untied and model.name != "gpt":
        raise UsageError(f"--untied is of --model gpt: a {model.name} has a head of its own anyway")


def check_companions(files: FileOptions) -> None:
    """Raise UsageError for an option without the one that gives it a meaning."""
    for option, needed in (("save_every", "save"), ("keep", "save"), ("names", "export"), ("text_field", "data")):
        if getattr(files, option) and not getattr(files, needed):
            raise UsageError(f"--{option.replace('_', '-')} needs --{needed}")


def check_plot(files: FileOptions, steps: int) -> None:
    if files.memory_plot:
        plot.check("--memory-plot", files.memory_plot)
        if steps == 0:
            raise UsageError("--memory-plot has no step to draw: ask for --steps 1 or more")


def check_outputs(files: FileOptions, written: Mapping[str, str | None]) -> None:
    """Raise UsageError if an output cannot be written, or would replace what is read."""
    check_apart({**written, "--save": files.save}, {"--data": files.data})
    check_apart({**written, "--export": None}, {"--load": files.load})  # --export may replace what was loaded
    for option, path in written.items():
        check_writable(option, path)
    if files.save:
        checkpoints.check_folder("--save", files.save)


def check_memory(
    model: ModelOptions, training: TrainingOptions, units: list[Unit], layout: Layout, states: int
) -> None:
    """Raise UsageError for a model or a batch that this machine could not hold even if it held nothing else.

    states: bytes per parameter, with its gradient and optimizer state."""
    ranks = layout.ranks
    b, s, h = training.batch / ranks, model.context, model.width
    a = 0 if layout.cp > 1 else model.heads  # heads whose scores are held: with cp, only a tile's are
    stored, computed = {"fp32": (4, 4), "fp64": (8, 8)}.get(training.precision, (2, 4))  # bytes
    kept = model.layers if training.recompute == "none" else 0
    activations = stored * b / training.accumulate * (model.layers * s * h + kept * a * s * s)
    most = b if training.validate else b / training.accumulate  # validation runs a whole batch at once
    scores = computed * most * a * s * s  # of one layer
    drawn = max(training.validate, 1) * training.batch  # where sequences begin, on every rank: int64
    tokens = 12 * s * most + 8 * drawn  # a rank's own token numbers: int32, indexed by int64
    needed = (states * count_parameters(units) / ranks + max(activations, scores) + tokens) * min(ranks, local_ranks())
    if needed > (present := unix.memory()):
        raise UsageError(
            f"this model, --context and --batch need at least {needed / 1e9:,.0f} GB on this machine,"
            f" which has {present / 1e9:,.0f} GB"
        )


def check_checkpoints(
    files: FileOptions,
    units: list[Unit],
    identity: dict[str, Any],
    corpus: data.Corpus,
    settings: Settings,
    steps: int,
) -> None:
    """Raise UsageError if a checkpoint cannot be saved, or the one to be loaded is of another model."""
    if not (files.save or files.export or files.load):
        return
    moments = settings.optimizer.moments
    nbytes = checkpoints.size(units, settings.precision, moments)
    check_room("--save", files.save, nbytes)
    check_room("--export", files.export, 2 * nbytes)  # with the shards that it is made from
    if files.export and files.names == "huggingface":
        checkpoints.check_beside("--export", files.export)
    if files.save:
        checkpoints.check_run("--save", files.save, units, identity, text_of(corpus))
    if files.load:
        checkpoints.check(files.load, units, identity, moments, steps)


def begin_witness() -> Pages | None:
    """Begin to trace what this process allocates. Raises UsageError if its ranks share the process."""
    if environment.ranks_here > 1:
        ranks_here = f"--ranks {environment.ranks_here}"
        raise UsageError(f"--witness counts what a process holds, and {ranks_here} share one: leave one of them out")
    return witness.begin()


# ---- what options mean -----------------------------------------------------------------------------------------------


def precision_of(training: TrainingOptions) -> Precision:
    try:
        found = precision(training.precision)
    except ImportError:
        raise UsageError(f"--precision bf16 needs ml_dtypes: {how_to_install('bf16')}") from None
    return replace(found, gradient=np.float32) if training.grad_dtype == "fp32" else found


def optimizer_of(training: TrainingOptions) -> Optimizer:
    decay = training.weight_decay
    return AdamW(weight_decay=decay) if training.optimizer == "adamw" else SGD(momentum=0.9, weight_decay=decay)


def declare(model: ModelOptions, vocabulary: int, mixture: MixtureOptions = DENSE) -> list[Unit]:
    """The model's units. Raises UsageError for sizes that do not fit together."""
    units = declare_dense(model, vocabulary)
    if not mixture.experts:
        return units
    routing = mixture.routing
    return with_experts(units, mixture.experts, Routing(routing.top, routing.capacity, routing.balance))


def declare_dense(model: ModelOptions, vocabulary: int) -> list[Unit]:
    """The model's units, without experts."""
    sizes = {name: getattr(model, name) for name in ("context", "layers", "heads", "width", "dropout")}
    sizes |= {"eps": model.sizes.eps} if model.sizes else {}
    try:
        if model.name == "gpt":
            return gpt(GPTConfig(vocabulary=vocabulary, tied=model.tied, **sizes))
        kv, of = model.key_value_heads, model.sizes
        hidden = of.hidden if of else hidden_width(model.width)
        sizes |= {"theta": of.theta} if of else {}
        return llama(LlamaConfig(vocabulary=vocabulary, kv_heads=kv, hidden=hidden, tied=model.tied, **sizes))
    except ValueError as error:
        raise UsageError(str(error)) from None


# ---- what a checkpoint records ---------------------------------------------------------------------------------------


def identity(model: ModelOptions, mixture: MixtureOptions, corpus: data.Corpus) -> dict[str, Any]:
    """What distinguishes models whose parameters have the same shapes."""
    heads, kv_heads = model.heads, model.kv_heads or model.heads
    routed = {"top": mixture.top} if mixture.experts else {}
    found = {"model": model.name, "heads": heads, "kv-heads": kv_heads, **routed, "characters": corpus.vocabulary}
    if model.sizes:  # from which training may go on
        options = {each.name: value for each, value in all_fields(model)}
        found["loaded"] = {"options": options, "sizes": asdict(model.sizes)}
    return found


def text_of(corpus: data.Corpus) -> dict[str, Any]:
    """The text that the model has seen."""
    return {"name": corpus.name, "blake2b": corpus.checksum()}


def about(job: Job, ranks: int) -> dict[str, Any]:
    """The run that saves it: its layout, as far as the chapter has options for it."""
    own = {each.name: value for each, value in all_fields(job.own)}
    axes: dict[str, int] = {axis: getattr(job.layout, axis) for axis in ("dp", "pp", "tp", "cp", "ep") if axis in own}
    axes |= {"zero": own["zero"]} if "zero" in own else {}
    return {
        "layout": {"chapter": job.chapter, "ranks": ranks, **axes},
        "identity": job.identity,
        "text": text_of(job.corpus),
    }


def say_at_start(job: Job, rank: int, ranks: int) -> None:
    """Print, one per line, how the text was read, and how this run differs from the saved run that it continues."""
    if rank == 0 and job.corpus.note:
        print(f"minidist: {job.corpus.note}", file=sys.stderr)
    if rank == 0 and job.files.load:
        found, text = checkpoints.opened(job.files.load), text_of(job.corpus)
        for difference in checkpoints.differences(found, job.settings.seed, text):
            print(f"minidist: --load {job.files.load} was {difference}", file=sys.stderr)

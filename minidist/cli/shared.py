"""The options of every training chapter: the model, the training, text and files; and experts, which some have."""

import argparse
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from minidist.cli.fields import Parsed, choice, fill, flag, option, output, part, path_to, ranks_option, whole
from minidist.cli.options import Parser, at_least, memory_size, path_name, some_text, timeout, within
from minidist.memory.recompute import POLICIES
from minidist.mpi.stops import TIMEOUT
from minidist.nn.precision import NAMES

LONGEST_SAMPLE = 100_000  # characters: a minute or two of a small model
NAMINGS = ("minidist", "huggingface")  # of the parameters in a file of --export: minidist/checkpoints/convert.py
Own = TypeVar("Own")  # a chapter's own options


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


@dataclass(frozen=True)
class LoadedSizes:
    """What no option says of a model that --load names: its folder does."""

    vocabulary: int
    hidden: int  # the width of a Llama's MLP
    eps: float  # that norms add
    theta: float  # of a Llama's rotations
    tied: bool


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """The model."""

    sizes: ClassVar[LoadedSizes | None] = None

    name: str = option("gpt", None, "NAME", "gpt or llama", ("--model",), choices=("gpt", "llama"))
    layers: int = option(4, at_least(1, at_most=10_000), "N", "transformer blocks")
    width: int = whole("N", "of the residual stream", 64)
    heads: int = whole("N", "attention heads", 4)
    kv_heads: int | None = whole("N", "llama: key/value heads; default: as many as heads")
    context: int = whole("N", "characters in a sequence", 64)
    untied: bool = flag("gpt: a head of its own, not the embedding's matrix")
    dropout: float = option(0.0, within(0, 0.99), "P", "share of activations zeroed; default: 0")

    @property
    def key_value_heads(self) -> int:
        """The heads of keys and values: a gpt has as many as of queries."""
        return (self.kv_heads or self.heads) if self.name == "llama" else self.heads

    @property
    def tied(self) -> bool:
        """Whether the head reads the embedding's matrix."""
        return self.sizes.tied if self.sizes else self.name == "gpt" and not self.untied


@dataclass(frozen=True, kw_only=True)
class LoadedModel(ModelOptions):
    """A model whose folder says its sizes (`minidist/cli/loaded.py`)."""

    sizes: LoadedSizes | None = None  # type: ignore[misc]


@dataclass(frozen=True, kw_only=True)
class RoutingOptions:
    """How tokens find their experts."""

    top: int = whole("K", "experts that each token goes through", 2)
    capacity: float | None = option(
        None, within(0.01, 1e3), "CF", "room, times the mean; default: no choice is dropped"
    )
    balance: float = option(1e-2, within(0, 1e3), "X", "weight of the balance loss")


@dataclass(frozen=True, kw_only=True)
class MixtureOptions:
    """The model's experts, in chapters that have some."""

    experts: int = option(0, at_least(0, at_most=10_000), "E", "MLPs in place of each block's one; default: none")
    routing: RoutingOptions = part(RoutingOptions)

    @property
    def top(self) -> int:
        return self.routing.top


DENSE = MixtureOptions()


def mixture_of(own: object) -> MixtureOptions:
    """The experts that a chapter's own options ask for, if its models may have some."""
    found: MixtureOptions = getattr(own, "mixture", DENSE)
    return found


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """The training."""

    steps: int = whole("N", "updates", 200, least=0)
    timeout: float = option(TIMEOUT, timeout, "S", "that a rank may be silent")
    batch: int = option(16, at_least(1, at_most=10**9), "N", "sequences in a step, over all ranks")
    ranks: int | None = ranks_option()
    validate: int = option(8, at_least(0, at_most=10**6), "K", "batches at the end; 0: none")
    accumulate: int = whole("N", "micro-batches in a step", 1)
    recompute: str = option("none", recomputation, "WHAT", "selective, full, every:K, sqrt or log")
    precision: str = choice(NAMES, "mixed", "mixed (fp16), bf16, fp32, fp64")
    grad_dtype: str = choice(("stored", "fp32"), "stored", "of gradients: stored as parameters, or fp32")
    attention: str = choice(("whole", "tiled"), "whole", "keeps whole scores, or in tiles none")
    optimizer: str = choice(("adamw", "sgd"), "adamw", "adamw, or sgd with momentum")
    lr: float = option(3e-3, within(0, 1e3), "X", "learning rate after warm-up")
    min_lr: float = option(3e-4, within(0, 1e3), "X", "at the end of the cosine")
    warmup: int = whole("N", "steps of warm-up", 20, least=0)
    weight_decay: float = option(0.1, within(0, 1e3), "X", "decoupled, on matrices")
    clip: float = option(1.0, within(0, 1e9), "X", "largest norm of gradients; 0: any")
    seed: int = whole("N", "of all that is drawn; default: 0", 0, least=0)
    prove: bool | None = option(
        None, help="compare with one process first; default: if quick", action=argparse.BooleanOptionalAction
    )

    types: bool = flag("check one forward's types of distribution, and end")

    @property
    def micro_batch(self) -> int:
        """Sequences of a micro-batch, over all ranks."""
        return self.batch // self.accumulate


@dataclass(frozen=True, kw_only=True)
class FileOptions:
    """The text, files, and memories."""

    data: str | None = option(
        None, path_name, "FILE", "a UTF-8 text, or JSONL; default: help pages of Python", formerly="--text"
    )
    sample: int = option(0, at_least(0, LONGEST_SAMPLE), "N", "rank 0 prints N characters that the model writes")
    text_field: str | None = option(None, some_text, "NAME", "JSONL: the field of the text; default: text")
    save: str | None = path_to("DIR", "a checkpoint at the end")
    save_every: int | None = whole("K", "and after every K steps")
    keep: int | None = whole("K", "the newest checkpoints alone; default: all")
    load: str | None = path_to("DIR", "a checkpoint, a file of --export, or Hugging Face's folder")
    export: str | None = output("the parameters, in one file (safetensors)")
    names: str | None = choice(NAMINGS, None, "minidist or huggingface; default: minidist")
    log: str | None = output("write a line of JSON for every step")
    json: str | None = output("write the report for machines; - is standard output")
    device_memory: int | None = option(None, memory_size, "SIZE", "that a rank's device can hold, such as 1500KB")
    host_memory: int | None = option(None, memory_size, "SIZE", "the same of its host")
    memory_plot: str | None = output("draw what a rank holds in the course of a step")
    witness: bool = flag("check it with NumPy's own account (slow)")
    published: bool = flag("the papers' own tables, by the formulas used here")

    @property
    def quiet(self) -> bool:
        """Whether standard output is for machines."""
        return "-" in (self.json, self.log)


@dataclass(kw_only=True)
class Line(Generic[Own]):
    """What a command line says: a value for each concern, and the chapter's own."""

    model: ModelOptions
    training: TrainingOptions
    files: FileOptions
    own: Own

    @classmethod
    def of(cls, parsed: Parsed, own: type[Own]) -> "Line[Own]":
        model, training, files = parsed.of(ModelOptions), parsed.of(TrainingOptions), parsed.of(FileOptions)
        return Line(model=model, training=training, files=files, own=parsed.of(own))


def fill_shared(made: Parser) -> None:
    """Add the options that all chapters share."""
    fill(made, ModelOptions, made.add_argument_group("model"))
    fill(made, TrainingOptions, made.add_argument_group("training"))
    fill(made, FileOptions, made.add_argument_group("text and files"))

"""Run the chapter that a configuration describes: DeepSpeed's JSON, or Accelerate's YAML.

    mpirun -n 4 python -m minidist.deepspeed ds_config.json
    mpirun -n 4 python -m minidist.deepspeed ds_config.json --precision bf16 --steps 50

The options are those that every chapter shares. They fill "auto" and what the file leaves open, as TrainingArguments do
in the Hugging Face Trainer; an option that contradicts the file is an error.
"""

import shlex
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from minidist import command
from minidist.cli.fields import all_fields, dest_of, fill, operand, parse
from minidist.cli.loaded import line_of
from minidist.cli.options import Parser, path_name
from minidist.cli.shared import fill_shared
from minidist.data_parallel import DataParallel
from minidist.deepspeed import accelerate
from minidist.deepspeed import plan as planning
from minidist.deepspeed.engine import DeepSpeedEngine, engine_of
from minidist.deepspeed.lines import wrapped
from minidist.deepspeed.plan import ConfigPlan
from minidist.exchange.doors import run
from minidist.infinity import Infinity
from minidist.mpi.comm import Comm
from minidist.nn.layers import Tokens, micro_batches
from minidist.programs.chapter import find
from minidist.programs.proof import prove
from minidist.programs.serial import PLAIN


class PreparedRun(NamedTuple):
    """Checked input."""

    plan: ConfigPlan
    job: command.Job
    line: str  # the chapter's command line that does the same, as far as there are options for it


def prepare(arguments: Sequence[str], ranks: int) -> PreparedRun:
    """Read, plan and check. Raises UsageError for what cannot work."""
    parsed = parse(parser(), arguments)
    line, given = line_of(parsed, ConfigurationFile), parsed.given
    translated, _ = accelerate.load(line.own.config, ranks)
    training, model = line.training, line.model
    if translated.recompute and "recompute" not in given:
        training = replace(training, recompute=translated.recompute)
    sizes = {"width": model.width, "layers": model.layers, "shard": translated.shard}
    plan = planning.make(translated.config, ranks, training, given, **sizes, fsdp=translated.fsdp, axes=translated.axes)
    plan.notes += translated.notes
    words = plan.arguments()
    chapter = find(plan.chapter)
    made = chapter.parser()
    fill(made, ConfigurationFile)
    job = chapter.job([*arguments, *words], ranks, made=made, optimizer=plan.optimizer)
    if not plan.optimizer.moments:
        job.training = replace(job.training, optimizer="plain sgd")  # claims then expect no optimizer state
    if plan.schedule:
        job.settings.learning_rate = plan.schedule
    for each, value in (pair for concern in (model, training, line.files) for pair in all_fields(concern)):
        if (name := dest_of(each)) in given and name not in plan.said():
            words.append(f"--{'no-' * (value is False)}{name.replace('_', '-')}")
            words += [] if isinstance(value, bool) else [str(value)]
    beyond = f" (and {'; '.join(plan.beyond)}, which no option says)" if plan.beyond else ""
    return PreparedRun(plan, job, f"python -m minidist.{shlex.join([plan.chapter, *words])}{beyond}")


@dataclass(frozen=True, kw_only=True)
class ConfigurationFile:
    config: str = operand("FILE", "ds_config.json, or Accelerate's .yaml", path_name)


def parser() -> Parser:
    """The options that every chapter shares, and the file."""
    made = Parser("deepspeed", __doc__ or "")
    fill_shared(made)
    fill(made, ConfigurationFile)
    return made


class VerbsDriver:
    """Drives the engine by DeepSpeed's verbs in the training loop, so that it prints what the file asks for."""

    def __init__(self, verbs: DeepSpeedEngine) -> None:
        self.verbs, self.engine = verbs, verbs.stage

    def train_batch(self, x: Tokens, y: Tokens) -> float:
        return self.verbs.part_of_batch(iter(micro_batches(x, y, self.verbs.plan.accumulate)))

    def evaluate(self, x: Tokens, y: Tokens) -> float:
        return self.engine.evaluate(x, y)

    def other_counts(self) -> dict[str, Any]:
        return self.engine.other_counts()


def main(comm: Comm, prepared: PreparedRun) -> int:
    """Print what will be done, and do it; returns the exit status."""
    plan, job, line = prepared
    if comm.rank == 0:
        for text in (*plan.notes, line):
            print("\n".join(wrapped(f"minidist: {text}", "")), file=sys.stderr, flush=True)
    chapter = find(plan.chapter)
    if plan.fsdp or plan.axes.pp > 1 or job.training.types:
        job.reserved = chapter.reserve(job, comm)
        return int(chapter.begin(comm, job))
    serial = chapter.serial(job) or PLAIN

    def small_engine(small: command.Job, comm: Comm) -> DataParallel:
        """The proof's few steps may freeze 1-bit Adam earlier."""
        earlier = replace(plan, freeze=small.own.freeze_step) if plan.freeze else plan
        return engine_of(earlier, small.units, small.settings, comm)

    job.proof = prove(comm, job, small_engine, serial)
    stage = engine_of(plan, job.units, job.settings, comm)
    driver = VerbsDriver(DeepSpeedEngine(stage, plan, comm))
    with stage.settings.swap if isinstance(stage, Infinity) else nullcontext():
        return int(chapter.train(comm, job, driver))


if __name__ == "__main__":
    run(prepare=lambda comm: prepare(sys.argv[1:], comm.size), main=main, module="minidist.deepspeed")

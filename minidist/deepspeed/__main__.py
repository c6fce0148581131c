"""Run the chapter that a configuration describes: DeepSpeed's JSON, or Accelerate's YAML.

    mpirun -n 4 python -m minidist.deepspeed ds_config.json
    mpirun -n 4 python -m minidist.deepspeed ds_config.json --precision bf16 --steps 50

The options are those that every chapter shares. They fill "auto" and what the file leaves open, as TrainingArguments do
in the Hugging Face Trainer; an option that contradicts the file is an error.
"""

import shlex
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from minidist import command, data_parallel, fsdp, infinity, offload, train, zero1, zero2, zero3, zero_r
from minidist.claims.published import print_offload_closing, print_zero_closing
from minidist.cli.options import Parser, path_name
from minidist.deepspeed import accelerate, agree
from minidist.deepspeed import plan as planning
from minidist.deepspeed.engine import DeepSpeedEngine, engine_of
from minidist.deepspeed.plan import Plan
from minidist.mpi.comm import Comm
from minidist.mpi.run import run
from minidist.nn.tensor import Array

CLAIMS = (data_parallel.claims, zero1.claims, zero2.claims, zero3.claims)  # by stage
ADD_OPTIONS = {
    "data_parallel": data_parallel.add_options,
    "zero1": data_parallel.add_bucket_size,
    "zero2": data_parallel.add_bucket_size,
    "zero3": zero3.add_options,
    "fsdp": fsdp.add_options,
    "offload": offload.add_options,
    "infinity": infinity.add_options,
    "zero_r": zero_r.add_options,
}
PREPARE = {"fsdp": fsdp.prepare, "zero_r": zero_r.prepare}  # which have more to check


class Prepared(NamedTuple):
    """Checked input."""

    plan: Plan
    job: command.Job
    line: str  # the command line that would do the same, as far as there are options for it


def prepare(arguments: Sequence[str], ranks: int) -> Prepared:
    """Read, plan and check. Raises UsageError for whatever cannot work."""
    made = parser("deepspeed")
    options = made.parse_args(arguments)
    translated, _ = accelerate.load(options.config, ranks)
    given = agree.typed(made, arguments)
    if translated.recompute and "recompute" not in given:
        options.recompute = translated.recompute
    plan = planning.make(translated.config, ranks, options, given, shard=translated.shard, fsdp=translated.fsdp)
    plan.notes += translated.notes
    words = plan.arguments()
    chapter = parser(plan.chapter)
    ADD_OPTIONS.get(plan.chapter, lambda parser: None)(chapter)
    prepare_chapter = PREPARE.get(plan.chapter, command.prepare)
    job = prepare_chapter(chapter, [*arguments, *words], ranks, optimizer=plan.optimizer)
    if not plan.optimizer.moments:
        job.options.optimizer = "plain sgd"  # of which the claims expect no state
    if plan.schedule:
        job.settings.learning_rate = plan.schedule
    for name in [name for name in vars(options) if name in given and name not in ("config", *plan.said())]:
        value = getattr(options, name)
        words += [f"--{name.replace('_', '-')}", *([str(value)] if value is not True else [])]
    beyond = f" (and {'; '.join(plan.beyond)}, which no option says)" if plan.beyond else ""
    return Prepared(plan, job, f"python -m minidist.{shlex.join([plan.chapter, *words])}{beyond}")


def parser(chapter: str) -> Parser:
    """A chapter's shared options, and the configuration's file."""
    made = command.parser(__doc__ or "", chapter)
    made.add_argument("config", type=path_name, metavar="FILE", help="ds_config.json, or Accelerate's .yaml")
    return made


class Driver:
    """What the training loop drives: the engine by DeepSpeed's verbs, so that it prints what the file asks for."""

    def __init__(self, engine: DeepSpeedEngine) -> None:
        self.engine = engine

    def train_batch(self, x: Array, y: Array) -> float:
        parts = self.engine.plan.accumulate
        return self.engine.part_of_batch(zip(np.split(x, parts), np.split(y, parts), strict=True))

    def evaluate(self, x: Array, y: Array) -> float:
        return self.engine.stage.evaluate(x, y)

    def counted(self) -> dict[str, Any]:
        return self.engine.stage.counted()


def main(comm: Comm, prepared: Prepared) -> int:
    """Say what will be done, and do it; the exit status."""
    plan, job, line = prepared
    if comm.rank == 0:
        print("\n".join(f"minidist: {text}" for text in [*plan.notes, line]), file=sys.stderr, flush=True)
    if plan.fsdp:
        return fsdp.main(comm, job)
    stage = engine_of(plan, job.units, job.settings, comm)
    driver = Driver(DeepSpeedEngine(stage, plan, comm))
    if isinstance(stage, infinity.Infinity):
        with stage.folder:
            return train.run_job(job, stage, comm, infinity.claims, infinity.print_closing, driver)
    if plan.chapter == "zero_r":
        return train.run_job(job, stage, comm, zero_r.claims, zero_r.print_closing, driver)
    if plan.offload:
        return train.run_job(job, stage, comm, offload.claims, print_offload_closing, driver)
    return train.run_job(job, stage, comm, CLAIMS[plan.stage], print_zero_closing, driver)


if __name__ == "__main__":
    run(prepare=lambda comm: prepare(sys.argv[1:], comm.size), main=main)

"""What `explain` says about a Megatron-LM launch script: each flag, and its layout as a row of the planner's table."""

import shlex
from collections.abc import Iterator

from minidist import UsageError
from minidist.deepspeed import megatron
from minidist.deepspeed.lines import GB, fits, wrapped
from minidist.formulas.profile import in_words
from minidist.plan import show
from minidist.plan.choice import misfit
from minidist.plan.search import Evaluator
from minidist.plan.time import Cluster

USUAL = 80 * GB  # a device's memory, if nothing is asked


def explain(path: str, ranks: int | None, per_host: int, memory: int | None) -> Iterator[str]:
    """The lines. ranks: instead of those that the script starts. Raises UsageError if it cannot be planned."""
    script = megatron.read(path)
    n = ranks or megatron.ranks_of(script)
    if n is None:
        raise UsageError(f"{path} does not say how many ranks it starts: use --ranks N")
    wanted, at = megatron.question(script, n)
    if found := misfit(wanted, at):
        raise UsageError(f"{path}: {found}")
    yield from wrapped(f"{path}: Megatron-LM, Ψ = {wanted.model.parameters():,} parameters, N = {n:,} ranks", "")
    yield "\nWhat it says"
    for says, note in megatron.told(script):
        yield from wrapped(says)
        if note:
            yield from wrapped(note, "      ")
    capacity = memory or USUAL
    reserve = int(wanted.profile.reserve * capacity)
    cluster = Cluster(n, capacity, per_host, reserve=reserve)
    row = Evaluator(wanted, cluster).row(at)
    yield "\nPlanned"
    yield from show.explain(row, wanted, cluster, None)
    if wanted.profile.name != "paper":
        yield from wrapped(f"profile {wanted.profile.name}: {in_words(wanted.profile.values)}", "")
    if memory:
        yield from fits(row.held.total, memory, reserve)
    yield "\nTo look for better rows of a model with a config.json:"
    yield f"  python -m minidist plan --model config.json {shlex.join(megatron.plan_arguments(wanted, at))}"
    yield "\nThe chapter: minidist/parallel3d.py. Its model is small; this line trains it so:"
    yield f"  mpirun -n {n} python -m minidist.{shlex.join(['parallel3d', *megatron.arguments(wanted, at)])}"

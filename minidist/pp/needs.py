"""What each rank of a pipeline will need: its stage's share of the model and of the work, and what has no formula."""

from collections.abc import Sequence

from minidist.claims.run import Asked
from minidist.layout import Layout
from minidist.papers import pipelines
from minidist.pp.schedules import SCHEDULES
from minidist.pp.shaped import stage_parts


def stage_parameters(run: Asked, at: Sequence[int]) -> list[int]:
    """Ψi, for each rank: the parameters of its stage's units. If the head is tied to an embedding on another stage, the
    stage with the head also counts the embedding's parameters."""
    pipe = run.layout
    units = run.model.units()
    found = []
    for stage in at:
        own = {unit for part in stage_parts(pipe, stage) for unit in part}
        copied = run.model.tied and len(units) - 1 in own
        found.append(sum(units[unit] for unit in own | ({0} if copied else set())))
    return found


def stages_of(run: Asked) -> list[int]:
    """Each rank's stage, from 1: those of the first stage come first."""
    pipe = run.layout
    return [stage for stage, workers in enumerate(pipe.replicas or (1,) * pipe.pp, start=1) for _ in range(workers)]


def most_in_flight(asked: Asked, stage: int) -> int:
    """The most micro-batches under way on a stage; 1 if the others' bytes follow no formula (`list_unpredicted`)."""
    pipe = asked.layout
    if has_no_formula(pipe):
        return 1
    return pipelines.in_flight(pipe.schedule, pipe.pp, pipe.micro_batches, stage)


def has_no_formula(pipe: Layout) -> bool:
    """Whether no formula gives the bytes of activations: if chunks differ in size, or if what waits for W alone has
    dropped a part of what it kept."""
    schedule = SCHEDULES[pipe.schedule]
    return pipe.chunks > 1 or not schedule.flushes or schedule.splits or pipe.schedule in pipelines.CROSSED


def list_unpredicted(asked: Asked) -> list[str]:
    """What a pipeline holds for which the papers have no formula."""
    pipe = asked.layout
    found = ["messages on their way"]
    if has_no_formula(pipe):
        found.append(f"activations with {pipe.schedule}, of all but one micro-batch")
    if not SCHEDULES[pipe.schedule].flushes:
        found.append("older versions of the parameters")
    return found

"""What each rank of a pipeline will need: its stage's share of the model and of the work, and what has no formula."""

from collections.abc import Sequence

from minidist.claims.activations import Share
from minidist.claims.needs import Needs, Place, at_places
from minidist.claims.run import Asked
from minidist.layout import Layout
from minidist.papers import chen, pipelines, zero
from minidist.pp.schedules import SCHEDULES
from minidist.pp.shaped import stage_parts


def needs(asked: Asked) -> list[Needs]:
    """What each rank's stage will need."""
    pipe = asked.layout
    o, at = asked.options, stages_of(asked)
    p, k, (embedding, layer, *_, head) = asked.bytes.stored, asked.optimizer_bytes, asked.model.units()
    places = []
    for stage, psi in zip(at, stage_parameters(asked, at), strict=True):
        share = share_of(asked, stage, o.batch // pipe.micro_batches)
        states = zero.model_states(psi, 1, 0, p, p, k)
        places.append(
            Place(
                states,
                share,
                embedding * share.embedding,
                layer * (share.layers > 0),
                head * share.head,
                in_flight=most_in_flight(asked, stage),
                starts_with_layer=1 <= pipe.parts[stage - 1][0] <= o.layers,  # in every shape, chunk 0's
            )
        )
    return at_places(asked, 1, places, list_unpredicted(asked))


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


def share_of(asked: Asked, stage: int, b: int) -> Share:
    """The share of the work that a stage has, for micro-batches of b sequences."""
    pipe = asked.layout
    o, head = asked.options, asked.options.layers + 1
    through = stage_parts(pipe, stage)[: None if pipelines.copies(pipe.schedule) == 1 else 1]  # a micro-batch's
    own = {unit for part in through for unit in part}
    again = sum(chen.runs_again(o.recompute, len({*part} - {0, head})) for part in through)
    return Share(b, len(own - {0, head}), 0 in own, head in own, again, o.recompute == "full")


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

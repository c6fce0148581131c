"""What the papers say of a pipeline, beside what its clocks and counters say."""

from collections.abc import Sequence
from typing import Any

from minidist.claims.claim import Claim, on_each_rank
from minidist.claims.run import Run
from minidist.mpi.comm import Comm
from minidist.papers import gpipe, pipelines, ptd, two_bw, zero_bubble
from minidist.pp.schedules import ACTIVATION, GRADIENT, SCHEDULES, Place, places
from minidist.pp.timeline import Timeline, print_timelines, write_trace
from minidist.train import Options


def claims(run: Run) -> list[Claim]:
    """The claims that hold for the run's schedule."""
    o = run.options
    at = places(o.stages, o.micro_batches, o.chunks, replicas=o.replicas)
    micro_batch = ptd.boundary_elements(o.batch // o.micro_batches, o.context, o.width)
    made = bubble_claims(run) if SCHEDULES[o.schedule].flushes else version_claims(run)
    if not o.replicas:  # for stages of several workers the papers give no formulas
        made += [*in_flight_claims(run, at), *weight_claims(run)]
    return [*made, *message_claims(run, at, [micro_batch] * run.ranks)]


def of_each(run: Run, kind: str) -> list[Any]:
    """What each rank has counted."""
    return [counted[kind] for counted in run.counted]


def bubble_claims(run: Run) -> list[Claim]:
    """How long stages idle in a step. There are two definitions: of all time, and compared to the time of the work."""
    schedule, p, m, v = run.options.schedule, run.options.stages, run.options.micro_batches, run.options.chunks
    starts, ends, work = of_each(run, "start"), of_each(run, "end"), of_each(run, "busy")[0]
    step = max(ends) - min(starts)
    made = []
    if schedule == "naive":
        formula, expected = "(K-1)/K", gpipe.bubble(p, 1)
        made.append(Claim("GPipe §2.3", "idle / all time", formula, expected, (step - work) / step, ""))
    if schedule in ("gpipe", "1f1b"):
        formula, expected = "(K-1)/(M+K-1)", gpipe.bubble(p, m)
        made.append(Claim("GPipe §2.3", "idle / all time", formula, expected, (step - work) / step, ""))
    if schedule in ("gpipe", "1f1b", "interleaved"):
        formula, expected = "(1/v)(p-1)/m" if v > 1 else "(p-1)/m", ptd.bubble(p, m, v)
        made.append(Claim("PTD §2.2", "idle / work", formula, expected, (step - work) / work, ""))
    filling = {"1f1b": "+W", "zb-h1": "-W", "zb-h2": "-2W"}
    if schedule in filling and m >= zero_bubble.fills(schedule, p):
        longest = max(end - start for start, end in zip(starts, ends, strict=True))
        t_b = 2.0 if run.options.recompute == "full" else 1.0  # the forward again, and B
        expected = zero_bubble.idle(schedule, p, 1.0, t_b, 1.0)
        formula = f"(p-1)(F+B{filling[schedule]})"
        made.append(Claim("ZB table 2", "idle, in T_F", formula, expected, longest - work, "T_F"))
    return made


def version_claims(run: Run) -> list[Claim]:
    """Without a flush: which weights a gradient was taken of, and to which it was applied."""
    schedule, n, m, updates = run.options.schedule, run.options.stages, run.options.micro_batches, len(run.loss)
    source = "2BW §3.1" if schedule == "2bw" else "PipeDream §3.3"
    made = []
    if m == 1 or schedule == "2bw":  # of PipeDream's minibatches, an update for each
        formula = {"pipedream": "n-i", "vertical-sync": "n-1", "2bw": "1"}[schedule]
        delays = [min(pipelines.weight_delay(schedule, n, stage), updates - 1) for stage in range(1, n + 1)]
        made.append(on_each_rank(source, "updates behind", formula, delays, of_each(run, "delay"), "updates"))
    if schedule == "2bw":
        expected, counted = [], []
        for used in of_each(run, "versions_used"):
            for k, version in reversed(used):  # the last first: that is the one in the table
                expected.append(two_bw.version(k + 1, m))
                counted.append(version)
        formula = "max(⌊(k-1)/m⌋-1, 0)"
        made.append(on_each_rank(source, "version, every k", formula, expected, counted, "updates"))
    return made


def in_flight_claims(run: Run, at: Sequence[Place]) -> list[Claim]:
    """How many micro-batches a stage holds. at: each rank's place in the pipeline."""
    o, schedule = run.options, run.options.schedule
    in_all = o.micro_batches * (1 if SCHEDULES[schedule].flushes else len(run.loss))
    sources = {"gpipe": "GPipe §2.3", "pipedream": "PipeDream §3.2", "vertical-sync": "PipeDream §3.2"}
    sources |= {"2bw": "2BW §3.1", "zb-h1": "ZB §3", "zb-h2": "ZB §3"}
    formulas = {"naive": "1", "gpipe": "m", "interleaved": "2(p-i)+(v-1)p+1", "zb-h1": "p", "zb-h2": "2p-1"}
    source, formula = sources.get(schedule, "PTD §2.2"), formulas.get(schedule, "min(p-i+1, m)")
    claim = "chunks in flight" if o.chunks > 1 else "in flight"
    promised = [pipelines.in_flight(schedule, o.stages, in_all, place.stage + 1, o.chunks) for place in at]
    made = [on_each_rank(source, claim, formula, promised, of_each(run, "in_flight"), "")]
    if o.recompute == "full":
        waiting = {"zb-h1": "i", "zb-h2": "2i-1"}
        source, formula = "ZB §3" if schedule in waiting else "GPipe §2.3", waiting.get(schedule, "1")
        promised = [pipelines.in_flight_again(schedule, in_all, place.stage + 1) for place in at]
        made.append(on_each_rank(source, "with activations", formula, promised, of_each(run, "with_activations"), ""))
    return made


def weight_claims(run: Run) -> list[Claim]:
    """How many versions of its weights a stage holds."""
    o, schedule, updates = run.options, run.options.schedule, len(run.loss)
    if schedule == "vertical-sync" or (schedule == "pipedream" and o.micro_batches > 1):
        return []  # with an update for each of PipeDream's minibatches; for others the papers give no number
    formula = {"pipedream": "n-i+1", "2bw": "2"}.get(schedule, "1")
    source = "PipeDream §3.3" if schedule == "pipedream" else "2BW §3"
    most = min(updates + 1, pipelines.weight_versions(schedule, o.stages, 1))  # the first update leaves at most two
    promised = [min(pipelines.weight_versions(schedule, o.stages, i), most) for i in range(1, o.stages + 1)]
    return [on_each_rank(source, "weight versions", formula, promised, of_each(run, "versions"), "")]


def message_claims(run: Run, at: Sequence[Place], micro_batch: Sequence[int], each: str = "bsh") -> list[Claim]:
    """Activations and gradients that each rank sends in a step: b·s·h elements for each micro-batch and boundary, of
    which `micro_batch` are the rank's."""
    made = []
    for phase, messages in crossings(run, at).items():
        if phase == GRADIENT and not SCHEDULES[run.options.schedule].flushes:
            continue  # the last step sends those of the steps before it as well
        element = run.precision.bytes
        expected = [number * size * element for number, size in zip(messages, micro_batch, strict=True)]
        formula = f"{element}·{'v·' if run.options.chunks > 1 else ''}m·{each}"
        # The first rank sends no gradients, the last no activations: the table shows one that does.
        order = slice(None, None, -1 if phase == GRADIENT else 1)
        counted = run.sent_in(phase)[order]
        made.append(on_each_rank("PTD §2.2", f"{phase} sent", formula, expected[order], counted, "bytes"))
    return made


def crossings(run: Run, at: Sequence[Place]) -> dict[str, list[int]]:
    """How many messages of each kind every rank sends in a step: over the boundary behind, or before, its chunks."""
    o = run.options
    downstream = [sum(not place.is_last(chunk) for chunk in range(o.chunks)) for place in at]
    upstream = [sum(not place.is_first(chunk) for chunk in range(o.chunks)) for place in at]
    return {
        phase: [
            boundaries * o.micro_batches // place.workers(place.stage) if o.stages > 1 else 0
            for boundaries, place in zip(numbers, at, strict=True)
        ]
        for phase, numbers in {ACTIVATION: downstream, GRADIENT: upstream}.items()
    }


def none_when_drained(run: Run) -> list[Claim]:
    """What the papers say of a schedule without flush they say of a stream that is not interrupted."""
    return []


def print_drained(options: Options) -> None:
    """Why there are no claims."""
    print(f"\nTo be saved, the pipeline was drained after every {options.save_every} steps.")
    print("The papers' claims are about a stream that is not interrupted: none was checked.")


def print_letters(run: Run) -> None:
    """What the formulas' letters mean."""
    print("p (K, n): stages; i: one, from 1; m (M): micro-batches; v: chunks of a stage;")
    print("F, B, W: 1 of time each; b: sequences of a micro-batch; s: length; h: width.\n")


def show_clocks(comm: Comm, timeline: Timeline, options: Options, pipelines: Sequence[Sequence[int]]) -> None:
    """Draw what the clocks of the first pipeline's ranks say, and write the trace of all if there is to be one. All
    ranks must call. pipelines: the ranks of each."""
    timelines = comm.gather_object(timeline)
    if not timelines or not timelines[0].spans:
        return
    if options.json != "-":
        flushes = SCHEDULES[options.schedule].flushes
        what = "Last step" if flushes else "Beginning"
        print(f"{what}, simulated time: F forward, B input and W weight gradient")
        print_timelines("", [timelines[rank] for rank in pipelines[0]], goes_on=not flushes)
    if options.trace:
        write_trace(options.trace, timelines, pipelines)

"""What the papers say about a pipeline, next to what its clocks and counters say."""

from collections.abc import Sequence
from typing import Any

from minidist.claims import shaped
from minidist.claims.claim import Claim, on_each_rank
from minidist.claims.letters import letters_in
from minidist.claims.promises import Promises
from minidist.claims.run import Run
from minidist.formulas.needs import follows_formula, needs, peaks
from minidist.formulas.shares import blocks_of, stored_parameters
from minidist.formulas.volumes import tied_volumes
from minidist.papers import chen, gpipe, llama3, pipedream, pipelines, ptd, zero_bubble
from minidist.papers.collectives import ring_all_reduce
from minidist.pp.instructions import ACTIVATION, GRADIENT
from minidist.pp.schedules import SCHEDULES, drained


def claims(run: Run) -> list[Claim]:
    """The claims that hold for the run's schedule."""
    pipe = run.layout
    if drained(pipe.schedule, run.save_every):
        return []
    made = bubble_claims(run) if SCHEDULES[pipe.schedule].flushes else version_claims(run)
    if not pipe.replicas:  # for stages of several workers the papers give no formulas
        made += in_flight_claims(run)
    return [*made, *weight_claims(run), *state_claims(run), *activation_claims(run), *sent_claims(run)]


def list_counts(run: Run, kind: str) -> list[Any]:
    """What each rank has counted."""
    return [counted[kind] for counted in run.counted]


def bubble_claims(run: Run) -> list[Claim]:
    """How long stages idle in a step, by two definitions: as a part of all time, and relative to the work's time."""
    pipe = run.layout
    schedule, p, m, v = pipe.schedule, pipe.pp, pipe.micro_batches, pipe.chunks
    starts, ends, busy = list_counts(run, "start"), list_counts(run, "end"), list_counts(run, "busy")
    step, work = max(ends) - min(starts), busy[0]
    made, again = [work_claim(run)], set(runs_again(run))
    if again not in ({0.0}, {1.0}):
        return made  # the papers' formulas assume stages that work equally long
    if schedule == "naive":
        formula, expected = "(K-1)/K", gpipe.bubble(p, 1)
        made.append(Claim("GPipe §2.3", "idle / all time", formula, expected, (step - work) / step, ""))
    if schedule in ("gpipe", "1f1b"):
        formula, expected = "(K-1)/(M+K-1)", gpipe.bubble(p, m)
        made.append(Claim("GPipe §2.3", "idle / all time", formula, expected, (step - work) / step, ""))
    if schedule in ("gpipe", "1f1b", "interleaved"):
        formula, expected = "(1/v)(p-1)/m" if v > 1 else "(p-1)/m", ptd.bubble(p, m, v)
        made.append(Claim("PTD §2.2", "idle / work", formula, expected, (step - work) / work, ""))
    if schedule in ("breadth-first", "llama3") and m >= p:
        expected = llama3.bubble(p, m, v)
        made.append(Claim("Llama 3 §3.3.2", "idle / work", "(PP-1)/(V·M)", expected, (step - work) / work, ""))
    own = [end - start - of_stage for start, end, of_stage in zip(starts, ends, busy, strict=True)]
    made += shaped.idle_claims(pipe, step - work, own, again)
    filling = {"1f1b": "+W", "zb-h1": "-W", "zb-h2": "-2W"}
    if schedule in filling and m >= zero_bubble.fills(schedule, p):
        longest = max(end - start for start, end in zip(starts, ends, strict=True))
        expected = zero_bubble.idle(schedule, p, 1.0, 1.0 + again.pop(), 1.0)  # the repeated forward is a part of B
        formula = f"(p-1)(F+B{filling[schedule]})"
        made.append(Claim("ZB table 2", "idle, in T_F", formula, expected, longest - work, "T_F"))
    return made


def work_claim(run: Run) -> Claim:
    """How long each rank works: PTD's ideal time, with B and W apart."""
    pipe = run.layout
    again = runs_again(run)
    steps = 1 if SCHEDULES[pipe.schedule].flushes else len(run.loss)
    expected = [ptd.ideal_time(steps * pipe.micro_batches * pipe.chunks, 1.0, 2.0 + more) for more in again]
    more = "" if not any(again) else "+rF" if run.recompute == "log" else "+F"
    formula = f"{'v' * (pipe.chunks > 1)}m(F+B+W{more})"
    counted = list_counts(run, "busy")
    if run.recompute == "log":  # a clock that adds up thirds of T_F is off in the sixteenth digit
        expected, counted = [round(time, 9) for time in expected], [round(time, 9) for time in counted]
    return on_each_rank("PTD §2.2", "work, in T_F", formula, expected, counted, "T_F")


def runs_again(run: Run) -> list[float]:
    """On each rank, the recomputed forwards, relative to all forwards: those of the whole stage with full
    recomputation, otherwise those of its layers."""
    if run.recompute == "full":
        return [1.0] * run.ranks
    blocks = [blocks_of(run, stage) for stage in run.stages]
    return [sum(chen.runs_again(run.recompute, n) for n in of) / max(sum(of), 1) for of in blocks]


def version_claims(run: Run) -> list[Claim]:
    """Without a flush: which weights a gradient was computed with, and to which it was applied.

    A version is the number of updates before it. It is recognized by its fingerprint, taken when it was the newest: the
    weights that a forward bound have the same. -1: no version has it."""
    pipe = run.layout
    schedule, n, m, updates = pipe.schedule, pipe.pp, pipe.micro_batches, len(run.loss)
    source = "2BW §3.1" if schedule == "2bw" else "PipeDream §3.3"
    made = [work_claim(run)]
    if (m == 1 or schedule == "2bw") and not pipe.replicas:  # PipeDream: an update for each minibatch
        formula = {"pipedream": "n-1-i", "vertical-sync": "n-1", "2bw": "1"}[schedule]
        delays = [min(pipelines.weight_delay(schedule, n, stage), updates - 1) for stage in run.stages]
        found, promised, behind = [], [], []
        for stage, counts in zip(run.stages, run.counted, strict=True):
            updates_made, of_rank = dict(counts["behind"]), []
            for k, _, forward, *_ in reversed(counts["used"]):  # the last one first, because the table shows it
                promised.append(pipelines.version_used(schedule, n, stage, k, m))
                # Weights that an update has not changed have one fingerprint: any of these versions was used.
                same = [version for version, mark in enumerate(counts["marks"]) if mark == forward]
                found.append(promised[-1] if promised[-1] in same else same[0] if same else -1)
                of_rank.append(updates_made[k] - found[-1])
            behind.append(max(of_rank))
        made.append(on_each_rank(source, "updates late", formula, delays, behind, "updates"))
        formula = {"pipedream": "t-n+1+i", "vertical-sync": "t-n+1", "2bw": "max(⌊k/m⌋-1, 0)"}[schedule]
        letter = "k" if schedule == "2bw" else "t"
        made.append(on_each_rank(source, f"version, every {letter}", formula, promised, found, "updates"))
    return made


def in_flight_claims(run: Run) -> list[Claim]:
    """How many micro-batches a stage holds."""
    pipe = run.layout
    schedule = pipe.schedule
    in_all = pipe.micro_batches * (1 if SCHEDULES[schedule].flushes else len(run.loss))
    sources = {"gpipe": "GPipe §2.3", "pipedream": "PipeDream §3.2", "vertical-sync": "PipeDream §3.2"}
    sources |= {"2bw": "2BW §3.1", "zb-h1": "ZB §3", "zb-h2": "ZB §3", "llama3": "Llama 3 §3.3.2"} | shaped.SOURCES
    formulas = {"naive": "1", "gpipe": "m", "interleaved": "2(p-i)+(v-1)p-1", "zb-h1": "p", "zb-h2": "2p-1"}
    formulas |= {"breadth-first": "v·m", "llama3": "2(p-i)+(v-1)N-1"} | shaped.IN_FLIGHT
    source, formula = sources.get(schedule, "PTD §2.2"), formulas.get(schedule, "min(p-i, m)")
    claim = "chunks in flight" if pipe.chunks > 1 else "in flight"
    sizes = pipe.chunks, pipe.contiguous
    promised = [pipelines.in_flight(schedule, pipe.pp, in_all, stage, *sizes) for stage in run.stages]
    made = [on_each_rank(source, claim, formula, promised, list_counts(run, "in_flight"), "")]
    if not pipelines.filled(schedule, pipe.pp, in_all):
        made = []
    if run.recompute == "full" and (schedule in ("zb-h1", "zb-h2") or not SCHEDULES[schedule].splits):
        waiting = {"zb-h1": "i+1", "zb-h2": "2i+1"}
        source, formula = "ZB §3" if schedule in waiting else "GPipe §2.3", waiting.get(schedule, "1")
        promised = [pipelines.count_recomputed_in_flight(schedule, in_all, stage) for stage in run.stages]
        made.append(
            on_each_rank(source, "with activations", formula, promised, list_counts(run, "with_activations"), "")
        )
    return made


# ---- what is held ----------------------------------------------------------------------------------------------------


def state_claims(run: Run) -> list[Claim]:
    """Model states: each stage has those of its units (GPipe, section 2.1); all stages together have all of them."""
    pipe = run.layout
    factors = {"parameters": run.bytes.stored, "gradients": run.gradient_bytes, "optimizer": run.optimizer_bytes}
    psi = stored_parameters(run)
    made = [
        on_each_rank("GPipe §2.1", kind, f"{factor}Ψi", [factor * n for n in psi], run.memory_of(kind), "bytes")
        for kind, factor in factors.items()
    ]
    if pipe.replicas:
        return made
    copies, folded = pipelines.copies(pipe.schedule), pipe.schedule in pipelines.FOLDED
    copied = run.model.tied and pipe.pp > 1 and copies == 1 and not folded
    whole = copies * run.model.parameters() + (run.model.units()[0] if copied else 0)
    counted = sum(sum(run.memory_of(kind)) for kind in factors)
    factor = sum(factors.values())
    formula = f"{factor}(Ψ+ψ_emb)" if copied else f"{factor}·2Ψ" if copies > 1 else f"{factor}Ψ"
    return [*made, Claim("GPipe §2.1", "model states", formula, factor * whole, counted, "bytes", "all ranks")]


def activation_claims(run: Run) -> list[Claim]:
    """What the layers of a stage keep at most, for all micro-batches in flight. With full recomputation, a stage keeps
    all activations of the micro-batch that is recomputed, and only the input of the others (GPipe, section 2.3). If W
    comes later than B, a layer keeps less after B (Zero Bubble, section 2)."""
    pipe, p = run.layout, run.bytes.stored
    if not follows_formula(run) or (run.model.experts and run.capacity is None):
        return []
    expected = [peaks(run, rank).of_kinds.activations for rank in range(run.ranks)]
    source, formula = "Korthikanti §4", "peak+(f-1)·kept"
    if run.recompute in ("none", "full"):
        full = f"l·layer+(f-1){p}bs{'h/t' if run.sequence_parallel else 'h'}"
        formula = full if run.recompute == "full" else "f·l·layer"
    if SCHEDULES[pipe.schedule].splits:
        source, formula = "ZB §2", "f·layers; after B: less"
    elif pipe.chunks > 1 or pipe.schedule in pipelines.CROSSED:
        formula = formula.replace("(f-1)·kept", "Σ kept").replace("(f-1)", "Σ ").replace("f·l·layer", "Σ l·layer")
    return [on_each_rank(source, "layers keep", formula, expected, run.memory_of("activations"), "bytes")]


def weight_claims(run: Run) -> list[Claim]:
    """Each backward sees the weights that its forward saw; and the number of versions that a stage holds."""
    pipe = run.layout
    schedule, updates = pipe.schedule, len(run.loss)
    flushes = SCHEDULES[schedule].flushes
    source = "2BW §3.2" if flushes else "2BW §3.1" if schedule == "2bw" else "PipeDream §3.3"
    torn = [sum(len(set(prints)) != 1 for _, _, *prints in counts["used"]) for counts in run.counted]
    made = [on_each_rank(source, "backward sees others", "0", 0, torn, "micro-batches")]
    if flushes:
        used = [[(chunk, mark) for _, chunk, *prints in counts["used"] for mark in prints] for counts in run.counted]
        versions = [len(set(pairs)) / len({chunk for chunk, _ in pairs}) for pairs in used]
        return [*made, on_each_rank(source, "weight versions", "1", 1, versions, "")]
    if pipe.replicas or (schedule != "2bw" and pipe.micro_batches > 1):
        return made  # the papers give no number for replicas, or for several minibatches to an update
    most = min(updates + 1, pipelines.weight_versions(schedule, pipe.pp, 1))  # the first update leaves at most two
    promised = [min(pipelines.weight_versions(schedule, pipe.pp, stage), most) for stage in run.stages]
    formula = {"pipedream": "n-i", "vertical-sync": "n", "2bw": "2"}[schedule]
    made.append(on_each_rank(source, "weight versions", formula, promised, list_counts(run, "versions"), ""))
    p, psi = run.bytes.stored, stored_parameters(run)
    stash = [p * n * (versions - 1) for n, versions in zip(psi, promised, strict=True)]
    formula = {"pipedream": f"{p}(n-1-i)Ψi", "vertical-sync": f"{p}(n-1)Ψi", "2bw": f"{p}Ψi"}[schedule]
    return [*made, on_each_rank(source, "stashed", formula, stash, list_counts(run, "stash_bytes"), "bytes")]


# ---- what is sent ----------------------------------------------------------------------------------------------------


def sent_claims(run: Run) -> list[Claim]:
    """Everything that a rank sends: activations and gradients, and what the papers leave out."""
    pipe = run.layout
    each = count_messages(run)
    flushes = SCHEDULES[pipe.schedule].flushes
    micro_batch = ptd.boundary_elements(run.batch // pipe.micro_batches, run.context, run.model.h) * run.bytes.stored
    made = message_claims(run, each, [micro_batch] * run.ranks)
    messages = [sum(numbers) for numbers in zip(*each.values(), strict=True)]
    shared = shared_gradients(run)
    norms = [8 * (run.ranks - 1) if flushes else 0] * run.ranks  # a float64 from each stage
    source, formula = ("PTD §3", f"{run.gradient_bytes}·ψ_emb") if run.model.tied else ("PipeDream §3.2", "2Ψi(r-1)/r")
    if pipe.schedule in pipelines.CROSSED:
        source, formula = "Chimera", f"{run.gradient_bytes}Ψi"
    stamps = run.sent_in("control", count="messages")
    others = [
        (source, "shared gradients", formula, shared, run.sent_in("shared gradients"), "bytes"),
        ("in addition", "pipeline norm", "8(p-1)", norms, run.sent_in("pipeline norm"), "bytes"),
        ("in addition", "clock stamps", "one a message", messages, stamps, "messages"),
    ]
    for source, claim, formula, promised, counted, unit in others:
        if any(promised):
            made.append(on_each_rank(source, claim, formula, promised, counted, unit))
    everything = [
        n * micro_batch + of_shared + norm for n, of_shared, norm in zip(messages, shared, norms, strict=True)
    ]
    sent = [run.sent_by(rank) - control for rank, control in enumerate(run.sent_in("control"))]
    made.append(on_each_rank("together", "total sent", "nothing else", everything, sent, "bytes"))
    arrives = sum(everything)
    if not flushes:  # in the last step, more backwards are left to a stage than to the stage after it
        left = [
            pipedream.backwards_left(pipe.replicas or (1,) * pipe.pp, i, pipe.micro_batches, len(run.loss))
            for i in run.stages
        ]
        differing = [number * ((i < pipe.pp) - (i > 1)) for number, i in zip(left, run.stages, strict=True)]
        arrives += sum(differing) * micro_batch
    total = sum(run.received)
    return [*made, Claim("together", "total received", "nothing else", arrives, total, "bytes", "all ranks")]


def message_claims(run: Run, each: dict[str, list[int]], micro_batch: Sequence[int], shape: str = "bsh") -> list[Claim]:
    """Activations and gradients that each rank sends in a step. each: by phase, the number of messages, each of b·s·h
    elements. micro_batch: the bytes of each rank's part of a message."""
    pipe = run.layout
    made = []
    for phase, messages in each.items():
        expected = [number * size for number, size in zip(messages, micro_batch, strict=True)]
        drains = phase == GRADIENT and not SCHEDULES[pipe.schedule].flushes
        number = "(m+n-1-i)" if drains else "v·m" if pipe.chunks > 1 else "m"
        number = shaped.MESSAGES.get(pipe.schedule, number)
        # The first rank sends no gradients, the last no activations: the table shows one that does.
        order = slice(None, None, -1 if phase == GRADIENT else 1)
        formula, counted = f"{run.bytes.stored}·{number}·{shape}", run.sent_in(phase)[order]
        made.append(on_each_rank("PTD §2.2", f"{phase} sent", formula, expected[order], counted, "bytes"))
    return made


def count_messages(run: Run) -> dict[str, list[int]]:
    """How many messages of each kind every rank sends in the last step. Without a flush, the pipeline drains in it."""
    pipe = run.layout
    workers = pipe.replicas or (1,) * pipe.pp
    name, p, m = pipe.schedule, pipe.pp, pipe.micro_batches
    each = [pipelines.count_messages(name, p, m // workers[stage - 1], stage, pipe.chunks) for stage in run.stages]
    activations, gradients = ([numbers[i] for numbers in each] for i in (0, 1))
    if not SCHEDULES[pipe.schedule].flushes:
        left = [pipedream.backwards_left(workers, stage, pipe.micro_batches, len(run.loss)) for stage in run.stages]
        gradients = [number if stage > 1 else 0 for stage, number in zip(run.stages, left, strict=True)]
    return {ACTIVATION: activations, GRADIENT: gradients}


def shared_gradients(run: Run) -> list[int]:
    """Bytes that each rank sends in the last step to sum gradients that several ranks have. These are gradients of a
    tied embedding (PTD, section 3), of a stage that two ranks have in a cross, or of a stage's replicas, in each
    remaining update (PipeDream, section 3.2)."""
    pipe, p, sent = run.layout, run.gradient_bytes, [0] * run.ranks
    if not pipe.replicas:
        return [p * n for volume in tied_volumes(run) for n in volume.elements] or sent
    for rank, stage in enumerate(run.stages):
        workers = pipe.replicas[stage - 1]
        left = pipedream.backwards_left(pipe.replicas, stage, pipe.micro_batches, len(run.loss))
        updates = -(-left // (pipe.micro_batches // workers))
        number, units = rank - run.stages.index(stage), run.model.units()
        once = [ring_all_reduce(units[unit], workers).sent[number] for unit in pipe.parts[stage - 1]]
        sent[rank] = p * updates * sum(once) if workers > 1 else 0
    return sent


PROMISES = Promises(claims=claims, letters=letters_in("pipeline"), needs=needs)

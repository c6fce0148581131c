"""What `explain` says about memory: a row for each kind, the fullest moment, and whether a device has room for it."""

from collections.abc import Iterator

from minidist.cli.models import Count
from minidist.deepspeed.lines import fits, line, wrapped
from minidist.deepspeed.moments import backward, differences, gradient_bytes, profile_of, step
from minidist.deepspeed.plan import ConfigPlan
from minidist.deepspeed.sizes import (
    at_most,
    bytes_each,
    divided,
    errors,
    passing,
    persistent,
    second_copy,
    states,
    updated,
)
from minidist.formulas.profile import in_words
from minidist.papers.decoder import Decoder
from minidist.papers.mixed_precision import BYTES

MOMENTS = {  # what `formulas/` call them, for a reader
    "forward": "the end of the forward pass",
    "head": "the head's backward",
    "activation": "the backward of a layer's activation function",
    "attention": "the backward of attention",
    "embedding": "the embedding's gradient",
    "step": "the optimizer's step",
}


def room(plan: ConfigPlan, model: Decoder | Count, s: int | None, capacity: int) -> Iterator[str]:
    """Whether a device of this capacity has room for the run, and what that leaves out."""
    needed, moment = at_most(plan, model, s)
    reserve = profile_of(plan).reserve * capacity
    yield from fits(needed, capacity, reserve, f" at {MOMENTS[moment]}" if moment in MOMENTS else "")
    if reserve:
        yield from wrapped("reserve: for what an allocator keeps, the CUDA context and NCCL")
    if isinstance(model, Count):
        yield from wrapped("not counted: what passes through, nor activations: --parameters does not say")


def memory(plan: ConfigPlan, model: Decoder | Count, s: int | None = None) -> Iterator[str]:
    p, k = bytes_each(plan)
    of = states(plan, model)
    n = "/G" if plan.shard else "/N"
    parameters, gradients, optimizer = (n * (divided(plan) >= needed) for needed in (3, 2, 1))
    yield f"\nMemory of a rank, by formula, in GB (10⁹ bytes); {plan.precision} precision"
    if plan.axes.used:
        at = plan.axes
        numbers = (at.pp, "p = {}"), (at.tp, "t = {}"), (at.cp, "c = {}, " + at.scheme), (at.ep, "{} of experts")
        used = [words.format(n) for n, words in numbers if n > 1]
        yield f"  Ψ and N: of a rank that shares with others: {'; '.join(used)}"
    if plan.shard:
        yield f"  G = {plan.shard} ranks of a host share a copy"
    if plan.below:
        largest = max(model.units, default=0)
        yield line("parameters", f"{p}·max ψ/N", p * largest / plan.ranks)
    elif plan.nvme and plan.stage == 3:
        yield line("parameters", f"2·{p}·max ψ/N", 2 * p * max(model.units, default=0) / plan.ranks)
    else:
        yield line("parameters", f"{p}Ψ{parameters}", of.parameters)
    if staying := persistent(plan, model):
        yield line("persistent parameters", f"{p}Ψ_p, in addition", p * staying)
    if plan.offload:
        yield from on_the_host(plan, model)
    else:
        yield line("gradients", f"{gradient_bytes(plan)}Ψ{gradients}", of.gradients)
        yield line("optimizer states", f"{k}Ψ{optimizer}", of.optimizer)
        yield line("model states", "together", of.total)
    if plan.second:
        yield line("second copy", f"{p}Ψ/G, G = {plan.second}, in addition", second_copy(plan, model))
    if plan.freeze:
        yield line("errors of what is sent", f"{BYTES[plan.precision].computed}Ψ, in addition", errors(plan, model))
    if in_passing := passing(plan, model):
        gradients = "a buffer for gradients" if plan.bucket_size else "gradients"
        yield line("whole units", gradients + " and parameters" * (divided(plan) == 3), in_passing)
    if isinstance(model, Count):
        yield from wrapped("whole units, activations: --parameters does not say; --model NAME or config.json does")
        return
    here, s = backward(plan, model, s), s or model.s
    for what, formula, nbytes in (
        ("activations of the layers", f"b = {plan.micro_batch}, s = {s}, recompute {plan.recompute}", here.activations),
        ("head and loss", "logits, their gradient", here.ends),
        ("transient", "what a backward allocates", here.transient),
        ("workspaces", "of matrix products; rotary positions", here.workspaces),
    ):
        if nbytes:
            yield line(what, formula, nbytes)
    if plan.on_host:
        kept = model.activations(plan.micro_batch, plan.recompute, p, s)
        yield line("on the host: activations", f"l·{p}bsh", kept)
    stepping = step(plan, updated(plan, model))
    if stepping.gradients:
        yield line("in the optimizer's step", "gradients that stay, and in float32", stepping.gradients)
    if stepping.roots:
        yield line("  and roots", "2·4Ψ, of PyTorch's Adam", stepping.roots)
    needed, moment = at_most(plan, model, s)
    yield line("at the fullest moment", MOMENTS.get(moment, moment), needed)
    yield from assumptions(plan)


def assumptions(plan: ConfigPlan) -> Iterator[str]:
    """What the figures assume that the file does not say."""
    profile = profile_of(plan)
    if profile.name == "paper":
        return
    differs = in_words(differences(plan))
    yield from wrapped(f"as the profile {profile.name} (python -m minidist plan), but {differs}")


def on_the_host(plan: ConfigPlan, model: Decoder | Count) -> Iterator[str]:
    """What ZeRO-Offload moves from a rank's device to its host, and ZeRO-Infinity on to files."""
    (p, k), n, psi = bytes_each(plan), plan.ranks, model.parameters
    largest = max(model.units, default=0)
    if plan.stage == 1:
        yield line("gradients", f"{p}Ψ", p * psi)
    yield line("on the host: gradients", f"{p}Ψ/N", p * psi / n)
    if plan.below:
        yield line("  and parameters", f"{p}Ψ/N", p * psi / n)
    copy = 0 if BYTES[plan.precision].master else p  # where the states have no copy of the parameters
    if not plan.nvme:
        yield line("  optimizer states", f"{k + copy}Ψ/N", (k + copy) * psi / n)
        return
    yield line("  optimizer states", f"3·{k + copy}·max ψ/N", 3 * (k + copy) * largest / n)
    if plan.stage == 3:
        yield line("  parameters", f"2·{p}·max ψ/N", 2 * p * largest / n)
        yield line("in files: parameters", f"{p}Ψ/N", p * psi / n)
    yield line("in files: optimizer states", f"{k + copy}Ψ/N", (k + copy) * psi / n)

"""Bytes of a configuration's model states and of what passes through a rank's device, by the papers' formulas."""

import itertools
import math

from minidist.cli.models import Count
from minidist.deepspeed import moments
from minidist.deepspeed.plan import ConfigPlan
from minidist.formulas.zero import buffer_size
from minidist.papers import chen, deepspeed, zero
from minidist.papers.decoder import Decoder
from minidist.papers.mixed_precision import BYTES


def bytes_each(plan: ConfigPlan) -> tuple[int, int]:
    """Bytes of a stored element, and of a parameter's optimizer state."""
    of = BYTES[plan.precision]
    return of.stored, of.optimizer(plan.optimizer.moments)


def states(plan: ConfigPlan, model: Decoder | Count) -> zero.ModelStates:
    """Bytes of model states on a rank. With hybrid sharding the ranks of a host share a copy. FSDP's SHARD_GRAD_OP
    divides parameters between steps, as stage 3 does."""
    p, k = bytes_each(plan)
    if plan.axes.used and not isinstance(model, Count):
        of = moments.backward(plan, model, None)
        usual = BYTES[plan.precision].optimizer(2)
        return zero.ModelStates(of.parameters, of.gradients, of.optimizer * k / usual)
    return zero.model_states(
        model.parameters / (plan.axes.tp * plan.axes.pp), group(plan), divided(plan), p, moments.gradient_bytes(plan), k
    )


def updated(plan: ConfigPlan, model: Decoder | Count) -> float:
    """The parameters that a rank updates."""
    if not plan.axes.used or isinstance(model, Count):
        return model.parameters / (plan.axes.tp * plan.axes.pp) / (group(plan) if plan.stage else 1)
    return moments.backward(plan, model, None).optimizer / BYTES[plan.precision].optimizer(2)


def group(plan: ConfigPlan) -> int:
    """The number of ranks that divide a copy of the model states."""
    return (plan.shard or plan.data_ranks) * plan.axes.cp


def divided(plan: ConfigPlan) -> int:
    """The ZeRO stage that divides as much as this plan between steps."""
    return 3 if plan.fsdp and plan.stage else plan.stage


def persistent(plan: ConfigPlan, model: Decoder | Count) -> int:
    """Ψ_p: elements of parameters that are not divided."""
    if isinstance(model, Count) or plan.stage < 3:
        return 0
    return sum(size for unit in model.parameter_sizes for size in unit if size <= plan.limits.persist)


def passing(plan: ConfigPlan, model: Decoder | Count) -> float:
    """The most bytes of whole units that are held for a moment: gradients in stage 2, in stage 3 also parameters. An
    embedding that the head reads is held together with each of the others. With FSDP's prefetch the parameters of two
    units are held at a time, and with SHARD_GRAD_OP all. Gradients that go through a buffer take only the buffer. The
    embedding's gradient is an exception: it waits for its second part, if a rank has no other place for it."""
    if isinstance(model, Count):
        return 0
    if plan.axes.used:
        return moments.backward(plan, model, None).passing
    p, wide = bytes_each(plan)[0], moments.gradient_bytes(plan)
    persist, ahead, most = plan.limits
    if persist or ahead:
        parts = [(sum(size for size in unit if size <= persist), sum(unit)) for unit in model.parameter_sizes]
        divided = [(small, whole - small) for small, whole in parts]
        buffer = buffer_size(plan.bucket_size, plan.ranks, model.parameters) if plan.bucket_size else 0
        live = math.inf if most is None else most
        first = model.v * model.h
        return p * deepspeed.in_passing(divided, model.tied, persist, first, ahead, live, buffer, wide // p)
    embedding, *others = model.units if model.tied else [0, *model.units]
    largest = embedding + max(others)
    gathered = largest if plan.stage == 3 else 0
    if "shard_grad_op" in plan.fsdp:
        gathered = model.parameters
    elif {"pre", "--forward-prefetch"} & {*plan.fsdp}:
        gathered = embedding + max(one + next_one for one, next_one in itertools.pairwise(others))
    summed = largest if plan.stage >= 2 else 0
    if plan.bucket_size:
        summed = buffer_size(plan.bucket_size, plan.ranks, model.parameters) + (embedding if plan.stage >= 2 else 0)
    return p * gathered + wide * summed


def second_copy(plan: ConfigPlan, model: Decoder | Count) -> float:
    """Bytes of ZeRO++'s second copy of the parameters, which the ranks of a host share."""
    return bytes_each(plan)[0] * model.parameters / plan.second if plan.second else 0


def errors(plan: ConfigPlan, model: Decoder | Count) -> float:
    """Bytes of what 1-bit Adam has not sent so far."""
    return BYTES[plan.precision].computed * model.parameters if plan.freeze else 0


def again(plan: ConfigPlan, model: Decoder | Count) -> int:
    """Parameters of the layers that stage 3 gathers to run them again."""
    if isinstance(model, Count):
        return 0
    small = sum(size for size in model.parameter_sizes[1] if size <= plan.limits.persist)
    return chen.count_regathered_layers(plan.recompute, model.layers) * (model.units[1] - small)


def at_most(plan: ConfigPlan, model: Decoder | Count, s: int | None) -> tuple[float, str]:
    """Bytes on a rank's device at the fullest moment, and which this is."""
    p, _ = bytes_each(plan)
    of = states(plan, model)
    parameters: float = p * persistent(plan, model) + second_copy(plan, model) + errors(plan, model)
    if plan.below or (plan.nvme and plan.stage == 3):
        parameters += (1 if plan.below else 2) * p * max(model.units, default=0) / plan.ranks
    else:
        parameters += of.parameters
    rest = (p * model.parameters if plan.stage == 1 else 0) if plan.offload else of.gradients + of.optimizer
    found = [(parameters + rest, "states")]
    if not isinstance(model, Count):
        here = moments.backward(plan, model, s)
        work = here.activations + here.ends + here.transient + here.workspaces
        found = [(parameters + rest + passing(plan, model) + work, here.moment or "backward")]
    stepping = moments.step(plan, updated(plan, model))
    found.append((parameters + (0 if plan.offload else of.optimizer) + stepping.total, "step"))
    return max(found)

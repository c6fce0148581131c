"""What a rank's device holds at the two fullest moments of a step: in the backward pass, and in the optimizer's step.

Layers, head and what a backward allocates are those of `formulas/`, with the profile of a system for numbers of 2 bytes
(`formulas/profile.py`). DeepSpeed and FSDP differ from Megatron-LM in what DIFFERS says. In the optimizer's step the
16-bit gradients of a rank's shard become float32 (runtime/zero/stage_1_and_2.py: single_grad_partition), in stage 3 a
sub-group of them at a time. PyTorch's Adam, which trains if the file names none, allocates two arrays of this size, the
root of the second moments and that root over its bias correction (issue hiyouga/LlamaFactory#1221 shows both).
"""

from dataclasses import replace
from typing import NamedTuple

from minidist import UsageError
from minidist.deepspeed.plan import ConfigPlan
from minidist.formulas.profile import Profile, usual
from minidist.papers.decoder import Decoder
from minidist.papers.mixed_precision import BYTES
from minidist.papers.models import Model
from minidist.plan.choice import Choice, Wanted, ask, misfit
from minidist.plan.memory import Held, held

DIFFERS = {  # from the profile megatron
    "loss": "whole",  # Hugging Face's models turn logits to float32
    "stand_ins": "none",  # each gradient is real
    "vocabulary": "exact",
}
FULL = 4  # bytes of a number in float32
ROOTS = 2  # arrays that PyTorch's Adam allocates in an update, each as large as the shard


def profile_of(plan: ConfigPlan) -> Profile:
    """What a system holds that trains so."""
    system = usual(plan.precision)
    return system if system.name == "paper" else replace(system, **differences(plan))


def differences(plan: ConfigPlan) -> dict[str, str]:
    """In what this differs from the profile megatron."""
    return DIFFERS | {"grad_dtype": plan.grad_dtype}


def gradient_bytes(plan: ConfigPlan) -> int:
    """Bytes of an element of the gradients that a rank keeps."""
    return BYTES[plan.precision].gradient(plan.grad_dtype)


def question(plan: ConfigPlan, model: Decoder, s: int | None) -> tuple[Wanted, Choice]:
    """The plan as the planner asks about a row. Raises UsageError if the axes cannot divide the model.

    On the data axis alone, model states and what is transient have formulas of their own (`sizes.py`), because
    DeepSpeed has limits and buffers for them."""
    other = plan.axes.used
    at = Choice(
        dp=plan.data_ranks,
        tp=plan.axes.tp,
        cp=plan.axes.cp,
        pp=plan.axes.pp,
        ep=plan.axes.ep,
        zero=plan.stage if other else 0,
        hosts=plan.data_ranks // plan.shard if plan.shard and other else 1,
        recompute=plan.recompute,
        rows=plan.micro_batch,
    )
    wanted = Wanted(
        "the model",
        Model.like(model),
        plan.batch,
        s or model.s,
        plan.precision,
        sequence=plan.axes.sequence,
        scheme=plan.axes.scheme,
        profile=profile_of(plan),
    )
    if found := misfit(wanted, at):
        raise UsageError(found)
    return wanted, at


def backward(plan: ConfigPlan, model: Decoder, s: int | None) -> Held:
    """The fullest moment of forward and backward."""
    fullest = max(held(ask(*question(plan, model, s))), key=lambda rank: rank.total)
    if plan.on_host:  # of a layer's inputs only that of the layer at work
        inputs = (model.layers - 1) * BYTES[plan.precision].stored * plan.micro_batch * (s or model.s) * model.h
        fullest = fullest._replace(activations=max(0.0, fullest.activations - inputs))
    return fullest


class Step(NamedTuple):
    """Bytes that the optimizer's step adds to parameters and optimizer states."""

    gradients: float  # those that stay, and those in float32
    roots: float  # of PyTorch's Adam

    @property
    def total(self) -> float:
        return self.gradients + self.roots


def step(plan: ConfigPlan, shard: float) -> Step:
    """The optimizer's step on a device. shard: the parameters that it updates."""
    if profile_of(plan).name == "paper" or plan.offload:
        return Step(0.0, 0.0)
    at_once = min(shard, plan.config["zero_optimization.sub_group_size"]) if plan.stage == 3 else shard
    stay = gradient_bytes(plan) * (shard if plan.stage in (0, 3) else 0)
    framework = plan.config["optimizer.type"] is None and plan.optimizer.moments == 2
    return Step(stay + FULL * at_once, ROOTS * FULL * at_once if framework else 0.0)

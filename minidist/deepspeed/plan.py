"""From a configuration to a run: which chapter, with what settings, and how a command line would say it."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from minidist import UsageError, how_to_install
from minidist.cli.shared import ModelOptions, TrainingOptions
from minidist.compression import OneBitAdam
from minidist.deepspeed.agree import BATCH, agreed, batch_of, grad_dtype_of, optimizer_of, precision_of, recompute_of
from minidist.deepspeed.axes import ONLY_DATA, Axes, axes_of
from minidist.deepspeed.config import Config, check
from minidist.deepspeed.scales import loss_scale_of
from minidist.deepspeed.schedules import schedule_of
from minidist.engine import Settings
from minidist.nn.optim import SGD, AdamW, Optimizer
from minidist.nn.precision import LossScale, precision
from minidist.programs.axes import nearest_divisor
from minidist.programs.compression import EPS
from minidist.zr.limits import Limits

CHAPTERS = ("data_parallel", "zero1", "zero2", "zero3")  # by stage
ROOM = "zero_optimization"
OF_WIDTH: dict[str, Callable[[int], int]] = {  # what "auto" means, as a function of h
    f"{ROOM}.reduce_bucket_size": lambda h: h * h,
    f"{ROOM}.prefetch_bucket_size": lambda h: int(0.9 * h * h),
    f"{ROOM}.param_persistence_threshold": lambda h: 10 * h,
}


@dataclass
class ConfigPlan:
    """The run that a configuration asks for."""

    config: Config
    ranks: int
    stage: int
    batch: int  # sequences per update
    micro_batch: int  # sequences of one rank in one forward
    accumulate: int
    precision: str  # mixed, bf16, fp32, fp64
    clip: float
    recompute: str
    optimizer: Optimizer
    lr: float
    schedule: Callable[[int], float] | None = None  # of the learning rate; None: the configuration has none
    loss_scale: LossScale | None = None  # None: mixed precision's default, or no scaling
    axes: Axes = ONLY_DATA  # next to the data axis
    shard: int | None = None  # data ranks of a host, which share one copy of the model; None: all
    offload: bool = False  # gradients, optimizer states and the update are on the host
    nvme: bool = False  # and the states are in files; in stage 3 parameters, too
    nvme_path: str | None = None  # the folder of these files; None: a temporary one
    below: bool = False  # parameters are on the host, too
    limits: Limits = field(default_factory=Limits)  # stage 3's limits
    grad_dtype: str = "stored"  # gradients add up in the parameters' dtype, or in fp32
    bucket_size: int | None = None  # elements of gradients that are reduced at once; None: those of a unit
    on_host: bool = False  # the stored inputs of recomputed blocks are on the host
    together: bool = False  # ... and in one buffer
    second: int = 0  # ZeRO++: ranks of a host, which have a second copy of the parameters; 0: not ZeRO++
    freeze: int = 0  # 1-bit Adam: updates before signs are sent; 0: another optimizer
    fsdp: list[str] = field(default_factory=list)  # options of the chapter of that name, if the configuration is FSDP's
    beyond: list[str] = field(default_factory=list)  # settings that no option of a command line expresses
    constant: bool = False  # the learning rate stays the same: no schedule, and no option asks for one
    notes: list[str] = field(default_factory=list)  # a line each: what has no effect here, and why

    @property
    def data_ranks(self) -> int:
        """The ranks that share the sequences."""
        return self.ranks // self.axes.together

    @property
    def chapter(self) -> str:
        if self.axes.used:
            return "parallel3d"
        if self.fsdp:
            return "fsdp"
        if self.second or self.freeze:
            return "zeropp" if self.second else "compression"
        if self.on_host or self.together:
            return "zero_r"
        return "infinity" if self.nvme else "offload" if self.offload else CHAPTERS[self.stage]

    @property
    def on_device(self) -> bool:
        """Whether its chapter keeps all on the device, in whole units."""
        return bool(self.axes.used or self.second or self.freeze)

    def said(self) -> dict[str, Any]:
        """The plan's settings as options of a command line, by their names."""
        return {
            "batch": self.batch,
            "accumulate": self.accumulate,
            "precision": self.precision,
            "grad_dtype": self.grad_dtype,
            "clip": self.clip,
            "recompute": self.recompute,
            "optimizer": "adamw" if isinstance(self.optimizer, AdamW) else "sgd",
            "lr": self.lr,
            "weight_decay": vars(self.optimizer)["weight_decay"],
            **({"bucket_size": self.bucket_size} if self.bucket_size else {}),
            **{name: value for name, value in self.limits._asdict().items() if value},
            **({"min_lr": self.lr, "warmup": 0} if self.constant else {}),
        }

    def arguments(self) -> list[str]:
        """The chapter's command line, as far as it can say all this."""
        usual = TrainingOptions()
        words = self.axes.arguments(self.ranks, self.shard, self.accumulate) if self.axes.used else list(self.fsdp)
        words += ["--zero", str(self.stage)] if self.chapter in ("offload", "infinity", "zero_r", "parallel3d") else []
        words += ["--ranks-per-host", str(self.second)] if self.chapter == "zeropp" else []
        words += ["--with", "sign", "--freeze-step", str(self.freeze)] if self.chapter == "compression" else []
        if self.chapter == "zero_r":
            words += ["--tp", "1", "--activations", "host" if self.on_host else "device"]
            words += [] if self.together else ["--scattered"]
        words += ["--parameters", "host"] if self.below else []
        words += ["--disk", self.nvme_path] if self.nvme_path else []
        for option, value in self.said().items():
            if value != getattr(usual, option, None):
                exact = isinstance(value, float) and float(f"{value:g}") == value
                words += [f"--{option.replace('_', '-')}", f"{value:g}" if exact else str(value)]
        return words

    def settings(self, seed: int) -> Settings:
        """Settings for an engine. Raises UsageError if bfloat16 is not installed."""
        try:
            stored = precision(self.precision)
        except ImportError:
            raise UsageError(f"bf16 needs a package of its own: {how_to_install('bf16')}") from None
        return Settings(
            precision=replace(stored, gradient=np.float32) if self.grad_dtype == "fp32" else stored,
            optimizer=self.optimizer,
            learning_rate=self.schedule or (lambda update: self.lr),
            clip=self.clip,
            accumulate=self.accumulate,
            bucket_size=self.bucket_size,
            recompute=self.recompute,
            seed=seed,
        )


def make(
    config: dict[str, Any],
    ranks: int,
    options: TrainingOptions | None = None,
    given: Collection[str] = (),
    width: int | None = None,
    shard: int | None = None,
    layers: int | None = None,
    fsdp: Sequence[str] = (),
    axes: Axes = ONLY_DATA,
) -> ConfigPlan:
    """Plan a configuration's run on `ranks` ranks. Raises UsageError, one line, if it cannot work.

    options: fill "auto", and what the configuration leaves open, as TrainingArguments do in the Hugging Face Trainer.
    given: the options that the user has typed. They must not contradict the configuration. width and layers are the
    model's, h and L. shard: data ranks per host in hybrid sharding. fsdp: options of the chapter of that name.
    axes: those of Accelerate.
    """
    options = options or TrainingOptions()
    checked = check(config, auto={
        **{path: options.batch for path in BATCH},  # only a place holder: `batch_of` fills them
        "fp16.enabled": False,  # likewise: `precision_of`
        "bf16.enabled": False,
        "gradient_clipping": options.clip,
        **{path: of(width or ModelOptions().width) for path, of in OF_WIDTH.items()},
        f"{ROOM}.gather_16bit_weights_on_model_save": False,
        "optimizer.params.lr": options.lr,
        "optimizer.params.betas": (AdamW.beta1, AdamW.beta2),
        "optimizer.params.eps": AdamW.eps,
        "optimizer.params.weight_decay": options.weight_decay,
        "scheduler.params.warmup_min_lr": 0.0,
        "scheduler.params.warmup_max_lr": options.lr,
        "scheduler.params.warmup_num_steps": max(1, options.warmup),
        "scheduler.params.total_num_steps": max(1, options.steps),
    })  # fmt: skip
    _check_stage(checked)
    axes, rate = axes_of(checked, axes, ranks, shard), "optimizer.params.lr"
    batch, micro_batch, accumulate = batch_of(checked, ranks // axes.together, options, given)
    plan = ConfigPlan(
        config=checked,
        ranks=ranks,
        stage=checked[f"{ROOM}.stage"],
        batch=batch,
        micro_batch=micro_batch,
        accumulate=accumulate,
        precision=precision_of(checked, options, given),
        clip=agreed(checked, "gradient_clipping", "clip", options, given),
        recompute=recompute_of(checked, options, given, layers or ModelOptions().layers),
        optimizer=optimizer_of(checked, options, given),
        lr=agreed(checked, rate, "lr", options, given) if rate in checked.table else options.lr,
        axes=axes,
        shard=shard if shard != ranks // axes.together else None,
        fsdp=[] if axes.used else list(fsdp),
        notes=checked.notes,
    )
    _fewer_bytes(checked, plan)
    _offload(checked, plan)
    plan.grad_dtype = grad_dtype_of(checked, plan.precision, plan.stage, options, given)
    plan.bucket_size = _bucket_size(checked, plan)
    _checkpoints(checked, plan)
    _limits(checked, plan)
    plan.schedule = schedule_of(checked, plan.lr, plan.optimizer)
    plan.constant = plan.schedule is None and not {"warmup", "min_lr"} & {*given}
    if plan.precision == "mixed":
        plan.loss_scale = loss_scale_of(checked, plan.stage == 0 and not plan.fsdp, plan.notes)
    plan.beyond = _beyond(plan)
    if checked[f"{ROOM}.offload_param.device"] != "none" and plan.stage < 3:
        plan.notes.append(f"{ROOM}.offload_param is of stage 3: stage {plan.stage} has all parameters on every rank")
    checked.values.update(zip(BATCH, (batch, micro_batch, accumulate), strict=True))
    checked.values.update({"fp16.enabled": plan.precision == "mixed", "bf16.enabled": plan.precision == "bf16"})
    return plan


def _check_stage(config: Config) -> None:
    """Raise UsageError for what DeepSpeed refuses in this stage."""
    stage = config[f"{ROOM}.stage"]
    if not config[f"{ROOM}.compute_grad_norm"] and stage not in (1, 2):
        raise UsageError(f"{ROOM}.compute_grad_norm false is of stages 1 and 2, and this is stage {stage}")
    if config[f"{ROOM}.offload_optimizer.ratio"] < 1 and stage < 3:
        raise UsageError(f"{ROOM}.offload_optimizer.ratio below 1 is of stage 3, and this is stage {stage}")


def _fewer_bytes(config: Config, plan: ConfigPlan) -> None:
    """Set ZeRO++, whose three changes run together, or 1-bit Adam. Raises UsageError for what no chapter has."""
    names = ("zero_quantized_weights", "zero_hpz_partition_size", "zero_quantized_gradients")
    asked = [name for name in names if config[f"{ROOM}.{name}"] not in (0, 1) or config[f"{ROOM}.{name}"] is True]
    if asked:
        path, per_host = f"{ROOM}.{asked[0]}", config[f"{ROOM}.zero_hpz_partition_size"]
        if plan.stage < 3:
            raise UsageError(f"{path} is of stage 3, and this is stage {plan.stage}: leave it out")
        if plan.axes.used:
            raise UsageError(f"{path}: minidist.zeropp has no other axes: leave them or {', '.join(asked)} out")
        if missing := [name for name in names if name not in asked]:
            raise UsageError(
                f"{path}: minidist.zeropp makes ZeRO++'s three changes together: add {' and '.join(missing)}, or leave"
                f" {' and '.join(asked)} out"
            )
        if plan.ranks % per_host:
            near, path = nearest_divisor(plan.ranks, per_host), f"{ROOM}.zero_hpz_partition_size {per_host}"
            raise UsageError(f"{path}: {plan.ranks} ranks are no hosts of {per_host} each: make it {near}")
        plan.second = per_host
    if isinstance(plan.optimizer, OneBitAdam):
        if plan.stage:
            stage = f"{ROOM}.stage {plan.stage}"
            raise UsageError(f"optimizer.type OneBitAdam with {stage} is refused by DeepSpeed, too: make it stage 0")
        if plan.axes.used or plan.fsdp:
            raise UsageError("optimizer.type OneBitAdam: minidist.compression has no other axes: leave them out")
        plan.freeze = max(1, config["optimizer.params.freeze_step"])


def _offload(config: Config, plan: ConfigPlan) -> None:
    """Set where the optimizer works, and where its states are."""
    room = f"{ROOM}.offload_optimizer.device"
    states, parameters = config[room], config[f"{ROOM}.offload_param.device"]
    if states == "none" or plan.fsdp or plan.on_device or not plan.stage:
        if states != "none":
            reason = (
                f"here, because minidist.{plan.chapter} keeps everything on the device"
                if plan.fsdp or plan.on_device
                else "in stage 0, which divides nothing: take stage 1, 2 or 3"
            )
            plan.notes.append(f"{room} has no effect {reason}")
    elif states == "nvme" and plan.stage == 3 and parameters != "nvme":
        plan.notes.append(f'{room} is "cpu" here as long as offload_param.device is not "nvme", too')
        plan.offload, plan.below = True, parameters == "cpu"
    else:
        plan.offload, plan.nvme = True, states == "nvme"
        plan.below = plan.stage == 3 and parameters != "none" and not plan.nvme
    if plan.nvme:
        plan.nvme_path = config[f"{ROOM}.offload_optimizer.nvme_path"] or config[f"{ROOM}.offload_param.nvme_path"]
    below = f"{ROOM}.offload_param.device"
    if plan.stage == 3 and parameters != "none" and states == "none" and not (plan.fsdp or plan.on_device):
        plan.notes.append(f"{below} takes the optimizer along here, because who updates them is where they are")
        plan.offload = plan.below = True
    if plan.below and parameters == "nvme":
        plan.notes.append(f'{below} is "cpu" here as long as offload_optimizer.device is not "nvme", too')


def _limits(config: Config, plan: ConfigPlan) -> None:
    """Set what stage 3 does not divide, gathers ahead, and may hold gathered at a time, as far as the file says it."""
    paths = {"persist": "param_persistence_threshold", "ahead": "prefetch_bucket_size", "live": "max_live_parameters"}
    limits = {}
    for name, key in paths.items():
        path = f"{ROOM}.{key}"
        if not config.stated.get(path) or plan.stage < 3:
            continue
        segments = name != "persist" and plan.recompute not in ("none", "selective", "full")
        reasons = {
            "FSDP gathers by wrapping and prefetching of its own": plan.fsdp,
            f"minidist.{plan.chapter} gathers a unit at a time": plan.on_device,
            "parameters in files come ahead through two rooms": plan.nvme,
            "parameters that wait on the host are all divided": plan.below and name == "persist",
            "minidist.zero_r, where such checkpoints are, gathers a unit at a time": plan.on_host or plan.together,
            f"no formula knows in which order recompute {plan.recompute} gathers": segments,
        }
        found = [reason for reason, holds in reasons.items() if holds]
        if found:
            plan.notes.append(f"{path} has no effect here, because {found[0]}")
        else:
            limits[name] = config[path]
    if not limits.get("ahead"):
        limits.pop("live", None)  # it limits nothing else
    plan.limits = Limits(**limits)


def _checkpoints(config: Config, plan: ConfigPlan) -> None:
    """Set where the inputs of recomputed blocks are stored: in host memory, in one buffer."""
    asked, elsewhere = [], plan.offload or plan.on_device
    for name in ("cpu_checkpointing", "contiguous_memory_optimization"):
        path = f"activation_checkpointing.{name}"
        if config[path] and plan.recompute == "full" and not elsewhere:
            asked.append(name)
        elif config[path]:
            kept = f"recompute {plan.recompute} does not keep one input for each block"
            reason = f"minidist.{plan.chapter} keeps inputs on the device" if elsewhere else kept
            plan.notes.append(f"{path} has no effect here, because {reason}")
    plan.on_host, plan.together = "cpu_checkpointing" in asked, "contiguous_memory_optimization" in asked
    if asked:  # the chapter zero_r sums all gradients through a buffer
        plan.bucket_size = plan.bucket_size or max(1, config[f"{ROOM}.reduce_bucket_size"])


def _bucket_size(config: Config, plan: ConfigPlan) -> int | None:
    """Elements of the one buffer through which gradients go; None if the configuration does not say, or cannot."""
    path = f"{ROOM}.reduce_bucket_size"
    if not config.stated.get(path):
        return None
    if plan.fsdp or plan.offload or plan.on_device:
        other = "FSDP" if plan.fsdp else "the optimizer on the host" if plan.offload else f"minidist.{plan.chapter}"
        plan.notes.append(f"{path} has no effect with {other}: a unit's gradients are reduced at a time")
        return None
    return int(config[path])


def _beyond(plan: ConfigPlan) -> list[str]:
    """The configuration's settings that no option expresses."""
    found = []
    decay = vars(plan.optimizer)["weight_decay"]
    usual = OneBitAdam(eps=EPS, weight_decay=decay) if plan.freeze else AdamW(weight_decay=decay)
    if isinstance(plan.optimizer, AdamW) and plan.optimizer != usual:
        found.append(f"betas {plan.optimizer.beta1:g} {plan.optimizer.beta2:g}, eps {plan.optimizer.eps:g}")
    if isinstance(plan.optimizer, SGD) and plan.optimizer.momentum != 0.9:
        found.append(f"momentum {plan.optimizer.momentum:g}")
    if plan.schedule:
        found.append(str(plan.config["scheduler.type"]))
    scale = plan.loss_scale
    if scale and (type(scale) is not LossScale or vars(scale) != vars(LossScale())):
        found.append("the loss scale of fp16")
    return found

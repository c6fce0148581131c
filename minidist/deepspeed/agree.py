"""The file and the command line together: what only one of them says, and what must be the same in both.

The options fill "auto" and what the file leaves open, as TrainingArguments do in the Hugging Face Trainer.
"""

from collections.abc import Collection
from typing import Any

from minidist import UsageError
from minidist.cli.shared import TrainingOptions
from minidist.compression import OneBitAdam
from minidist.deepspeed.config import Config
from minidist.nn.optim import SGD, AdamW, Optimizer

BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


def conflict(path: str, value: Any, option: str, typed: Any) -> UsageError:
    option = option.replace("_", "-")
    return UsageError(f'{path} is {value}, and --{option} {typed} was given: make it "auto", or leave out --{option}')


def agreed(config: Config, path: str, option: str, options: TrainingOptions, given: Collection[str]) -> Any:
    """What the configuration says, or else the option that was given, or else DeepSpeed's default."""
    value, typed = config[path], getattr(options, option)
    if option in given:
        if path in config.stated and value != typed:
            raise conflict(path, value, option, typed)
        return typed
    return value


def batch_of(config: Config, ranks: int, options: TrainingOptions, given: Collection[str]) -> tuple[int, int, int]:
    """train_batch_size, train_micro_batch_size_per_gpu, gradient_accumulation_steps."""
    stated = [config.stated.get(path) for path in BATCH]
    batch, micro, accumulate = (
        None if value in (None, "auto") else config[path] for path, value in zip(BATCH, stated, strict=True)
    )
    for path, option, value in ((BATCH[0], "batch", batch), (BATCH[2], "accumulate", accumulate)):
        if option in given and value not in (None, getattr(options, option)):
            raise conflict(path, value, option, getattr(options, option))
    batch = options.batch if "batch" in given else batch
    accumulate = options.accumulate if "accumulate" in given else accumulate
    if "auto" in stated:
        if accumulate is None and None in (batch, micro):
            accumulate = options.accumulate
        if batch is None and micro is None:
            micro = max(1, options.batch // ((accumulate or 1) * ranks))
    return batch_sizes(batch, micro, accumulate, ranks)


def batch_sizes(batch: int | None, micro: int | None, accumulate: int | None, ranks: int) -> tuple[int, int, int]:
    """DeepSpeed's rule (runtime/config.py, _set_batch_related_parameters): batch = micro · accumulate · ranks, and a
    missing number follows from the given ones. Raises UsageError in DeepSpeed's words."""
    if batch is not None and micro is not None:
        accumulate = accumulate if accumulate is not None else batch // micro // ranks
    elif batch is not None:
        accumulate = accumulate or 1
        micro = batch // ranks // accumulate
    elif micro is not None:
        accumulate = accumulate or 1
        batch = micro * accumulate * ranks
    else:
        raise UsageError("Either train_batch_size or train_micro_batch_size_per_gpu needs to be provided")
    for name, value, times, each, other in (
        ("Micro batch size per gpu", micro, accumulate, "in {} micro-batches", "gradient_accumulation_steps"),
        ("Gradient accumulation steps", accumulate, micro, "with {} sequences each", "the micro-batch"),
    ):
        if value == 0:
            why = f" {each.format(times)}" if times > 1 else ""
            most = batch // ranks  # that the other number may be
            instead = f", or {other} {most}" if most else ""
            raise UsageError(
                f"{name}: 0 has to be greater than 0: train_batch_size {batch} is too small for {ranks} ranks{why}:"
                f" make it {ranks * times}{instead}"
            )
    if batch != micro * accumulate * ranks:
        raise UsageError(
            "Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * gradient_acc_step"
            f" * world_size {batch} != {micro} * {accumulate} * {ranks}"
        )
    return batch, micro, accumulate


def precision_of(config: Config, options: TrainingOptions, given: Collection[str]) -> str:
    """mixed (fp16), bf16, fp32 or fp64. "auto" follows --precision, as it follows --fp16 and --bf16 in the Trainer."""
    fp16, bf16 = (config.stated.get(path) for path in ("fp16.enabled", "bf16.enabled"))
    typed = "precision" in given
    wanted = options.precision if typed or "auto" in (fp16, bf16) else "fp32"
    if fp16 == "auto":
        fp16 = wanted == "mixed" and (typed or bf16 is not True)
    if bf16 == "auto":
        bf16 = wanted == "bf16" and (typed or fp16 is not True)
    if fp16 and bf16:
        raise UsageError("bfloat16 and fp16 modes cannot be simultaneously enabled: switch one of them off")
    name = "mixed" if fp16 else "bf16" if bf16 else None
    if typed and name not in (None, wanted):
        raise conflict("fp16.enabled" if fp16 else "bf16.enabled", "true", "precision", wanted)
    if name or wanted in ("fp32", "fp64"):
        return name or wanted
    switched_off = fp16 is False if wanted == "mixed" else bf16 is False
    if typed and switched_off:
        raise conflict("fp16.enabled" if wanted == "mixed" else "bf16.enabled", "false", "precision", wanted)
    return wanted if typed else "fp32"


def recompute_of(config: Config, options: TrainingOptions, given: Collection[str], layers: int) -> str:
    """The policy of recomputation. A configuration that sets a key of activation checkpointing switches it on: the
    input of each block is kept, as in models that call deepspeed.checkpointing.checkpoint, or, with number_checkpoints,
    the inputs of that many blocks."""
    room = "activation_checkpointing."
    asked = any(config[path] != key.default for path, key in config.table.items() if path.startswith(room))
    if not asked or "recompute" in given:
        return options.recompute
    interval = -(-layers // (config[f"{room}number_checkpoints"] or layers))
    return f"every:{interval}" if interval > 1 else "full"


def grad_dtype_of(config: Config, precision: str, stage: int, options: TrainingOptions, given: Collection[str]) -> str:
    """fp32 if gradients add up in float32, and parameters are stored in another dtype."""
    path = "data_types.grad_accum_dtype"
    said, stored = config[path], {"mixed": "fp16", "fp64": "fp32"}.get(precision, precision)
    found = "stored" if said in (None, stored) else str(said)
    if found not in ("stored", "fp32") or (found == "fp32" and not stage):
        raise UsageError(f"{path} {said} with {stored} in stage {stage} is refused by DeepSpeed, too: leave it out")
    if "grad_dtype" in given:
        if said and found != options.grad_dtype:
            raise conflict(path, said, "grad_dtype", options.grad_dtype)
        return options.grad_dtype
    return found


def optimizer_of(config: Config, options: TrainingOptions, given: Collection[str]) -> Optimizer:
    """The configuration's optimizer, or the one that the options describe."""
    name = config["optimizer.type"]
    if name is None:
        if options.optimizer == "adamw":
            return AdamW(weight_decay=options.weight_decay)
        return SGD(momentum=0.9, weight_decay=options.weight_decay)
    kind = "sgd" if name.lower() == "sgd" else "adamw"
    if "optimizer" in given and options.optimizer != kind:
        raise conflict("optimizer.type", name, "optimizer", options.optimizer)
    decay = agreed(config, "optimizer.params.weight_decay", "weight_decay", options, given)
    if kind == "sgd":
        momentum = config["optimizer.params.momentum"]
        if momentum and decay:
            raise UsageError(
                "optimizer.params.weight_decay of SGD with momentum goes through the velocity there, and is decoupled"
                " here: leave one of the two at 0"
            )
        return SGD(momentum=momentum, weight_decay=decay)
    if decay and name.lower() == "adam" and not config["optimizer.params.adam_w_mode"]:
        raise UsageError(
            "optimizer.params.adam_w_mode false adds weight decay to gradients, and is not here: make it true, or"
            " weight_decay 0"
        )
    beta1, beta2 = config["optimizer.params.betas"]
    made = OneBitAdam if name.lower() == "onebitadam" else AdamW
    return made(beta1, beta2, config["optimizer.params.eps"], weight_decay=decay)

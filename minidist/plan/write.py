"""A row as the configuration of another system: DeepSpeed's JSON, or Accelerate's YAML. Our command `explain` reads
either back to the same bytes.

Such a file has only the data axis: ZeRO's stage, micro-batches, precision, and recomputation. It has no pipeline,
and no tensor or context ranks. So the fastest row without these is written.
"""

import json
from typing import Any

from minidist import UsageError
from minidist.plan.choice import Choice, Wanted
from minidist.plan.search import SearchResult
from minidist.plan.ties import Row

PRECISIONS = {"bf16": "bf16", "mixed": "fp16", "fp32": "no"}  # as Accelerate calls them
STRATEGIES = {0: "NO_SHARD", 3: "FULL_SHARD"}  # FSDP's, by ZeRO's stage


def sayable(found: SearchResult, option: str, hybrid: bool) -> Row:
    """The fastest row that such a file can say. Raises UsageError if no row fits that needs the data axis alone."""
    for row in found.rows:
        at = row.choice
        if at.dp == at.ranks and at.ep == 1 and at.recompute in ("none", "every:1") and (hybrid or at.hosts == 1):
            return row
    raise UsageError(f"{option} can only say data ranks, and no row of these alone fits: use more --device-memory")


def deepspeed(wanted: Wanted, choice: Choice) -> str:
    """DeepSpeed's JSON. It sets every option that changes bytes."""
    m = choice.micro_batches(wanted.batch)
    said: dict[str, Any] = {
        "train_batch_size": wanted.batch,
        "train_micro_batch_size_per_gpu": choice.rows,
        "gradient_accumulation_steps": m,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": wanted.precision == "bf16"},
        "fp16": {"enabled": wanted.precision == "mixed"},
        "optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto"}},
        "zero_optimization": {"stage": choice.zero},
    }
    if choice.recompute == "every:1":
        said["activation_checkpointing"] = {"number_checkpoints": wanted.model.layers}
    return json.dumps(said, indent=2) + "\n"


def accelerate(wanted: Wanted, choice: Choice, per_host: int) -> str:
    """Accelerate's YAML: with FSDP if that holds the same bytes, otherwise with DeepSpeed (SHARD_GRAD_OP divides
    parameters between steps, ZeRO-2 does not). It has no batch: the training program sets it."""
    lines = [
        f"num_processes: {choice.ranks}",
        f"num_machines: {-(-choice.ranks // per_host)}",
        f"mixed_precision: '{PRECISIONS[wanted.precision]}'",
    ]
    again = str(choice.recompute == "every:1").lower()
    strategy = "HYBRID_SHARD" if choice.hosts > 1 else STRATEGIES.get(choice.zero)
    if strategy:
        lines += ["distributed_type: FSDP", "fsdp_config:", f"  fsdp_sharding_strategy: {strategy}"]
        lines += [f"  fsdp_activation_checkpointing: {again}"]
    else:
        m = choice.micro_batches(wanted.batch)
        lines += ["distributed_type: DEEPSPEED", "deepspeed_config:", f"  zero_stage: {choice.zero}"]
        lines += [f"  gradient_accumulation_steps: {m}"]
    return "\n".join(lines) + "\n"

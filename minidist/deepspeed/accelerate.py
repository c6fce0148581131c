"""Accelerate's YAML, in DeepSpeed's words: what `accelerate config` writes for DeepSpeed and for FSDP.

FSDP's sharding strategies are ZeRO's stages under other names (Zhao et al., VLDB 2023, section 3.2); `minidist/fsdp.py`
has them under FSDP's names:

    NO_SHARD        0    everything on every rank
    SHARD_GRAD_OP   2    gradients and optimizer states divided, and parameters between steps
    FULL_SHARD      3    parameters too
    HYBRID_SHARD    3    within a host; hosts have copies
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from minidist import UsageError, how_to_install
from minidist.cli.read import read, text_of
from minidist.deepspeed.config import NEAR


@dataclass
class Translated:
    """An equivalent configuration of DeepSpeed, and the settings that DeepSpeed has no key for."""

    config: dict[str, Any]
    shard: int | None = None  # ranks of a host, if each host has a copy of the model
    fsdp: list[str] = field(default_factory=list)  # options of the chapter of that name, if it is FSDP's
    recompute: str | None = None
    notes: list[str] = field(default_factory=list)


STAGES = {"NO_SHARD": 0, "SHARD_GRAD_OP": 2, "FULL_SHARD": 3, "HYBRID_SHARD": 3}
NUMBERED = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")  # from 1

# Keys about starting processes, which mpirun does here, and keys that change nothing here: they need no note.
LAUNCH = (
    *("compute_environment", "debug", "machine_rank", "main_training_function", "main_process_ip", "main_process_port"),
    *("rdzv_backend", "same_network", "use_cpu", "tpu_env", "tpu_name", "tpu_zone", "tpu_use_cluster", "tpu_use_sudo"),
    *("command_file", "commands", "gpu_ids", "enable_cpu_affinity", "downcast_bf16", "dynamo_backend", "num_machines"),
    *("num_processes", "distributed_type", "mixed_precision", "deepspeed_config", "fsdp_config", "dynamo_config"),
    *("tpu_vm", "fp16", "fp8_config", "parallelism_config", "megatron_lm_config", "mpirun_config"),
)
ELSEWHERE = {  # sizes of axes other than the data axis
    "tp_size": "it has a chapter, minidist.tensor_parallel, and an option, minidist.parallel3d --tp",
    "cp_size": "each sequence is one rank's",
    "sp_size": "each sequence is one rank's",
    "dp_replicate_size": "say fsdp_sharding_strategy HYBRID_SHARD",
}
DEEPSPEED = {
    "zero_stage": "zero_optimization.stage",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "gradient_clipping": "gradient_clipping",
    "offload_optimizer_device": "zero_optimization.offload_optimizer.device",
    "offload_param_device": "zero_optimization.offload_param.device",
    "offload_optimizer_nvme_path": "zero_optimization.offload_optimizer.nvme_path",
    "offload_param_nvme_path": "zero_optimization.offload_param.nvme_path",
    "zero3_save_16bit_model": "zero_optimization.gather_16bit_weights_on_model_save",
}
DEEPSPEED_LAUNCH = (
    *("deepspeed_multinode_launcher", "deepspeed_hostfile", "deepspeed_inclusion_filter", "deepspeed_exclusion_filter"),
    *("deepspeed_no_ssh", "zero3_init_flag"),  # units are declared, then drawn: no rank ever makes the whole model
)
WITHOUT_EFFECT = {
    "fsdp_limit_all_gathers": "never more than two units are gathered at a time",
    "fsdp_auto_wrap_policy": "a unit is the embedding, a block or the head",
    "fsdp_transformer_layer_cls_to_wrap": "a unit is the embedding, a block or the head",
    "fsdp_min_num_params": "a unit is the embedding, a block or the head",
    "fsdp_state_dict_type": "checkpoints are minidist's own",
    "fsdp_offload_params": "parameters stay on the device",
    "fsdp_activation_checkpointing_offload": "inputs that wait for a backward stay on the device",
    "fsdp_ignored_modules": "every unit is divided",
}
FSDP = (
    *("fsdp_version", "fsdp_sharding_strategy", "fsdp_reshard_after_forward", "fsdp_activation_checkpointing"),
    *("fsdp_backward_prefetch", "fsdp_backward_prefetch_policy", "fsdp_forward_prefetch"),
    *("fsdp_sync_module_states", "fsdp_use_orig_params", "fsdp_cpu_ram_efficient_loading"),  # true here anyway
    *WITHOUT_EFFECT,
)
QUIET = {  # values that ask for what happens here anyway: they need no note
    "fsdp_limit_all_gathers": True,
    "fsdp_offload_params": False,
    "fsdp_activation_checkpointing_offload": False,
    "fsdp_ignored_modules": None,
    "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
}
PREFETCH = {"BACKWARD_PRE": "pre", "BACKWARD_POST": "post", "NO_PREFETCH": "none"}


def load(path: str, ranks: int | None = None) -> tuple[Translated, int]:
    """Read a file; returns it in DeepSpeed's words, and the number of ranks: `ranks`, or what the file says, or 1. A
    file whose name ends in .yaml or .yml is YAML; any other is read as JSON."""
    if not path.lower().endswith((".yaml", ".yml")):
        return Translated(read(path)), ranks or 1
    found = parse(path)
    if found.get("compute_environment") == "AMAZON_SAGEMAKER":
        raise UsageError(
            "compute_environment AMAZON_SAGEMAKER is not here, because mpirun starts ranks on this machine"
        )
    for name in found:
        if name not in LAUNCH:
            raise UsageError(f"there is no key {name}, and Accelerate refuses it{_guess(name, LAUNCH)}")
    _refuse_other_axes(found)
    stated = _whole(found, "num_processes")
    n = ranks or stated or 1
    hosts = _whole(found, "num_machines") or 1
    kind = found.get("distributed_type", "NO")
    if kind == "DEEPSPEED":
        translated = _deepspeed(_section(found, "deepspeed_config"), Path(path).parent)
    elif kind == "FSDP":
        translated = _fsdp(_section(found, "fsdp_config"), n, hosts)
    elif kind in ("NO", False) or str(kind).startswith("MULTI_"):
        translated = Translated({"zero_optimization": {"stage": 0}, "train_batch_size": "auto"})
    else:
        raise UsageError(f"distributed_type {kind!r:.60} is not here: DEEPSPEED, FSDP, MULTI_GPU, MULTI_CPU and NO are")
    if found.get("mpirun_config"):
        translated.notes.append("mpirun_config has no effect here, because you say mpirun yourself")
    _precision(translated.config, found.get("mixed_precision", "no"))
    if stated and stated != n:
        translated.notes.append(f"num_processes {stated} has no effect here, because there are {n} ranks already")
    return translated, n


def parse(path: str) -> dict[str, Any]:
    """Read a YAML file. If it is not valid, raises UsageError with line and column."""
    try:
        import yaml
    except ImportError:
        raise UsageError(f"{path}: YAML needs a package of its own: {how_to_install('deepspeed')}") from None

    class Unique(yaml.SafeLoader):
        """Refuses a key that appears twice; YAML would silently take the last one."""

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen = set()
            for key, _ in node.value:
                name = str(key.value)
                if name in seen:
                    raise yaml.MarkedYAMLError(problem=f"the key {name!r} stands twice", problem_mark=key.start_mark)
                seen.add(name)
            return super().construct_mapping(node, deep)

    try:
        found = yaml.load(text_of(path), Unique)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" line {mark.line + 1}, column {mark.column + 1}:" if mark else ""
        raise UsageError(f"{path}:{place} {error.problem}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: {str(error).splitlines()[0]}") from None
    if not isinstance(found, dict):
        raise UsageError(f"{path}: should be keys and values, not {found!r:.60}")
    return {str(key): value for key, value in found.items()}


def _guess(name: str, names: Iterable[str]) -> str:
    """ ": do you mean ...?" with a very similar name; "" if there is none."""
    return "".join(f": do you mean {match}?" for match in get_close_matches(name, [*names], 1, NEAR))


def _unknown(section: dict[str, Any], names: Iterable[str], prefix: str) -> list[str]:
    """A note for each key that Accelerate accepts without knowing it."""
    known = {*names}
    return [
        f"{prefix}{name} has no effect here, and none in Accelerate, which does not know it{_guess(str(name), known)}"
        for name in section
        if name not in known
    ]


def _refuse_other_axes(found: dict[str, Any]) -> None:
    """Raise UsageError for tensor, context and pipeline parallelism; empty sections are ignored."""
    if _section(found, "megatron_lm_config"):
        raise UsageError("megatron_lm_config is not here, because its axes have chapters: run minidist.parallel3d")
    for name, size in _section(found, "parallelism_config").items():
        axis = str(name).removeprefix("parallelism_config_")
        if axis in ELSEWHERE and size not in (None, 1):
            raise UsageError(f"parallelism_config.{name} {size!r:.60} is not here: {ELSEWHERE[axis]}")


def _section(found: dict[str, Any], name: str) -> dict[str, Any]:
    section = found.get(name) or {}
    if not isinstance(section, dict):
        raise UsageError(f"{name} should be keys and values, not {section!r:.60}")
    return section


def _whole(found: dict[str, Any], name: str) -> int | None:
    value = found.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise UsageError(f"{name} should be a whole number from 1 on, not {value!r:.60}")
    return value


def _precision(config: dict[str, Any], mixed: Any) -> None:
    """Apply mixed_precision (no, fp16 or bf16, not fp8) where DeepSpeed's own configuration says nothing or "auto"."""
    mixed = "no" if mixed in (False, None) else mixed  # YAML reads a bare no as false
    if mixed == "fp8":
        raise UsageError("mixed_precision fp8 is not here, because nothing is computed in 8 bits: say bf16")
    if mixed not in ("no", "fp16", "bf16"):
        raise UsageError(f"mixed_precision should be no, fp16 or bf16, not {mixed!r:.60}")
    for name in ("fp16", "bf16"):
        section = config.setdefault(name, {})
        if isinstance(section, dict) and section.get("enabled", "auto") == "auto":
            config[name] = section | {"enabled": mixed == name}


def _deepspeed(section: dict[str, Any], folder: Path) -> Translated:
    name = section.get("deepspeed_config_file")
    if name is not None:
        path = Path(str(name))
        return Translated(dict(read(path if path.exists() else folder / path)))
    known = (*DEEPSPEED, *DEEPSPEED_LAUNCH, "deepspeed_moe_layer_cls_names")
    config: dict[str, Any] = {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": 1,
        "zero_optimization": {"stage": 2},
    }
    for key, path_ in DEEPSPEED.items():
        if section.get(key) is not None and section[key] != "none":
            *parents, last = path_.split(".")
            inner = config
            for parent in parents:
                inner = inner.setdefault(parent, {})
            inner[last] = section[key]
    return Translated(config, notes=_unknown(section, known, "deepspeed_config."))


def _fsdp(section: dict[str, Any], ranks: int, hosts: int) -> Translated:
    reshard = section.get("fsdp_reshard_after_forward")
    strategy = section.get("fsdp_sharding_strategy", reshard if isinstance(reshard, str) else None)
    if strategy is None:  # FSDP2 only asks whether parameters are dropped after the forward
        strategy = "SHARD_GRAD_OP" if reshard is False else "FULL_SHARD"
    if str(strategy).isdecimal() and 1 <= int(strategy) <= len(NUMBERED):
        strategy = NUMBERED[int(strategy) - 1]
    if not isinstance(strategy, str) or strategy not in STAGES:
        raise UsageError(f"fsdp_sharding_strategy {strategy!r:.60} is not here: use one of {', '.join(STAGES)}")
    translated = Translated({"zero_optimization": {"stage": STAGES[strategy]}, "train_batch_size": "auto"})
    words = ["--strategy", strategy.lower()]
    if strategy == "HYBRID_SHARD":
        if ranks % hosts:
            raise UsageError(f"{ranks} ranks cannot be divided among num_machines {hosts}")
        translated.shard = ranks // hosts
        words += ["--ranks-per-host", str(translated.shard)]
    if STAGES[strategy] == 3:
        words += ["--backward-prefetch", _backward_prefetch(section)]
    if STAGES[strategy] > 0 and _flag(section, "fsdp_forward_prefetch"):
        words.append("--forward-prefetch")
    translated.fsdp = words
    if section.get("fsdp_activation_checkpointing") is True:
        translated.recompute = "full"
    translated.notes += _unknown(section, FSDP, "fsdp_config.")
    for key, why in WITHOUT_EFFECT.items():
        if key in section and section[key] != QUIET.get(key):
            translated.notes.append(f"fsdp_config.{key} has no effect here, because {why}")
    return translated


def _flag(section: dict[str, Any], name: str) -> bool:
    value = section.get(name, False)
    if not isinstance(value, bool):
        raise UsageError(f"fsdp_config.{name} should be true or false, not {value!r:.60}")
    return value


def _backward_prefetch(section: dict[str, Any]) -> str:
    """The value of --backward-prefetch. If the file does not say, FSDP1 does not prefetch, and FSDP2 does."""
    usual = "BACKWARD_PRE" if section.get("fsdp_version") == 2 else "NO_PREFETCH"
    names = ("fsdp_backward_prefetch", "fsdp_backward_prefetch_policy")
    asked = next((section[name] for name in names if section.get(name) is not None), usual)
    if not isinstance(asked, str) or asked not in PREFETCH:
        raise UsageError(f"fsdp_backward_prefetch {asked!r:.60} is not here: use one of {', '.join(PREFETCH)}")
    return PREFETCH[asked]

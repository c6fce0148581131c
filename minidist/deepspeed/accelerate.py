"""Accelerate's YAML, in DeepSpeed's words: what `accelerate config` writes for DeepSpeed and for FSDP.

FSDP's sharding strategies are ZeRO's stages under other names (Zhao et al., VLDB 2023, section 3.2); `minidist/fsdp.py`
has them under FSDP's names:

    NO_SHARD        0    everything on every rank
    SHARD_GRAD_OP   2    gradients and optimizer states divided, and parameters between steps
    FULL_SHARD      3    parameters too
    HYBRID_SHARD    3    within a host; hosts have copies
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from minidist import UsageError, how_to_install
from minidist.cli.read import read, text_of
from minidist.deepspeed.accelerate_keys import DEEPSPEED, SECTIONS, STARTING, TOP, prefixed
from minidist.deepspeed.axes import ONLY_DATA, Axes
from minidist.deepspeed.config import NEAR, note_of, shown_path
from minidist.deepspeed.keys import Key
from minidist.deepspeed.peers import refuse_peers


@dataclass
class Translated:
    """An equivalent configuration of DeepSpeed, and the settings that DeepSpeed has no key for."""

    config: dict[str, Any]
    shard: int | None = None  # data ranks of a host, if each host has a copy of the model
    axes: Axes = ONLY_DATA  # of parallelism_config
    fsdp: list[str] = field(default_factory=list)  # options of the chapter of that name, if it is FSDP's
    recompute: str | None = None
    stated: dict[str, Any] = field(default_factory=dict)  # as written in Accelerate's file, by path
    notes: list[str] = field(default_factory=list)


STAGES = {"NO_SHARD": 0, "SHARD_GRAD_OP": 2, "FULL_SHARD": 3, "HYBRID_SHARD": 3}
NUMBERED = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")  # from 1

PARALLELISM = "parallelism_config"
SIZES = ("dp_replicate_size", "dp_shard_size", "tp_size", "cp_size", "sp_size")
STRATEGIES = {"allgather": "all-gather", "alltoall": "ring"}  # PyTorch's cp_comm_strategy: alltoall passes keys around
PREFETCH = {"BACKWARD_PRE": "pre", "BACKWARD_POST": "post", "NO_PREFETCH": "none"}


def load(path: str, ranks: int | None = None) -> tuple[Translated, int]:
    """Read a file; returns it in DeepSpeed's words, and the number of ranks: `ranks`, or what the file says, or 1. A
    file whose name ends in .yaml or .yml is YAML, and any other JSON: DeepSpeed's, unless it has a distributed_type."""
    refuse_peers(path)
    twice = list[str]()
    if path.lower().endswith((".yaml", ".yml")):
        found, twice = parse(path)
    elif "distributed_type" not in (found := read(path)):
        return Translated(found), ranks or 1
    if found.get("compute_environment") == "AMAZON_SAGEMAKER":
        raise UsageError(
            "compute_environment AMAZON_SAGEMAKER is not here, because mpirun starts ranks on this machine"
        )
    known = (*TOP, *STARTING, *SECTIONS)
    for name in found:
        if name not in known:
            raise UsageError(f"there is no key {shown_path(name)}, and Accelerate refuses it{_guess(name, known)}")
    found |= {name: _section(found, name) for name in SECTIONS if name in found}
    stated = _whole(found, "num_processes")
    section = {
        prefixed("parallelism_config", name): value for name, value in found.get("parallelism_config", {}).items()
    }
    sizes = {name: _whole(section, name, f"{PARALLELISM}.") or 1 for name in SIZES}
    n = ranks or stated or math.prod(sizes.values())
    hosts = _whole(found, "num_machines") or 1
    kind = found.get("distributed_type", "NO")
    if kind == "DEEPSPEED":
        translated = _deepspeed(found.get("deepspeed_config", {}), Path(path).parent)
    elif kind == "FSDP":
        translated = _fsdp(found.get("fsdp_config", {}), n, hosts)
    elif kind == "MEGATRON_LM":
        translated = _megatron(found.get("megatron_lm_config", {}))
    elif kind in ("NO", False) or str(kind).startswith("MULTI_"):
        translated = Translated({"zero_optimization": {"stage": 0}, "train_batch_size": "auto"})
    else:
        raise UsageError(
            f"distributed_type {kind!r:.60} is not here: DEEPSPEED, FSDP, MEGATRON_LM, MULTI_GPU, MULTI_CPU and NO are"
        )
    if max(sizes.values()) > 1:
        _parallelism(translated, sizes, section.get("cp_comm_strategy") or "allgather", n, kind == "FSDP")
    _precision(translated.config, found.get("mixed_precision", "fp16" if found.get("fp16") else "no"))
    for name, value in found.items():
        inner = value if name in SECTIONS else {"": value}
        translated.stated |= {f"{name}.{each}" if name in SECTIONS else name: value for each, value in inner.items()}
    translated.notes += [*twice, *_without_effect(translated.stated)]
    if stated and stated != n:
        translated.notes.append(f"num_processes {stated} has no effect here, because there are {n} ranks already")
    return translated, n


def meaning(path: str) -> Key | None:
    """The key of this path; None if Accelerate does not know it, or if it is about starting processes."""
    section, _, name = path.partition(".")
    return SECTIONS[section].get(prefixed(section, name)) if section in SECTIONS else TOP.get(path)


def _without_effect(stated: dict[str, Any]) -> Iterator[str]:
    """A note for each key that has no effect here, and for each that Accelerate accepts without knowing it."""
    for path, value in stated.items():
        section, _, name = path.partition(".")
        if key := meaning(path):
            yield from filter(None, [note_of(path, key, value)])
        elif path.startswith("mpirun_config."):
            yield f"{shown_path(path)} has no effect here, because you say mpirun yourself"
        elif path not in STARTING:
            unknown = "has no effect here, and none in Accelerate, which does not know it"
            yield f"{shown_path(path)} {unknown}{_guess(name, SECTIONS[section])}"


def parse(path: str) -> tuple[dict[str, Any], list[str]]:
    """Read a YAML file; returns its keys and values, and a note for each key that stands twice: the last one counts, as
    PyYAML takes it. If the file is not valid, raises UsageError with line and column."""
    try:
        import yaml
    except ImportError:
        raise UsageError(f"{path}: YAML needs a package of its own: {how_to_install('deepspeed')}") from None
    twice = list[str]()

    class Noting(yaml.SafeLoader):
        """Notes keys that stand twice in a mapping."""

        def compose_mapping_node(self, anchor: Any) -> Any:
            node, seen = super().compose_mapping_node(anchor), set[str]()
            for key, _ in node.value:
                name = str(key.value)
                if name in seen and key.tag != "tag:yaml.org,2002:merge":
                    where = f"line {key.start_mark.line + 1} has the key {shown_path(name)} a second time"
                    twice.append(f"{where}: the last one counts, as in Accelerate")
                seen.add(name)
            return node

    try:
        found = yaml.load(text_of(path), Noting)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" line {mark.line + 1}, column {mark.column + 1}:" if mark else ""
        raise UsageError(f"{path}:{place} {error.problem}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: {str(error).splitlines()[0]}") from None
    if not isinstance(found, dict):
        raise UsageError(f"{path}: should be keys and values, not {found!r:.60}")
    return {str(key): value for key, value in found.items()}, twice


def _guess(name: str, names: Iterable[str]) -> str:
    """ ": do you mean ...?" with a very similar name; "" if there is none."""
    return "".join(f": do you mean {match}?" for match in get_close_matches(name, [*names], 1, NEAR))


def _megatron(section: dict[str, Any]) -> Translated:
    """The axes of Megatron-LM's plugin, and what it divides, recomputes and clips."""
    section = {prefixed("megatron_lm_config", name): value for name, value in section.items()}
    names = "tp_degree", "pp_degree", "context_parallel_size", "expert_model_parallel_size", "num_micro_batches"
    tp, pp, cp, ep, micro_batches = (
        _whole(section, f"megatron_lm_{name}", "megatron_lm_config.") or 1 for name in names
    )
    flags = {
        name: section.get(f"megatron_lm_{name}") in (True, "true", "True")
        for name in ("use_distributed_optimizer", "sequence_parallelism", "recompute_activations")
    }
    config: dict[str, Any] = {"train_batch_size": "auto", "gradient_accumulation_steps": micro_batches}
    config["zero_optimization"] = {"stage": int(flags["use_distributed_optimizer"])}
    if section.get("megatron_lm_gradient_clipping") is not None:
        config["gradient_clipping"] = section["megatron_lm_gradient_clipping"]
    axes = Axes(tp=tp, cp=cp, ep=ep, pp=pp, sequence=flags["sequence_parallelism"] and tp > 1)
    usual = "selective" if flags["recompute_activations"] else None
    return Translated(config, axes=axes, recompute=section.get("megatron_lm_recompute_granularity") or usual)


def _parallelism(translated: Translated, sizes: dict[str, int], strategy: Any, n: int, fsdp: bool) -> None:
    """Set the axes of parallelism_config. Raises UsageError for what Accelerate refuses."""
    copies, shard, tp, cp, sp = sizes.values()
    room = translated.config.setdefault("zero_optimization", {})
    if cp > 1 and sp > 1:
        raise UsageError("parallelism_config.cp_size and sp_size are of one axis, and Accelerate refuses both: use one")
    if copies > 1 and shard == 1 and tp * cp > 1:
        raise UsageError(
            "parallelism_config.dp_replicate_size needs a dp_shard_size above 1 next to tp_size or cp_size"
        )
    total = math.prod(sizes.values())
    if total != n and sp == 1:
        raise UsageError(f"parallelism_config has {total} ranks, and there are {n}: change a size, or num_processes")
    if strategy not in STRATEGIES:
        raise UsageError(f"parallelism_config.cp_comm_strategy should be allgather or alltoall, not {strategy!r:.60}")
    translated.axes = Axes(tp, cp * sp, "ulysses" if sp > 1 else STRATEGIES[strategy])
    if copies > 1 and fsdp:
        if shard == 1:
            room["stage"], translated.fsdp = 0, ["--strategy", "no_shard"]
        elif room.get("stage") == 3:
            translated.shard = shard
            words = translated.fsdp[2:]
            translated.fsdp = ["--strategy", "hybrid_shard", "--ranks-per-host", str(shard), *words]
        else:
            raise UsageError(
                "parallelism_config.dp_replicate_size is not here, because copies of a model that is whole between"
                " steps are data ranks: use fsdp_reshard_after_forward true"
            )
    if translated.axes.used and fsdp and room.get("stage") == 2:
        translated.notes.append(
            "fsdp_config.fsdp_reshard_after_forward false leaves parameters whole between steps here, as ZeRO-2 does"
        )


def _section(found: dict[str, Any], name: str) -> dict[str, Any]:
    """A section, whose keys have FSDP's prefix, which `accelerate launch` adds."""
    section = found.get(name) or {}
    if not isinstance(section, dict):
        raise UsageError(f"{name} should be keys and values, not {section!r:.60}")
    return {prefixed(name, str(key)) if name == "fsdp_config" else str(key): value for key, value in section.items()}


def _whole(found: dict[str, Any], name: str, section: str = "") -> int | None:
    value = found.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise UsageError(f"{section}{name} should be a whole number from 1 on, not {value!r:.60}")
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
    return Translated(config)


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
    if _flag(section, "fsdp_offload_params"):
        _offload(translated, strategy)
    return translated


def _offload(translated: Translated, strategy: str) -> None:
    """Let the chapter offload take the place of FSDP's: it has everything on the host. Raises UsageError for strategies
    that it lacks."""
    if strategy != "FULL_SHARD":
        raise UsageError(f"fsdp_config.fsdp_offload_params true with {strategy} is not here: use FULL_SHARD, or false")
    room = translated.config["zero_optimization"]
    room |= {f"offload_{what}": {"device": "cpu"} for what in ("optimizer", "param")}
    words, translated.fsdp = translated.fsdp, []
    if "pre" in words:
        room["stage3_prefetch_bucket_size"] = 1  # the next unit is gathered ahead, in both passes
        return
    for key, word in (("fsdp_forward_prefetch", "--forward-prefetch"), ("fsdp_backward_prefetch", "post")):
        if word in words:
            translated.notes.append(f"fsdp_config.{key} has no effect here with fsdp_offload_params: use BACKWARD_PRE")


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

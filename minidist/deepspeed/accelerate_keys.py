"""Every key of Accelerate's YAML: what it means, and why it has no effect here, if it has none.

`accelerate.py` translates a file by these keys, and `explain.py` prints them. They are those of Accelerate 1.15:
commands/config/config_args.py and commands/launch.py.
"""

from typing import Any

from minidist.deepspeed.keys import KEYS as DEEPSPEED_KEYS
from minidist.deepspeed.keys import Key
from minidist.deepspeed.values import anything


def key(means: str, never: str = "", *already: Any) -> Key:
    """A key. already: values that ask for what happens here anyway."""
    return Key(anything, None, means, never, already=(None, *already))


UNIT = "a unit is the embedding, a block or the head"
ONE_RANK = "each sequence is one rank's"
COMPILER = "NumPy compiles nothing"

TOP = {
    "distributed_type": key("what divides the work: FSDP, DEEPSPEED, MULTI_GPU and the like, or NO"),
    "num_processes": key("ranks"),
    "num_machines": key("hosts"),
    "mixed_precision": key("dtype of parameters and gradients: fp16, bf16, or no: float32"),
    "fp16": key("an older name of mixed_precision fp16"),
    "downcast_bf16": key("bfloat16 instead of float32, on a TPU", "there is no TPU", False, "no"),
    "dynamo_backend": key("PyTorch's compiler", COMPILER, "NO", "no"),
}
STARTING = (  # about starting processes, which mpirun does here
    *("compute_environment", "debug", "machine_rank", "main_training_function", "main_process_ip", "main_process_port"),
    *("rdzv_backend", "same_network", "use_cpu", "tpu_env", "tpu_name", "tpu_zone", "tpu_use_cluster", "tpu_use_sudo"),
    *("tpu_vm", "command_file", "commands", "gpu_ids", "enable_cpu_affinity"),
    *("deepspeed_config.deepspeed_multinode_launcher", "deepspeed_config.deepspeed_hostfile"),
    *("deepspeed_config.deepspeed_inclusion_filter", "deepspeed_config.deepspeed_exclusion_filter"),
    *("deepspeed_config.deepspeed_no_ssh", "mpirun_config.mpirun_hostfile", "mpirun_config.mpirun_ccl"),
)
DEEPSPEED = {  # each of them is a key of DeepSpeed's
    "zero_stage": "zero_optimization.stage",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "gradient_clipping": "gradient_clipping",
    "offload_optimizer_device": "zero_optimization.offload_optimizer.device",
    "offload_param_device": "zero_optimization.offload_param.device",
    "offload_optimizer_nvme_path": "zero_optimization.offload_optimizer.nvme_path",
    "offload_param_nvme_path": "zero_optimization.offload_param.nvme_path",
    "zero3_save_16bit_model": "zero_optimization.gather_16bit_weights_on_model_save",
}
SECTIONS: dict[str, dict[str, Key]] = {
    "fsdp_config": {
        "fsdp_version": key("FSDP1, or FSDP2, which gathers the next unit ahead in the backward"),
        "fsdp_sharding_strategy": key("what is divided, as ZeRO's stages: FULL_SHARD all, NO_SHARD nothing"),
        "fsdp_reshard_after_forward": key("drop parameters after the forward, and gather them again: FULL_SHARD"),
        "fsdp_offload_params": key("parameters, gradients, optimizer states and the update are on the host"),
        "fsdp_auto_wrap_policy": key("what becomes a unit", UNIT, "TRANSFORMER_BASED_WRAP"),
        "fsdp_transformer_layer_cls_to_wrap": key("the class of a unit", UNIT),
        "fsdp_min_num_params": key("the least parameters of a unit", UNIT, 0),
        "fsdp_backward_prefetch": key("gather the next unit of the backward before or after this one's gradients"),
        "fsdp_backward_prefetch_policy": key("an older name of fsdp_backward_prefetch"),
        "fsdp_forward_prefetch": key("gather the next unit of the forward before this one computes"),
        "fsdp_limit_all_gathers": key(
            "the processor waits before it gathers more", "never more than two units are gathered at a time", True
        ),
        "fsdp_activation_checkpointing": key("keep the input of each block alone, and run the block again"),
        "fsdp_activation_checkpointing_offload": key(
            "these inputs wait on the host", "inputs that wait for a backward stay on the device", False
        ),
        "fsdp_ignored_modules": key("modules that are not divided", "every unit is divided"),
        "fsdp_state_dict_type": key("the form of a checkpoint", "checkpoints are minidist's own"),
        "fsdp_use_orig_params": key("the optimizer sees each parameter by itself, which changes no number"),
        "fsdp_sync_module_states": key("all ranks start with the first one's values, as they do here"),
        "fsdp_cpu_ram_efficient_loading": key("one rank alone loads the model; here each draws its own shard"),
    },
    "deepspeed_config": {
        **{name: key(DEEPSPEED_KEYS[path].means) for name, path in DEEPSPEED.items()},
        "deepspeed_config_file": key("a file of DeepSpeed's own keys, which follow"),
        "zero3_init_flag": key("divide the model as it is made, as all units are here"),
        "deepspeed_moe_layer_cls_names": key("classes that are gathered as a whole", UNIT),
    },
    "parallelism_config": {
        "dp_replicate_size": key("copies of the model; more than one: use fsdp_sharding_strategy HYBRID_SHARD"),
        "dp_shard_size": key("ranks that divide a copy: here all"),
        "tp_size": key("tensor ranks: more than one only in minidist.parallel3d"),
        **dict.fromkeys(("cp_size", "cp_backend", "cp_comm_strategy"), key(f"of context ranks: here {ONE_RANK}")),
        **dict.fromkeys(("sp_size", "sp_backend", "sp_seq_length"), key(f"of Ulysses' ranks: here {ONE_RANK}")),
        **dict.fromkeys(("sp_seq_length_is_variable", "sp_attn_implementation"), key("of Ulysses' ranks, likewise")),
    },
    "dynamo_config": {
        "dynamo_backend": key("PyTorch's compiler", COMPILER, "NO", "no"),
        "dynamo_mode": key("of that compiler", COMPILER, "default"),
        "dynamo_use_fullgraph": key("of that compiler", COMPILER, False),
        "dynamo_use_dynamic": key("of that compiler", COMPILER, False),
        "dynamo_use_regional_compilation": key("of that compiler", COMPILER, False),
    },
    "fp8_config": dict.fromkeys(
        (
            *("backend", "use_autocast_during_eval", "margin", "interval", "fp8_format", "amax_history_length"),
            *("amax_history_len", "amax_compute_algorithm", "amax_compute_algo", "override_linear_precision"),
            *("optimization_level", "opt_level", "pad_inner_dim", "enable_fsdp_float8_all_gather"),
        ),
        key("of mixed_precision fp8, which is not here"),
    ),
    "mpirun_config": {},
    "megatron_lm_config": {},
}


def prefixed(section: str, name: str) -> str:
    """The name of a section's key in the table: `accelerate launch` adds prefixes, and takes a file with or without."""
    names = name, f"{section.partition('_')[0]}_{name}", name.removeprefix(f"{section}_"), name.removeprefix("fp8_")
    return next((each for each in names if each in SECTIONS[section]), name)

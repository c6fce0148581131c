"""Every key of a DeepSpeed configuration: its possible values, its default, what it means, and what it does here.

`config.py` checks a configuration against this table, and `explain.py` prints it. A key does here what it does in
DeepSpeed, or says why it has no effect: `never`, or not `yet`. To give a key an effect, remove its `yet` and read its
value in `plan.py`. Defaults are those of DeepSpeed 0.19.8, runtime/zero/config.py, runtime/precision_config.py and
their neighbors; in places its documentation, and releases before it, give other defaults: until 0.19.2 a file that is
silent about gradient_clipping clipped nothing.
"""

import sys
from typing import Any, NamedTuple

from minidist.deepspeed.values import (
    Reader,
    anything,
    betas,
    flag,
    lenient,
    names,
    number,
    one_of,
    or_null,
    pieces,
    section,
    section_of_any,
    text,
    whole,
)


class Key(NamedTuple):
    """One key."""

    read: Reader
    default: Any
    means: str  # what it is about, for a reader of `explain`
    never: str = ""  # why it can have no effect here; "": it can
    yet: str = ""  # why it has no effect so far
    already: tuple[Any, ...] = ()  # values that describe what happens here anyway
    refused: str = ""  # why only the default is accepted


ELEMENTS = whole(0)
ROOMS = "an nvme's rooms are as many as reading ahead and writing behind need, each for the largest unit's shard"
AHEAD = "what is in files is read ahead and written behind"
QUANTISED = "what is sent is what is stored: nothing is quantized"
UNITS = "what is gathered and reduced at a time is a unit of the model: the embedding, a block, the head"
WAITS = "a rank waits for each of its messages: the same bytes in the same order"

BATCH = {
    "train_batch_size": Key(or_null(whole(1, 10**9)), None, "sequences to an update, over all ranks"),
    "train_micro_batch_size_per_gpu": Key(or_null(whole(1, 10**9)), None, "sequences of one rank in one forward"),
    "gradient_accumulation_steps": Key(or_null(whole(1, 10**9)), None, "forwards and backwards to an update"),
}

TRAINING = {
    "gradient_clipping": Key(number(1e9), 1.0, "largest norm of all gradients together; 0: any"),
    "steps_per_print": Key(or_null(whole(1)), None, "steps from one line of progress to the next; null: no line"),
    "wall_clock_breakdown": Key(flag, False, "milliseconds of forward, backward and step, in that line"),
    "prescale_gradients": Key(
        flag, False, "divide gradients before they are summed, not after",
        never="losses are weighted by their share of the batch, so that the sum is the mean",
    ),
    "gradient_predivide_factor": Key(
        number(above=True), 1.0, "by how much, before the sum",
        never="losses are weighted by their share of the batch, so that the sum is the mean", already=(1.0,),
    ),
    "gradient_allreduce_op": Key(
        one_of("mean", "sum"), "mean", "what becomes of the ranks' gradients", refused="ranks take their mean"
    ),
    "communication_data_type": Key(
        one_of(None, "fp16", "bf16", "fp32"), None, "dtype of what is sent",
        yet="what is stored is sent, in its own dtype", already=(None,),
    ),
    "memory_breakdown": Key(
        flag, False, "print memory after each phase", never="the report counts every rank's memory", already=(False,)
    ),
    "dump_state": Key(flag, False, "print the configuration", never="explain prints it", already=(False,)),
    "disable_allgather": Key(
        flag, False, "broadcast parameters instead of gathering them", refused="parameters are gathered"
    ),
    "zero_allow_untested_optimizer": Key(
        flag, False, "accept any optimizer", never="the optimizers are these, and tested", already=(False, True)
    ),
    "zero_force_ds_cpu_optimizer": Key(
        flag, True, "take DeepSpeed's own Adam where states are offloaded", never="there is one Adam", already=(True,)
    ),
    "dataloader_drop_last": Key(
        flag, False, "leave a last, smaller batch out", never="every batch is whole", already=(False, True)
    ),
    "managed_gradient_accumulation": Key(
        flag, True, "let the engine count micro-batches", refused="the engine counts them"
    ),
    "seq_parallel_communication_data_type": Key(
        one_of(None, "fp16", "bf16", "fp32"), "fp32", "dtype of what ranks send that divide sequences",
        never="ranks of the data axis divide no sequence", already=("fp32", None),
    ),
    "sequence_parallel_size": Key(
        whole(1), 1, "ranks that divide a sequence", refused="each sequence is one rank's: leave it at 1"
    ),
    "use_data_before_expert_parallelism": Key(
        flag, False, "which ranks share an expert", never="there are no experts", already=(False,)
    ),
    "disable_python_gc": Key(flag, False, "no garbage collection", never="it stays as Python has it", already=(False,)),
    "log_level": Key(anything, None, "how much DeepSpeed logs", never="it prints as little as it can", already=(None,)),
    "allgather_size": Key(anything, None, "the bucket of a zero_optimization that is only true", yet=UNITS),
    "vocabulary_size": Key(
        or_null(whole(1)), None, "warns of one that does not suit tensor cores", never="NumPy has none", already=(None,)
    ),
}  # fmt: skip

PRECISION = {
    "fp16.enabled": Key(flag, None, "float16 parameters and gradients, float32 master copies, scaled losses"),
    "fp16.auto_cast": Key(
        flag, False, "turn a model's inputs to float16", never="inputs are token numbers", already=(False,)
    ),
    "fp16.loss_scale": Key(number(), 0.0, "by what losses are multiplied; 0: as much as gradients bear"),
    "fp16.initial_scale_power": Key(whole(0, 126), 16, "where that begins: 2 to this power"),
    "fp16.loss_scale_window": Key(whole(0), 1000, "steps without an overflow until it doubles"),
    "fp16.hysteresis": Key(whole(1), 2, "overflows until it is halved"),
    "fp16.consecutive_hysteresis": Key(flag, False, "any step without an overflow forgives those before it"),
    "fp16.min_loss_scale": Key(whole(0), 1, "below which it never falls"),
    "fp16.fp16_master_weights_and_grads": Key(
        flag, False, "master copies in float16", refused="master copies are float32"
    ),
    "bf16.enabled": Key(flag, None, "bfloat16 parameters and gradients, float32 master copies"),
    "bf16.bf16_master_weights_and_grads": Key(
        flag, False, "master copies in bfloat16", refused="master copies are float32"
    ),
    "bf16.bf16_optimizer_states": Key(flag, False, "moments in bfloat16", refused="moments are float32"),
    "bf16.immediate_grad_update": Key(
        flag, False, "add to float32 gradients as they appear", yet="gradients are stored in bfloat16", already=(False,)
    ),
    "bf16.check_grad_overflow": Key(
        flag, True, "skip a step whose gradients overflow",
        never="with bf16's range gradients that are not finite end the run",
    ),
}  # fmt: skip

ZERO = {
    "stage": Key(whole(0, 3), 0, "what is divided: 1 optimizer states, 2 gradients too, 3 parameters too"),
    "contiguous_gradients": Key(
        flag, True, "copy gradients into one buffer as they appear",
        never="a unit's gradients are one buffer from the start", already=(True,),
    ),
    "reduce_scatter": Key(
        flag, True, "reduce-scatter instead of all-reduce", yet="stages 1 to 3 always reduce-scatter", already=(True,)
    ),
    "reduce_bucket_size": Key(whole(1), int(5e8), "elements reduced at a time"),
    "use_multi_rank_bucket_allreduce": Key(
        flag, True, "put several ranks' buckets into one message", never="a ring's messages are one rank's"
    ),
    "allgather_partitions": Key(
        flag, True, "all-gather updated parameters instead of broadcasting them",
        yet="updated parameters are always all-gathered", already=(True,),
    ),
    "allgather_bucket_size": Key(ELEMENTS, int(5e8), "elements gathered at a time after an update", yet=UNITS),
    "overlap_comm": Key(
        or_null(flag), None, "send while the backward goes on; by default in stage 3", never=WAITS,
        already=(False, None),
    ),
    "load_from_fp32_weights": Key(
        flag, True, "load master copies, not what was rounded", never="checkpoints have master copies", already=(True,)
    ),
    "elastic_checkpoint": Key(
        flag, False, "load at another number of ranks", never="every checkpoint can be", already=(True, False)
    ),
    "sub_group_size": Key(
        ELEMENTS, int(1e9), "parameters updated at a time", never="an update goes through blocks that stay in the cache"
    ),
    "prefetch_bucket_size": Key(ELEMENTS, int(5e7), "elements gathered ahead of their use"),
    "param_persistence_threshold": Key(ELEMENTS, int(1e5), "smaller parameters stay on every rank once gathered"),
    "model_persistence_threshold": Key(
        ELEMENTS, sys.maxsize, "how many elements may stay so", yet="each parameter stays or not by its own size alone",
        already=(sys.maxsize,),
    ),
    "max_live_parameters": Key(ELEMENTS, int(1e9), "elements that may be gathered at once"),
    "max_reuse_distance": Key(
        ELEMENTS, int(1e9), "do not release what is used again within n elements",
        yet="a unit is released once a pass has used it for the last time", already=(0,),
    ),
    "gather_16bit_weights_on_model_save": Key(flag, False, "save_16bit_model puts divided parameters together"),
    "allgather_sequential": Key(
        flag, False, "gather each parameter by itself", never="a unit's parameters are one array", already=(False,)
    ),
    "leaf_module": Key(
        or_null(section(classes=names, names=names, name_suffixes=names)), None, "modules gathered as a whole",
        never=UNITS, already=(None, {}),
    ),
    "compute_grad_norm": Key(
        flag, True, "the norm of the gradient, also where nothing is clipped",
        never="it says whether a gradient overflowed", already=(True,),
    ),
    "zenflow": Key(or_null(anything), None, "update what matters on the device, the rest later on the host",
                   refused="an update is whole: leave it out"),
    "parameter_alignment": Key(
        flag, False, "pad parameters to 16 bytes", never="arrays have NumPy's alignment", already=(False,)
    ),
    "log_trace_cache_warnings": Key(flag, False, "warn of a changed order of modules", never="the order is a list",
                                    already=(False,)),
    "enable_sanity_checks": Key(
        flag, False, "DeepSpeed's own checks", never="every run checks its claims", already=(False,)
    ),
    "save_muon_momentum_buffer_in_memory": Key(
        flag, False, "of the optimizer Muon", never="it is of the optimizer Muon", already=(False,)
    ),
    "module_granularity_threshold": Key(
        whole(-sys.maxsize), 0, "gather small layers with their parent", yet=UNITS, already=(0,)
    ),
    "use_all_reduce_for_fetch_params": Key(
        flag, False, "gather by an all-reduce", never="a ring's all-gather sends half of that", already=(False,)
    ),
    "ignore_unused_parameters": Key(
        flag, True, "go on when a parameter has no gradient", never="every parameter has one", already=(True, False)
    ),
    "legacy_stage1": Key(flag, False, "the first implementation of stage 1", refused="there is one stage 1"),
    "round_robin_gradients": Key(
        flag, False, "cut gradients finely, for ranks that copy them to the host at once",
        yet="a gradient's shards are equal, and each rank moves its own", already=(False,),
    ),
    "zero_hpz_partition_size": Key(
        whole(0), 1, "ranks of a second copy of the parameters", refused="parameters are divided once"
    ),
    "zero_quantized_weights": Key(flag, False, "gather int8", refused=QUANTISED),
    "zero_quantized_nontrainable_weights": Key(flag, False, "store frozen weights in int8", refused=QUANTISED),
    "zero_quantized_gradients": Key(flag, False, "reduce int4", refused=QUANTISED),
    "memory_efficient_linear": Key(
        flag, True, "keep no gathered weight for the backward", never="no operation does", already=(True,)
    ),
    "pipeline_loading_checkpoint": Key(
        flag, False, "load while ranks send", never="each rank reads its own piece", already=(False,)
    ),
    "override_module_apply": Key(
        flag, True, "gather around a model's own initialization", never="a unit is declared, then drawn",
        already=(True, False),
    ),
    "offload_optimizer.device": Key(one_of("none", "cpu", "nvme"), "none", "where optimizer states are kept"),
    "offload_optimizer.nvme_path": Key(or_null(text), None, "the folder of an nvme; null: a temporary one"),
    "offload_optimizer.super_offload": Key(
        flag, False, "update on a superchip's host", never="the host updates in one way", already=(False,)
    ),
    "offload_optimizer.cpuadam_cores_perc": Key(
        number(1), 0.8, "share of the cores that update", never="the ranks of a machine share its cores", already=(0.8,)
    ),
    "offload_optimizer.buffer_count": Key(whole(0), 4, "buffers of an nvme", never=ROOMS),
    "offload_optimizer.pin_memory": Key(
        flag, True, "page-locked host memory", never="no device copies by itself", already=(True, False)
    ),
    "offload_optimizer.pipeline_read": Key(flag, False, "read ahead", never=AHEAD, already=(True,)),
    "offload_optimizer.pipeline_write": Key(flag, False, "write behind", never=AHEAD, already=(True,)),
    "offload_optimizer.fast_init": Key(
        flag, False, "fill an nvme fast", never="files are made of the parameters as they are drawn", already=(False,)
    ),
    "offload_optimizer.ratio": Key(number(1), 1.0, "share of the states", yet="all of them go", already=(1.0,)),
    "offload_param.device": Key(one_of("none", "cpu", "nvme"), "none", "where parameters are kept"),
    "offload_param.nvme_path": Key(or_null(text), None, "the folder of an nvme, if the optimizer's has none"),
    "offload_param.buffer_count": Key(whole(0), 5, "buffers of an nvme", never=ROOMS),
    "offload_param.buffer_size": Key(ELEMENTS, int(1e8), "elements of such a buffer", never=ROOMS),
    "offload_param.max_in_cpu": Key(
        ELEMENTS, int(1e9), "elements that stay in host memory", never="none do but those in use", already=(0,)
    ),
    "offload_param.pin_memory": Key(
        flag, True, "page-locked host memory", never="no device copies by itself", already=(True, False)
    ),
}  # fmt: skip

ACTIVATIONS = {
    "partition_activations": Key(
        flag, False, "tensor-parallel ranks keep a part of a checkpoint each",
        never="no two ranks of the data axis have the same activations", already=(False,),
    ),
    "number_checkpoints": Key(or_null(whole(1)), None, "inputs kept in a pass: one for every n blocks; null: each"),
    "contiguous_memory_optimization": Key(flag, False, "checkpoints in one buffer made beforehand"),
    "cpu_checkpointing": Key(flag, False, "checkpoints in host memory"),
    "synchronize_checkpoint_boundary": Key(
        flag, False, "wait for the device at each", never="only the rank's own work is running", already=(False,)
    ),
    "profile": Key(flag, False, "time each", yet="wall_clock_breakdown times the passes", already=(False,)),
}  # fmt: skip

# Sections whose keys pydantic checks there: an unknown one is an error, and so is a wrong value, but "500" is a number.
STRICT = ("fp16", "bf16", "zero_optimization", "zero_optimization.offload_param", "zero_optimization.offload_optimizer")
NUMBERS = ("fp16.loss_scale", "fp16.loss_scale_window", "fp16.min_loss_scale")  # which may not be true or false
KEYS = (
    BATCH
    | TRAINING
    | {
        path: key._replace(read=lenient(key.read, truth=path not in NUMBERS))
        for path, key in (PRECISION | {f"zero_optimization.{name}": key for name, key in ZERO.items()}).items()
    }
    | {f"activation_checkpointing.{name}": key for name, key in ACTIVATIONS.items()}
    | {
        "optimizer.type": Key(text, None, "the optimizer"),
        "optimizer.legacy_fusion": Key(
            flag, False, "an older fused kernel", never="NumPy has no fused kernels", already=(False,)
        ),
        "scheduler.type": Key(text, None, "the learning rate's schedule"),
    }
)

# Other names of a key: stage 3's names with their prefix, and old spellings.
STAGE_3 = (
    *("prefetch_bucket_size", "param_persistence_threshold", "model_persistence_threshold", "max_live_parameters"),
    *("max_reuse_distance", "gather_16bit_weights_on_model_save", "module_granularity_threshold"),
    *("use_all_reduce_for_fetch_params", "allgather_sequential"),
)
ALIASES = {f"zero_optimization.stage3_{name}": f"zero_optimization.{name}" for name in STAGE_3} | {
    "zero_optimization.stage3_gather_fp16_weights_on_model_save": (
        "zero_optimization.gather_16bit_weights_on_model_save"
    ),
    "bfloat16": "bf16",
}

RATE = number(1e3)
LR = Key(RATE, 1e-3, "learning rate")
SAYS_CLIPPING = "DeepSpeed refuses it, too: say gradient_clipping"
MAX_NORM = Key(anything, None, "as gradient_clipping", refused=SAYS_CLIPPING)
ADAM = {
    "lr": LR,
    "betas": Key(betas, (0.9, 0.999), "how slowly the moments move"),
    "eps": Key(number(above=True), 1e-8, "keeps an update finite"),
    "weight_decay": Key(number(1e3), 0.0, "decoupled, on matrices: biases and norms never decay here"),
    "adam_w_mode": Key(flag, True, "decoupled weight decay, also where the type is Adam"),
    "torch_adam": Key(flag, False, "PyTorch's own Adam", never="there is one Adam", already=(True, False)),
    "fused": Key(flag, False, "one kernel", never="NumPy has no fused kernels", already=(True, False)),
    "bias_correction": Key(flag, True, "of the moments", refused="the moments are always corrected"),
    "amsgrad": Key(flag, False, "the largest variance so far", refused="the variance is the newest"),
    "fp32_optimizer_states": Key(flag, True, "moments in float32", refused="moments are float32"),
    "set_grad_none": Key(flag, True, "free gradients after an update", never="they are zeroed", already=(True, False)),
    "max_grad_norm": MAX_NORM,
}
OPTIMIZERS = {
    "Adam": ADAM,
    "AdamW": ADAM,
    "SGD": {
        "lr": LR,
        "momentum": Key(number(1), 0.0, "of the velocity"),
        "weight_decay": Key(number(1e3), 0.0, "on matrices; without momentum coupled and decoupled are the same"),
        "dampening": Key(number(), 0.0, "of the velocity's new part", refused="a velocity takes all of a gradient"),
        "nesterov": Key(flag, False, "look ahead", refused="an update follows the velocity"),
        "max_grad_norm": MAX_NORM,
    },
}

EVERY = {"last_batch_iteration": Key(whole(-1), -1, "where to go on", refused="a run goes on from its checkpoint")}
WARM_UP = EVERY | {
    "warmup_num_steps": Key(whole(1), 1000, "updates of warm-up; at least 2 are made of it"),
    "warmup_type": Key(one_of("log", "linear"), "log", "how it rises"),
}
RISES = WARM_UP | {
    "warmup_min_lr": Key(RATE, 0.0, "where warm-up begins"),
    "warmup_max_lr": Key(or_null(RATE), None, "where warm-up ends; null: the optimizer's lr"),
}
TOTAL = {"total_num_steps": Key(whole(1), None, "updates in all")}
CYCLE = EVERY | {
    "cycle_min_lr": Key(RATE, None, "where a cycle begins and ends"),
    "cycle_max_lr": Key(RATE, None, "its peak"),
    "decay_lr_rate": Key(number(), 0.0, "after the cycle the least rate is divided by 1 + this·steps"),
    "cycle_first_step_size": Key(whole(1), 2000, "updates up"),
    "cycle_second_step_size": Key(or_null(whole(1)), None, "updates down; null: as many"),
    "decay_step_size": Key(whole(0), 0, "updates to a step of decay; 0: none"),
    "cycle_first_stair_count": Key(whole(0), 0, "stairs up", refused="a cycle has no stairs"),
    "cycle_second_stair_count": Key(or_null(whole(0)), None, "stairs down", refused="a cycle has no stairs"),
    "cycle_momentum": Key(flag, True, "move the momentum against the rate"),
    "cycle_min_mom": Key(number(1), 0.8, "where that begins", never="momentum stays", already=(0.8,)),
    "cycle_max_mom": Key(number(1), 0.9, "and ends", never="momentum stays", already=(0.9,)),
    "decay_mom_rate": Key(number(), 0.0, "its decay", never="momentum stays", already=(0.0,)),
}
SCHEDULERS = {
    "WarmupLR": RISES,
    "WarmupDecayLR": RISES | {"warmup_max_lr": Key(RATE, 1e-3, "where warm-up ends")} | TOTAL,
    "WarmupCosineLR": WARM_UP
    | TOTAL
    | {
        "warmup_min_ratio": Key(number(1), 0.0, "share of lr where warm-up begins"),
        "cos_min_ratio": Key(number(1), 1e-4, "share of lr where the cosine ends"),
    },
    "LRRangeTest": EVERY
    | {
        "lr_range_test_min_lr": Key(RATE, 1e-3, "where the test begins"),
        "lr_range_test_step_size": Key(whole(1), 2000, "updates to a step"),
        "lr_range_test_step_rate": Key(number(), 1.0, "growth with a step"),
        "lr_range_test_staircase": Key(flag, False, "in stairs"),
    },
    "OneCycle": CYCLE,
}

# Sections that other parts of DeepSpeed read. These change no number in training:
WATCHES = "it watches a run and changes nothing in it"
SECTIONS = dict.fromkeys(
    ("tensorboard", "wandb", "csv_monitor", "comet", "flops_profiler", "comms_logger", "timers"), WATCHES
) | {
    "aio": "two threads of a rank move its files, in blocks of 64 KiB",
    "checkpoint": "checkpoints are minidist's own",
    "datastates_ckpt": "checkpoints are minidist's own",
    "compile": "NumPy compiles nothing",
    "data_types": "gradients add up in the dtype in which they are stored",
    "pipeline": "only a PipelineModule reads it: run minidist.pipeline, or minidist.parallel3d --pp",
}
# These do, and are accepted only if they are switched off:
REFUSED_SECTIONS = dict.fromkeys(
    ("torch_autocast", "autotuning", "data_efficiency", "hybrid_engine", "weight_quantization"),
    "it changes what is trained",
) | {
    "tensor_parallel": "it has a chapter, minidist.tensor_parallel, and an option, minidist.parallel3d --tp",
    "expert_parallel": "experts need another model",
}
VALIDATIONS = [word for each in ("warn", "ignore", "fail") for word in (each.upper(), each, each.capitalize())]
# The fields that pydantic accepts in these sections; the contents of a section not named here are not checked:
LOG: dict[str, Reader] = {"enabled": flag, "output_path": text, "job_name": text}
FIELDS: dict[str, dict[str, Reader]] = {
    "tensorboard": LOG,
    "csv_monitor": LOG,
    "wandb": {"enabled": flag, "group": or_null(text), "team": or_null(text), "project": text},
    "comet": {"enabled": flag, "samples_log_interval": whole(-sys.maxsize), "online": or_null(flag)}
    | dict.fromkeys(("project", "workspace", "api_key", "experiment_name", "experiment_key", "mode"), or_null(text)),
    "comms_logger": dict.fromkeys(("enabled", "prof_all", "verbose", "debug"), flag) | {"prof_ops": pieces()},
    "compile": dict.fromkeys(
        (
            *(
                "deepcompile",
                "autoep_non_moe",
                "free_activation",
                "offload_activation",
                "offload_activation_pin_memory",
            ),
            *("offload_opt_states", "double_buffer", "symmetric_memory", "debug_log", "offload_parameters"),
            *("sync_before_reduce", "sync_after_reduce", "sync_before_allgather", "sync_after_allgather"),
            *("keep_int_input_tensors", "keep_all_input_tensors"),
        ),
        flag,
    )
    | {"free_activation_threshold": whole(-sys.maxsize), "passes": or_null(pieces("z1", "z3", "autosp", "autotp"))},
    "hybrid_engine": dict.fromkeys(("enabled", "release_inference_cache", "pin_parameters", "enable_cuda_graph"), flag)
    | {"max_out_tokens": whole(1)}
    | dict.fromkeys(("inference_tp_size", "tp_gather_partition_size"), whole(-sys.maxsize)),
}
# In these sections only some keys are checked:
OPEN = {
    "checkpoint": {"tag_validation": one_of(*VALIDATIONS), "writer": or_null(section_of_any)},
    "timers": {"throughput": section(enabled=flag, synchronized=flag)},
    "data_types": {"keep_in_fp32_modules": pieces()},
}
ANY = ("datastates_ckpt",)  # may hold anything
# Keys that DeepSpeed had, and since 0.19.7 refuses even if they are switched off:
REMOVED = (
    *("amp", "compression_training", "curriculum_learning", "eigenvalue", "elasticity", "graph_harvesting", "nebula"),
    *("progressive_layer_drop", "quantize_training", "sparse_attention", "sparse_gradients"),
    *("zero_optimization.mics_shard_size", "zero_optimization.mics_hierarchical_params_gather"),
    "zero_optimization.zeropp_loco_param",
)

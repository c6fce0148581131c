"""checkpointing.configure and checkpointing.checkpoint: a model's own units say which part of them is recomputed.

    class Again(GPTBlock):
        def __call__(self, x, batch):
            return checkpointing.checkpoint(super().__call__, x, batch)

    engine, *_ = deepspeed.initialize(model=model, config=config, comm=comm)
    checkpointing.configure(engine, checkpoint_in_cpu=True)

Only x, the function's first argument, is kept for the backward, in which the function is recomputed: for a block, bsh
elements instead of sbh(34 + 5as/h) bytes (Korthikanti et al. 2022, section 5). x is stored like ZeRO-R's checkpoints
(`minidist/zero_r.py`), where `configure` says. If the configuration has a section activation_checkpointing,
`initialize` has every block recomputed; a model that calls `checkpoint` leaves that section out.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from minidist import UsageError
from minidist.cli.read import read
from minidist.deepspeed.config import check
from minidist.deepspeed.engine import DeepSpeedEngine
from minidist.nn.tensor import Tensor, recomputed
from minidist.zero_r import Checkpoints

SECTION = "activation_checkpointing"


def configure(
    engine: DeepSpeedEngine,
    deepspeed_config: str | Path | dict[str, Any] | None = None,
    partition_activations: bool | None = None,
    contiguous_checkpointing: bool | None = None,
    num_checkpoints: int | None = None,
    checkpoint_in_cpu: bool | None = None,
    synchronize: bool | None = None,
    profile: bool | None = None,
) -> None:
    """Set where `checkpoint` stores its inputs from now on. Arguments that are None follow deepspeed_config.

    contiguous_checkpointing: in one buffer, for num_checkpoints of a forward. checkpoint_in_cpu: in host memory.
    Rank 0 names each of the other arguments that has no effect here. (DeepSpeed's function takes a module that knows
    the ranks; this one takes the engine, whose memories hold the inputs.) Raises UsageError for settings that cannot
    work.
    """
    given = {
        "partition_activations": partition_activations,
        "contiguous_memory_optimization": contiguous_checkpointing,
        "number_checkpoints": num_checkpoints,
        "cpu_checkpointing": checkpoint_in_cpu,
        "synchronize_checkpoint_boundary": synchronize,
        "profile": profile,
    }
    of_file = read(deepspeed_config or {}).get(SECTION) or {}
    said = {**of_file, **{name: value for name, value in given.items() if value is not None}}
    found = check({SECTION: said}, auto={})
    if engine.comm.rank == 0:
        for note in found.notes:
            print(f"minidist: {note}", file=sys.stderr)
    on_host, number = found[f"{SECTION}.cpu_checkpointing"], found[f"{SECTION}.number_checkpoints"]
    together = found[f"{SECTION}.contiguous_memory_optimization"]
    if together and number is None:
        raise UsageError("checkpointing.configure: contiguous_checkpointing needs num_checkpoints, those of a forward")
    wanted = Checkpoints(engine.stage, on_host, together=number if together else None) if on_host or together else None
    engine.stage.checkpoints = wanted


def checkpoint(function: Callable[..., Tensor], x: Tensor, *arguments: Any) -> Tensor:
    """function(x, *arguments), (B, T, C) like x. The function must return the same twice, and keep no activations."""
    store = x.tape.store.checkpoints if x.tape else None
    return recomputed(lambda x: function(x, *arguments), x, store)

"""DeepSpeed's front end: its configuration, its verbs, and what each of its keys does to memory and traffic.

engine, optimizer, batches, scheduler = minidist.deepspeed.initialize(model=units, config="ds_config.json", comm=comm)

mpirun -n 4 python -m minidist.deepspeed ds_config.json
mpirun -n 4 python -m minidist.deepspeed.example
python -m minidist explain ds_config.json --model llama2-7b --ranks 64
"""

from typing import TYPE_CHECKING

from minidist import loaded_later

if TYPE_CHECKING:
    from minidist.deepspeed import checkpointing, zero
    from minidist.deepspeed.engine import DeepSpeedEngine, initialize

__all__ = ["DeepSpeedEngine", "checkpointing", "initialize", "zero"]

__getattr__ = loaded_later(__name__, DeepSpeedEngine="engine", initialize="engine", checkpointing="", zero="")

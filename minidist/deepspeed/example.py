"""A script as DeepSpeed's users write it.

mpirun -n 4 python -m minidist.deepspeed.example
"""

from minidist import deepspeed
from minidist.exchange.doors import run
from minidist.mpi.comm import Comm
from minidist.nn.gpt import GPTConfig, gpt
from minidist.text import data

CONFIG = {
    "train_batch_size": 48,
    "gradient_accumulation_steps": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-3, "weight_decay": 0.1}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 20}},
    "fp16": {"enabled": True},
    "zero_optimization": {"stage": 3},
}


def main(comm: Comm, corpus: data.Corpus) -> None:
    with deepspeed.zero.Init(config=CONFIG, comm=comm):
        model = gpt(GPTConfig(len(corpus.vocabulary), context=64, layers=4, heads=4, width=64))
    sequences = corpus.batch(4096, context=64, key=(0,))  # x and y, (4096, 64) each
    engine, _, batches, _ = deepspeed.initialize(model=model, config=CONFIG, comm=comm, training_data=sequences)
    while engine.global_steps < 100:
        loss = engine.train_batch(batches)  # of the whole batch; or engine(x, y), engine.backward(loss), engine.step()
        if engine.global_steps % 10 == 0 and comm.rank == 0:
            print(f"step {engine.global_steps}  loss {loss:.3f}  loss scale {engine.loss_scale:g}", flush=True)


if __name__ == "__main__":
    run(prepare=lambda comm: data.load(None, context=64), main=main, module="minidist.deepspeed.example")

"""What tests/deepspeed/test_ranks.py runs on ranks: all of it in one job."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minidist import UsageError, deepspeed, ring
from minidist.deepspeed import __main__ as door
from minidist.deepspeed import zero
from minidist.deepspeed.engine import DeepSpeedEngine
from minidist.engine import Engine, Settings
from minidist.nn.gpt import GPTConfig, gpt
from minidist.nn.layers import Unit, count_parameters

SEED, STEPS, CONTEXT, VOCABULARY = 5, 3, 8, 23


def model(width: int = 12, layers: int = 2) -> list[Unit]:
    """Of sizes that no number of ranks above 1 divides."""
    return gpt(GPTConfig(VOCABULARY, CONTEXT, layers=layers, heads=2, width=width))


def tokens(step: int, batch: int) -> tuple[np.ndarray, np.ndarray]:
    drawn = np.random.default_rng(step).integers(0, VOCABULARY, (batch, CONTEXT + 1))
    return drawn[:, :-1], drawn[:, 1:]


def train(engine: DeepSpeedEngine, first: int = 0, steps: int = STEPS) -> list[float]:
    """The global losses of some steps, by forward, backward and step."""
    losses = []
    for step in range(first, first + steps):
        x, y = tokens(step, engine.train_batch_size())
        part = 0.0
        for rows in np.split(np.arange(len(x)), engine.gradient_accumulation_steps()):
            loss = engine(x[rows], y[rows])
            part += loss.value
            engine.backward(loss)
            engine.step()
        losses.append(float(np.sum(engine.comm.all_gather_object(part))))
    return losses


def serially(settings: Settings, batch: int) -> list[float]:
    """The same with the serial engine, which is told settings and reads no configuration."""
    engine = Engine(model(), settings)
    return [engine.train_batch(*tokens(step, batch)) for step in range(STEPS)]


def everything(comm: Any, configs: dict[str, Any], lines: dict[str, list[str]], folder: str) -> dict[str, Any]:
    """By name: what each configuration trains, what each command line reports, and what the verbs do."""
    found: dict[str, Any] = {}
    for name, config in configs.items():
        engine, *_ = deepspeed.initialize(model=model(), config=config, comm=comm, seed=SEED)
        found[name] = train(engine)
    found["verbs"] = verbs(comm)
    found["init"] = init(comm)
    found["gathered"] = gathered(comm)
    found["tiled"] = {tiles: comm.all_gather_object(tiled(comm, tiles)) for tiles in (1, 3, 4)}
    found["kept"] = kept(comm, folder)
    for name, line in lines.items():
        file = Path(folder) / f"report {name.replace('/', ' ')}.json"
        status = door.main(comm, door.prepare([*line, "--json", str(file)], comm.size))
        report = json.loads(file.read_text()) if comm.rank == 0 else {}
        found[name] = {
            key: report.get(key) for key in ("chapter", "loss", "memory", "sent", "parameters", "below", "moved")
        } | {
            "status": status,
            "holds": all(claim["holds"] for claim in report.get("claims", [])),
            "claims": len(report.get("claims", [])),
        }
    return found


def verbs(comm: Any) -> dict[str, Any]:
    """What the engine says of itself, step by step; the loss scale begins so high that the first steps overflow."""
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 2,
        "fp16": {"enabled": True, "initial_scale_power": 40, "hysteresis": 2},
        "zero_optimization": {"stage": 2},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.5, "warmup_type": "linear"}},
    }
    data = tokens(0, 5 * comm.size + 1)
    engine, optimizer, batches, scheduler = deepspeed.initialize(
        model=model(), config=config, comm=comm, training_data=data, seed=SEED
    )
    seen = []
    for _ in range(4):
        x, y = next(batches)
        boundary = engine.is_gradient_accumulation_boundary()
        engine.backward(engine(x, y))
        engine.step()
        seen.append([boundary, engine.global_steps, engine.micro_steps, engine.skipped_steps, engine.loss_scale])
    rows = {tuple(map(int, row)) for row in data[0]}
    return {
        "seen": seen,
        "lr": scheduler.get_last_lr(),
        "shape": list(x.shape),
        "from the data": all(tuple(map(int, row)) in rows for row in x),
        "mean loss": engine.train_batch(batches),
        "steps": engine.global_steps,
        "optimizer": type(optimizer).__name__,
    }


STAGE_3 = {"train_micro_batch_size_per_gpu": 2, "fp16": {"enabled": True}, "zero_optimization": {"stage": 3}}


def init(comm: Any) -> dict[str, Any]:
    """The peak of zero.Init, by its own account and NumPy's, for a model of many units; and the losses that follow."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    with zero.Init(config=STAGE_3, comm=comm, seed=SEED) as made:
        units = model(width=48, layers=24)
    traced = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    with zero.Init(config=STAGE_3, comm=comm, seed=SEED):
        small = model()
    engine, *_ = deepspeed.initialize(model=small, config=STAGE_3, comm=comm, seed=SEED)
    without, *_ = deepspeed.initialize(model=model(), config=STAGE_3, comm=comm, seed=SEED)
    return {
        "peak": made.peak,
        "traced": traced,
        "parameters": count_parameters(units),
        "largest": max(flat.padded for unit in units for flat in unit.flats),
        "losses": train(engine),
        "without": train(without),
    }


def tiled(comm: Any, out_splits: int) -> dict[str, Any]:
    """A tiled layer's results on this rank, its whole weights and gradient, and what it has held and sent."""
    layer = zero.TiledLinear(7, 12, out_splits, comm=comm, seed=SEED, dtype=np.float64)
    draw = np.random.default_rng(comm.rank)
    x, dy = draw.standard_normal((5, 7)), draw.standard_normal((5, 12))
    comm.ledger.reset()
    y = layer.forward(x)
    dx = layer.backward(dy, x)
    sent = {phase: counted["bytes"] for phase, counted in comm.ledger.by_phase().items()}
    size = 12 // out_splits * 7
    wholes = {
        name: np.stack([ring.all_gather(comm, shard, layer.padded)[:size] for shard in shards]).reshape(12, 7)
        for name, shards in (("weights", layer.shards), ("gradient", layer.gradient))
    }
    passing = {kind: layer.device.peak[kind] for kind in ("gathered", "bucket")}
    return {"x": x, "dy": dy, "y": y, "dx": dx, "sent": sent, "padded": layer.padded, **wholes, **passing}


def gathered(comm: Any) -> dict[str, Any]:
    """A parameter as each rank sees it: as drawn, changed for nobody, changed by rank 1 for all; before and after an
    engine has it."""
    with zero.Init(config=STAGE_3, comm=comm, seed=SEED):
        units = model()
    matrix = units[0].parameters[0]

    def mean() -> float:
        with zero.GatheredParameters(units[0]):
            return float(matrix.data.mean())

    drawn = [mean(), float(matrix.initial(SEED).mean())]
    with zero.GatheredParameters(units, modifier_rank=None):
        matrix.data[...] = 7
    unchanged = mean()
    with zero.GatheredParameters([units[0]], modifier_rank=1):
        matrix.data[...] = comm.rank + 0.25
    changed = mean()
    engine, *_ = deepspeed.initialize(model=units, config=STAGE_3, comm=comm, seed=SEED)
    taken_over = mean()
    with zero.GatheredParameters(units[0], modifier_rank=0):
        matrix.data[...] = 3
    stored = float(engine.stage.parameters_of(units[0].flats[0])[: matrix.size].mean())
    return {"drawn": drawn, "means": [unchanged, changed, taken_over, mean(), stored]}


def kept(comm: Any, folder: str) -> dict[str, Any]:
    """Losses of six steps in stage 3; of the last three again, from a checkpoint of the first three, in each stage."""

    def made(stage: int) -> DeepSpeedEngine:
        config = STAGE_3 | {"zero_optimization": {"stage": stage, "gather_16bit_weights_on_model_save": True}}
        return deepspeed.initialize(model=model(), config=config, comm=comm, seed=SEED)[0]

    engine = made(3)
    train(engine)
    for epoch in (1, 2):  # the second in place of the first
        engine.save_checkpoint(f"{folder}/kept", client_state={"epoch": epoch})
    losses = {"on": train(engine, first=STEPS)}
    for stage in range(4):
        other = made(stage)
        loaded = [other.load_checkpoint(f"{folder}/kept", tag) for tag in (None, f"global_step{STEPS}")]
        losses[f"stage {stage}"] = train(other, first=STEPS)
    divided = deepspeed.initialize(model=model(), config=STAGE_3, comm=comm, seed=SEED)[0]
    saved = [engine.save_16bit_model(folder, "16bit.safetensors"), divided.save_16bit_model(folder, "no.safetensors")]
    refused = []
    for how in ({"tag": "../up"}, {"tag": "a~2"}, {"tag": "latest"}, {"client_state": {"model": object()}}):
        with pytest.raises(UsageError) as raised:
            engine.save_checkpoint(f"{folder}/kept", **how)
        refused.append(str(raised.value))
    with pytest.raises(UsageError) as raised:
        engine.load_checkpoint(f"{folder}/kept", tag="other")
    refused.append(str(raised.value))
    return {"losses": losses, "steps": other.global_steps, "saved": saved, "loaded": loaded, "refused": refused}

"""What tests/deepspeed/test_ranks.py runs on ranks: all of it in one job."""

import dataclasses
import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jobs import engines
from minidist import UsageError, deepspeed, ring
from minidist.deepspeed import __main__ as door
from minidist.deepspeed import checkpointing, zero
from minidist.deepspeed.engine import DeepSpeedEngine
from minidist.engine import Engine, Settings
from minidist.memory.pool import NEEDED, OutOfMemory, Pool
from minidist.mpi import output
from minidist.nn.gpt import GPTBlock, GPTConfig, gpt
from minidist.nn.layers import Batch, Unit, count_parameters
from minidist.nn.tensor import Tensor

SEED, STEPS, CONTEXT, VOCABULARY = 5, 3, 8, 23


def model(width: int = 12, layers: int = 2) -> list[Unit]:
    """Of sizes that no number of ranks above 1 divides."""
    return gpt(GPTConfig(VOCABULARY, CONTEXT, layers=layers, heads=2, width=width))


def tokens(step: int, batch: int) -> tuple[np.ndarray, np.ndarray]:
    return engines.batch(step, batch, CONTEXT, VOCABULARY)


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
    found["checkpointed"] = checkpointed(comm)
    found["tiled"] = {tiles: comm.all_gather_object(tiled(comm, tiles)) for tiles in (1, 3, 4)}
    found["kept"] = kept(comm, folder)
    found["plain sgd"] = plain_sgd(comm, folder)
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
            "proved": [claim["claim"] for claim in report.get("claims", []) if claim["claim"].startswith("proof")],
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


class Again(GPTBlock):
    """A block that says by itself that it is to run again."""

    def __call__(self, x: Tensor, batch: Batch) -> Tensor:
        return checkpointing.checkpoint(super().__call__, x, batch)


def runs_again(units: list[Unit]) -> list[Unit]:
    return [Again(**vars_of(unit)) if isinstance(unit, GPTBlock) else unit for unit in units]


def vars_of(block: GPTBlock) -> dict[str, Any]:
    return {each.name: getattr(block, each.name) for each in dataclasses.fields(block)}


WAYS: dict[str, Any] = {  # of configure; None: it is not called
    "as it is": None,
    "in one room": {"contiguous_checkpointing": True, "num_checkpoints": 2},
    "on the host": {"checkpoint_in_cpu": True, "profile": True},
    "from a file": {"deepspeed_config": {"activation_checkpointing": {"cpu_checkpointing": True}}},
    "both": {"contiguous_checkpointing": True, "num_checkpoints": 2, "checkpoint_in_cpu": True},
}


def checkpointed(comm: Any) -> dict[str, Any]:
    """What a model that calls `checkpoint` trains, holds and moves, by stage and way; and the same model without it,
    and with the section in its configuration instead."""
    found: dict[str, Any] = {}
    for precision, stage in (("fp32", 0), ("fp32", 3), ("mixed", 2)):
        config = {
            "train_micro_batch_size_per_gpu": 2,
            "gradient_accumulation_steps": 2,
            "fp16": {"enabled": precision == "mixed"},
            "zero_optimization": {"stage": stage, "reduce_bucket_size": 500},
        }
        section = {"activation_checkpointing": {"cpu_checkpointing": True, "contiguous_memory_optimization": True}}
        models = {"without": (model(), config, None), "by its JSON": (model(), config | section, None)}
        models |= {name: (runs_again(model()), config, way) for name, way in WAYS.items()}
        for name, (units, of_model, way) in models.items():
            engine, *_ = deepspeed.initialize(model=units, config=of_model, comm=comm, seed=SEED)
            if way is not None:
                checkpointing.configure(engine, **way)
            found[f"{precision} {stage} {name}"] = observed(engine)
    engine, *_ = deepspeed.initialize(model=runs_again(model()), config=config, comm=comm, seed=SEED)
    with pytest.raises(UsageError, match="needs num_checkpoints"):
        checkpointing.configure(engine, contiguous_checkpointing=True)
    with pytest.raises(UsageError, match=r"number_checkpoints should be a whole number from 1 on, not 0"):
        checkpointing.configure(engine, num_checkpoints=0)
    checkpointing.configure(engine, contiguous_checkpointing=True, num_checkpoints=1)
    with pytest.raises(UsageError, match="a forward keeps more checkpoints than the 1 for which there is room"):
        train(engine)
    return found


def observed(engine: DeepSpeedEngine) -> dict[str, Any]:
    """Losses of some steps; the whole gradients of a last backward; bytes of this rank's activations."""
    losses, stage = train(engine), engine.stage
    forward = stage.device.held["activations"]
    stage.link.reset()
    loss = engine(*tokens(STEPS, 2 * engine.comm.size))
    kept = {pool.name: pool.held["activations"] for pool in stage.pools}
    engine.backward(loss)
    gradients = [stage.whole(flat, stage.owned(flat)[1]) for flat in stage.flats]
    return {
        "losses": losses,
        "gradients": np.concatenate(gradients),
        "kept": kept,
        "between": forward,
        "most": {pool.name: pool.peak["activations"] for pool in stage.pools},
        "moved": stage.link.by_phase(),
    }


def gathered(comm: Any) -> dict[str, Any]:
    """A parameter as each rank sees it: as drawn, changed for nobody, changed by rank 1 for all; before and after an
    engine has it. And what the device has gathered, before, within and after."""
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
    engine.stage.forget(units[0].flats[0])
    born = model()
    held = {"of Init": held_within(zero.Init(born, comm=comm, config=STAGE_3).device, born[:2])}
    for stage, where in ((3, "none"), (3, "nvme"), (2, "cpu"), (1, "none"), (0, "none")):
        config = configured(stage, where)
        other, *_ = deepspeed.initialize(model=model(), config=config, comm=comm, seed=SEED)
        held[f"{stage} {where}"] = held_within(other.stage.device, other.stage.units[:2])
    return {
        "drawn": drawn,
        "means": [unchanged, changed, taken_over, mean(), stored],
        "held": held,
        "padded": sum(flat.padded for unit in units[:2] for flat in unit.flats),
    }


def configured(stage: int, where: str) -> dict[str, Any]:
    devices = {f"offload_{what}": {"device": where} for what in ("optimizer", "param") if where == "nvme" or stage < 3}
    return STAGE_3 | {"zero_optimization": {"stage": stage, **devices}}


def held_within(device: Pool, units: list[Unit]) -> list[int]:
    """Bytes gathered before, within and after; of a first one that finds no room for its last byte, after it too."""
    before = device.held["gathered"]
    with zero.GatheredParameters(units, modifier_rank=0):
        within, capacity = device.held["gathered"], device.held[NEEDED]
    found = [before, within, device.held["gathered"]]
    device.capacity = capacity  # just enough
    with zero.GatheredParameters(units):
        pass
    device.capacity = capacity - 1
    with pytest.raises(OutOfMemory, match=r"bytes of gathered do not fit"), zero.GatheredParameters(units):
        pass
    return [*found, device.held["gathered"]]


def kept(comm: Any, folder: str) -> dict[str, Any]:
    """Losses of six steps in stage 3; of the last three again, from a checkpoint of the first three, in each stage."""

    def made(stage: int) -> DeepSpeedEngine:
        config = STAGE_3 | {"zero_optimization": {"stage": stage, "gather_16bit_weights_on_model_save": True}}
        return deepspeed.initialize(model=model(), config=config, comm=comm, seed=SEED)[0]

    engine = made(3)
    train(engine)
    for epoch in (1, 2):  # the second in place of the first
        engine.save_checkpoint(f"{folder}/kept", client_state={"epoch": epoch, "by epoch": {9: "a", 10: "b"}})
    losses = {"on": train(engine, first=STEPS)}
    for stage in range(4):
        other = made(stage)
        loaded = [other.load_checkpoint(f"{folder}/kept", tag) for tag in (None, f"global_step{STEPS}")]
        losses[f"stage {stage}"] = train(other, first=STEPS)
    divided = deepspeed.initialize(model=model(), config=STAGE_3, comm=comm, seed=SEED)[0]
    saved = [engine.save_16bit_model(folder, "16bit.safetensors"), divided.save_16bit_model(folder, "no.safetensors")]
    before = len(output._lost_files)
    engine.save_16bit_model(f"{folder}/kept/latest/below a file")
    lost = output._lost_files[before:]
    del output._lost_files[before:]
    refused = []
    for call in (
        lambda: engine.forward(*tokens(0, 1)),
        lambda: engine.train_batch(iter([])),
        lambda: zero.GatheredParameters(model()).__enter__(),
        lambda: engine.load_checkpoint(f"{folder}/nowhere"),
    ):
        with pytest.raises(UsageError) as raised:
            call()
        refused.append(str(raised.value))
    for how in ({"tag": "../up"}, {"tag": "a~2"}, {"tag": "latest"}, {"client_state": {"model": object()}}):
        with pytest.raises(UsageError) as raised:
            engine.save_checkpoint(f"{folder}/kept", **how)
        refused.append(str(raised.value))
    with pytest.raises(UsageError) as raised:
        engine.load_checkpoint(f"{folder}/kept", tag="other")
    refused.append(str(raised.value))
    found = {"losses": losses, "steps": other.global_steps, "saved": saved, "lost": lost}
    return {**found, "loaded": loaded, "refused": refused}


PLAIN = {"train_batch_size": 8, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}}
LINE = "--steps 4 --layers 1 --width 8 --heads 2 --context 8 --precision fp64"


def plain_sgd(comm: Any, folder: str) -> dict[str, Any]:
    """Losses of the last two of four steps, in one run and from its checkpoint after two, by command line: in every
    stage, and on two ranks; what is said to momentum."""

    def run(name: str, config: dict[str, Any], ranks: Any, *line: str) -> tuple[int, list[float]]:
        file, report = Path(folder) / f"plain {name}.json", Path(folder) / f"plain {name} report.json"
        if ranks.rank == 0:
            file.write_text(json.dumps(config))
        ranks.barrier()
        prepared = door.prepare([str(file), *LINE.split(), *line, "--json", str(report)], ranks.size)
        status = door.main(ranks, prepared)
        ranks.barrier()
        return status, json.loads(report.read_text())["loss"][-2:]

    def stage(of: int) -> dict[str, Any]:
        return PLAIN | {"zero_optimization": {"stage": of}}

    status, losses = run("on", stage(3), comm, "--save", f"{folder}/plain sgd", "--save-every", "2")
    saved = f"{folder}/plain sgd/step000002"
    found, statuses = {"on": losses}, [status]
    for of in range(4):
        status, found[f"stage {of}"] = run(f"stage {of}", stage(of), comm, "--load", saved)
        statuses.append(status)
    half = comm.split(comm.rank // 2)
    _, found["two ranks"] = run(f"pair {comm.rank // 2}", stage(2), half, "--load", saved)
    momentum = PLAIN | {"optimizer": {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9}}}
    with pytest.raises(UsageError) as refused:
        run("momentum", momentum, comm, "--load", saved)
    return {"losses": found, "statuses": statuses, "refused": str(refused.value)}

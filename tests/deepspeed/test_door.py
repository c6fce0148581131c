"""What `python -m minidist.deepspeed` says to a command line, before ranks start to work."""

from pathlib import Path

import pytest

from minidist import Finished, UsageError
from minidist.cli.fields import parse
from minidist.deepspeed import __main__ as door
from minidist.deepspeed.schedules import WarmupLR
from minidist.nn.optim import AdamW
from tables import table

CONFIG = """{"train_batch_size": "auto", "fp16": {"enabled": "auto"}, "gradient_clipping": 0.5,
 "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "betas": [0.8, 0.9]}},
 "scheduler": {"type": "WarmupLR"}, "zero_optimization": {"stage": 1}}"""


@pytest.fixture
def config(tmp_path: Path) -> str:
    file = tmp_path / "ds_config.json"
    file.write_text(CONFIG)
    return str(file)


def test_the_line_that_does_the_same(config: str) -> None:
    plan, job, line = door.prepare([config, "--steps", "9", "--model", "llama", "--precision", "fp32"], 4)
    assert line == (
        "python -m minidist.zero1 --precision fp32 --clip 0.5 --lr 0.0001 --weight-decay 0"
        " --model llama --steps 9 (and betas 0.8 0.9, eps 1e-08; WarmupLR, which no option says)"
    )
    assert job.chapter == "zero1"
    assert (job.training.steps, job.model.name, job.training.clip, job.training.batch) == (9, "llama", 0.5, 16)
    assert job.settings.optimizer == AdamW(0.8, 0.9)
    assert job.settings.learning_rate == WarmupLR(0.0, 1e-4, 1000)
    assert plan.stage == 1


def test_without_a_scheduler_the_rate_is_the_chapters(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text('{"train_batch_size": 16}')
    job = door.prepare([str(tmp_path / "c.json"), "--lr", "0.5", "--warmup", "0"], 4).job
    assert job.settings.learning_rate(0) == 0.5


def test_options_typed_at_their_default_are_typed(config: str) -> None:
    assert parse(door.parser(), [config, "--steps", "200"]).given == {"config", "steps"}


@pytest.mark.parametrize(("arguments", "says"), table(__file__, "one_line"))
def test_one_line(config: str, arguments: list[str], says: str) -> None:
    with pytest.raises(UsageError) as refused:
        door.prepare([config if word == "CONFIG" else word for word in arguments], 4)
    assert says in str(refused.value)


def test_help() -> None:
    with pytest.raises(Finished, match="--precision NAME"):
        door.prepare(["--help"], 4)

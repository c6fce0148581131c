"""Configurations as people publish them, good ones, broken ones and random ones: a plan, or one line."""

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minidist import UsageError
from minidist.cli import read
from minidist.cli.shared import TrainingOptions
from minidist.compression import OneBitAdam
from minidist.deepspeed import plan as planning
from minidist.deepspeed.agree import BATCH
from minidist.deepspeed.keys import KEYS, OPTIMIZERS, SCHEDULERS
from minidist.deepspeed.plan import ConfigPlan
from minidist.nn.optim import SGD, AdamW
from minidist.nn.precision import LossScale
from tables import table

pytest.importorskip("hjson")

# ---- three styles in which they are published ------------------------------------------------------------------------

EVERYTHING_AUTO, BY_HAND, WITH_CHECKPOINTING = table(__file__, "published").values()


def planned(text: str, ranks: int = 4, **typed: Any) -> ConfigPlan:
    """typed: options that somebody gives."""
    width = typed.pop("width", None)
    options = TrainingOptions(**typed)
    return planning.make(read.parse(text, "ds_config.json"), ranks, options, set(typed), width=width)


def test_everything_auto() -> None:
    plan = planned(EVERYTHING_AUTO)
    assert (plan.chapter, plan.batch, plan.micro_batch, plan.accumulate) == ("zero3", 16, 4, 1)
    assert (plan.precision, plan.clip, plan.lr) == ("mixed", 1.0, 3e-3)
    assert plan.optimizer == AdamW(0.9, 0.95, 1e-8, weight_decay=0.1)
    assert plan.schedule is not None
    assert plan.schedule(21) == 3e-3  # --warmup 20
    assert plan.schedule(201) == 0  # --steps 200
    config = plan.config
    h = 64
    assert config["zero_optimization.reduce_bucket_size"] == h * h
    assert config["zero_optimization.prefetch_bucket_size"] == int(0.9 * h * h)
    assert config["zero_optimization.param_persistence_threshold"] == 10 * h
    assert config["zero_optimization.gather_16bit_weights_on_model_save"] is True
    assert plan.loss_scale is not None
    assert plan.loss_scale.window == 500


def test_by_hand() -> None:
    plan = planned(BY_HAND)
    assert (plan.chapter, plan.batch, plan.micro_batch, plan.accumulate) == ("offload", 32, 4, 2)
    assert plan.arguments()[:2] == ["--zero", "3"]
    assert plan.config["zero_optimization.prefetch_bucket_size"] == 50_000_000


OFFLOAD = '"offload_optimizer": {"device": "DEVICE", "pin_memory": true}'


@pytest.mark.parametrize(("device", "stage", "fsdp", "chapter", "says"), table(__file__, "where_the_optimizer_works"))
def test_where_the_optimizer_works(device: str, stage: int, fsdp: tuple[str, ...], chapter: str, says: str) -> None:
    room = f'"zero_optimization": {{"stage": {stage}, {OFFLOAD.replace("DEVICE", device)}}}'
    config = read.parse(f"{{{T}, {room}}}", "ds_config.json")
    plan = planning.make(config, 4, TrainingOptions(), fsdp=fsdp)
    assert (plan.chapter, plan.offload) == (chapter, chapter in ("offload", "infinity"))
    assert ("--zero" in plan.arguments()) == plan.offload
    assert [says in note for note in plan.notes] == [True] * bool(says), plan.notes


@pytest.mark.parametrize(
    ("states", "parameters", "stage", "chapter", "below", "says"), table(__file__, "where_parameters_are")
)
def test_where_parameters_are(states: str, parameters: str, stage: int, chapter: str, below: bool, says: str) -> None:
    devices = f'"offload_optimizer": {{"device": "{states}"}}, "offload_param": {{"device": "{parameters}"}}'
    plan = planned(f'{{{T}, "zero_optimization": {{"stage": {stage}, {devices}}}}}')
    assert (plan.chapter, plan.below) == (chapter, below)
    assert ("--parameters host" in " ".join(plan.arguments())) == below
    assert [says in note for note in plan.notes] == [True] * bool(says), plan.notes


LIMITS = '"stage3_param_persistence_threshold": 500, "prefetch_bucket_size": 7e3, "max_live_parameters": 9000'
FILED = '"offload_optimizer": {"device": "nvme"}, "offload_param": {"device": "nvme"}'


@pytest.mark.parametrize(
    ("stage", "more", "fsdp", "found", "unused"),
    [
        (3, "", (), (500, 7000, 9000), ""),
        (3, OFFLOAD.replace("DEVICE", "cpu"), (), (500, 7000, 9000), ""),
        (
            3,
            '"offload_param": {"device": "cpu"}, ' + OFFLOAD.replace("DEVICE", "cpu"),
            (),
            (0, 7000, 9000),
            "because parameters that wait on the host are all divided",
        ),
        (3, FILED, (), (0, 0, None), "because parameters in files come ahead through"),
        (3, "", ("--strategy", "full_shard"), (0, 0, None), "because FSDP gathers by"),
        (2, "", (), (0, 0, None), ""),  # DeepSpeed reads them in stage 3 alone
    ],
)
def test_limits(stage: int, more: str, fsdp: tuple[str, ...], found: tuple[Any, ...], unused: str) -> None:
    room = f'"zero_optimization": {{"stage": {stage}, {LIMITS}{", " * bool(more)}{more}}}'
    plan = planning.make(read.parse(f"{{{T}, {room}}}", "ds_config.json"), 4, TrainingOptions(), fsdp=fsdp)
    assert plan.limits == found
    assert ("--persist 500 --ahead 7000 --live 9000" in " ".join(plan.arguments())) == (found == (500, 7000, 9000))
    assert all(unused in note for note in plan.notes)
    assert bool(plan.notes) == bool(unused)


def test_limits_with_checkpoints_on_the_host() -> None:
    """Each has a line that says why it does nothing there; none says "yet"."""
    section = '"activation_checkpointing": {"partition_activations": true, "cpu_checkpointing": true}'
    plan = planned(f'{{{T}, "zero_optimization": {{"stage": 3, {LIMITS}}}, {section}}}', recompute="full")
    assert (plan.chapter, plan.limits) == ("zero_r", (0, 0, None))
    about = [note for note in plan.notes if "zero_optimization." in note]
    assert len(about) == 3
    assert all("has no effect here, because minidist.zero_r" in note for note in about)


def test_limits_with_recomputation_of_several_layers() -> None:
    plan = planned(f'{{{T}, "zero_optimization": {{"stage": 3, {LIMITS}}}}}', recompute="every:2")
    assert plan.limits == (500, 0, None)
    assert [note.partition(" has")[0].rpartition(".")[2] for note in plan.notes] == [
        "prefetch_bucket_size", "max_live_parameters",
    ]  # fmt: skip


NVME = '{"device": "nvme", "nvme_path": "PATH", "buffer_count": 5}'


def test_states_and_parameters_in_files() -> None:
    room = f'"offload_optimizer": {NVME.replace("PATH", "/a")}, "offload_param": {NVME.replace("PATH", "/b")}'
    plan = planning.make(
        read.parse(f'{{{T}, "zero_optimization": {{"stage": 3, {room}}}}}', "ds_config.json"), 4, TrainingOptions()
    )
    assert (plan.chapter, plan.nvme_path) == ("infinity", "/a")
    assert plan.arguments()[:4] == ["--zero", "3", "--disk", "/a"]
    assert [note.partition(", because ")[0] for note in plan.notes] == [
        "zero_optimization.offload_optimizer.buffer_count has no effect here",
        "zero_optimization.offload_param.buffer_count has no effect here",
    ]


@pytest.mark.parametrize(
    ("stated", "more", "fsdp", "size", "says"),
    [
        ("5e8", "", (), 500_000_000, ""),
        ('"auto"', "", (), 64 * 64, ""),  # h²
        ("1000", ", " + OFFLOAD.replace("DEVICE", "cpu"), (), None, "no effect with the optimizer on the host"),
        ("1000", "", ("--strategy", "full_shard"), None, "no effect with FSDP"),
    ],
)
def test_the_bucket(stated: str, more: str, fsdp: tuple[str, ...], size: int | None, says: str) -> None:
    room = f'"zero_optimization": {{"stage": 3, "reduce_bucket_size": {stated}{more}}}'
    plan = planning.make(read.parse(f"{{{T}, {room}}}", "ds_config.json"), 4, TrainingOptions(), fsdp=fsdp)
    assert plan.settings(seed=0).bucket_size == plan.bucket_size == size
    assert (f"--bucket-size {size}" in " ".join(plan.arguments())) == (size is not None)
    assert [says in note for note in plan.notes] == [True] * bool(says), plan.notes


def test_with_checkpointing() -> None:
    plan = planned(WITH_CHECKPOINTING)
    assert (plan.chapter, plan.batch, plan.precision, plan.recompute) == ("zero_r", 8, "bf16", "full")
    assert plan.clip == 0.5
    assert plan.loss_scale is None
    assert len(plan.notes) == 3  # the bucket, the round robin, the partition
    assert "--zero 2 --tp 1 --activations host --scattered" in " ".join(plan.arguments())


@pytest.mark.parametrize(
    ("stage", "more", "chapter", "note"),
    [
        ('"stage": 3', "", "zero_r", ""),
        ('"stage": 3', ', "number_checkpoints": 3', "zero3", "because recompute every:4 does not keep one input"),
        (f'"stage": 2, {OFFLOAD.replace("DEVICE", "cpu")}', "", "offload", "because minidist.offload keeps inputs"),
    ],
)
def test_where_checkpoints_wait(stage: str, more: str, chapter: str, note: str) -> None:
    """In the chapter that has it, or a line says that they stay."""
    section = f'"cpu_checkpointing": true, "contiguous_memory_optimization": true{more}'
    text = f'{{{T}, "zero_optimization": {{{stage}}}, "activation_checkpointing": {{{section}}}}}'
    plan = planning.make(read.parse(text, "ds_config.json"), 4, layers=12)
    there = chapter == "zero_r"
    assert (plan.chapter, plan.on_host, plan.together) == (chapter, there, there)
    assert len([each for each in plan.notes if note and note in each]) == (0 if there else 2)
    assert plan.bucket_size == (int(5e8) if there else None)  # DeepSpeed's default; that chapter has one


@pytest.mark.parametrize(
    ("checkpoints", "recompute"),
    [(None, "none"), (12, "full"), (40, "full"), (5, "every:3"), (3, "every:4"), (1, "every:12")],
)
def test_so_many_checkpoints_are_intervals(checkpoints: int | None, recompute: str) -> None:
    """Of twelve blocks."""
    config = {"train_batch_size": 4, "activation_checkpointing": {"number_checkpoints": checkpoints}}
    assert planning.make(config, 2, layers=12).recompute == recompute


@pytest.mark.parametrize(
    ("precision", "name"), [("mixed", "mixed"), ("bf16", "bf16"), ("fp32", "fp32"), ("fp64", "fp64")]
)
def test_auto_follows_precision(precision: str, name: str) -> None:
    assert planned(EVERYTHING_AUTO, precision=precision).precision == name


@pytest.mark.parametrize(("ranks", "batch"), [(1, 16), (2, 16), (3, 15), (5, 15), (20, 20)])
def test_auto_batches_divide(ranks: int, batch: int) -> None:
    """A micro-batch is at least one sequence, and the same on every rank."""
    assert planned(EVERYTHING_AUTO, ranks).batch == batch


# ---- the rule of the batch sizes: runtime/config.py's cases, worked out by hand --------------------------------------


@pytest.mark.parametrize(("batch", "micro", "accumulate", "ranks", "found"), table(__file__, "batch_sizes"))
def test_batch_sizes(batch: int, micro: int, accumulate: int, ranks: int, found: Any) -> None:
    stated = {
        "train_batch_size": batch,
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": accumulate,
    }
    config = {key: value for key, value in stated.items() if value}
    if isinstance(found, str):
        with pytest.raises(UsageError, match=re.escape(found)):
            planning.make(config, ranks)
    else:
        plan = planning.make(config, ranks)
        assert [plan.batch, plan.micro_batch, plan.accumulate] == found


# ---- what is good ----------------------------------------------------------------------------------------------------

T = '"train_batch_size": 16'


@pytest.mark.parametrize(("text", "path", "value"), table(__file__, "good"))
def test_good(text: str, path: str, value: Any) -> None:
    text = text.replace("TBS", T)
    assert planned(text).config[path] == (tuple(value) if isinstance(value, list) else value)


# ---- what is broken: the whole line that is said ---------------------------------------------------------------------


@pytest.mark.parametrize(("text", "says"), table(__file__, "broken"))
def test_broken(text: str, says: str) -> None:
    with pytest.raises(UsageError) as refused:
        planned(text.replace("TBS", T))
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("text", "typed", "says"), table(__file__, "an_option_that_contradicts"))
def test_an_option_that_contradicts(text: str, typed: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError) as refused:
        planned(text.replace("TBS", T), **typed)
    assert says in str(refused.value)


def test_sections_that_watch_have_a_line_if_they_are_on() -> None:
    [note] = planned('{TBS, "wandb": {"enabled": true}, "tensorboard": {"enabled": false}}'.replace("TBS", T)).notes
    assert note == "wandb has no effect here, because it watches a run and changes nothing in it"


@pytest.mark.parametrize(("key", "guess"), table(__file__, "a_key_that_nobody_knows_has_a_line_and_no_wrong_guess"))
def test_a_key_that_nobody_knows_has_a_line_and_no_wrong_guess(key: str, guess: str) -> None:
    [note] = planned(f'{{{T}, "{key}": 2}}').notes
    assert note == f"{key} has no effect here, and none in DeepSpeed, which does not know it{guess}"


def test_the_pipeline_s_section_is_a_pipeline_s() -> None:
    [note] = planned('{TBS, "pipeline": {"stages": 2}}'.replace("TBS", T)).notes
    assert "run minidist.pipeline" in note


def test_without_zero_each_overflow_halves_the_scale() -> None:
    """As DeepSpeed's FP16_Optimizer does; with ZeRO the first overflow is forgiven, and at the minimum the run ends."""
    plans = [
        planned(f'{{{T}, "fp16": {{"enabled": true, "min_loss_scale": 2, "hysteresis": 2, "loss_scale_window": 3,'
                f' "initial_scale_power": 4}}, "zero_optimization": {{"stage": {stage}}}}}')
        for stage in (0, 1)
    ]  # fmt: skip
    eager, patient = (plan.loss_scale for plan in plans)
    assert eager is not None
    assert patient is not None
    seen: dict[LossScale, list[float]] = {eager: [], patient: []}
    for overflow in (True, True, False, False, False, False, True, True, True, True, True):
        eager.update(overflow)
        seen[eager].append(eager.scale)
    assert seen[eager] == [8, 4, 4, 4, 4, 8, 4, 2, 2, 2, 2]
    for overflow in (True, True, False, False, False, False, True, True):
        patient.update(overflow)
        seen[patient].append(patient.scale)
    assert seen[patient] == [16, 8, 8, 8, 8, 16, 16, 8]
    assert [note.partition(":")[0] for note in plans[0].notes] == [
        "fp16.hysteresis has no effect in stage 0, nor in DeepSpeed's"
    ]
    assert plans[1].notes == []


def test_options_fill_what_is_left_open() -> None:
    plan = planned("{TBS}".replace("TBS", T), clip=0.25, precision="fp64", lr=1e-2, optimizer="sgd", weight_decay=0.0)
    assert (plan.clip, plan.precision, plan.lr) == (0.25, "fp64", 1e-2)
    assert plan.optimizer == SGD(0.9, 0.0)
    assert plan.arguments() == [
        *("--precision", "fp64", "--clip", "0.25", "--optimizer", "sgd", "--lr", "0.01", "--weight-decay", "0"),
        *("--min-lr", "0.01", "--warmup", "0"),  # the learning rate stays
    ]


def test_neither_fp16_nor_bf16_is_fp32() -> None:
    assert planned("{TBS}".replace("TBS", T)).precision == "fp32"


def test_strict_json_needs_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "hjson", None)
    assert planned(EVERYTHING_AUTO).stage == 3
    with pytest.raises(UsageError, match=r"line 2, column 3: .*pip install --editable '.*\[deepspeed\]'"):
        planned(BY_HAND)


def test_files(tmp_path: Path) -> None:
    file = tmp_path / "ds_config.json"
    file.write_bytes(b"\xef\xbb\xbf" + textwrap.dedent(BY_HAND).encode())  # with a byte order mark, as some editors do
    assert read.read(file)["train_batch_size"] == 32
    file.write_bytes(b'{"a": "\xff"}')
    with pytest.raises(UsageError, match="is not UTF-8 text"):
        read.read(file)
    for path in (tmp_path, tmp_path / "no.json"):
        with pytest.raises(UsageError, match="cannot read configuration"):
            read.read(path)


# ---- the table -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", KEYS)
def test_every_default_is_itself_a_value(path: str) -> None:
    key = KEYS[path]
    if key.default is not None:
        assert key.read(key.default) == key.default
    assert key.means


def test_what_has_no_effect_has_a_reason_and_nothing_else_has() -> None:
    for key in [*KEYS.values(), *(key for of in (*OPTIMIZERS.values(), *SCHEDULERS.values()) for key in of.values())]:
        assert sum(map(bool, (key.never, key.yet, key.refused))) <= 1
        assert bool(key.already) <= bool(key.never or key.yet)


# ---- random ones -----------------------------------------------------------------------------------------------------

SCALARS = (
    st.none() | st.booleans() | st.integers(-5, 40) | st.floats() | st.text(max_size=5)
    | st.sampled_from(["auto", "cpu", "nvme", "none", "log", "linear", "AdamW", "SGD", 1e9, 5e8, 0.1, 2**70])
)  # fmt: skip
ANYTHING = st.recursive(
    SCALARS, lambda some: st.lists(some, max_size=3) | st.dictionaries(st.text(max_size=4), some), max_leaves=4
)


def of_kind(path: str, default: Any) -> st.SearchStrategy[Any]:
    """Values of about the kind that a key wants."""
    if isinstance(default, bool) or path.endswith("enabled"):
        return st.booleans()
    if path.endswith("stage"):
        return st.integers(0, 3)
    return {int: st.sampled_from([0, 1, 2, 3, 16, 1e9]), float: st.floats(0, 1)}.get(type(default), SCALARS)


@st.composite
def configurations(draw: st.DrawFn) -> dict[str, Any]:
    """Mostly what could be meant: known keys with values of about the right kind; now and then anything."""
    config: dict[str, Any] = {"train_batch_size": draw(st.sampled_from([1440, 5040, "auto", "auto"]))}
    types = {"optimizer": draw(st.sampled_from(list(OPTIMIZERS))), "scheduler": draw(st.sampled_from(list(SCHEDULERS)))}
    table = {path: key for path, key in KEYS.items() if path not in BATCH}
    for which, of in (("optimizer", OPTIMIZERS), ("scheduler", SCHEDULERS)):
        table |= {f"{which}.params.{name}": key for name, key in of[types[which]].items()}
    for path in draw(st.lists(st.sampled_from(list(table)), max_size=8, unique=True)):
        default = table[path].default
        likely = st.just(default) if draw(st.booleans()) else of_kind(path, default)
        value = draw(ANYTHING if draw(st.integers(0, 39)) == 7 else likely)
        *parents, last = path.split(".")
        inner = config
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[last] = value
    for which, name in types.items():
        if which in config:
            config[which]["type"] = name
    if draw(st.integers(0, 39)) == 7:
        config[draw(st.text(max_size=8))] = draw(ANYTHING)
    return config


OUTCOMES = {"plans": 0, "lines": 0}


@settings(max_examples=400, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(configurations(), st.integers(1, 9))
def test_random_ones(config: dict[str, Any], ranks: int) -> None:
    """A plan that keeps the rule of the batch sizes, or one line."""
    plan, said = None, ""
    try:
        plan = planning.make(config, ranks)
    except UsageError as refused:
        said = str(refused)
    OUTCOMES["plans" if plan else "lines"] += 1
    if plan is None:
        assert len(said.splitlines()) == 1
        return
    assert plan.batch == plan.micro_batch * plan.accumulate * plan.data_ranks
    assert 0 <= plan.settings(0).learning_rate(7) < float("inf")
    assert all(len(note.splitlines()) == 1 for note in plan.notes)


def test_random_ones_were_of_both_kinds() -> None:
    assert min(OUTCOMES.values()) > 80 or not any(OUTCOMES.values()), OUTCOMES


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.text(max_size=40) | st.text('{}[]":,\n#/*\\ abc0e.-', max_size=40))
def test_random_texts(text: str) -> None:
    try:
        read.parse(text, "f.json")
    except UsageError as refused:
        said = str(refused)
    else:
        said = "read"
    assert len(said.splitlines()) == 1


def test_experts_are_on_data_and_context_ranks() -> None:
    config = {"train_batch_size": 4, "expert_parallel": {"enabled": True, "autoep_size": 4}}
    axes = planning.make(config | {"sequence_parallel_size": 2}, 4).axes
    assert (axes.cp, axes.ep) == (2, 4)
    with pytest.raises(UsageError, match="autoep_size 4 does not divide the 2 ranks"):
        planning.make(config | {"tensor_parallel": {"autotp_size": 2}}, 4)


# ---- fewer bytes -----------------------------------------------------------------------------------------------------

ZEROPP = (
    '"zero_optimization": {"stage": 3, "zero_quantized_weights": true, "zero_hpz_partition_size": 2,'
    ' "zero_quantized_gradients": true, "reduce_bucket_size": 1000, "stage3_prefetch_bucket_size": 1000,'
    ' "offload_optimizer": {"device": "cpu"}}, "activation_checkpointing": {"cpu_checkpointing": true}'
)
ONE_BIT = '"optimizer": {"type": "onebitadam", "params": {"freeze_step": FREEZE, "eps": 1e-4, "betas": [0.9, 0.95]}}'


def test_zeropp_s_three_keys_run_its_chapter() -> None:
    """What that chapter does not have has a line each."""
    plan = planned(f"{{{T}, {ZEROPP}}}", ranks=8)
    assert plan.chapter == "zeropp"
    assert plan.arguments()[:2] == ["--ranks-per-host", "2"]
    assert [note.partition(" has")[0].rpartition(".")[2] for note in plan.notes] == [
        "device", "reduce_bucket_size", "cpu_checkpointing", "prefetch_bucket_size",
    ]  # fmt: skip
    assert all("minidist.zeropp" in note for note in plan.notes)


@pytest.mark.parametrize(("stated", "freeze"), [("0", 1), ("7", 7), ("1e5", 100_000)])
def test_one_bit_adam_runs_compression(stated: str, freeze: int) -> None:
    plan = planned(f"{{{T}, {ONE_BIT.replace('FREEZE', stated)}}}")
    assert plan.chapter == "compression"
    assert plan.arguments()[:4] == ["--with", "sign", "--freeze-step", str(freeze)]
    assert plan.optimizer == OneBitAdam(0.9, 0.95, 1e-4)
    assert plan.beyond == []

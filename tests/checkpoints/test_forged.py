"""Manifests that somebody has made up, with checksums that are right: one line each, or they are as good as another."""

import copy
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minidist import UsageError, command, train
from minidist.checkpoints import checkpoint, convert, inspect, manifest
from minidist.engine import Engine
from minidist.programs.chapter import find

MODEL = "--layers 1 --width 8 --heads 2 --context 8 --batch 2 --data text.txt"
ODD: list[Any] = [None, True, -1, 0, 1, 2**31, 2**63, 2**70, 1.5, float("nan"), 1e999, "", "x", "a\nb\x1b[2J", "\ud800"]
ODD += [[], {}, [1, 2, 3], [[]], [[0, 1]], {"a": 1}, "n" * 3000, "../x", "/etc/passwd", "F64", [2**40, 2**40], [0]]
FILE = Path("run/step000001/manifest.json")


@pytest.fixture(autouse=True, scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The working folder, with a text and a checkpoint."""
    before = os.getcwd()
    os.chdir(tmp_path_factory.mktemp("forged"))
    Path("text.txt").write_text("no more and no less " * 50)
    job = find("train").job([*MODEL.split(), "--steps", "1"], 1)
    engine = Engine(job.units, job.settings)
    train.train_step(engine, job, 0)
    checkpoint.save("run", engine, train.Alone(), command.about(job, 1))
    Path("good").write_bytes(FILE.read_bytes())
    yield
    os.chdir(before)


def good() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(Path("good").read_text())
    del document["checksum"]
    return document


def forge(document: Any) -> None:
    if isinstance(document, dict):
        document = {**document, "checksum": manifest._checksum(document)}
    FILE.write_text(json.dumps(document))


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to everything in a document, itself first."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in inner:
        yield from places(below, (*path, key))


def going_on() -> None:
    job = find("train").job([*MODEL.split(), "--load", "run", "--steps", "9"], 1)
    engine = Engine(job.units, job.settings)
    checkpoint.load("run", engine)
    command.say_at_start(job, 0, 1)


def outcomes(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What inspect, --load and to-fp32 say; "" where they do what they are asked."""
    said = []
    for ask in (lambda: inspect.main("run"), going_on, lambda: convert.to_fp32("run", "out.safetensors")):
        try:
            said.append("damaged" if ask() else "")
        except UsageError as error:
            said.append(str(error))
    printed = capsys.readouterr()
    assert printed.out.replace("\n", "").isprintable()
    return said


def test_what_is_not_forged_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    forge(good())
    assert outcomes(capsys) == ["", "", ""]


def test_the_first_manifests_had_no_client(capsys: pytest.CaptureFixture[str]) -> None:
    document = good()
    del document["client"]
    forge(document)
    assert outcomes(capsys) == ["", "", ""]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d["shards"].clear(), "it has no shards"),
        (lambda d: d["shards"][0]["holds"].pop("wte.weight"), "has other arrays than"),
        (lambda d: d["shards"][0].update(file="../latest"), "a shard is called '../latest'"),
        (lambda d: d["parameters"].clear(), "it has no parameters"),
        (lambda d: d["parameters"].update(more=[3]), "do not have all of 'more'"),
        (lambda d: d["parameters"].update(more=[2**40, 2**40]), "'more' has the shape"),
        (lambda d: d.pop("state"), "it has no state"),
        (lambda d: d["state"].update(steps="1"), "steps of its state is '1'"),
        (lambda d: d["layout"].pop("ranks"), "layout has no ranks"),
    ],
)
def test_what_is_wrong_is_named(change: Any, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    document = good()
    change(document)
    forge(document)
    for said in outcomes(capsys):
        assert says in said or (said == "damaged" and "arrays" in says)


def check_one(data: st.DataObject, capsys: pytest.CaptureFixture[str]) -> None:
    document = good()
    for _ in range(data.draw(st.integers(1, 2))):
        path = data.draw(st.sampled_from([*places(document)]))
        if not path:
            document = copy.deepcopy(data.draw(st.sampled_from([*ODD, document])))
            break
        *above, key = path
        inside: Any = document
        for step in above:
            inside = inside[step]
        match data.draw(st.sampled_from(["odd", "remove", "twice"])):
            case "odd":
                inside[key] = copy.deepcopy(data.draw(st.sampled_from(ODD)))
            case "remove":
                del inside[key]
            case "twice" if isinstance(inside, list):
                inside.append(copy.deepcopy(inside[key]))
            case "twice":
                inside[f"{key}\n"] = copy.deepcopy(inside[key])
    forge(document)
    outcomes(capsys)


PROPERTY = {"deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture]}


@given(data=st.data())
@settings(max_examples=60, derandomize=True, **PROPERTY)  # type: ignore[arg-type]
def test_a_forged_manifest(data: st.DataObject, capsys: pytest.CaptureFixture[str]) -> None:
    check_one(data, capsys)


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=1000, **PROPERTY)  # type: ignore[arg-type]
def test_many_forged_manifests(data: st.DataObject, capsys: pytest.CaptureFixture[str]) -> None:
    check_one(data, capsys)

"""Checkpoints that are damaged: each is refused in one line that names what is wrong, before the work."""

import json
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load, save

from alone import train_alone
from minidist import UsageError, train
from minidist.programs.chapter import find, find_all, run_alone

MODEL = "--layers 1 --width 8 --heads 2 --context 8 --batch 2 --data text.txt"


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The working folder, with a text and a checkpoint, good.st, that has three steps behind it."""
    folder = tmp_path_factory.mktemp("damaged")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("text.txt").write_text("no more and no less " * 50)
        assert train_alone(*MODEL.split(), "--steps", "3", "--export", "good.st") == 0
        yield folder


def header_of(content: bytes) -> tuple[dict[str, Any], bytes]:
    """A file's header, and its data."""
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def with_header(header: Any, data: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def going_on(content: bytes) -> str | None:
    """What training that is to go on from this file says: one line in which it refuses; None if it takes a step."""
    Path("other.st").write_bytes(content)
    arguments = [*MODEL.split(), "--load", "other.st", "--steps", "4", "--json", "report.json"]
    try:
        status = run_alone(find("train"), arguments)
    except UsageError as error:
        said = str(error)
    else:
        assert status in (0, 1)  # 1: at a large loss scale the step overflows
        assert all(math.isfinite(loss) for loss in json.loads(Path("report.json").read_text())["loss"])
        return None
    assert said.isprintable()
    assert len(said) < 300
    return said


def good() -> tuple[dict[str, np.ndarray], dict[str, Any], dict[str, Any]]:
    """Arrays, identity, state."""
    content = Path("good.st").read_bytes()
    metadata = header_of(content)[0]["__metadata__"]
    return load(content), json.loads(metadata["identity"]), json.loads(metadata["state"])


def saved(arrays: dict[str, np.ndarray], identity: Any, state: Any) -> bytes:
    return save(arrays, {"identity": json.dumps(identity), "state": json.dumps(state)})


def test_an_undamaged_one_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    assert going_on(saved(*good())) is None


ODD: list[Any] = [None, True, -1, 1.5, math.nan, math.inf, "3", [], {}, 10**30, -(10**30), "x" * 1000]
COUNTS = ("steps", "updates")
OF_SCALE = ("scale", "window", "hysteresis", "minimum", "forgiven_left", "step", "last_overflow")
POSSIBLE: dict[str, list[Any]] = {  # what is odd and yet can be
    "mixed": [True],
    "scale": [1.5, 10**30],
    "minimum": [1.5],
    "window": [10**30],
    "hysteresis": [10**30],
    "step": [10**30],
    "last_overflow": [-1],
}


@pytest.mark.parametrize("value", ODD, ids=lambda value: str(value)[:9])
@pytest.mark.parametrize("name", [*COUNTS, "mixed", "loss_scale", *OF_SCALE])
def test_a_field_of_the_state(name: str, value: Any, capsys: pytest.CaptureFixture[str]) -> None:
    arrays, identity, state = good()
    (state["loss_scale"] if name in OF_SCALE else state)[name] = value
    said = going_on(saved(arrays, identity, state))
    if any(type(value) is type(possible) and value == possible for possible in POSSIBLE.get(name, [])):
        assert said is None
    else:
        assert said is not None
        assert said.startswith("--load other.st ")
        assert name in said


@pytest.mark.parametrize("value", ODD, ids=lambda value: str(value)[:9])
@pytest.mark.parametrize("name", ["model", "heads", "kv-heads", "characters"])
def test_a_field_of_the_identity(name: str, value: Any) -> None:
    arrays, identity, state = good()
    said = going_on(saved(arrays, {**identity, name: value}, state))
    assert said is not None
    assert said.startswith("--load other.st is ")
    assert name in said


@pytest.mark.parametrize("where", ["identity", "state"])
@pytest.mark.parametrize("text", ["", "{", "null", "[]", "3", '"text"', "{}", "[" * 10_000, "NaN", "9" * 5000])
def test_metadata_that_is_something_else(where: str, text: str) -> None:
    header, data = header_of(Path("good.st").read_bytes())
    header["__metadata__"][where] = text
    said = going_on(with_header(header, data))
    assert said is not None
    assert said.startswith(f"--load other.st is damaged: its {where} ")


@pytest.mark.parametrize("where", ["identity", "state", "loss_scale"])
@pytest.mark.parametrize("change", ["one missing", "one more"])
def test_fields_that_are_missing_or_unknown(where: str, change: str) -> None:
    arrays, identity, state = good()
    fields = {"identity": identity, "state": state, "loss_scale": state["loss_scale"]}[where]
    if change == "one more":
        fields["more"] = 1
    else:
        del fields[next(iter(fields))]
    said = going_on(saved(arrays, identity, state))
    assert said is not None
    assert said.startswith(f"--load other.st is damaged: its {where} should have ")


Arrays = dict[str, np.ndarray]


def changed(name: str, change: Any) -> Any:
    def damage(arrays: Arrays) -> None:
        arrays[name] = change(arrays[name].copy())

    return damage


def put(position: int, value: float) -> Any:
    def change(array: np.ndarray) -> np.ndarray:
        array.flat[position] = value
        return array

    return change


@pytest.mark.parametrize("name", [name for name, chapter in find_all().items() if chapter.trains])
def test_every_chapter_refuses_before_the_work(name: str) -> None:
    """Of each, whichever way it goes on from a checkpoint."""
    content = Path("good.st").read_bytes()
    Path("other.st").write_bytes(content[:-1])
    alone = " --colocated" * (name == "parameter_server")
    with pytest.raises(UsageError, match=r"--load other.st"):
        find(name).prepared(f"{MODEL} --load other.st --steps 4{alone}".split(), train.Alone())


DAMAGED = {
    "block0.down.weight is of BOOL": changed("block0.down.weight", lambda a: a > 0),
    "wte.weight is of I32": changed("wte.weight", lambda a: a.astype(np.int32)),
    "moment1/wte.weight is of U8": changed("moment1/wte.weight", lambda a: a.astype(np.uint8)),
    "head.norm.bias is of F16": changed("head.norm.bias", lambda a: a.astype(np.float16)),
    "wpe.weight is of C64": changed("wpe.weight", lambda a: a.astype(np.complex64)),
    "wte.weight has values that are not finite": changed("wte.weight", put(3, np.nan)),
    "head.norm.bias has values that are not finite": changed("head.norm.bias", put(-1, np.inf)),
    "moment1/wpe.weight has values that are not finite": changed("moment1/wpe.weight", put(0, -np.inf)),
    "moment2/wte.weight, a variance, has negative values": changed("moment2/wte.weight", put(5, -1e-9)),
    "moment2/block0.qkv.weight is missing": lambda arrays: arrays.pop("moment2/block0.qkv.weight"),
    "moment1/wte.weight is missing": lambda arrays: arrays.pop("moment1/wte.weight"),
    "moment1/wpe.weight is of shape (64,)": changed("moment1/wpe.weight", np.ravel),
    "moment1/wpe.weight is of shape (1, 8, 8)": changed("moment1/wpe.weight", lambda a: a[None]),
    "moment2/head.norm.bias is of shape ()": changed("moment2/head.norm.bias", lambda a: np.array(a[0])),
    "moment2/head.norm.bias is of shape (0,)": changed("moment2/head.norm.bias", lambda a: a[:0]),
    "moment1/other is of shape (2,), and belongs to no": lambda arrays: arrays.update({"moment1/other": np.ones(2)}),
    "it has head.norm.bias of shape ()": changed("head.norm.bias", lambda a: np.array(a[0])),
    "it has no wte.weight": lambda arrays: arrays.pop("wte.weight"),
    "it has more parameters than this one": lambda arrays: arrays.update({"other": np.ones(2)}),
    "made by another optimizer": lambda arrays: arrays.update({"moment3/wte.weight": np.ones(2)}),
}


@pytest.mark.parametrize("says", DAMAGED)
def test_arrays(says: str) -> None:
    arrays, identity, state = good()
    DAMAGED[says](arrays)
    said = going_on(saved(arrays, identity, state))
    assert said is not None
    assert said.startswith("--load other.st ")
    assert says in said


@given(data=st.data())
@settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_bytes_and_fields_of_the_header(data: st.DataObject, capsys: pytest.CaptureFixture[str]) -> None:
    """Flipped, cut, or of another type: one line, or, where nothing can be told from it, a step of training."""
    content = Path("good.st").read_bytes()
    header, rest = header_of(content)
    end = len(content) - len(rest)
    match data.draw(st.sampled_from(["flip", "cut", "grow", "retype", "drop"])):
        case "flip":
            position, bit = data.draw(st.integers(0, end - 1)), data.draw(st.integers(0, 7))
            content = content[:position] + bytes([content[position] ^ 1 << bit]) + content[position + 1 :]
        case "cut":
            content = content[: data.draw(st.integers(0, len(content) - 1))]
        case "grow":
            content += data.draw(st.binary(min_size=1, max_size=9))
        case "retype":
            odd: Any = st.sampled_from([None, True, -1, 2**70, 1.5, "x", [], {}, [1, 2, 3], "F64", "BF16", "F8_E4M3"])
            name = data.draw(st.sampled_from(sorted(header)))
            field = data.draw(st.sampled_from([None, *header[name]]))
            if field is None:
                header[name] = data.draw(odd)
            else:
                header[name][field] = data.draw(odd)
            content = with_header(header, rest)
        case "drop":
            del header[data.draw(st.sampled_from(sorted(header)))]
            content = with_header(header, rest)
    said = going_on(content)
    assert said is None or said.startswith(("--load other.st ", "cannot read --load other.st: "))

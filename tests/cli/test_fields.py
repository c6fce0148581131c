"""Options are values: one table is what argparse is filled from, what a line is read into, and what mypy knows."""

from contextlib import suppress
from dataclasses import FrozenInstanceError, dataclass, fields
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from minidist import UsageError
from minidist.cli.fields import fill, flag, operand, option, output, outputs, parse, part
from minidist.cli.options import Parser, at_least, memory_size
from minidist.cli.shared import FileOptions, ModelOptions, TrainingOptions
from minidist.programs.chapter import find_all
from tables import table

CHAPTERS = find_all()


@dataclass(frozen=True, kw_only=True)
class Inner:
    depth: int = option(3, at_least(1), "N", "how deep")


@dataclass(frozen=True, kw_only=True)
class Outer:
    file: str = operand("FILE", "to be read")
    size: int = option(2000, memory_size, "SIZE", "how large", ("-s", "--size"), also="--bytes", shown="2KB")
    inner: Inner = part(Inner)
    often: tuple[int, ...] = option((), at_least(0), "N", "several", action="append")
    quick: bool = flag("at once", apart="pace")
    slow: bool = flag("later", apart="pace", formerly="--lazy")
    report: str | None = output("for machines")


def made() -> Parser:
    parser = Parser("none", "")
    fill(parser, Outer)
    return parser


def test_what_is_not_given_has_its_default() -> None:
    parsed = parse(made(), ["a"])
    assert parsed.of(Outer) == Outer(file="a")
    assert parsed.given == {"file"}


def test_what_is_given_is_read_into_its_place_even_if_it_is_the_default() -> None:
    parsed = parse(
        made(), ["a", "--bytes", "3KB", "--depth", "3", "--often", "1", "--often", "2", "--slow", "--report", "-"]
    )
    assert parsed.of(Outer) == Outer(file="a", size=3000, often=(1, 2), slow=True, report="-")
    assert parsed.given == {"file", "size", "depth", "often", "slow", "report"}
    assert outputs(parsed.of(Outer)) == {"--report": None}
    assert outputs(Outer(file="a", report="b")) == {"--report": "b"}


def test_a_zero_that_is_given_is_not_the_default() -> None:
    line = ["--steps", "0", "--validate", "0", "--lr", "0", "--no-prove"]
    parsed = parse(CHAPTERS["zero3"].parser(), line)
    training = parsed.of(TrainingOptions)
    assert (training.steps, training.validate, training.lr, training.prove) == (0, 0, 0, False)
    assert parsed.given == {"steps", "validate", "lr", "prove"}


@pytest.mark.parametrize(("line", "says"), table(__file__, "what_cannot_be_is_one_line"))
def test_what_cannot_be_is_one_line(line: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse(made(), line.split())


def test_help_shows_every_option_with_its_default() -> None:
    text = made().format_help()
    assert "-s, --size SIZE  how large (default: 2KB)" in text
    assert "--depth" in text
    assert "--often" in text


EVERY = [ModelOptions, TrainingOptions, FileOptions, *(chapter.options for chapter in CHAPTERS.values())]


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
def test_options_of_chapters_are_frozen(kind: Any) -> None:
    needed = {each.name: ("x",) for each in fields(kind) if each.metadata.get("names", ()) is None}
    with pytest.raises(FrozenInstanceError):
        setattr(kind(**needed), fields(kind)[0].name, 1)


@pytest.mark.parametrize(("name", "case"), [(name, case) for name, of in CHAPTERS.items() for case in of.cases])
def test_a_command_line_is_parsed_once(name: str, case: str) -> None:
    """Whatever the options ask for: a grid that is chosen, a schedule with other defaults."""
    line = CHAPTERS[name].cases[case].format(batch=4, axis=2)
    n = max(CHAPTERS[name].ranks or (4,))
    counted = mock.patch.object(Parser, "parse_args", autospec=True, side_effect=Parser.parse_args)
    with counted as parsed, suppress(UsageError):
        CHAPTERS[name].prepared(line.split(), SimpleNamespace(rank=0, size=n))
    assert parsed.call_count == 1

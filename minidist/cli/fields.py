"""Options are values: a frozen dataclass for each concern, whose fields say what argparse needs to know of an option.

    @dataclass(frozen=True, kw_only=True)
    class LocalSGDOptions:
        every: int = option(10, at_least(1), "H", "steps from one averaging to the next")

`fill` adds such a dataclass to a parser, and `Parsed.of` reads it from what was parsed. So options have one table,
which mypy knows. A command line is parsed once, and no Namespace leaves this room.
"""

from argparse import SUPPRESS, Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from typing import Any, TypeVar

from minidist.cli.options import Parser, at_least, path_name
from minidist.mpi import environment

T = TypeVar("T")


def option(
    default: Any,
    type: Callable[[str], Any] | None = None,
    metavar: str | None = None,
    help: str | None = None,
    names: Sequence[str] = (),
    short: str = "",
    also: str = "",
    formerly: str = "",
    shown: str | None = None,
    **how: Any,
) -> Any:
    """A field that an option fills.

    names: if not the field's own. short: of one letter, in addition. also: another spelling, which --help does not
    list. formerly: an old one, which is refused. shown: the default as --help says it. how: more for argparse.
    """
    said = {"default": shown or default, "type": type, "metavar": metavar, "help": help, **how}
    how = {name: value for name, value in said.items() if value is not None}
    return field(
        default=default, metadata={"how": how, "names": names, "short": short, "also": also, "formerly": formerly}
    )


def whole(metavar: str, help: str, default: int | None = None, least: int = 1, **how: Any) -> Any:
    """A whole number."""
    return option(default, at_least(least), metavar, help, **how)


def choice(choices: Iterable[Any], default: Any, help: str, metavar: str | None = "NAME", **how: Any) -> Any:
    """One of several values."""
    return option(default, metavar=metavar, help=help, choices=tuple(choices), **how)


def path_to(metavar: str, help: str) -> Any:
    """A file or a folder."""
    return option(None, path_name, metavar, help)


def flag(help: str, **how: Any) -> Any:
    """A field that is True if the option is given."""
    return option(False, help=help, action="store_true", **how)


def output(help: str, **how: Any) -> Any:
    """A field that names a file to be written, which `outputs` finds; - is standard output."""
    return option(None, output_path, "FILE", help, **how)


def output_path(text: str) -> str:
    """An argument type: a file to be written."""
    return path_name(text)


def operand(metavar: str | None, help: str, type: Callable[[str], Any] = str, **how: Any) -> Any:
    """A field that an argument without an option fills."""
    said = {"type": type, "metavar": metavar, "help": help}
    return field(metadata={"how": said | how, "names": None})


def ranks_option() -> Any:
    """The option that starts ranks without MPI: see `minidist/exchange/doors.py`."""
    return option(None, at_least(1, at_most=environment.MOST_HERE), "N", "in this process, without mpirun")


def part(kind: type[Any]) -> Any:
    """A field whose value is another dataclass of options, at this place of --help."""
    return field(default_factory=kind, metadata={"part": kind})


# ---- between dataclasses and a parser --------------------------------------------------------------------------------


def names_of(each: Field[Any]) -> Sequence[str]:
    """The spellings that --help lists."""
    short, long = each.metadata["short"], f"--{each.name.replace('_', '-')}"
    return each.metadata["names"] or ([short, long] if short else [long])


def dest_of(each: Field[Any]) -> str:
    """What argparse calls an option: its first long spelling."""
    if each.metadata["names"] is None:
        return each.name
    long = [name for name in names_of(each) if name.startswith("--")]
    return (long or names_of(each))[0].lstrip("-").replace("-", "_")


def fill(parser: Parser, kind: type[Any], group: Any = None) -> None:
    """Add the options of a dataclass to a parser, or to a group of it."""
    apart: dict[str, Any] = {}  # options of which only one may be given
    for each in fields(kind):
        says = each.metadata
        if "part" in says:
            fill(parser, says["part"], group)
            continue
        how = dict(says["how"])
        to = group or parser
        if exclusive := how.pop("apart", ""):
            to = apart.setdefault(exclusive, to.add_mutually_exclusive_group())
        if says["names"] is None:
            to.add_argument(each.name, **how)
            continue
        names = names_of(each)
        to.add_argument(*names, **how)
        if says["also"]:
            parser.alias(says["also"], names[-1])
        if says["formerly"]:
            parser.renamed(says["formerly"], names[-1])


@dataclass(frozen=True)
class Parsed:
    """What a command line says."""

    values: Mapping[str, Any]  # by argparse's names: to be read by `of` only
    given: frozenset[str]  # the options that are on the command line, even with their default values

    def of(self, kind: type[T]) -> T:
        """A dataclass of options that the parser was filled with."""
        found = {
            each.name: self.of(each.metadata["part"]) if "part" in each.metadata else self.values[dest_of(each)]
            for each in fields(kind)  # type: ignore[arg-type]
        }
        return kind(**found)


def parse(parser: Parser, arguments: Sequence[str]) -> Parsed:
    """Parse a command line, once. Raises UsageError for what argparse refuses."""
    untouched: list[Any] = []
    actions = {action.dest: action for action in parser._actions if action.default != SUPPRESS}
    values = vars(parser.parse_args(arguments, Namespace(**dict.fromkeys(actions, untouched))))
    given = frozenset(name for name, value in values.items() if value is not untouched)
    for name, action in actions.items():
        if name not in given:
            usual = action.default
            values[name] = parser._get_value(action, usual) if isinstance(usual, str) else usual
        elif isinstance(values[name], list):
            values[name] = tuple(values[name])
    return Parsed(values, given)


def read(parser: Parser, kind: type[T], arguments: Sequence[str]) -> T:
    """The options of a command that has one dataclass of them."""
    fill(parser, kind)
    return parse(parser, arguments).of(kind)


def all_fields(value: Any) -> Iterator[tuple[Field[Any], Any]]:
    """The fields of a dataclass of options and of its parts, with their values."""
    for each in fields(value):
        mine = getattr(value, each.name)
        if "part" in each.metadata:
            yield from all_fields(mine)
        elif each.metadata:
            yield each, mine


def outputs(*values: Any) -> dict[str, str | None]:
    """The files that are to be written, by option; None: not asked for, or standard output."""
    found = {}
    for each, path in (pair for value in values for pair in all_fields(value)):
        if each.metadata["how"].get("type") is output_path:
            found[names_of(each)[-1]] = path if path and path != "-" else None
    return found


def first_given(value: Any, *names: str) -> str:
    """The first of these options that has been given, as it is spelled; "" if none has."""
    return next((f"--{name.replace('_', '-')}" for name in names if getattr(value, name)), "")

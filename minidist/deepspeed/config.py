"""A configuration checked against the table of keys, and "auto" filled in."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from minidist import UsageError
from minidist.deepspeed.keys import (
    ALIASES,
    ANY,
    FIELDS,
    KEYS,
    OPEN,
    OPTIMIZERS,
    REFUSED_SECTIONS,
    REMOVED,
    SCHEDULERS,
    SECTIONS,
    STRICT,
    Key,
)
from minidist.deepspeed.values import flag, lenient

# Objects within the configuration: every prefix of a key's path in the table.
OBJECTS = {path.rpartition(".")[0] for path in KEYS} - {""} | {"optimizer.params", "scheduler.params"}
NULL = (  # objects that may be null
    *("bf16", "zero_optimization.offload_param", "zero_optimization.offload_optimizer", "optimizer.params", "aio"),
)
CONSTRUCTED = ("optimizer.params", "scheduler.params")  # their keys become arguments, so an unknown key is an error
NEAR = 0.8  # from this similarity on, an unknown key is taken for a misspelling of a known one
CPU_OFFLOAD = {  # deprecated switches
    "zero_optimization.cpu_offload": "zero_optimization.offload_optimizer.device",
    "zero_optimization.cpu_offload_param": "zero_optimization.offload_param.device",
    "zero_optimization.cpu_offload_use_pin_memory": "zero_optimization.offload_optimizer.pin_memory",
}


@dataclass(frozen=True)
class Config:
    """What a configuration says, by path: zero_optimization.stage."""

    table: dict[str, Key]  # the keys that it may have, including its optimizer's and its scheduler's
    stated: dict[str, Any]  # as written in the file, "auto" included
    values: dict[str, Any]  # of every key: as stated, checked and filled in, or its default
    notes: list[str]  # one line for each key that has no effect here

    def __getitem__(self, path: str) -> Any:
        return self.values[path]


def check(config: dict[str, Any], auto: dict[str, Any]) -> Config:
    """Check each key. auto: what "auto" stands for, by path. Raises UsageError for what DeepSpeed or minidist refuses,
    with the key's path."""
    table = KEYS | _of_type("optimizer", config, OPTIMIZERS) | _of_type("scheduler", config, SCHEDULERS)
    stated: dict[str, Any] = {}
    notes = []
    for path, value in _entries(config, "", table):
        if path not in table:
            notes += _note_of_other(path, value, table)
            continue
        if path in stated:
            raise UsageError(f"{path} stands twice, by two of its names: leave one of them")
        stated[path] = value
    values = {path: key.default for path, key in table.items()}
    for path, value in stated.items():
        if value == "auto" and path not in auto and path.rpartition(".")[0] in STRICT:
            notes.append(f'{path} is "auto", which DeepSpeed reads as its default, {_short(table[path].default)}')
            continue
        values[path] = _checked(path, table[path], value, auto)
        note = note_of(path, table[path], values[path])
        if note:
            notes.append(note)
    return Config(table, stated, values, notes)


def _of_type(which: str, config: dict[str, Any], types: dict[str, dict[str, Key]]) -> dict[str, Key]:
    """The keys that an optimizer's or a scheduler's params may have, by its type; {} without a type."""
    section = config.get(which, {})
    if not isinstance(section, dict):
        raise UsageError(f"{which} should be an object, {{...}}, not {_short(section)}")
    name = section.get("type")
    if name is None:
        return {}
    exact = {known.lower() if "Adam" in known else known: known for known in types}  # case matters in all other names
    found = exact.get(str(name).lower(), exact.get(str(name)))
    if str(name).lower() == "muon":
        raise UsageError(
            f"{which}.type {_short(name)}: DeepSpeed's step has Nesterov's momentum and a factor √(rows/columns),"
            " that of minidist.muon has Moonlight's: run that chapter"
        )
    if found is None:
        raise UsageError(f"{which}.type {_short(name)} is not here: use one of {', '.join(types)}")
    return {f"{which}.params.{key}": of for key, of in types[found].items()}


def _entries(section: dict[str, Any], prefix: str, table: dict[str, Key]) -> Iterator[tuple[str, Any]]:
    """(path, value) of each key, by its present name; also of sections and keys that the table does not have, if they
    change nothing. Raises UsageError for the others."""
    for name, value in section.items():
        path = ALIASES.get(f"{prefix}{name}", f"{prefix}{name}")
        if path in table:
            yield path, value
        elif path == "zero_optimization" and isinstance(value, bool):  # as it was before there were stages
            yield "zero_optimization.stage", int(value)
        elif path in CONSTRUCTED and not any(known.startswith(f"{path}.") for known in table):  # there is no type
            yield path, value
        elif path in OBJECTS:
            if not isinstance(value, dict) and not (value is None and f"{prefix}{name}" in NULL):
                raise UsageError(f"{path} should be an object, {{...}}, not {_short(value)}")
            yield from _entries(value or {}, f"{path}.", table)
        elif path in CPU_OFFLOAD:
            if value is None:
                continue
            try:
                on = lenient(flag)(value)
            except ValueError as error:
                raise UsageError(f"{path} should be {error}, not {_short(value)}") from None
            yield CPU_OFFLOAD[path], on if path.endswith("memory") else "cpu" if on else "none"
        elif path in REMOVED:
            raise UsageError(f"{path} is not here, and DeepSpeed refuses it, too, since 0.19.7: leave it out")
        elif path in SECTIONS or path in REFUSED_SECTIONS:
            _check_fields(path, value)
            if path in REFUSED_SECTIONS and switched_on(value):
                raise UsageError(f"{path} is not here, because {REFUSED_SECTIONS[path]}: switch it off")
            yield path, value
        elif prefix.removesuffix(".") in (*STRICT, *CONSTRUCTED):
            raise UsageError(f"there is no key {shown_path(path)}, and DeepSpeed refuses it{_guess(path, table)}")
        else:
            yield path, value


def _check_fields(path: str, section: Any) -> None:
    """Refuse, in a section that minidist does not read, what pydantic refuses in DeepSpeed."""
    if path in ANY or (section is None and path in NULL):
        return
    if not isinstance(section, dict):
        raise UsageError(f"{path} should be an object, {{...}}, not {_short(section)}")
    fields = FIELDS.get(path, OPEN.get(path, {}))
    for name, value in section.items():
        if path not in FIELDS and name not in fields:
            continue
        if name not in fields:
            guess = _guess(f"{path}.{name}", {f"{path}.{field}": None for field in fields})
            raise UsageError(f"there is no key {shown_path(f'{path}.{name}')}, and DeepSpeed refuses it{guess}")
        try:
            if value != "auto":
                lenient(fields[name])(value)
        except ValueError as error:
            raise UsageError(f"{path}.{name} should be {error}, not {_short(value)}") from None


def _note_of_other(path: str, value: Any, table: dict[str, Key]) -> list[str]:
    """A note for a section that is not read, or an unknown key; none if the section is switched off."""
    if path in REFUSED_SECTIONS or (path in SECTIONS and not switched_on(value)):
        return []
    if path in SECTIONS:
        return [f"{path} has no effect here, because {SECTIONS[path]}"]
    if path in CONSTRUCTED:
        return [f"{path} has no effect here, and none in DeepSpeed, because there is no {path.partition('.')[0]}.type"]
    unknown = "has no effect here, and none in DeepSpeed, which does not know it"
    return [f"{shown_path(path)} {unknown}{_guess(path, table)}"]


def switched_on(section: Any) -> bool:
    """Whether a section that minidist does not read would have an effect in DeepSpeed."""
    if not isinstance(section, dict):
        return bool(section)
    return bool(section) and section.get("enabled") is not False


def _guess(path: str, table: Iterable[str]) -> str:
    """ ": do you mean ...?" with the only key that has this name in another section, or with a very similar key in the
    same section; "" if there is none."""
    known = [*table, *(alias for alias in ALIASES if "." in alias), *OBJECTS, *SECTIONS, *REFUSED_SECTIONS]
    prefix, _, name = path.rpartition(".")
    elsewhere = [each for each in table if each.rpartition(".")[2] == name]
    if len(elsewhere) == 1:
        return f": do you mean {elsewhere[0]}?"
    beside = {each.rpartition(".")[2]: each for each in known if each.rpartition(".")[0] == prefix}
    return next((f": do you mean {beside[match]}?" for match in get_close_matches(name, beside, 1, NEAR)), "")


def _checked(path: str, key: Key, value: Any, auto: dict[str, Any]) -> Any:
    """A value, converted and checked."""
    if isinstance(value, str) and value == "auto":
        if path not in auto:
            raise UsageError(f'{path} cannot be "auto": give it a value, or leave the key out')
        value = auto[path]
    try:
        found = key.read(value)
    except (ValueError, OverflowError) as error:
        hint = f' ("auto" is {_short(value)})' if value is auto.get(path) else ""
        raise UsageError(f"{path} should be {error}, not {_short(value)}{hint}") from None
    if key.refused and found != key.default:
        raise UsageError(f"{path} {_short(found)} is not here, because {key.refused}")
    return found


def note_of(path: str, key: Key, value: Any) -> str:
    """Why a stated key has no effect; "" if it has one, or if what it asks for happens anyway."""
    if not (key.never or key.yet) or value in key.already:
        return ""
    return f"{path} has no effect here{' yet' * bool(key.yet)}, because {key.never or key.yet}"


def _short(value: Any) -> str:
    """A value for a message: as JSON writes it, shortened to one line."""
    named = {"True": "true", "False": "false", "None": "null"}
    text = named.get(repr(value), repr(value))
    return text if len(text) < 60 else f"{text[:57]}..."


def shown_path(path: str) -> str:
    return path if path.isprintable() and len(path) < 100 else f"{path!r:.100}"

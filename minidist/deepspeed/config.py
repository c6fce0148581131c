"""A configuration checked against the table of keys, and "auto" filled in."""

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from minidist import UsageError
from minidist.deepspeed.keys import ALIASES, KEYS, OPTIMIZERS, REFUSED_SECTIONS, SCHEDULERS, SECTIONS, Key

# Objects within the configuration: every prefix of a key's path in the table.
OBJECTS = {path.rpartition(".")[0] for path in KEYS} - {""} | {"optimizer.params", "scheduler.params"}
CPU_OFFLOAD = {  # deprecated switches
    "zero_optimization.cpu_offload": "zero_optimization.offload_optimizer.device",
    "zero_optimization.cpu_offload_param": "zero_optimization.offload_param.device",
    "zero_optimization.cpu_offload_params": "zero_optimization.offload_param.device",
    "zero_optimization.cpu_offload_use_pin_memory": "zero_optimization.offload_optimizer.pin_memory",
}


@dataclass(frozen=True)
class Config:
    """What a configuration says, by path: zero_optimization.stage."""

    table: dict[str, Key]  # the keys that it may have, those of its optimizer and its scheduler among them
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
        if path in SECTIONS:
            notes += [f"{path} has no effect here, because {SECTIONS[path]}"] * switched_on(value)
            continue
        if path in stated:
            raise UsageError(f"{path} stands twice, by two of its names: leave one of them")
        stated[path] = value
    values = {path: key.default for path, key in table.items()}
    for path, value in stated.items():
        values[path] = _checked(path, table[path], value, auto)
        note = _note(path, table[path], values[path])
        if note:
            notes.append(note)
    return Config(table, stated, values, notes)


def _of_type(which: str, config: dict[str, Any], types: dict[str, dict[str, Key]]) -> dict[str, Key]:
    """The keys of an optimizer's or a scheduler's params, by its type."""
    section = config.get(which)
    if section is None:
        return {}
    if not isinstance(section, dict):
        raise UsageError(f"{which} should be an object, {{...}}, not {_short(section)}")
    name = section.get("type")
    if name is None:
        raise UsageError(f"{which}.type is missing: one of {', '.join(types)}")
    exact = {known.lower() if which == "optimizer" else known: known for known in types}
    found = exact.get(str(name).lower() if which == "optimizer" else str(name))
    if found is None:
        raise UsageError(f"{which}.type {_short(name)} is not here: use one of {', '.join(types)}")
    return {f"{which}.params.{key}": of for key, of in types[found].items()}


def _entries(section: dict[str, Any], prefix: str, table: dict[str, Key]) -> Iterator[tuple[str, Any]]:
    """(path, value) of each key, by its present name."""
    for name, value in section.items():
        path = ALIASES.get(f"{prefix}{name}", f"{prefix}{name}")
        if path in table or path in SECTIONS:
            yield path, value
        elif path == "zero_optimization" and isinstance(value, bool):  # as it was before there were stages
            yield "zero_optimization.stage", int(value)
        elif path in OBJECTS:
            if value is not None and not isinstance(value, dict):
                raise UsageError(f"{path} should be an object, {{...}}, not {_short(value)}")
            yield from _entries(value or {}, f"{path}.", table)
        elif path in CPU_OFFLOAD:
            if not isinstance(value, bool):
                raise UsageError(f"{path} should be true or false, not {_short(value)}")
            yield CPU_OFFLOAD[path], value if path.endswith("memory") else "cpu" if value else "none"
        elif path in REFUSED_SECTIONS:
            if switched_on(value):
                raise UsageError(f"{path} is not here, because {REFUSED_SECTIONS[path]}: switch it off")
        else:
            raise UsageError(f"there is no key {_shown(path)}: do you mean {nearest(path, table)}?")


def switched_on(section: Any) -> bool:
    """Whether a section that minidist does not read would have an effect in DeepSpeed."""
    return bool(section) and not (isinstance(section, dict) and section.get("enabled") is False)


def nearest(path: str, table: dict[str, Key]) -> str:
    """The known key that is most like `path`: one in the same section, or else one of that name elsewhere."""
    known = [*table, *(alias for alias in ALIASES if "." in alias), *OBJECTS, *SECTIONS, *REFUSED_SECTIONS]
    prefix, _, name = path.rpartition(".")
    beside = {each.rpartition(".")[2]: each for each in known if each.rpartition(".")[0] == prefix}
    everywhere = {each.rpartition(".")[2]: each for each in known}
    for names, likeness in ((beside, 0.7), (everywhere, 0.7), (beside, 0.0), (everywhere, 0.0)):
        for match in get_close_matches(name, names, n=1, cutoff=likeness):
            return names[match]
    return known[0]


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


def _note(path: str, key: Key, value: Any) -> str:
    """Why a stated key has no effect; "" if it has one, or if what it asks for happens anyway."""
    if not (key.never or key.yet) or value in key.already:
        return ""
    return f"{path} has no effect here{' yet' * bool(key.yet)}, because {key.never or key.yet}"


def _short(value: Any) -> str:
    """A value in a message: as JSON has it, and on one line."""
    named = {"True": "true", "False": "false", "None": "null"}
    text = named.get(repr(value), repr(value))
    return text if len(text) < 60 else f"{text[:57]}..."


def _shown(path: str) -> str:
    return path if path.isprintable() and len(path) < 100 else f"{path!r:.100}"

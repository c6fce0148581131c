"""Read a configuration as DeepSpeed reads it, by the rules of Hjson."""

import json
from pathlib import Path
from typing import Any

from minidist import UsageError, how_to_install
from minidist.cli.paths import check_readable

LARGEST = 10**6  # bytes of a configuration


def read(config: str | Path | dict[str, Any]) -> dict[str, Any]:
    """A configuration from a file, or the dict itself. Raises UsageError, with line and column, if it is unreadable."""
    if isinstance(config, dict):
        return config
    if not isinstance(config, str | Path):
        raise UsageError(f"a configuration is a file or a dict, not {config!r:.60}")
    return parse(text_of(str(config)), str(config))


def text_of(path: str) -> str:
    """All of a small text file."""
    if check_readable("configuration", path) > LARGEST:
        raise UsageError(f"{path} has more than {LARGEST / 1e6:g} MB: that is no configuration")
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text (byte {error.start})") from None


def parse(text: str, path: str) -> dict[str, Any]:
    """Read JSON or Hjson: it may have comments (#, //, /* */), lines without a comma, and a comma too many."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        for name in names:
            if names.count(name) > 1:  # Python would silently take the last one
                raise UsageError(f"{path}: the key {name!r} stands twice: leave one of them")
        return dict(pairs)

    try:
        try:
            found = json.loads(text, object_pairs_hook=unique)
        except json.JSONDecodeError as error:
            found = _hjson(error).loads(text, object_pairs_hook=unique)
    except RecursionError:
        raise UsageError(f"{path}: is nested too deep") from None
    except (ValueError, OverflowError) as error:  # both readers' errors are ValueErrors; Hjson makes 1e999 an integer
        message, line, column = (getattr(error, name, "") for name in ("msg", "lineno", "colno"))
        place = f" line {line}, column {column}:" if line else ""
        raise UsageError(f"{path}:{place} {message or error}") from None
    if not isinstance(found, dict):
        raise UsageError(f"{path}: should be an object, {{...}}, not {found!r:.60}")
    return found


def _hjson(error: json.JSONDecodeError) -> Any:
    """The package that reads Hjson. If it is not installed, raises the error, with a hint."""
    try:
        import hjson
    except ImportError:
        hint = f"comments and missing commas need a package of their own: {how_to_install('deepspeed')}"
        raise json.JSONDecodeError(f"{error.msg} ({hint})", error.doc, error.pos) from None
    return hjson

"""Every key of Accelerate's YAML: what it means, and why it has no effect here, if it has none.

The table is in accelerate_keys.toml. `accelerate.py` translates a file by these keys, and `explain.py` prints them.
They are those of Accelerate 1.15: commands/config/config_args.py and commands/launch.py.
"""

from typing import Any

from minidist.deepspeed.keys import KEYS, Key, key, table

TABLE = table("accelerate_keys.toml")


def keys(rows: dict[str, Any]) -> dict[str, Key]:
    """The keys of a part of the table. Any value is read; null always asks for what happens here anyway."""
    made = {name: key(row, TABLE["texts"]) for name, row in rows.items()}
    return {name: each._replace(already=(None, *each.already)) for name, each in made.items()}


TOP = keys(TABLE["top"])
STARTING: list[str] = TABLE["lists"]["starting"]  # about starting processes, which mpirun does here
DEEPSPEED: dict[str, str] = TABLE["deepspeed"]  # each of them is a key of DeepSpeed's
SECTIONS = {section: keys(rows) for section, rows in TABLE["sections"].items()}
SECTIONS["deepspeed_config"] |= keys({name: {"means": KEYS[path].means} for name, path in DEEPSPEED.items()})


def prefixed(section: str, name: str) -> str:
    """The name of a section's key in the table: `accelerate launch` adds prefixes, and takes a file with or without."""
    names = name, f"{section.partition('_')[0]}_{name}", name.removeprefix(f"{section}_"), name.removeprefix("fp8_")
    return next((each for each in names if each in SECTIONS[section]), name)

"""Every key of a DeepSpeed configuration: its possible values, its default, what it means, and what it does here.

The table is in keys.toml. `config.py` checks a configuration against it, and `explain.py` prints it. A key does here
what it does in DeepSpeed, or says why it has no effect: `never`, or not `yet`. To give a key an effect, remove its
`yet` and read its value in `plan.py`. Defaults are those of DeepSpeed 0.19.8, runtime/zero/config.py,
runtime/precision_config.py and their neighbors; in places its documentation, and releases before it, give other
defaults: until 0.19.2 a file that is silent about gradient_clipping clipped nothing.
"""

import ast
import tomllib
from importlib import resources
from typing import Any, NamedTuple

from minidist.deepspeed import values
from minidist.deepspeed.values import Reader, lenient


class Key(NamedTuple):
    """One key."""

    read: Reader
    default: Any
    means: str  # what it is about, for a reader of `explain`
    never: str = ""  # why it can have no effect here; "": it can
    yet: str = ""  # why it has no effect so far
    already: tuple[Any, ...] = ()  # values that describe what happens here anyway
    refused: str = ""  # why only the default is accepted


def table(name: str) -> dict[str, Any]:
    """A table of keys, from the file next to this one."""
    return tomllib.loads(resources.files(__package__).joinpath(name).read_text(encoding="utf-8"))


def reader(text: str) -> Reader:
    """A reader of `values.py`, as a table writes it: or_null(whole(1))."""

    def made(node: ast.expr) -> Any:
        if isinstance(node, ast.Call):
            named = {str(keyword.arg): made(keyword.value) for keyword in node.keywords}
            return made(node.func)(*map(made, node.args), **named)
        return getattr(values, node.id) if isinstance(node, ast.Name) else ast.literal_eval(node)

    return made(ast.parse(text, mode="eval").body)


def key(row: dict[str, Any], texts: dict[str, str]) -> Key:
    """A row of a table as a Key."""
    reasons = {name: texts.get(row[name], row[name]) for name in ("never", "yet", "refused") if name in row}
    already = tuple(None if value == "null" else value for value in row.get("already", ()))
    default = row.get("default")
    usual = tuple(default) if isinstance(default, list) else default
    return Key(reader(row.get("takes", "anything")), usual, row["means"], already=already, **reasons)


TABLE = table("keys.toml")

# Sections whose keys pydantic checks there: an unknown one is an error, and so is a wrong value, but "500" is a number.
STRICT = ("fp16", "bf16", "zero_optimization", "zero_optimization.offload_param", "zero_optimization.offload_optimizer")
NUMBERS = ("fp16.loss_scale", "fp16.loss_scale_window", "fp16.min_loss_scale")  # which may not be true or false


def keys(rows: dict[str, Any]) -> dict[str, Key]:
    """The keys of a part of the table."""
    made = {path: key(row, TABLE["texts"]) for path, row in rows.items()}
    for path, each in made.items():
        if path.rpartition(".")[0] in STRICT:
            made[path] = each._replace(read=lenient(each.read, truth=path not in NUMBERS))
    return made


def readers(rows: dict[str, dict[str, str]]) -> dict[str, dict[str, Reader]]:
    """By section, the readers of its fields."""
    return {section: {name: reader(text) for name, text in fields.items()} for section, fields in rows.items()}


KEYS = keys(TABLE["keys"]) | {
    f"expert_parallel.{name}": Key(
        values.anything, None, "where a model's experts are, or how they compute", texts["FOUND"]
    )
    for texts, names in [(TABLE["texts"], TABLE["lists"]["found"])]
    for name in names
}
OPTIMIZERS = {name: keys(rows) for name, rows in TABLE["optimizers"].items()}
OPTIMIZERS |= {"AdamW": OPTIMIZERS["Adam"]}
SCHEDULERS = {name: keys(rows) for name, rows in TABLE["schedulers"].items()}
SECTIONS: dict[str, str] = TABLE["sections"]  # that change no number in training, and why they have no effect here
REFUSED_SECTIONS: dict[str, str] = TABLE["refused_sections"]  # accepted only if they are switched off, and why
FIELDS = readers(TABLE["fields"])  # all that these sections may have
OPEN = readers(TABLE["open"])  # of these, only some keys are checked
ANY = ("datastates_ckpt",)  # may hold anything
REMOVED: list[str] = TABLE["lists"]["removed"]  # refused even if they are switched off

# Other names of a key: stage 3's names with their prefix, and old spellings.
ALIASES = {f"zero_optimization.stage3_{name}": f"zero_optimization.{name}" for name in TABLE["lists"]["stage3"]} | {
    "zero_optimization.stage3_gather_fp16_weights_on_model_save": (
        "zero_optimization.gather_16bit_weights_on_model_save"
    ),
    "bfloat16": "bf16",
}

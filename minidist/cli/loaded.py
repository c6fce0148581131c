"""A model that --load names with its sizes: Hugging Face's folder, whose config.json says them, or a checkpoint of a
training that began with one."""

import json
import os
from collections.abc import Collection
from dataclasses import replace
from glob import escape, glob
from typing import Any

from minidist import UsageError
from minidist.cli.fields import Parsed
from minidist.cli.shared import FileOptions, Line, LoadedModel, LoadedSizes, ModelOptions, Own
from minidist.system.files import open_regular

SAID = ("name", "layers", "width", "heads", "kv_heads", "untied")  # by the folder


def line_of(parsed: Parsed, own: type[Own]) -> Line[Own]:
    """What a command line says, with the model that --load names."""
    line, load = Line.of(parsed, own), parsed.of(FileOptions).load
    return replace(line, model=model_in(load, line.model, parsed.given)) if load and os.path.isdir(load) else line


def is_huggingface(path: str) -> bool:
    """Whether a path is a folder with Hugging Face's config.json, and parameters as safetensors."""
    patterns = ("*.safetensors", "*.safetensors.index.json")
    weights = any(glob(os.path.join(escape(path), pattern)) for pattern in patterns)
    return weights and os.path.isfile(os.path.join(path, "config.json"))


def model_in(path: str, asked: ModelOptions, given: Collection[str]) -> ModelOptions:
    """The model that is in a folder, if it says its sizes; else the one that is asked for. given: the options on the
    command line. Raises UsageError for a model that is not here, or for options that say another one."""
    if is_huggingface(path):
        from minidist.cli.huggingface import model_of  # which loads every published model

        found: ModelOptions = model_of(path, asked)
    else:
        found = _of_checkpoint(path, asked)
    for name in SAID if found is not asked else ():
        if (name if name != "name" else "model") in given and getattr(asked, name) != getattr(found, name):
            option = f"--{'model' if name == 'name' else name.replace('_', '-')}"
            raise UsageError(f"--load {path} has a model of other sizes: leave out {option}")
    if isinstance(found, LoadedModel) and found.name == "gpt" and "context" in given and asked.context != found.context:
        raise UsageError(f"--load {path} has {found.context} positions: leave out --context, or use that")
    return found


def _of_checkpoint(path: str, asked: ModelOptions) -> ModelOptions:
    """The sizes that a checkpoint records, which only a training that began with another library's model has. Anything
    wrong with it is said later."""
    try:
        with open_regular(os.path.join(path, "latest")) as file:
            name = file.read(100).decode().strip()
        with open_regular(os.path.join(path, name, "manifest.json")) as file:
            said: dict[str, Any] = json.load(file)["identity"]["loaded"]
        options, sizes = dict(said["options"]), LoadedSizes(**said["sizes"])
        return LoadedModel(**options | {"dropout": asked.dropout}, sizes=sizes)
    except (OSError, ValueError, KeyError, TypeError):
        return asked

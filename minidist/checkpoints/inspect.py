"""`python -m minidist inspect DIR`: what is in a checkpoint, and whether it is complete. It needs no MPI."""

import math
import os
from typing import Any

from minidist import UsageError
from minidist.checkpoints import manifest
from minidist.checkpoints.form import short
from minidist.checkpoints.manifest import Manifest


def main(path: str) -> int:
    """Print the content. Returns 1 if any part is damaged, else 0. Raises UsageError if there is no sound manifest."""
    found = manifest.read(path)
    print_contents(found)
    damaged = []
    for shard in found.shards:
        said = "whole"
        try:
            manifest.check_shard(found, shard)
        except UsageError as error:
            said = str(error).removeprefix(f"{found.folder}/{shard.file} ")
            damaged.append(shard.file)
        print(f"  {shard.file:24} {shard.bytes / 1e3:12,.1f} KB  {said}")
    if damaged:
        print(f"{len(damaged)} of {len(found.shards)} shards cannot be used")
    else:
        manifest.check_coverage(found)
        print("It is whole.")
    others = [] if found.folder == path else manifest.names_in(path)
    for name in others:
        if os.path.join(path, name) != found.folder:
            print(f"Next to it: {os.path.join(path, name)}")
    return 1 if damaged else 0


def print_contents(found: Manifest) -> None:
    """Print everything except the arrays, in a few lines."""
    state, layout, identity = found.state, dict(found.layout), found.identity
    chapter, ranks = layout.pop("chapter"), layout.pop("ranks")
    model = f"{shown(identity['model'])}, " if "model" in identity else ""
    axes = "".join(f", {shown(axis)} {shown(size)}" for axis, size in layout.items())
    size = sum(math.prod(shape) for shape in found.parameters.values())
    print(f"{found.folder}: step {state['steps']}, {state['updates']} updates")
    print(f"  saved by {shown(chapter)} on {ranks} rank{'s' * (ranks > 1)}{axes}")
    moments = f"{found.moments} moment{'s' * (found.moments != 1)}"
    tensors = f"{size:,} parameters in {len(found.parameters)} tensors"
    print(f"  {model}{tensors}, {moments} of each, {found.dtype}")
    scale = f", loss scale {state['loss_scale']['scale']:g}" if state["mixed"] else ""
    text = f"text {shown(found.text['name'])}, " if "name" in found.text else ""
    print(f"  {text}next batch {found.text['position']}, seed {found.random['seed']}{scale}")


def shown(value: Any) -> str:
    """A manifest's text, always on one line."""
    text = str(value)
    return text if text.isprintable() and len(text) < 80 else short(value)

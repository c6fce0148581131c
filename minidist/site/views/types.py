"""A block of tensor parallelism as a row of boxes, an operation each, in the color of its result's type."""

from collections.abc import Sequence
from html import escape

from minidist.memory.colors import BLUE, DARK, GREEN, LIGHT, RED
from minidist.programs.spmd_types import block_types
from minidist.site.views.html import chip

COLORS = {"I": LIGHT, "R": GREEN, "V": BLUE, "P": RED}
MEANS = {
    "I": "the same, each with the whole gradient",
    "R": "the same, each with a part of it",
    "V": "each its own",
    "P": "summands of a sum that is due",
}
BLOCKS = {"Tensor parallelism": "", "With sequence parallelism": "--sequence-parallel"}
BOX, HIGH, BELOW = 46, 30, 92  # pixels


def draw_blocks() -> str:
    """Both blocks, run here on two ranks with types, and what the letters mean."""
    drawn = [f"<p>{title}</p>{draw_block(title, block_types(options))}" for title, options in BLOCKS.items()]
    legend = "; ".join(f"{chip(COLORS[kind])}{kind}: {escape(words)}" for kind, words in MEANS.items())
    return "".join(drawn) + f"<p>{legend}.</p>"


def draw_block(title: str, operations: Sequence[tuple[str, str]]) -> str:
    boxes = [
        f'<rect x="{BOX * at}" y="0" width="{BOX - 4}" height="{HIGH}" rx="4" fill="{COLORS[kind]}"/>'
        f'<text x="{BOX * at + BOX / 2 - 2}" y="20" text-anchor="middle" fill="{DARK}">{kind}</text>'
        f'<text transform="translate({BOX * at + BOX / 2},{HIGH + 12}) rotate(-40)" text-anchor="end" font-size="11"'
        f' fill="currentColor">{escape(name.partition(".")[0])}</text>'
        for at, (name, kind) in enumerate(operations)
    ]
    told = f"{title}: {', '.join(f'{name} {kind}' for name, kind in operations)}"
    size = f"-60 0 {BOX * len(operations) + 60} {HIGH + BELOW}"
    return f'<svg viewBox="{size}" style="width:100%" role="img" aria-label="{escape(told)}">{"".join(boxes)}</svg>'

"""The pictures of lesson 19. They draw what a forward with types has seen."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt

from minidist.classroom.notebook.drawing import ALL_SIDES, canvas, show
from minidist.memory.colors import BLUE, DARK, GREEN, GREY, LIGHT, RED

COLORS = {"I": LIGHT, "R": GREEN, "V": BLUE, "P": RED}
WORDS = {"I": "the same, the whole gradient", "R": "the same, a part of it", "V": "each its own", "P": "summands"}


def draw_block(blocks: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    """The operations of blocks, one row a block, each box colored by the type of its result."""
    longest = max(map(len, blocks.values()))
    fig, axes = canvas(9.6, 1.35 * len(blocks) + 0.6, rows=len(blocks), hidden=ALL_SIDES)
    for [ax], (title, operations) in zip(axes, blocks.items(), strict=True):
        for at, (operation, kind) in enumerate(operations):
            ax.add_patch(plt.Rectangle((at + 0.05, 0), 0.9, 1, color=COLORS[kind], ec=GREY))
            ax.text(at + 0.5, 0.5, kind, ha="center", va="center", fontsize=11, color=DARK)
            name = operation.removeprefix("ColumnParallelLinear.").replace("__call__", "gather, linear")
            ax.text(at + 0.5, -0.1, name, ha="right", va="top", fontsize=7.5, rotation=35)
        ax.set(xlim=(0, longest), ylim=(-1.5, 1.1), xticks=[], yticks=[])
        ax.set_title(title, loc="left", fontsize=10)
    fig.tight_layout()
    words = (f"{title}: {', '.join(f'{name} {kind}' for name, kind in of)}." for title, of in blocks.items())
    legend = ", ".join(f"{kind}: {word}" for kind, word in WORDS.items())
    show(
        fig, f"Operations of a block on two ranks, with the type of each result (counted). {legend}. {' '.join(words)}"
    )

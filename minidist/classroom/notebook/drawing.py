"""What the pictures of all lessons share: a figure with its panels, a legend of colors, and the words for readers who
cannot see a picture."""

import html
import io
from collections.abc import Mapping, Sequence
from typing import Any

ALL_SIDES = ("left", "right", "top", "bottom")  # of a panel without a frame


def canvas(
    width: float,
    height: float,
    title: str = "",
    rows: int = 1,
    columns: int = 1,
    *,
    hidden: Sequence[str] = ("top", "right"),
    bold: bool = False,
    sharex: bool = False,
    sharey: bool = False,
    within: tuple[float, float, float, float] | None = None,
    gap: float | tuple[float, float] | None = None,
) -> tuple[Any, Any]:
    """A figure in inches with its title, and its panels, an array (rows, columns).

    hidden: the sides that no panel draws. within: where the panels begin and end, from left to right and from top to
    bottom, as fractions of the figure. gap: between panels, as a fraction of one; or horizontally and vertically.
    """
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(rows, columns, figsize=(width, height), squeeze=False, sharex=sharex, sharey=sharey)
    for panel in panels.flat if hidden else ():
        panel.spines[[*hidden]].set_visible(False)
    if title:
        weight = {"fontsize": 11, "fontweight": "bold"} if bold else {"fontsize": 10}
        figure.suptitle(title, x=0.01, ha="left", **weight)
    if within:
        across, down = gap if isinstance(gap, tuple) else (gap, gap)
        figure.subplots_adjust(
            **dict(zip(("left", "right", "top", "bottom"), within, strict=True)), wspace=across, hspace=down
        )
    return figure, panels


def name_colors(drawn: Any, colors: Mapping[str, Any], **where: Any) -> None:
    """A legend of a figure or a panel: what each color means."""
    from matplotlib.patches import Rectangle

    boxes = [Rectangle((0, 0), 1, 1, color=color) for color in colors.values()]
    drawn.legend(boxes, [*colors], frameon=False, **where)


def show(figure: Any, alt: str) -> None:
    """Display a Matplotlib figure, with a description for readers who cannot see it: as alt text, which nbconvert
    passes on, and folded below the picture, because not every notebook program passes on alt text."""
    from IPython.display import display
    from matplotlib.pyplot import close

    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=110)
    close(figure)
    words = {"image/png": {"alt": alt}}
    display({"image/png": picture.getvalue(), "text/plain": alt}, metadata=words, raw=True)
    folded = f"<details><summary><small>the picture in words</small></summary>{html.escape(alt)}</details>"
    display({"text/html": folded, "text/plain": ""}, raw=True)

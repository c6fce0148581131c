"""The ratios of the benchmark as a picture: `python -m minidist.bench --plot bench.png`."""

from collections.abc import Sequence

from minidist.bench.measure import Comparison
from minidist.memory.colors import BLUE, ORANGE
from minidist.memory.plot import pyplot, saved

TICKS = [digit * 10.0**power for power in range(-3, 4) for digit in (1, 2, 5)]


def draw(rows: Sequence[Comparison], title: str, format: str) -> bytes:
    """A picture with a bar for each row, on a logarithmic scale, from 1 to its ratio: to the left minidist takes less.
    A line on a bar reaches from quartile to quartile; a mark is the target."""
    plt = pyplot()

    found = [(row, row.ratio) for row in rows if row.ratio is not None]
    places, labels, below = [], [], 0.0
    for i, (row, _) in enumerate(found):
        new = i == 0 or found[i - 1][0].name != row.name
        below += 1.5 if new else 1.0
        places.append(below)
        labels.append(f"{row.name}  compared with  {row.beside}" if new else row.beside)
    figure, axes = plt.subplots(figsize=(9, 1.3 + 0.2 * below), layout="constrained")
    for place, (row, ratio) in zip(places, found, strict=True):
        axes.barh(place, ratio - 1, 0.72, 1, color=BLUE if ratio <= 1 else ORANGE, linewidth=0)
        if row.spread:
            axes.hlines(place, *row.spread, color="black", linewidth=1.2)
        if row.target is not None:
            axes.vlines(row.target, place - 0.45, place + 0.45, color="black", linewidth=1.2, linestyle=":")
        figures = f"{ratio:.2f}   {row.figures}"
        axes.annotate(figures, (1, place), (6, 0), ("axes fraction", "data"), "offset points", va="center", fontsize=7)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    ends = [end for row, ratio in found for end in (ratio, row.target or 1, *(row.spread or ()))]
    low, high = min(0.5, *ends) / 1.1, max(2.0, *ends) * 1.1
    axes.set_xticks([x for x in TICKS if low < x < high], [f"{x:g}" for x in TICKS if low < x < high])
    axes.minorticks_off()
    axes.set_xlim(low, high)
    axes.set_yticks(places, labels, fontsize=7)
    axes.set_ylim(below + 1, 0.5)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    meaning = "ours as a multiple of theirs: left of 1 minidist takes less; line: quartiles; dotted: target"
    axes.set_xlabel(meaning, fontsize=8)
    figure.suptitle(title, fontsize=10)
    return saved(figure, format)

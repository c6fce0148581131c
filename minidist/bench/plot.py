"""The ratios of the benchmark as a picture: `python -m minidist.bench --plot bench.png`."""

from collections.abc import Sequence
from io import BytesIO

from minidist.bench.measure import Row

BLUE, ORANGE, GREY = "#4c8ed9", "#e8893a", "#808080"  # less than theirs, more, and what is not measured


def draw(rows: Sequence[Row], title: str, format: str) -> bytes:
    """A bar for each row, on a logarithmic scale, from 1 to its ratio: to the left minidist takes less. A line on a bar
    reaches from quartile to quartile; a mark is the target."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    found = [(row, row.ratio) for row in rows if row.ratio is not None]
    places, labels, above = [], [], -1.0
    for i, (row, _) in enumerate(found):
        new = i == 0 or found[i - 1][0].name != row.name
        above += 1.5 if new else 1.0
        places.append(above)
        labels.append(f"{row.name}  |  {row.beside}" if new else row.beside)
    figure, axes = plt.subplots(figsize=(9, 1.2 + 0.2 * (above + 1)), layout="constrained")
    for place, (row, ratio) in zip(places, found, strict=True):
        axes.barh(place, ratio - 1, 0.72, 1, color=BLUE if ratio <= 1 else ORANGE, linewidth=0)
        if row.spread:
            axes.hlines(place, *row.spread, color="black", linewidth=1.2)
        if row.target is not None:
            axes.vlines(row.target, place - 0.45, place + 0.45, color="black", linewidth=1.2, linestyle=":")
        end = max(ratio, *(row.spread or ()), row.target or 0, 1)
        axes.annotate(f"{ratio:.2f}", (end, place), (3, 0), textcoords="offset points", va="center", fontsize=7)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yticks(places, labels, fontsize=7)
    axes.set_ylim(above + 1, -1)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_xlabel("time, or memory, of minidist as a multiple of the other's\nline: quartiles; dotted: target")
    figure.suptitle(title, fontsize=10)
    picture = BytesIO()
    figure.savefig(picture, format=format, dpi=110)
    plt.close(figure)
    return picture.getvalue()

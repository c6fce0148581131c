"""All schemes and layouts of positions on the same model: what each sends, how it shares the work, what it keeps."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from minidist.cli.tables import make_table, mark, number, say, show
from minidist.memory.colors import DARK, GREY, RANKS
from minidist.memory.plot import pyplot, saved

Spans = Sequence[tuple[int, float, float]]  # of each step: its number, its begin and end on a rank's clock


class SchemeMeasure(NamedTuple):
    """A scheme and a layout of positions, in one step. Lists have a number for each rank."""

    scheme: str
    positions: str
    forward: list[int]  # bytes that attention sends
    backward: list[int]
    promised: list[float]  # both, by the papers' formulas
    pairs: list[int]  # of query and key
    ended: list[float]  # when all of them are computed
    kept: list[int]  # bytes that layers keep for the backward
    blocks: list[int]  # the most bytes on their way at a time
    spans: list[Spans]

    @property
    def holds(self) -> bool:
        return [a + b for a, b in zip(self.forward, self.backward, strict=True)] == self.promised

    @property
    def busy(self) -> float:
        """The share of the time that a rank works, on average."""
        return sum(self.pairs) / len(self.pairs) / max(self.ended)

    def as_json(self) -> dict[str, Any]:
        return {**self._asdict(), "busy": self.busy, "holds": self.holds}


def print_rows(rows: Sequence[SchemeMeasure], layers: int) -> None:
    """Print a line for each row, with the numbers of the rank that has most."""
    table = make_table(("scheme, positions",), ("forward", "backward", "pairs", "busy", "layers keep", "blocks", ""))
    for row in rows:
        cells = [number(max(of) / layers) for of in (row.forward, row.backward, row.pairs)]
        held = [number(max(row.kept) / layers), number(max(row.blocks))]
        table.add_row(f"{row.scheme}, {row.positions}", *cells, f"{100 * row.busy:.1f}%", *held, mark(row.holds))
    show("Bytes that attention sends for a layer, its work and its memory, on the rank that has most", table)
    say(
        "✓: forward and backward send what the papers' formulas say. pairs: of query and key. busy: of the time, by a"
        " logical clock on which messages take none. blocks: the most bytes on their way at a time."
    )


def draw(rows: Sequence[SchemeMeasure], format: str) -> bytes:
    """The ring's steps on the logical clock, a panel for each layout of positions; next to it, each rank's pairs."""
    plt = pyplot()
    rings = [row for row in rows if row.scheme == "ring"]
    end = max(max(row.ended) for row in rings)
    figure, axes = plt.subplots(
        len(rings), 2, figsize=(10, 1 + 1.6 * len(rings)), width_ratios=(4, 1), layout="constrained", squeeze=False
    )
    for row, (times, balance) in zip(rings, axes, strict=True):
        ranks = range(len(row.spans))
        for rank, spans in enumerate(row.spans):
            for step, begin, stop in spans:
                owner = (rank - step) % len(ranks)
                bar = times.broken_barh([(begin, stop - begin)], (rank - 0.4, 0.8), color=RANKS[owner % len(RANKS)])
                bar.set_edgecolor("white")
                if stop - begin > end / 60:
                    times.text((begin + stop) / 2, rank, str(owner), color=DARK, ha="center", va="center", fontsize=7)
        balance.barh(list(ranks), row.pairs, 0.8, color=GREY)
        balance.axvline(sum(row.pairs) / len(ranks), color=DARK, linewidth=0.8)
        times.set_title(f"{row.positions}: busy {100 * row.busy:.1f} % of the time", fontsize=9, loc="left")
        times.set_xlim(0, end)
        for panel in (times, balance):
            panel.set_yticks(list(ranks), [f"rank {rank}" for rank in ranks], fontsize=7)
            panel.invert_yaxis()
            panel.spines[["top", "right"]].set_visible(False)
    axes[-1][0].set_xlabel(
        "logical time: one unit for each pair; the number is the rank whose keys are used", fontsize=8
    )
    axes[-1][1].set_xlabel("pairs of a rank, and the mean", fontsize=8)
    return saved(figure, format)


def in_context(sent: Mapping[str, Mapping[str, int]], when: str) -> int:
    """Bytes that attention has sent, forward or backward: phases of ZeRO have other names."""
    names = ("keys and values ", "all-to-all before, ", "all-to-all after, ", "gradients of keys and values")
    backward = ("backward", "values")
    return sum(
        traffic["bytes"]
        for phase, traffic in sent.items()
        if phase.startswith(names) and phase.endswith(backward if when == "backward" else "forward")
    )

"""README's picture: ZeRO's Figure 1, and its section 7, drawn from the bytes that ranks held and sent.

    python -m minidist.claims.picture

Runs data_parallel, zero1, zero2 and zero3 on 4 ranks for a step, each checking its own claims, and draws their reports.
No length and no number in the picture is written here: bars are what was counted, marks and formulas what the paper
promises. Needs matplotlib: pip install '.[mpich,lessons]'.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from minidist import UsageError
from minidist.claims.tables import number
from minidist.cli.options import in_one_process
from minidist.mpi.launch import find_mpiexec

PICTURE = Path(__file__).with_name("zero.svg")
RANKS = 4
CHAPTERS = ("data_parallel", "zero1", "zero2", "zero3")
BLUE, ORANGE, GREEN = "#4c8ed9", "#e8893a", "#58a55c"  # the colours of the paper's figure
GREY = "#808080"  # between a white page and a dark one, readable on both
Bars = list[tuple[str, int, str]]  # what it is, how many bytes, its colour


def report(chapter: str) -> dict[str, Any]:
    """What a chapter counted in one step on 4 ranks. CalledProcessError if a claim does not hold."""
    command = [find_mpiexec(), "-n", str(RANKS), sys.executable, "-m", f"minidist.{chapter}", "--steps", "1"]
    return json.loads(subprocess.run([*command, "--json", "-"], check=True, stdout=subprocess.PIPE).stdout)


def held(counted: dict[str, Any]) -> Bars:
    """Model states on the rank that holds most of each, and what comes and goes while units are computed."""
    kinds = {"parameters": BLUE, "gradients": ORANGE, "optimizer": GREEN, "transient": "none"}
    return [(kind, max(rank[kind] for rank in counted["memory"]), color) for kind, color in kinds.items()]


def sent(counted: dict[str, Any]) -> Bars:
    """By phase, in the order of a step, from the rank that sent most."""
    busiest = max(counted["sent"], key=lambda phases: sum(phase["bytes"] for phase in phases.values()))
    bars = [(phase, total["bytes"]) for phase, total in busiest.items()]
    return [(phase, size, ORANGE if "gradients" in phase else BLUE) for phase, size in bars]


def draw(reports: dict[str, dict[str, Any]], path: Path) -> None:
    """Two panels with a row for each chapter. A bar's id in the file says what it is."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": path.name, "font.size": 10, "hatch.linewidth": 0.6}
    matplotlib.rcParams |= dict.fromkeys(("text.color", "axes.edgecolor", "xtick.color", "ytick.color"), GREY)
    from matplotlib import pyplot as plt
    from matplotlib.patches import Patch

    figure, panels = plt.subplots(1, 2, figsize=(9.2, 3.1), sharey=True, layout="constrained")
    titles = (f"held by each of {RANKS} ranks, bytes", "sent by each in a step, bytes")
    for axes, title, bars_of, claim in zip(panels, titles, (held, sent), ("together", "all that is sent"), strict=True):
        for row, (chapter, counted) in enumerate(reports.items()):
            left = 0
            for what, size, color in bars_of(counted):
                edge = {"hatch": "////", "edgecolor": GREY} if color == "none" else {}
                (bar,) = axes.barh(row, size, 0.52, left, color=color, linewidth=0, **edge)
                bar.set_gid("-".join((bars_of.__name__, chapter, *what.split())))
                left += size
            promise = next(each for each in counted["claims"] if each["claim"] == claim)
            axes.vlines(promise["expected"], row - 0.36, row + 0.36, GREY, linewidth=2)
            axes.text(left, row, f"  {promise['formula']} = {number(promise['counted'])}", va="center")
        axes.set_title(title, loc="left", fontsize=10)
        axes.set_yticks(range(len(reports)), list(reports))
        axes.tick_params(length=0)
        axes.set_xticks([])
        axes.spines[["top", "right", "bottom"]].set_visible(False)
        axes.set_xlim(0, 1.62 * max(sum(size for _, size, _ in bars_of(counted)) for counted in reports.values()))
    panels[0].invert_yaxis()
    named = (("parameters", BLUE), ("gradients", ORANGE), ("optimizer", GREEN))
    patches = [Patch(color=color, label=name) for name, color in named]
    patches += [Patch(fc="none", ec=GREY, hatch="////", lw=0, label="for a moment: bucket, gathered units")]
    figure.legend(handles=patches, loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path, transparent=True, metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UsageError("drawing needs matplotlib: pip install '.[mpich,lessons]'") from None
    draw({chapter: report(chapter) for chapter in CHAPTERS}, PICTURE)
    print(f"drawn: {PICTURE}")


if __name__ == "__main__":
    sys.exit(in_one_process(main))

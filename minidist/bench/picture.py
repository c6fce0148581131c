"""Pictures of bytes that ranks held and sent.

    python -m minidist.bench.picture

README's picture is ZeRO's Figure 1 and its section 7: data_parallel, zero1, zero2 and zero3 on 4 ranks for a step. The
other is Figure 1 with the two memories below the device: for a larger model, and also for offload and infinity. Each
run checks its own claims. No length and no number in a picture is written here: bars are what was counted, marks and
formulas are what the paper promises. Needs matplotlib: pip install '.[mpich,lessons]'.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from minidist import UsageError, find_clone, how_to_install, how_to_make
from minidist.cli.options import Parser, in_one_process
from minidist.cli.tables import number
from minidist.launch.launcher import find_mpiexec
from minidist.memory.colors import QUANTITIES
from minidist.system import processes

PICTURE = Path(__file__).with_name("zero.svg")
MEMORIES = Path(__file__).with_name("memories.svg")
RANKS = 4
CHAPTERS = ("data_parallel", "zero1", "zero2", "zero3")
POOLS = ("device", "host", "disk")
BELOW = (*CHAPTERS, "offload", "infinity")  # the chapters in the other picture
LARGER = ("--layers", "16", "--batch", "4")
EDGE = "#808080"  # readable on a white page and on a dark one
KINDS = {kind: QUANTITIES[kind] for kind in ("parameters", "gradients", "optimizer")}
Bars = list[tuple[str, int, str]]  # what it is, how many bytes, its color


def report(chapter: str, *options: str) -> dict[str, Any]:
    """What a chapter counts in one step on 4 ranks. Raises CalledProcessError if a claim does not hold."""
    command = [find_mpiexec(), "-n", str(RANKS), sys.executable, "-m", f"minidist.{chapter}", "--steps", "1", *options]
    done = processes.run([*command, "--json", "-"], stdout=subprocess.PIPE)
    done.check_returncode()
    return json.loads(done.stdout)


def held(counted: dict[str, Any], pool: str = "device") -> Bars:
    """Bars for model states in one memory, each from the rank that holds most; for the device, also the arrays that
    come and go while units are computed."""
    kinds = KINDS | {"transient": "none"}
    below = counted.get("below", [{}] * RANKS)
    ranks = counted["memory"] if pool == "device" else [rank.get(pool, dict.fromkeys(kinds, 0)) for rank in below]
    return [(kind, max(rank[kind] for rank in ranks), color) for kind, color in kinds.items()]


def sent(counted: dict[str, Any]) -> Bars:
    """Bars for the bytes sent by phase, in the order of a step, from the rank that sent most."""
    busiest = max(counted["sent"], key=lambda phases: sum(phase["bytes"] for phase in phases.values()))
    bars = [(phase, total["bytes"]) for phase, total in busiest.items()]
    return [(phase, size, KINDS["gradients" if "gradients" in phase else "parameters"]) for phase, size in bars]


def draw(reports: dict[str, dict[str, Any]], path: Path) -> None:
    """Draw two panels with a row for each chapter. A bar's id in the file says what it is."""
    plt = set_up(path)
    figure, panels = plt.subplots(1, 2, figsize=(9.2, 3.1), sharey=True, layout="constrained")
    titles = (f"held by each of {RANKS} ranks, bytes", "sent by each in a step, bytes")
    for axes, title, bars_of, claim in zip(panels, titles, (held, sent), ("together", "total sent"), strict=True):
        for row, (chapter, counted) in enumerate(reports.items()):
            left = bars(axes, row, bars_of(counted), f"{bars_of.__name__}-{chapter}")
            promise = next(each for each in counted["claims"] if each["claim"] == claim)
            axes.vlines(promise["expected"], row - 0.36, row + 0.36, EDGE, linewidth=2)
            axes.text(left, row, f"\N{EN SPACE}{promise['formula']} = {number(promise['counted'])}", va="center")
        axes.set_title(title, loc="left", fontsize=10)
        axes.set_yticks(range(len(reports)), list(reports))
        axes.tick_params(length=0)
        axes.set_xticks([])
        axes.spines[["top", "right", "bottom"]].set_visible(False)
        axes.set_xlim(0, 1.62 * max(sum(size for _, size, _ in bars_of(counted)) for counted in reports.values()))
    finish(figure, panels[0], path)


def draw_memories(reports: dict[str, dict[str, Any]], path: Path) -> None:
    """Draw three panels in one scale, one for each memory, with a row for each chapter."""
    plt = set_up(path)
    figure, panels = plt.subplots(1, 3, figsize=(9.2, 3.1), sharey=True, layout="constrained", width_ratios=(5, 2, 2))
    most = max(sum(size for _, size, _ in held(counted)) for counted in reports.values())
    for axes, pool, share in zip(panels, POOLS, (1.3, 0.52, 0.52), strict=True):
        for row, (chapter, counted) in enumerate(reports.items()):
            left = bars(axes, row, held(counted, pool), f"{pool}-{chapter}")
            states = sum(size for what, size, _ in held(counted, pool) if what != "transient")
            axes.text(left, row, f"\N{EN SPACE}{number(states)}" * (states > 0), va="center")
        axes.set_title(f"{pool}, bytes of each of {RANKS} ranks" if pool == "device" else pool, loc="left", fontsize=10)
        axes.set_yticks(range(len(reports)), list(reports))
        axes.tick_params(length=0)
        axes.set_xticks([])
        axes.spines[["top", "right", "bottom"]].set_visible(False)
        axes.set_xlim(0, share * most)
    finish(figure, panels[0], path)


def set_up(path: Path) -> Any:
    """Set matplotlib so that a picture is the same whenever it is drawn; returns pyplot."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": path.name, "font.size": 10, "hatch.linewidth": 0.6}
    matplotlib.rcParams |= dict.fromkeys(("text.color", "axes.edgecolor", "xtick.color", "ytick.color"), EDGE)
    from matplotlib import pyplot

    return pyplot


def bars(axes: Any, row: int, found: Bars, name: str) -> int:
    """Draw a row of bars, one next to the other; returns where it ends."""
    left = 0
    for what, size, color in found:
        edge = {"hatch": "////", "edgecolor": EDGE} if color == "none" else {}
        (bar,) = axes.barh(row, size, 0.52, left, color=color, linewidth=0, **edge)
        bar.set_gid("-".join((name, *what.split())))
        left += size
    return left


def finish(figure: Any, first: Any, path: Path) -> None:
    """Put the first row on top, add a legend, and write the file."""
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    first.invert_yaxis()
    patches = [Patch(color=color, label=name) for name, color in KINDS.items()]
    patches += [Patch(fc="none", ec=EDGE, hatch="////", lw=0, label="for a moment: bucket, gathered units")]
    figure.legend(handles=patches, loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path, transparent=True, metadata={"Date": None})
    pyplot.close(figure)


def check_clone(why: str, *extras: str) -> None:
    """Raise UsageError unless this is a clone, with what drawing needs."""
    if not find_clone():
        raise UsageError(f"{why}: {how_to_make('setup')}")
    if find_spec("matplotlib") is None:
        raise UsageError(f"drawing needs matplotlib: {how_to_install(*extras)}")


def main(arguments: Sequence[str] = ()) -> None:
    Parser("bench.picture", __doc__ or "").operands(arguments)
    check_clone("README's pictures are in a clone", "mpich", "lessons")
    draw({chapter: report(chapter) for chapter in CHAPTERS}, PICTURE)
    draw_memories({chapter: report(chapter, *LARGER) for chapter in BELOW}, MEMORIES)
    print(f"drawn: {PICTURE}, {MEMORIES}")


if __name__ == "__main__":
    sys.exit(in_one_process(lambda: main(sys.argv[1:])))

"""The pictures of lesson 20: errors of sums, and losses over what was sent."""

from collections.abc import Mapping, Sequence

from minidist.classroom.notebook.drawing import canvas, show
from minidist.memory.colors import BLUE, DARK, RED


def draw_errors(ranks: Sequence[int], errors: Mapping[str, Sequence[float]]) -> None:
    """Errors of quantized sums over the number of ranks, a line for each way to sum."""
    fig, [[axes]] = canvas(6.4, 3.2)
    for color, (name, values) in zip((BLUE, RED), errors.items(), strict=True):
        axes.plot(ranks, values, color=color, marker="o", linewidth=1.2)
        axes.annotate(name, (ranks[-1], values[-1]), (6, -3), textcoords="offset points", color=DARK, fontsize=9)
    axes.set(
        xscale="log", yscale="log", xlabel="ranks", ylabel="error of the mean", xlim=(ranks[0] * 0.9, ranks[-1] * 3)
    )
    axes.set_xticks(ranks, [str(n) for n in ranks], minor=False)
    axes.set_yticks((0.02, 0.04, 0.08), ("0.02", "0.04", "0.08"))
    axes.minorticks_off()
    fig.tight_layout()
    words = "; ".join(f"{name}: {', '.join(f'{value:.2g}' for value in of)}" for name, of in errors.items())
    show(fig, f"The error of a mean in int4 (counted) on {', '.join(map(str, ranks))} ranks. {words}.")


def draw_sweep(losses: Mapping[int, float], sent: Mapping[int, int]) -> None:
    """The loss over what a rank sends, a point for each H."""
    fig, [[axes]] = canvas(6.4, 3.2)
    axes.scatter([sent[every] / 1e6 for every in losses], [*losses.values()], color=BLUE)
    for every, loss in losses.items():
        axes.annotate(f"H = {every}", (sent[every] / 1e6, loss), (6, 4), textcoords="offset points", color=DARK)
    axes.set(xscale="log", xlabel="sent by a rank in all steps, MB", ylabel="validation loss")
    axes.set_xticks((0.2, 0.5, 1, 2, 5, 10), ("0.2", "0.5", "1", "2", "5", "10"))
    axes.minorticks_off()
    axes.margins(x=0.15, y=0.15)
    fig.tight_layout()
    words = ", ".join(f"H = {every}: {sent[every] / 1e6:.2f} MB, loss {loss:.2f}" for every, loss in losses.items())
    show(fig, f"Validation loss of local SGD over the bytes that a rank sends in all steps (counted). {words}.")

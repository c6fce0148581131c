"""Matplotlib's backend on the ranks of a notebook's cell. It draws into files (`savefig`), but has no screen."""

import sys
from typing import Any, NoReturn

from minidist import Stopped

INSTEAD = "Ranks have no screen: bring the numbers back with --out, and draw them in a cell without %%mpirun."


def __getattr__(name: str) -> Any:
    """FigureCanvas, made when Matplotlib asks for it: without Matplotlib, this module can still be imported."""
    if name != "FigureCanvas":
        raise AttributeError(name)
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    class FigureCanvas(FigureCanvasAgg):
        saved = False

        def print_figure(self, *args: Any, **kwargs: Any) -> Any:
            self.saved = True
            return super().print_figure(*args, **kwargs)

    globals()[name] = FigureCanvas
    return FigureCanvas


def show(*_: Any, **__: Any) -> NoReturn:
    """Make `plt.show()` stop the cell, because ranks have no screen."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").startswith("matplotlib"):
        frame = frame.f_back
    place = f"{frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.f_lineno}"
    raise Stopped(f"plt.show() was called at {place}. {INSTEAD}")


def mention_unseen() -> None:
    """Print a line if a drawing was not saved: a notebook would show it, but here it is lost."""
    from matplotlib import pyplot

    if any(not pyplot.figure(number).canvas.saved for number in pyplot.get_fignums()):  # type: ignore[attr-defined]
        print(f"A picture was drawn that nobody sees. {INSTEAD}", file=sys.stderr)

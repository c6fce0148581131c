"""Matplotlib's backend on the ranks of a notebook's cell. It draws into files (`savefig`), and has nowhere to show."""

import sys
from typing import Any, NoReturn

from matplotlib.backends.backend_agg import FigureCanvasAgg as FigureCanvas

from minidist import Stopped

__all__ = ["FigureCanvas", "show"]


def show(*_: Any, **__: Any) -> NoReturn:
    """What `plt.show()` comes to."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").startswith("matplotlib"):
        frame = frame.f_back
    where = f"{frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.f_lineno}"
    raise Stopped(
        f"plt.show() was called at {where}. Ranks have no screen:"
        " bring the numbers back with --out, and draw them in a cell without %%mpirun."
    )

"""Checkpoints (`checkpoint.py`): which elements lie where, and files that are whole or absent.

What runs use of this room is loaded when they use it: most neither save nor load.
"""

from typing import TYPE_CHECKING

from minidist import loaded_later

if TYPE_CHECKING:
    from minidist.checkpoints.checkpoint import export, load, opened, save, size, weights  # noqa: F401
    from minidist.checkpoints.checks import check, check_folder, check_run, differences  # noqa: F401
    from minidist.checkpoints.convert import check_beside  # noqa: F401

CHECKS = "check", "check_beside", "check_folder", "check_run", "differences"
FILES = "export", "load", "opened", "save", "size", "weights"
__getattr__ = loaded_later(__name__, **dict.fromkeys(CHECKS + FILES, "checkpoint"))

"""What IPython knows of `%%mpirun` before `%load_ext minidist`: that it is missing, and what to do.

`make lessons` lets every IPython of its environment load this when it starts (see etc/ipython in the Makefile).
Otherwise IPython would, after a restart of the kernel, only say that `%%mpirun` is not found.
"""

import re
from typing import Any

from IPython.core.error import UsageError

MAGIC = re.compile(r"%%mpirun\b")


def load_ipython_extension(shell: Any) -> None:
    shell.register_magic_function(say_what_to_do, "cell", "mpirun")
    allow_comments_above(shell)


def say_what_to_do(line: str, cell: str) -> None:
    raise UsageError(
        "%%mpirun is not loaded: this kernel has just started, and knows nothing of the cells that ran before. Run"
        " %load_ext minidist first, or all cells from the top."
    )


def allow_comments_above(shell: Any) -> None:
    """Let comments and empty lines stand above `%%mpirun`, which IPython looks for only in a cell's first line."""
    if comments_below_magic not in shell.input_transformers_cleanup:
        shell.input_transformers_cleanup.append(comments_below_magic)


def comments_below_magic(lines: list[str]) -> list[str]:
    """A cell's lines, with those above `%%mpirun` moved below it: all lines after it keep their numbers."""
    first = next((number for number, line in enumerate(lines) if line.strip() and not line.lstrip().startswith("#")), 0)
    if not MAGIC.match(lines[first] if lines else ""):
        return lines
    return [lines[first], *lines[:first], *lines[first + 1 :]]

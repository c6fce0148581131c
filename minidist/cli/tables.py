"""Tables on the screen, 80 columns wide if the terminal's width is unknown."""

import textwrap
from collections.abc import Sequence
from typing import Any

from minidist.mpi.output import as_shown


def print_table(title: str, left: str, right: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table of texts: the first column left-aligned, the others right-aligned."""
    print()
    table = make_table((left,), right)
    for row in rows:
        table.add_row(*row)
    show(title, table)


def make_table(left: Sequence[str], right: Sequence[str], narrow: bool = False) -> Any:
    """An empty rich table, its first columns left-aligned and the others right-aligned. narrow: one space apart."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0 if narrow else 1, 0, 0), show_edge=False, pad_edge=False)
    for heading in left:
        table.add_column(heading, overflow="fold")
    for heading in right:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def make_console(**options: Any) -> Any:
    """rich's Console, on which a reader who has left (head, less) is a BrokenPipeError, as everywhere: rich alone would
    end the process, and with it all ranks."""
    from rich.console import Console

    class Ours(Console):
        def on_broken_pipe(self) -> None:
            raise

    return Ours(**options)


def show(title: str, table: Any) -> None:
    """Print a rich table under its title, 80 columns wide if the terminal's width is unknown."""
    for column in table.columns:
        column.header = as_shown(column.header)
        column._cells = [as_shown(cell) for cell in column._cells]
    console = make_console()
    console.print(title, style="bold", markup=False, highlight=False)
    console.print()
    console.print(table)
    console.print()


def mark(holds: bool) -> str:
    """The mark at the end of a row."""
    return "[green]✓[/]" if holds else "[bold red]✗[/]"


def say(text: str) -> None:
    """Print sentences in lines of 80 columns."""
    print(textwrap.fill(text, 80, break_long_words=False, break_on_hyphens=False))


def number(value: float) -> str:
    """A number with commas between thousands: 1,234,567."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.3f}"

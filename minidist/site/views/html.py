"""Pieces of HTML that several views have."""

from collections.abc import Sequence
from html import escape


def refused(reason: str) -> str:
    """Why there is nothing to show, in a line."""
    return f'<p class="refused">{escape(reason)}</p>'


def table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]], name: str = "") -> str:
    """A table; its cells are HTML. name: of the table, for style."""
    top = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    caption = f"<caption>{caption}</caption>" if caption else ""
    return (
        f'<div class="wide" tabindex="0"><table class="figures {name}">{caption}<thead><tr>{top}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )

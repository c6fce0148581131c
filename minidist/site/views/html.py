"""Pieces of HTML that several views have."""

import re
from collections.abc import Mapping, Sequence
from html import escape


def refused(reason: str) -> str:
    """Why there is nothing to show, in a line."""
    return f'<p class="refused">{escape(reason)}</p>'


def in_words_of_form(said: str, labels: Mapping[str, str]) -> str:
    """What is wrong with a command's options, as a page's form calls them. labels: of the fields, by their options."""
    said = said.removesuffix(" (--help lists the options)").removeprefix("argument ")
    said = said.replace("another -", "another value of -")
    return re.sub(r"(?<!\w)--?([a-z-]+)", lambda found: f"“{labels.get(found[1], found[1])}”", said)


def first(made: str) -> str:
    """What a page shows above its form."""
    return f'<div class="first">{made}</div>'


def chip(color: str) -> str:
    """A square of a color, before the name of what has that color."""
    return f'<span class="chip" style="background:{color}"></span>'


def table(
    caption: str, head: Sequence[str], rows: Sequence[Sequence[str]], name: str = "", titled: bool = False
) -> str:
    """A table; its cells are HTML. name: of the table, for style; titled: the first cell of a row is its title."""
    top = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    first = '<th scope="row">{}</th>' if titled else "<td>{}</td>"
    body = "".join(
        "<tr>" + first.format(title) + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for title, *row in rows
    )
    caption = f"<caption>{caption}</caption>" if caption else ""
    return (
        f'<div class="wide" tabindex="0"><table class="figures {name}">{caption}<thead><tr>{top}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def button(words: str, field: str, text: str, disabled: bool = False) -> str:
    """A button that puts a text into a field of the page's form. Its first word names it."""
    name, state = words.split()[0].lower(), ' aria-disabled="true"' * disabled  # it keeps the focus
    return (
        f'<button type="button" id="to-{name}" data-fills="{field}" data-text="{escape(text)}"{state}>'
        f"{escape(words)}</button>"
    )

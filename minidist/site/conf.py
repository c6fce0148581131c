"""How Sphinx makes pages from the sources that `build.py` has laid out.

Sphinx with MyST-NB, because the lessons are notebooks with outputs, and because its pages need no server and no
JavaScript to be read. Formulas become MathML here: browsers draw it themselves, and nothing is fetched.
"""

import html
from typing import Any

from latex2mathml.converter import convert

import minidist

project, copyright, release = "minidist", "", minidist.__version__
extensions = ["myst_nb"]
html_theme = "furo"
html_title = "minidist"
html_static_path = ["static"]
html_css_files = ["style.css"]
html_favicon = "static/icon.svg"
templates_path = ["templates"]
html_show_copyright = html_show_sphinx = html_copy_source = html_show_sourcelink = html_use_index = False
html_theme_options: dict[str, Any] = {"top_of_page_buttons": []}
myst_enable_extensions = ["dollarmath", "attrs_inline"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # outputs are those that lessons/ keeps
html_math_renderer = "mathml"
pygments_style, pygments_dark_style = "a11y-high-contrast-light", "a11y-high-contrast-dark"
suppress_warnings = ["myst.header", "mystnb.unknown_mime_type", "misc.highlighting_failure"]


def _inline(page: Any, node: Any) -> None:
    page.body.append(_mathml(node.astext(), "inline"))
    raise _skip()


def _block(page: Any, node: Any) -> None:
    page.body.append(f'<div class="formula" tabindex="0">{_mathml(node.astext(), "block")}</div>')
    raise _skip()


def _mathml(tex: str, display: str) -> str:
    return convert(tex, display=display).replace("<math ", f'<math aria-label="{html.escape(tex)}" ', 1)


def _skip() -> Exception:
    from docutils.nodes import SkipNode

    return SkipNode()


def _reach_by_keyboard(app: Any, page: str, template: str, context: dict[str, Any], document: Any) -> None:
    """Code and pictures that are wider than the window scroll; a reader without a mouse must be able to reach them."""
    made = context.get("body", "").replace("<pre>", '<pre tabindex="0">')
    context["body"] = made.replace("<p><img ", '<p class="wide" tabindex="0"><img ')


def _lead_to_the_code(app: Any, page: str, template: str, context: dict[str, Any], document: Any) -> None:
    """Each page leads to the file that it is made from, if the project has an address."""
    from minidist.site.sources import file_of

    edited = f"{minidist.ADDRESS}/edit/main/{file_of(page)}" if minidist.ADDRESS and file_of(page) else ""
    context |= {"edited": edited, "address": minidist.ADDRESS, "version": minidist.__version__}


def _leave_out_styles(app: Any, page: str, template: str, context: dict[str, Any], document: Any) -> None:
    """Leave out styles without effect: MyST-NB's 43 KB on pages without a notebook."""
    if not page.endswith("/lesson"):
        context["css_files"] = [file for file in context["css_files"] if "mystnb" not in str(file.filename)]


def _search_prose_alone(app: Any, document: Any) -> None:
    """Keep code out of the search index: its words would be most of what a reader loads to search."""
    from docutils.nodes import literal_block

    for block in document.findall(literal_block):
        block["classes"].append("no-search")


def setup(app: Any) -> None:
    app.connect("html-page-context", _reach_by_keyboard)
    app.connect("html-page-context", _leave_out_styles)
    app.connect("html-page-context", _lead_to_the_code)
    app.connect("doctree-read", _search_prose_alone)
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))

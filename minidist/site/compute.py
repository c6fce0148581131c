"""What the pages that compute show. The same functions draw a page's first view when the site is built, and every other
view in the reader's browser (Pyodide): so they need nothing but the standard library.

A view is HTML. It is a function of the page's settings: texts, as its form and its address have them.
"""

import json
from collections.abc import Callable

from minidist.site.views.memory import view_memory
from minidist.site.views.plan import view_plan
from minidist.site.views.schedules import view_schedules

VIEWS: dict[str, Callable[[dict[str, str]], str]] = {
    "memory": view_memory,
    "schedules": view_schedules,
    "plan": view_plan,
}


def answer(page: str, settings: str) -> str:
    """A page's view. settings: in JSON, as the page's worker sends them."""
    return VIEWS[page](json.loads(settings))

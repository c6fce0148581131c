"""The views of the pages that compute. The same functions draw a page's first view when the site is built, and all
other views in the reader's browser (Pyodide). So they need only the standard library.

A view is HTML. It is a function of the page's settings, which are texts, as in the page's form and address.
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

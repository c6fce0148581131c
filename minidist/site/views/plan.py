"""The planner's table."""

import shlex
from collections.abc import Mapping
from functools import lru_cache
from html import escape

from minidist import UsageError
from minidist.cli.fields import parse
from minidist.plan import command, show
from minidist.plan.choice import Wanted
from minidist.plan.headline import headline
from minidist.plan.one_row import why_first
from minidist.plan.search import SearchResult, best_chunks, search
from minidist.plan.time import Cluster
from minidist.site.views.html import first, in_words_of_form, refused, table

LABELS = {  # what the page's form calls the planner's options
    "ranks-per-host": "devices of a host",
    "ranks": "devices",
    "device-memory": "memory of a device",
    "batch": "tokens of a step",
    "context": "tokens of a sequence",
    "rows": "rows of the table",
    "scheme": "scheme of context ranks",
    "flops": "operations a second of a device",
    "within": "bandwidth inside a host",
    "across": "bandwidth to other hosts",
}


def view_plan(settings: Mapping[str, str]) -> str:
    """A sentence about the fastest row; rows that fit, the fastest first, and how many do not, by reason; or what is
    wrong with the settings, which are the planner's options."""
    said = [(f"--{name}", value.replace(",", "")) for name, value in settings.items() if value]  # 1,024 is 1024
    shown = " ".join(f'<span class="option">{escape(shlex.join(option))}</span>' for option in said)
    told = f'<p><code class="command">python -m minidist plan {shown}</code></p>'
    try:
        options = parse(command.parser(), [word for option in said for word in option]).of(command.PlanOptions)
        wanted, cluster = command.wanted_of(options), command.cluster_of(options)
        found = search_once(wanted, cluster)
        if not found.rows:
            raise UsageError(command.why_none(found))
    except UsageError as error:
        return told + refused(in_words_of_form(str(error), LABELS))
    fit, best = len(found.rows), best_chunks(found.rows)
    rows = [show.line(i, row, wanted, options.tokens).split() for i, row in enumerate(best[: options.rows], start=1)]
    head = show.HEAD.split() + ["days"] * bool(options.tokens)
    notes = [*why_first(best), show.LEGEND, show.assumed(wanted.profile, cluster), show.ASSUMED]
    left = [[f"{count:,}", escape(reason)] for reason, count in found.left_out.most_common()]
    return "\n".join([
        first(f"<p><strong>{escape(headline(best))}</strong></p>"),
        told,
        table("", head, rows, "plan"),
        f"<p>{fit + sum(found.left_out.values()):,} layouts are possible; {fit:,} fit.</p>",
        table("Layouts left out, by reason", ("layouts", "reason"), left, "left") if left else "",
        f"<p>{escape(' '.join(notes))}</p>",
    ])  # fmt: skip


@lru_cache(maxsize=2)
def search_once(wanted: Wanted, cluster: Cluster) -> SearchResult:
    """The search takes most of a view's time, and the number of rows that are shown does not change what it finds."""
    return search(wanted, cluster)

"""What the fullest rank holds, and what it sends: the formulas of `minidist/plan/`."""

from collections.abc import Mapping, Sequence
from html import escape

from minidist import UsageError
from minidist.formulas.profile import PROFILES
from minidist.memory.colors import QUANTITIES
from minidist.plan import command
from minidist.plan.choice import Choice, Wanted, ask
from minidist.plan.memory import Held, held
from minidist.plan.search import why_not
from minidist.plan.show import GB, SYMBOLS, Words, assumed, memory_words, sent_along, system_words
from minidist.plan.time import Cluster
from minidist.site.views.html import chip, refused, table

COLORS = {
    **{**QUANTITIES, "passing": QUANTITIES["gathered"], "stand_ins": QUANTITIES["bucket"]},
    **{"workspaces": QUANTITIES["workspace"], "transient": QUANTITIES["persistent"]},
}
SCALE = 99.5  # percent of the width for the longest bar, or the capacity
ROW, HIGH, TOP = 60, 28, 38  # pixels: of a stage, of its bar, and above the first one


def view_memory(settings: Mapping[str, str]) -> str:
    """A bar for each kind of stage, every part with its formula, and a step's traffic; or why it cannot be."""
    try:
        wanted, choice = asked_for(settings)
    except UsageError as error:
        return refused(str(error).removeprefix("--"))
    per_host, capacity = int(settings["per_host"]), float(settings["capacity"])
    reserving = Cluster(choice.ranks, int(capacity * GB), reserve=int(wanted.profile.reserve * capacity * GB))
    if reason := why_not(wanted, choice):
        return refused(reason)
    asked = ask(wanted, choice)
    ranks = dict(zip(asked.stages, held(asked), strict=True))
    fullest = max(ranks.values(), key=lambda rank: rank.total)
    words = memory_words(wanted, choice) | system_words(wanted, fullest)
    return "\n".join([
        summary(wanted, choice, fullest, capacity),
        draw_bars(ranks, capacity, [*words]),
        memory_table(fullest, words),
        traffic_table(wanted, choice, per_host),
        f"<p>{escape(assumed(wanted.profile, reserving))} {escape(SYMBOLS)}</p>",
    ])  # fmt: skip


def asked_for(settings: Mapping[str, str]) -> tuple[Wanted, Choice]:
    """Raises UsageError for a model that has fewer positions than that."""
    names = ("dp", "tp", "cp", "pp", "zero", "rows", "m", "v", "context")
    dp, tp, cp, pp, zero, rows, m, v, context = (int(settings[name]) for name in names)
    name, model = command.shape_of(command.PlanOptions(model=settings["model"], context=context))
    schedule = "interleaved" if v > 1 else "1f1b"
    choice = Choice(dp, tp, cp, pp, 1, schedule, v, zero, recompute=settings["recompute"], rows=rows)
    return Wanted(name, model, dp * rows * m, context, profile=PROFILES[settings["profile"]]), choice


def summary(wanted: Wanted, choice: Choice, fullest: Held, capacity: float) -> str:
    """In a line: does it fit? A part of a device is left free for what formulas do not count."""
    most, reserve = fullest.total / GB, wanted.profile.reserve * capacity
    free = f", of which {reserve:g} are left for the allocator and libraries" * bool(reserve)
    fits = "it fits" if most <= capacity - reserve else "<strong>it does not fit</strong>"
    return (
        f"<p>{escape(wanted.name)}, Ψ = {wanted.model.parameters():,}, on {choice.ranks:,} ranks; {wanted.batch:,}"
        f" sequences of {wanted.context:,} tokens in a step. The fullest rank holds"
        f" <strong>{most:,.3f} GB</strong> at a time, of {capacity:g} GB{free}: {fits}.</p>"
    )


def draw_bars(ranks: Mapping[int, Held], capacity: float, kinds: Sequence[str]) -> str:
    """For each stage that is asked about, what its ranks hold of each kind, one after another, and below a line as long
    as what they hold at a time. A vertical line is the capacity. Widths are percents: a phone shows it."""
    longest = max(capacity, *(sum(getattr(rank, kind) for kind in kinds) / GB for rank in ranks.values()))
    height, at = TOP + ROW * len(ranks), capacity / longest * SCALE
    shown = [f'<rect x="{at:.2f}%" y="{TOP - 4}" width="2" height="{height - TOP}" class="limit"/>']

    def bar(x: float, y: float, width: float, high: int, fill: str, told: str = "") -> str:
        numbers = f'x="{x:.2f}%" y="{y:g}" width="{width:.2f}%" height="{high}"'
        return f"<rect {numbers} {fill}><title>{told}</title></rect>"

    for row, (stage, rank) in enumerate(ranks.items()):
        x, y = 0.0, TOP + row * ROW
        shown.append(f'<text x="0" y="{y - 5}">stage {stage}: {rank.total / GB:,.3f} GB</text>')
        for kind in kinds:
            nbytes = getattr(rank, kind)
            width = nbytes / GB / longest * SCALE
            shown.append(bar(x, y, width, HIGH, f'fill="{COLORS[kind]}"', f"{kind}: {nbytes / GB:,.3f} GB"))
            x += width
        shown.append(bar(0, y + HIGH + 2, rank.total / GB / longest * SCALE, 4, 'class="line"', "at a time"))
    anchor = "end" if at > 50 else "start"
    shown.append(f'<text x="{at:.2f}%" y="12" text-anchor="{anchor}">capacity {capacity:g} GB</text>')
    told = "; ".join(f"stage {stage}: {rank.total / GB:,.3f} GB" for stage, rank in ranks.items())
    others = " No other stage holds more than these." * (max(ranks) > len(ranks))
    return (
        f'<figure><svg height="{height}" style="height: {height}px" role="img" aria-label="{told}">'
        f"{''.join(shown)}</svg><figcaption>A bar stacks the kinds: with the profile megatron at the fullest moment,"
        f" with paper the peak of each. Peaks come at different moments; the thin line is the true peak.{others}"
        "</figcaption></figure>"
    )


def memory_table(fullest: Held, words: Mapping[str, Words]) -> str:
    rows = [
        [chip(COLORS[kind]) + escape(one.what), escape(one.formula), f"{nbytes / GB:,.3f}", escape(one.source)]
        for kind, one in words.items()
        if (nbytes := getattr(fullest, kind))
    ]
    rows.append(["most at a time", "", f"{fullest.total / GB:,.3f}", ""])
    return table("The fullest rank's memory", ("what", "formula", "GB", "source"), rows, "held")


def traffic_table(wanted: Wanted, choice: Choice, per_host: int) -> str:
    rows: Sequence[Sequence[str]] = [
        [escape(words.what), escape(words.formula), f"{near / GB:,.3f}", f"{away / GB:,.3f}", escape(words.source)]
        for words, near, away in sent_along(choice, wanted, per_host)
    ]
    head = ("axis", "formula", "GB in its host", "GB to others", "source")
    return table("What the busiest rank sends in a step", head, rows, "sent") if rows else "<p>It sends nothing.</p>"

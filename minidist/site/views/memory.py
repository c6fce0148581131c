"""What the fullest rank holds, and what it sends: the formulas of `minidist/plan/`."""

from collections.abc import Mapping, Sequence
from html import escape

from minidist import UsageError
from minidist.cli.models import MODELS
from minidist.formulas.profile import PROFILES
from minidist.memory.colors import QUANTITIES
from minidist.plan import command
from minidist.plan.choice import Choice, Wanted, ask
from minidist.plan.memory import Held, held
from minidist.plan.search import why_not
from minidist.plan.show import GB, SYMBOLS, Words, assumed, memory_words, sent_along, system_words
from minidist.plan.time import Cluster
from minidist.site.views.html import chip, first, in_words_of_form, refused, table

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
        return refused(in_words_of_form(str(error), {"context": "tokens of a sequence s"}))
    per_host, capacity = int(settings["per_host"]), float(settings["capacity"])
    reserving = Cluster(choice.ranks, int(capacity * GB), reserve=int(wanted.profile.reserve * capacity * GB))
    if reason := why_not(wanted, choice):
        return refused(reason)
    asked = ask(wanted, choice)
    ranks = dict(zip(asked.stages, held(asked), strict=True))
    fullest = max(ranks.values(), key=lambda rank: rank.total)
    words = memory_words(wanted, choice) | system_words(wanted, fullest)
    bars = {f"stage {stage - 1}": rank for stage, rank in ranks.items()}
    others = " No other stage holds more than these." * (max(ranks) > len(ranks))
    picture = draw_bars(bars, capacity, PEAKS + others, [*words]) + legend(fullest, words)
    return "\n".join([
        first(summary(wanted, choice, fullest, capacity) + picture),
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
    free = f", {reserve:g} of it left for the allocator and libraries" * bool(reserve)
    fits = "it fits" if most <= capacity - reserve else "<strong>it does not fit</strong>"
    return (
        f"<p>{escape(wanted.name)}, Ψ = {wanted.model.parameters():,}, on {choice.ranks:,} ranks; {wanted.batch:,}"
        f" sequences of {wanted.context:,} tokens in a step. The fullest rank holds"
        f" <strong>{most:,.3f} GB</strong> at its peak, of {capacity:g} GB{free}: {fits}.</p>"
    )


PEAKS = (
    "A bar stacks the kinds: with the profile megatron at the fullest moment, with paper the peak of each. Peaks come"
    " at different moments; the thin line is the true peak."
)


def draw_bars(ranks: Mapping[str, Held], capacity: float, caption: str, kinds: Sequence[str], chosen: str = "") -> str:
    """A bar for each rank, by its title: these kinds, one after another, and below them a line as long as the true
    peak. A vertical line is the capacity. Widths are percents: a phone shows it. chosen: others are pale."""
    longest = max(capacity, *(sum(getattr(rank, kind) for kind in kinds) / GB for rank in ranks.values()))
    height, at = TOP + ROW * (len(ranks) - 1) + HIGH + 8, capacity / longest * SCALE
    shown = [f'<rect x="{at:.2f}%" y="{TOP - 4}" width="2" height="{height - TOP}" class="limit"/>']

    def bar(x: float, y: float, width: float, high: int, fill: str, told: str = "") -> str:
        numbers = f'x="{x:.2f}%" y="{y:g}" width="{width:.2f}%" height="{high}"'
        return f"<rect {numbers} {fill}><title>{told}</title></rect>"

    for row, (title, rank) in enumerate(ranks.items()):
        x, y = 0.0, TOP + row * ROW
        shown.append(f'<text x="0" y="{y - 5}">{escape(title)}: {rank.total / GB:,.3f} GB</text>')
        shown.append("<g>" if chosen in ("", title) else '<g class="pale">')
        for kind in kinds:
            nbytes = getattr(rank, kind)
            width = nbytes / GB / longest * SCALE
            shown.append(bar(x, y, width, HIGH, f'fill="{COLORS[kind]}"', f"{kind}: {nbytes / GB:,.3f} GB"))
            x += width
        shown.append(bar(0, y + HIGH + 2, rank.total / GB / longest * SCALE, 4, 'class="line"', "true peak") + "</g>")
    anchor = "end" if at > 50 else "start"
    shown.append(f'<text x="{at:.2f}%" y="12" text-anchor="{anchor}">capacity {capacity:g} GB</text>')
    told = escape("; ".join(f"{title}: {rank.total / GB:,.3f} GB" for title, rank in ranks.items()))
    return (
        f'<figure><svg height="{height}" style="height: {height}px" role="img" aria-label="{told}">'
        f"{''.join(shown)}</svg>" + f"<figcaption>{caption}</figcaption>" * bool(caption) + "</figure>"
    )


def legend(rank: Held, words: Mapping[str, Words]) -> str:
    """The colors of what a rank holds, with its GB."""
    parts = [
        f"<span>{chip(COLORS[kind])}{escape(one.what)} {getattr(rank, kind) / GB:,.1f}</span>"
        for kind, one in words.items()
        if getattr(rank, kind)
    ]
    return f'<p class="legend">In GB: {" ".join(parts)}</p>'


def memory_table(fullest: Held, words: Mapping[str, Words]) -> str:
    rows = [
        [chip(COLORS[kind]) + escape(one.what), escape(one.formula), f"{nbytes / GB:,.3f}", escape(one.source)]
        for kind, one in words.items()
        if (nbytes := getattr(fullest, kind))
    ]
    rows.append(["peak", "", f"{fullest.total / GB:,.3f}", ""])
    return table("The fullest rank's memory", ("what", "formula", "GB", "source"), rows, "held")


def traffic_table(wanted: Wanted, choice: Choice, per_host: int) -> str:
    rows: Sequence[Sequence[str]] = [
        [escape(words.what), escape(words.formula), f"{near / GB:,.3f}", f"{away / GB:,.3f}", escape(words.source)]
        for words, near, away in sent_along(choice, wanted, per_host)
    ]
    head = ("axis", "formula", "GB in its host", "GB to others", "source")
    return table("What the busiest rank sends in a step", head, rows, "sent") if rows else "<p>It sends nothing.</p>"


# ---- the home page ---------------------------------------------------------------------------------------------------

LADDER = (
    "Data parallelism: everything replicated",
    "ZeRO-1: optimizer states sharded",
    "ZeRO-2: gradients sharded, too",
    "ZeRO-3: parameters sharded, too",
)


def view_ladder(settings: Mapping[str, str]) -> str:
    """ZeRO's four stages, one bar each, as the memory page draws them: one of them chosen, with its sentence. It needs
    a model, a number of data ranks, a stage, and the longest sequence."""
    name, n, stage = settings["model"], int(settings["dp"]), int(settings["zero"])
    capacity = float(settings["capacity"])
    s = min(int(settings["context"]), MODELS[name].s)
    _, model = command.shape_of(command.PlanOptions(model=name, context=s))
    wanted = Wanted(name, model, n, s)
    choices = [Choice(dp=n, zero=of if n > 1 else 0, recompute="selective") for of in range(len(LADDER))]
    ranks = [max(held(ask(wanted, choice)), key=lambda rank: rank.total) for choice in choices]
    sent = [sum(near + away for _, near, away in sent_along(choice, wanted, n)) for choice in choices]
    own, all_states, most = ranks[stage].states / GB, ranks[0].states / GB, ranks[stage].total / GB
    fits = "it fits" if most <= capacity else "<strong>it does not fit</strong>"
    shards = f"{LADDER[stage].partition(':')[0]} shards them over" if stage and n > 1 else "They are replicated on"
    part_of = f" of these {all_states:,.1f} GB" * (own < all_states)
    times = f"{sent[stage] / sent[0]:.3g} times as much as" if sent[stage] > 1.01 * sent[0] else "no more than"
    traffic = f", and sends {times} data parallelism" * (n > 1 and stage > 0)
    words = memory_words(wanted, choices[stage])
    return (
        draw_bars(dict(zip(LADDER, ranks, strict=True)), capacity, "", [*words], LADDER[stage])
        + legend(ranks[stage], words)
        + f"<p>Training a model of Ψ parameters, here {model.parameters():,}, stores 16Ψ bytes of model states: 2Ψ for"
        f" parameters, 2Ψ for gradients, 12Ψ for the optimizer. {shards} N = {n:,} ranks, each a copy of the program on"
        f" a device of its own: a rank holds <strong>{own:,.1f} GB</strong>{part_of}{traffic}. With the activations of"
        f" {s:,} tokens its peak is <strong>{most:,.1f} GB</strong>, of {capacity:g} GB: {fits}.</p>"
    )

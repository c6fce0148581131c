"""A plan in one sentence: the fastest layout, and why the next one is slower."""

from collections.abc import Sequence

from minidist.plan.choice import Choice
from minidist.plan.show import count
from minidist.plan.ties import Row, is_faster

SPENT = {  # what a step's time goes to, by its name in `Seconds`
    "work": "its slowest stage",
    "again": "recomputation",
    "bubble": "idle stages",
    "tensor": "waiting for tensor messages",
    "context": "waiting for keys and values",
    "experts": "waiting for tokens of experts",
    "pipeline": "waiting for messages between stages",
    "data": "waiting for parameters and gradients",
}
LITTLE = 0.5  # percent of a step that need no word


def headline(rows: Sequence[Row]) -> str:
    """rows: the fastest first, at least one."""
    best = rows[0]
    told = f"Fastest: {axes_in_words(best.choice)}, {kind_in_words(best.choice)}: {count(best.tokens)} tokens a second"
    other = next((row for row in rows if row.choice.axes != best.choice.axes), None)
    if other is None:
        return f"{told}. No other layout fits."
    where = axes_in_words(other.choice)
    if not is_faster(best, other):
        return f"{told}, because {where}, which are as fast, send more, or need a higher stage of ZeRO."
    own, its, step = best.seconds._asdict(), other.seconds._asdict(), best.seconds.step
    more = {name: 100 * (its[name] - own[name]) / step for name in SPENT if its.get(name, 0) > own.get(name, 0)}
    most = sorted(more, key=lambda name: -more[name])[:2]
    why = " and ".join(
        f"{more[name]:.1f} % more on {SPENT[name]}" for name in most if more[name] >= LITTLE or name == most[0]
    )
    return f"{told}, because the next one, {where}, spends {why}."


def axes_in_words(at: Choice) -> str:
    """32 data × 2 tensor ranks × 4 stages."""
    kinds = [(at.dp, "data"), (at.tp, "tensor"), (at.cp, "context")]
    ranks = " × ".join(f"{n} {kind}" for n, kind in kinds if n > 1)
    parts = [f"{ranks} ranks"] * bool(ranks) + [f"{at.pp} stages"] * (at.pp > 1)
    return (" × ".join(parts) or "one rank") + f" with {at.ep} ranks of experts" * (at.ep > 1)


def kind_in_words(at: Choice) -> str:
    """ZeRO-3, attention's core recomputed."""
    again = {"none": "nothing", "selective": "attention's core"}.get(at.recompute, "all")
    zero = f"ZeRO-{at.zero}" if at.zero else "without ZeRO"
    return f"{zero}, {again} recomputed"

"""A collective, step by step: what each rank holds, what it sends next, and its bytes so far. Drawn from a trace."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from minidist.site.recording import Item
from minidist.site.views.html import chip, table


def draw_steps(title: str, text: str, trace: Mapping[str, Any], colors: Sequence[str]) -> Iterator[str]:
    """A view for the start and for each step. trace: `messages` by step, what each rank has `held`,
    and where a `bar` divides that."""
    messages, ranks = trace["messages"], range(len(trace["held"]))
    for step in range(len(messages) + 1):
        arrived = messages[step - 1] if step else []
        ahead = messages[step] if step < len(messages) else []
        done = [message for earlier in messages[:step] for message in earlier]
        rows = [
            [
                chip(colors[rank]) + f"rank {rank}",
                draw_held(
                    trace["held"][rank][step], [item for m in arrived if m[1] == rank for item in m[2]], trace["bar"]
                ),
                " ".join(f"{draw_cells(m[2])} to rank {m[1]}" for m in ahead if m[0] == rank),
                str(sum(nbytes for source, _, _, nbytes in done if source == rank)),
            ]
            for rank in ranks
        ]
        holds = f"holds after step {step} of {len(messages)}" if step else "holds at the start"
        sends = f"sends in step {step + 1}" if ahead else "sends nothing more"
        caption = f"{escape(title)}, on {len(ranks)} ranks"
        yield f"<p>{escape(text)}</p>" + table(
            caption, ("", holds, sends, "bytes sent"), rows, "collective", titled=True
        )


def draw_held(held: Sequence[Item | None], arrived: Sequence[Item], bar: int) -> str:
    """What a rank holds; bar: the number of boxes that stand left of a bar."""
    groups = [held[:bar], held[bar:]] if bar else [held]
    return '<span class="bar"></span>'.join(draw_cells(group, arrived) for group in groups)


def draw_cells(held: Sequence[Item | None], arrived: Sequence[Item] = ()) -> str:
    """A box for each item in its place; a dot where nothing is. What has just arrived, alone or in a sum, is framed."""
    return " ".join(
        draw_cell(*item, any(item[0] == chunk and item[1] & of == of for chunk, of in arrived))
        if item
        else '<span class="cell empty">·</span>'
        for item in held
    )


def draw_cell(chunk: int, of: int, new: bool) -> str:
    """of: the ranks whose parts are in it, as bits."""
    ranks = [str(rank) for rank in ranks_of(of)]
    told = f"chunk {chunk} of rank{'s' * (len(ranks) > 1)} {', '.join(ranks)}" + ", just received" * new
    kind = "cell new" if new else "cell"
    return f'<span class="{kind}" style="background:var(--of-{of})" title="{told}">{chunk}</span>'


def name_colors(masks: set[int], colors: Sequence[str]) -> str:
    """CSS that gives each set of ranks its stripes."""
    stripes = []
    for of in sorted(masks):
        own = [colors[rank] for rank in ranks_of(of)]
        parts = [f"{color} {100 * i / len(own):.4g}% {100 * (i + 1) / len(own):.4g}%" for i, color in enumerate(own)]
        stripes.append(f"--of-{of}:linear-gradient(90deg,{','.join(parts)})")
    return f"<style>#view{{{';'.join(stripes)}}}</style>"


def ranks_of(of: int) -> list[int]:
    return [rank for rank in range(of.bit_length()) if of >> rank & 1]

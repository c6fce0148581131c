"""The papers' own tables, for their own models, by the formulas that a run was checked against."""

import itertools
from collections.abc import Iterable

from minidist.claims.run import Run
from minidist.cli.tables import make_table, number, say, show
from minidist.memory.partition import partitions
from minidist.papers import korthikanti, ptd, zero, zero_offload
from minidist.papers.figure import Figure


def count_agreeing(figures: Iterable[Figure]) -> str:
    """How many of some computed figures come out as printed."""
    agree = [figure.agrees() for figure in figures]
    return f"{sum(agree)} of {len(agree)}"


def say_besides(run: Run) -> None:
    """What rank 0 holds in addition to model states."""
    activations, workspace = run.memory_of("kept")[0], run.memory_of("workspace")[0]
    say(f"Rank 0 also holds activations ({number(activations)}) and fp32 workspace ({number(workspace)}).")


def print_zero_closing(run: Run) -> None:
    """What a run on one rank cannot show, and what else a rank holds."""
    if run.ranks == 1:
        print(f"One rank shards nothing and sends nothing. Use more:\n  mpirun -n 4 python -m minidist.{run.chapter}")
    say_besides(run)


def print_zero_tables() -> None:
    """The paper's table 1 by the formulas that checked the run."""
    table = make_table(left=(), right=("N",))
    for model, stage in itertools.product(zero.TABLE_1, zero.STAGES[1:]):
        table.add_column(f"{model}\n{stage}", justify="right")
    rows = {n: [cell for rows in zero.TABLE_1.values() for cell in rows[n]] for n in zero.TABLE_1["7.5B"]}
    for n, cells in rows.items():
        table.add_row(str(n), *(cell.shown() for cell in cells))
    show("ZeRO's Table 1 by the same formulas: GB of model states on each of N ranks", table)
    print(f"{count_agreeing(itertools.chain(*rows.values()))} cells are as the paper prints them.")
    print(f"Figure 1 (7.5B, N = 64): {' -> '.join(bar.shown() for bar in zero.FIGURE_1)} GB")


def print_zero_table_2() -> None:
    """ZeRO's table 2: the largest model by its states, next to the largest that the authors could train."""
    measured = ("measured,\nbaseline", "measured,\nP_os")
    table = make_table(left=(), right=("MP", "GPUs", "baseline", *zero.STAGES[1:], *measured))
    computed = [figure for figure in zero.TABLE_2 if figure.value is not None]
    for mp in zero.PRINTED_TABLE_2:
        row = [figure for figure in zero.TABLE_2 if figure.cell.startswith(f"MP = {mp},")]
        sizes = [figure.printed if figure.value is None else figure.shown() for figure in row]
        table.add_row(
            str(mp), str(64 * mp), *(f"{size}{figure.unit[0]}" for size, figure in zip(sizes, row, strict=True))
        )
    show("ZeRO's Table 2: parameters of the largest model on GPUs of 32 GB", table)
    print(f"{count_agreeing(computed)} cells by formula are as the paper prints them.")


def print_offload_closing(run: Run) -> None:
    """What else rank 0's device holds, and how long its host took."""
    say_besides(run)
    if "waited ms" in (seen := run.counted[0]):
        took = f"The last update took {seen['update ms']:.1f} ms on rank 0's host, along with a step's passes"
        say(f"{took}, and {seen['waited ms']:.1f} ms were left when they had ended.")


def print_offload_tables() -> None:
    """The paper's table 1, by trying every partition."""
    table = make_table(
        left=("on the CPU",), right=("moved", "left on the GPU", "as printed", "times less", "as printed")
    )
    everything = list(partitions(zero_offload.NODES, zero_offload.EDGES, zero_offload.FWD_BWD))
    cheapest = [each for each in everything if each.moved <= zero_offload.LEAST]
    for partition in sorted(cheapest, key=lambda each: -each.device):
        whole = {"update super": frozenset(zero_offload.SUPER), "g16": frozenset({"g16"})}
        where = tuple(name for name in ("g16", "update super") if whole[name] <= partition.host)
        memory, reduction = zero_offload.TABLE_1[where]
        times = f"{reduction.rounded(16 / partition.device)}x", f"{reduction.printed}x"
        cells = f"{partition.moved}M", f"{partition.device}M", f"{memory.printed}M", *times
        table.add_row(" and ".join(where) or "nothing", *cells)
    show(f"ZeRO-Offload's table 1: of {len(everything)} partitions, all that move 4M bytes at most", table)
    print("g16: fp16 gradients; update super: the fp32 states, the update and the rounding.")
    print("Last row, 4M: the paper's own 8x and its section 3 say 2M.")


def print_activations_tables() -> None:
    """Korthikanti's table 2 for the paper's own models."""
    table = make_table(
        left=("model",),
        right=("a", "h", "b", "tensor\nparallel", "and\nsequence", "and\nselective", "both", "full", "both /\nfirst"),
    )
    for model, (a, h, _, b) in korthikanti.TABLE_3.items():
        kept = [
            korthikanti.layer_activations(2048, b, h, a, 8, sequence, recompute)
            for sequence, recompute in ((False, "none"), (True, "none"), (False, "selective"), (True, "selective"))
        ]
        full = korthikanti.layer_activations(2048, b, h, a, 8, recompute="full")
        cells = [f"{nbytes / 1e6:.0f}" for nbytes in (*kept, full)]
        table.add_row(model, str(a), str(h), str(b), *cells, f"{100 * kept[-1] / kept[0]:.1f}%")
    show("Korthikanti's models, by the same formulas: MB a layer keeps on 8 ranks", table)


def print_ptd() -> None:
    """The models of PTD's table 1, and what a GPU holds of them by the formulas that checked the run."""
    table = make_table(
        left=("model",), right=("h", "l", "t", "p", "W", "GPUs", "unsharded", "t·p", "and\nZeRO-1", "P, eq. 2")
    )
    for h, layers, t, p, gpus, _, _, size, *_ in ptd.TABLE_1:
        psi, w = ptd.parameters(layers, h), gpus // (t * p)
        states = [zero.model_states(psi, 1, 0), zero.model_states(psi / (t * p), 1, 0)]
        gigabytes = [number(round(state.total / 1e9)) for state in [*states, zero.model_states(psi / (t * p), w, 1)]]
        table.add_row(f"{size.printed}B", *map(str, (h, layers, t, p, w, gpus)), *gigabytes, f"{size.shown()}B")
    show("PTD's table 1, by the same formulas: GB of model states on a GPU", table)
    print(f"{count_agreeing(model.size for model in ptd.TABLE_1)} sizes by equation 2 are as the paper prints them.")

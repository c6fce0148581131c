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


def print_zero_closing(run: Run) -> None:
    """What the letters of ZeRO's claims mean, and the paper's table 1 by the formulas that checked the run."""
    psi, padded = run.model.parameters(), run.model.parameters(run.ranks)
    padding = f", {number(padded)} with each unit's padding" * (padded > psi)
    say(f"Ψ: parameters{padding}; N: ranks; ψ: those of one unit of the model, ψ_emb of its embedding.")
    if run.ranks == 1:
        print(f"One rank divides nothing and sends nothing. Use more:\n  mpirun -n 4 python -m minidist.{run.chapter}")
    states = [sum(rank[kind] for kind in ("parameters", "gradients", "optimizer")) for rank in run.memory]
    p, g, k = run.bytes.stored, run.gradient_bytes, run.optimizer_bytes
    undivided = zero.model_states(padded, run.ranks, 0, p, g, k).total
    if states[0] < undivided:
        times = f"{undivided / states[0]:.2f} times as much"
        say(f"Undivided it would be {p + g + k}Ψ = {number(undivided)} on each rank: {times}.")
    activations, workspace = run.memory_of("kept")[0], run.memory_of("workspace")[0]
    say(f"Besides, on rank 0: activations {number(activations)}, fp32 workspace {number(workspace)}.")
    print()
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
    """The letters of ZeRO-Offload's claims, how long its host took, and the paper's table 1, by trying all ways."""
    say(
        "Ψ: parameters, with each unit's padding; N: ranks; ψ: those of one unit, ψ_emb of its embedding; M: Ψ, as the"
        " paper writes it; P: passes, of each unit 1 forward and 2 backward; U: updates, of each 4."
    )
    activations, workspace = run.memory_of("kept")[0], run.memory_of("workspace")[0]
    say(f"Besides, on rank 0's device: activations {number(activations)}, fp32 workspace {number(workspace)}.")
    if "waited ms" in (seen := run.counted[0]):
        took = f"The last update took {seen['update ms']:.1f} ms on rank 0's host, along with a step's passes"
        say(f"{took}, and {seen['waited ms']:.1f} ms were left when they had ended.")
    print()
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


def print_activations_closing(run: Run) -> None:
    """The letters of tensor parallelism's claims, and Korthikanti's table 2 for the paper's own models."""
    print("Elements are those of one micro-batch; l: layers.")
    print("b: sequences of a micro-batch; s: their length; h: width; a: heads;")
    print("v: vocabulary, padded; t: ranks; Ψ: parameters, cut or the same on every rank.\n")
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
        left=("model",),
        right=("h", "l", "t", "p", "W", "GPUs", "undivided", "t·p", "and\nZeRO-1", "P, eq. 2"),
    )
    for h, layers, t, p, gpus, _, _, size, *_ in ptd.TABLE_1:
        psi, w = ptd.parameters(layers, h), gpus // (t * p)
        states = [zero.model_states(psi, 1, 0), zero.model_states(psi / (t * p), 1, 0)]
        gigabytes = [number(round(state.total / 1e9)) for state in [*states, zero.model_states(psi / (t * p), w, 1)]]
        table.add_row(f"{size.printed}B", *map(str, (h, layers, t, p, w, gpus)), *gigabytes, f"{size.shown()}B")
    show("PTD's table 1, by the same formulas: GB of model states on a GPU", table)
    print(f"{count_agreeing(model.size for model in ptd.TABLE_1)} sizes by equation 2 are as the paper prints them.")

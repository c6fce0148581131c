"""What `--types` prints: for each axis what there is of each type, a block's types, and alarms."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from minidist.cli.tables import make_table, print_table, show
from minidist.spmd_types import GRADIENT, SAME
from minidist.ty.forward import look
from minidist.ty.watch import Alarm, Seen, Watch

Row = tuple[str, ...]


def check(driver: Any, job: Any, comm: Any) -> list[Alarm]:
    """One forward with types: on every rank, all ranks' different alarms. All ranks must call this."""
    return gathered(look(driver, job, comm), comm)


def gathered(watch: Watch, comm: Any) -> list[Alarm]:
    everyone = comm.all_gather_object([tuple(alarm) for alarm in watch.alarms])
    return [Alarm(*alarm) for alarm in dict.fromkeys(alarm for of_rank in everyone for alarm in of_rank)]


def report(driver: Any, job: Any, comm: Any) -> int:
    """Run one forward with types and print what was seen; returns the exit status."""
    watch = look(driver, job, comm)
    alarms = gathered(watch, comm)
    if comm.rank == 0 and not job.files.quiet:
        print_types(watch, driver.engine)
        for alarm in alarms:
            print(f"type error      {alarm}")
        axes = " x ".join(f"{axis} {len(ranks)}" for axis, ranks in watch.axes.items()) or f"{comm.size} rank" + "s" * (
            comm.size > 1
        )
        print(f"types           {len(watch.seen)} operations of a forward on {axes}: {len(alarms)} alarms")
    return min(len(alarms), 1)


def print_types(watch: Watch, engine: Any) -> None:
    """Rank 0's tensors and parameters, by axis; and its first block, operation by operation."""
    if not watch.axes:
        return
    print_table("Types of distribution", "axis", HEADINGS, list(axis_rows(watch)))
    for sums in sorted({" and ".join(sorted(sums_of(flat, watch))) for flat in engine.flats} - {""}):
        print(f"along {sums}: {ORIGIN[zero_stage(engine)]}")
    first = next((seen.place for seen in watch.seen if seen.place.startswith("block")), "")
    if first:
        table = make_table(("operation", "reads"), list(watch.axes))
        for row in block_rows(seen for seen in watch.seen if seen.place == first):
            table.add_row(*row)
        show(f"\n{first}: type (gradient's type)", table)


HEADINGS = ("ranks", "tokens", "parameters", "tensors")
ORIGIN = {
    -1: "V, each rank's own copy: parameters are averaged, not gradients",
    0: "R, held by every rank; the gradient, P, is all-reduced",
    2: "R, held by every rank; the gradient, P, is reduce-scattered",
    3: "R from a gather; the gradient, P, is reduce-scattered",
}


def zero_stage(engine: Any) -> int:
    """Which of ORIGIN's sentences is true of an engine's parameters."""
    if not engine.sums_gradients:
        return -1
    kept = {getattr(each, "__name__", "") for each in type(engine).__mro__}
    return 3 if "ZeRO3" in kept else 2 if kept & {"ZeRO1", "ZeRO2"} else 0


def sums_of(flat: Any, watch: Watch) -> set[str]:
    """The axes over which a Flat's gradient is summed."""
    return {axis for comm in (flat.comm, *flat.sum_over.values()) if comm is not None for axis in watch.along(comm)}


def axis_rows(watch: Watch) -> Iterable[Row]:
    for axis, ranks in watch.axes.items():
        parameters = Counter(types[axis] for types in watch.parameters.values())
        tensors = Counter(seen.types[axis] for seen in watch.seen)
        yield axis, str(len(ranks)), watch.entering[axis], counted(parameters), counted(tensors)


def counted(found: Counter[str]) -> str:
    """R 3, V 12."""
    return ", ".join(f"{kind} {n}" for kind, n in sorted(found.items()))


def block_rows(block: Iterable[Seen]) -> Iterable[Row]:
    for seen in block:
        reads = ", ".join(name.partition(".")[2] for name in seen.parameters)
        yield seen.operation, reads, *(cell(kind) for kind in seen.types.values())


def cell(kind: str) -> str:
    return kind if kind == SAME else f"{kind} ({GRADIENT[kind]})"

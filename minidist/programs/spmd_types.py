"""Types of distribution as a program: Megatron's functions, derived and counted, and a block's types."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from minidist import UsageError, spmd_types
from minidist.cli.fields import flag, option, output, parse, ranks_option
from minidist.cli.options import timeout
from minidist.cli.paths import check_writable, write_json
from minidist.cli.tables import make_table, mark, say, show
from minidist.exchange.one_process import run_ranks
from minidist.mpi.comm import Comm
from minidist.mpi.stops import TIMEOUT
from minidist.programs.chapter import Program, find
from minidist.spmd_types import MEGATRON, count, derive
from minidist.ty.forward import look

OTHER = {  # what the table of spmd_types' documentation says of two functions, at commit 2457b2b8 of its repository
    "scatter_to_tensor_model_parallel_region": ("P", "V"),
    "gather_from_tensor_model_parallel_region": ("V", "R"),
}


@dataclass(frozen=True, kw_only=True)
class TypesOptions:
    sequence_parallel: bool = flag("of the block: activations cut along positions, too")
    timeout: float = option(TIMEOUT, timeout, "S", "if a rank is silent; 0: never")
    ranks: int | None = ranks_option()
    json: str | None = output("write the report for machines; - is standard output")


class TypesChapter(Program[TypesOptions]):
    name, doc, options = "spmd_types", spmd_types.__doc__, TypesOptions
    cases = {"": "", "sequence": "--sequence-parallel"}

    def prepared(self, arguments: Sequence[str], comm: Any) -> TypesOptions:
        own = parse(self.parser(), arguments).of(TypesOptions)
        check_writable("--json", own.json if own.json != "-" else None)
        if comm.size == 1:
            raise UsageError("one rank has no other to differ from: run this on two or more, such as --ranks 4")
        return own

    def work(self, comm: Comm, prepared: TypesOptions) -> int:
        """Print both tables; returns 1 if a function has another type by its rule than by what ranks hold."""
        rows = [(name, derive(comm, *sides), count(comm, *sides)) for name, sides in MEGATRON.items()]
        wrong = [name for name, (*_, takes, makes), found in rows if found[:1] != [(takes, makes)]]
        if comm.rank == 0 and prepared.json:
            write_json(prepared.json, {"functions": [dict(zip(FIELDS, row, strict=True)) for row in rows]})
        quiet = prepared.json == "-"
        if comm.rank == 0 and not quiet:
            print_functions(rows)
        return max(int(bool(wrong)), show_block(comm, prepared.sequence_parallel, quiet))


FIELDS = "function", "derived", "counted"


def print_functions(rows: Sequence[tuple[str, tuple[str, ...], list[tuple[str, str]]]]) -> None:
    table = make_table(("Megatron's function", "forward", "backward"), ("rule", "counted", ""), narrow=True)
    for name, (ahead, back, takes, makes), found in rows:
        first = found[0] if found else ("?", "?")
        short = name.removesuffix("_region").replace("_model", "").removesuffix("_parallel")
        table.add_row(
            short, ahead or "-", back or "-", f"{takes} → {makes}", " → ".join(first), mark(first == (takes, makes))
        )
    show("\nThe types of Megatron's functions: by what they call, and by what ranks hold", table)
    say(
        "Counted: ranks draw an operand of each type, and a gradient for each result. A type holds if results and"
        " gradients are equal on all ranks where it says so, and <x, dx> = <y, dy> over all ranks."
    )
    for name, types in OTHER.items():
        say(f"The documentation of spmd_types calls {name} {' → '.join(types)}; Megatron's code is as counted.")


def show_block(comm: Comm, sequence: bool, quiet: bool) -> int:
    """One forward of a tensor-parallel model with types."""
    chapter, n = find("tensor_parallel"), comm.size
    line = f"--layers 1 --heads {n} --width {8 * n} --context {4 * n}" + " --sequence-parallel" * sequence
    job = chapter.job([*line.split(), "--types", *["--json", "-"] * quiet], n)
    return int(chapter.begin(comm, job))


def block_types(options: str, ranks: int = 2) -> list[tuple[str, str]]:
    """The operations of a block of the chapter tensor_parallel on ranks of this process, with each result's type."""
    chapter = find("tensor_parallel")

    def on_rank(comm: Any) -> list[tuple[str, str]]:
        job = chapter.job(f"--layers 1 --width 16 --context 8 --batch 2 --no-prove {options}".split(), ranks)
        seen = look(chapter.make(job, comm), job, comm).seen
        return [(each.operation, each.types["tensor"]) for each in seen if each.place == "block0"]

    return run_ranks(on_rank, ranks)[0]


CHAPTER = TypesChapter()

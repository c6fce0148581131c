"""What minidist says it has sent, held, read and written, compared with independent counts.

    make audit                                   all of it: needs Open MPI, which it installs apart
    python -m minidist audit zero3 -n 4          what one chapter sends, rank by rank
    python -m minidist audit --memory            what is held: pools against NumPy and the kernel, under any MPI
    python -m minidist audit --disk              what ZeRO-Infinity and MapReduce read and write, against the kernel

Open MPI can record, below all code of this project, what each rank sent to each other rank. A run is compared from its
first message to its last. minidist counts payload and, separately, control (results, clock stamps, the word count's
tasks). The two must add up to what the library saw, for each rank and peer, in bytes and in messages. Open MPI
lists its own messages (for barriers, and to make communicators) separately; they are left out.
"""

import json
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import minidist
from minidist import UsageError, how_to_make
from minidist.claims import reports
from minidist.claims.accounts import Asked, audit_files, audit_memory, performed
from minidist.cli.fields import flag, operand, read, whole
from minidist.cli.options import tool
from minidist.cli.tables import make_table, mark, number, show
from minidist.launch import launcher
from minidist.memory import kernel
from minidist.mpi.rank import AUDIT
from minidist.system.files import temporary_folder

TEXT = Path(minidist.__file__).parent / "text" / "python_help.txt"
WORDS = f"wordcount {shlex.quote(str(TEXT))} --maps 7"

# Two batches of validation: eight, as is usual, would take half of the time.
SMALL = "--steps 2 --width {width} --heads {n} --context {width} --batch {batch} --validate 2"
USUAL = (2, 3, 4, 5)  # ranks

# For runs that hold much more than the rest of a process; if an option is given twice, the last one counts.
LARGER = "--width {width} --context {width} --witness"
ON_DISK = {
    "infinity": {f"ZeRO-{stage}": f"{SMALL} --zero {stage}" for stage in (1, 2, 3)},
    "mapreduce": {"": WORDS, "in runs": f"{WORDS} --no-combine --memory 0.5"},
}


class Sent(NamedTuple):
    """What one rank has sent to another: bytes and messages, as counted by minidist and by the library."""

    rank: int
    peer: int
    payload: tuple[int, int]
    control: tuple[int, int]
    library: tuple[int, int]

    @property
    def difference(self) -> tuple[int, int]:
        """Bytes and messages that the library saw and minidist did not count."""
        nbytes, messages = (self.library[i] - self.payload[i] - self.control[i] for i in (0, 1))
        return nbytes, messages


def watch(line: str, n: int) -> list[Sent]:
    """Run a chapter's line on n ranks while the library records. Raises UsageError if it fails."""
    with temporary_folder() as folder:
        watched = {"enable": "2", "enable_output": "3", "filename": f"{folder}/library"}
        monitoring = [word for key, value in watched.items() for word in ("--mca", f"pml_monitoring_{key}", value)]
        done = reports.perform(line, n, folder, {AUDIT: str(folder)}, monitoring)
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if any(map(str.isalnum, line))]  # Open MPI frames it
            *_, last = ["it failed", *said]
            raise UsageError(f"mpirun -n {n} python -m minidist.{line}: {last}")
        return [sent for rank in range(n) for sent in read_sent(rank, n, folder)]


def read_sent(rank: int, n: int, folder: Path) -> Iterator[Sent]:
    """What this rank has sent to each of n ranks, by both accounts, from the files that both have written."""
    own: Counter[tuple[str, int, str]] = Counter()
    for (kind, _, peer, unit), count in json.loads((folder / f"{rank}.json").read_text(encoding="utf-8")):
        own[kind, peer, unit] += count
    # A line for what the program itself sent: E, rank, peer, "948408 bytes", "57 msgs sent", and sizes.
    lines = (folder / f"library.{rank}.prof").read_text(encoding="utf-8").splitlines()
    fields = [line.split("\t") for line in lines if line.startswith("E")]
    library = {int(peer): (int(nbytes.split()[0]), int(sent.split()[0])) for _, _, peer, nbytes, sent, *_ in fields}
    for peer in range(n):
        payload, control = ((own[kind, peer, "bytes"], own[kind, peer, "messages"]) for kind in ("payload", "control"))
        yield Sent(rank, peer, payload, control, library.get(peer, (0, 0)))


def fill_line(chapter: str, options: str, n: int) -> str:
    """A chapter and its options, sized for n ranks. An axis of the layout has two ranks, or all if n is odd."""
    return f"{chapter} {options}".format(n=n, width=8 * n, batch=2 * n, axis=n if n % 2 else 2)


def make_run(chapter: str, variant: str, options: str, n: int, larger: bool) -> Asked:
    """A run. larger: for --memory."""
    line = fill_line(chapter, options, n) + (" " + LARGER.format(width=192 // n * n)) * larger
    return Asked(f"{chapter} {variant}".strip(), line, n)


# ---- on the screen ---------------------------------------------------------------------------------------------------


def list_lines(chapters: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """The command lines to compare, by chapter and case. `fill_line` fills in what is in braces."""
    return {
        name: {case: f"{SMALL} {options}" if chapter.trains else options for case, options in chapter.cases.items()}
        for name, chapter in chapters.items()
        if chapter.cases
    }


def main(arguments: Sequence[str], chapters: Mapping[str, Any]) -> int:
    """Run and compare; 1 if there is a difference. Raises UsageError for what cannot work.

    chapters: `minidist/programs/chapter.py`, by name; their cases are run.
    """
    lines, ranks = list_lines(chapters), {name: chapter.ranks for name, chapter in chapters.items() if chapter.ranks}

    @dataclass(frozen=True, kw_only=True)
    class AuditOptions:
        chapters: tuple[str, ...] = operand("CHAPTER", f"of {', '.join(lines)}; default: all", nargs="*")
        ranks: int | None = whole("N", "ranks; default: 2, 3, 4 and 5 in turn, or 4", names=("-n",))
        memory: bool = flag("compare what is held, not what is sent; for all chapters with pools", apart="memory")
        disk: bool = flag("compare what infinity and mapreduce read and write", apart="memory")

    options = read(tool("audit", __doc__), AuditOptions, arguments)
    if options.memory:
        lines = {name: variants for name, variants in lines.items() if chapters[name].pooled}
    elif options.disk:
        lines = ON_DISK
    for chapter in options.chapters:
        if chapter not in lines:
            raise UsageError(f"{chapter!r} cannot be audited: take of {', '.join(lines)}")
    if options.memory or options.disk:
        try:
            kernel.pages() if options.memory else kernel.Kernel().io()
        except OSError as error:
            raise UsageError(f"--memory and --disk compare with Linux's account: {error}") from None
        apart = [
            make_run(chapter, variant, line, options.ranks or max(ranks.get(chapter, (4,))), options.memory)
            for chapter in options.chapters or lines
            for variant, line in lines[chapter].items()
        ]
        return audit_memory(apart) if options.memory else audit_files(apart)
    runs = [
        make_run(chapter, variant, line, n, larger=False)
        for chapter in options.chapters or lines
        for n in ([options.ranks] if options.ranks else ranks.get(chapter, USUAL))
        for variant, line in lines[chapter].items()
    ]
    return audit_wire(runs)


def audit_wire(runs: Sequence[Asked]) -> int:
    """Run all, compare and print what is sent; 1 if there is a difference. Raises UsageError without Open MPI."""
    if not launcher.is_open_mpi(launcher.find_mpiexec()):
        raise UsageError(f"mpirun is not Open MPI's, and only Open MPI records what it sends: {how_to_make('audit')}")
    different = 0
    table = make_table(left=("chapter",), right=("N", "payload", "control", "Open MPI's", "difference"))
    table.add_column("", no_wrap=True)
    for (called, _, n), sent in performed(runs, lambda asked: watch(asked.line, asked.ranks)):
        different += any(any(one.difference) for one in sent)
        ranks = [[one for one in sent if one.rank == rank] for rank in range(n)]
        for rank, rows in enumerate(ranks if len(runs) <= 4 else [sent]):
            name = called + f", rank {rank}" * (len(runs) <= 4)
            sums = [sum(getattr(one, kind)[0] for one in rows) for kind in ("payload", "control", "library")]
            off = sum(abs(one.difference[0]) for one in rows)
            agrees = not any(any(one.difference) for one in rows)
            table.add_row(name, str(n), *map(number, (*sums, off)), mark(agrees))
    show("Bytes sent in a whole run: as counted here, and by the MPI library", table)
    print(f"{len(runs) - different} of {len(runs)} runs agree, for each rank and peer, in bytes and in messages.")
    return 1 if different else 0

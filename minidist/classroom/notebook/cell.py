"""Ranks from a notebook: `%load_ext minidist`, and a cell that begins with `%%mpirun -n 4` runs on four ranks.

    %%mpirun -n 4 --out total
    total = all_reduce(comm, np.arange(3.0) + comm.rank)

Every rank is a process of its own with `comm` and `np`. It gets from the notebook what the cell names: functions and
classes that earlier cells define (their text is executed on the rank, too), imported names, and values that can pass
between processes, as copies. With `--out total` the notebook then has `total`, a list of each rank's value. Nothing
else comes back, and the ranks are gone when the cell ends.

What the ranks print is shown rank by rank. While they run, Jupyter shows the last lines of each; at the end, all output
is shown, or the beginning and the end if it is very long. A rank that fails, a deadlock, the timeout and an interrupt
end all ranks, and the cell says where they were. Without MPI, the ranks take turns in one process of their own
(launch/one_process.py), and share its modules.
"""

import argparse
import re
import shlex
import textwrap
import time
from collections.abc import Callable
from types import CodeType
from typing import Any

from IPython.display import clear_output

from minidist import Finished, UsageError
from minidist.classroom.notebook.brought import brought_along, left_on_ranks, was_on_ranks
from minidist.classroom.notebook.unloaded import allow_comments_above
from minidist.cli.options import Parser, at_least, within
from minidist.exchange.waits import STILL_COMPUTING
from minidist.launch.job import JobFailed, JobOutcome, Watch, by_rank
from minidist.launch.launcher import has_mpi, launch
from minidist.launch.notebook_cell import Source
from minidist.launch.one_process import launch_in_one_process

EVERY = 0.5  # seconds between two looks at what ranks that run have printed
LONG = 2.0  # seconds after which a cell says how long its ranks have been running
LINES = 60  # that are shown then, of all ranks together, but at least LEAST of each
LEAST = 3
WIDEST = 200  # characters of such a line
KEPT = 100_000  # characters of output that a cell keeps, of all ranks together; and of its report


class CellFailed(JobFailed):
    """A cell that did not end well on every rank. The notebook shows the job's report and no frame of its own."""

    def _render_traceback_(self) -> list[str]:  # IPython asks for it
        return [shortened(str(self), KEPT)]


def load(shell: Any) -> None:
    """Make `%%mpirun` known to an IPython shell."""
    shell.register_magic_function(lambda line, cell: mpirun(shell, line, cell), "cell", "mpirun")
    allow_comments_above(shell)
    for seen in [seen for seen in shell.events.callbacks["post_run_cell"] if isinstance(seen, Adviser)]:
        shell.events.unregister("post_run_cell", seen)
    shell.events.register("post_run_cell", Adviser(shell))


class Adviser:
    """After a cell that runs in the notebook itself: what to do about a name that only the ranks have."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell

    def __call__(self, result: Any) -> None:
        error = result.error_in_exec
        if not isinstance(error, NameError):
            return
        if error.name == "comm":
            print("Only ranks have comm: begin the cell with %%mpirun -n 4, and four ranks run it.")
        elif error.name and was_on_ranks(error.name, self.shell.user_ns["In"]):
            print(left_on_ranks(error.name))


def mpirun(shell: Any, line: str, cell: str) -> None:
    """Run `cell` on ranks, as the options on `line` say."""
    live = Live(in_jupyter=hasattr(shell, "kernel"))
    try:
        options = parser().parse_args(words_in(line))
        names = [name for argument in options.out for name in argument.split(",") if name]
        code = "\n" + cell  # the line of %%mpirun counts, as it does on the screen
        sources, values, left_out = brought_along(compiled(code), shell.user_ns)
        sources.append((f"In[{len(shell.user_ns['In']) - 1}]", code))
        job = on_ranks(sources, options.n, values, names, timeout=options.timeout, watch=live)
    except Finished as finished:
        print(finished)
        return
    except UsageError as error:
        raise CellFailed(f"%%mpirun: {error}") from None
    except KeyboardInterrupt:  # before there were ranks, or for the second time
        raise CellFailed("The job was interrupted.") from None
    except OSError as error:
        raise CellFailed(f"%%mpirun: no ranks can be started: {error}") from None
    output = by_rank(shortened(rank.stdout + rank.stderr, KEPT // options.n) for rank in job.ranks)
    live.show(output)
    if job.status != "ok":
        advice = [f"\n{hint}" for mistake, hint in hints(left_out, options.timeout).items() if mistake in job.report]
        raise CellFailed(job.report + "".join(advice))
    for name, returned in zip(names, zip(*job.values, strict=True), strict=True):
        shell.user_ns[name] = list(returned)


class Live:
    """The cell's output: the last lines of each rank while they run; at the end, the output that is kept replaces them.

    Only Jupyter can replace output; in a terminal, nothing is shown before the end.
    """

    def __init__(self, in_jupyter: bool) -> None:
        self.in_jupyter = in_jupyter
        self.shown = ""
        self.begin = time.monotonic()
        self.next = self.begin + EVERY

    def __call__(self, printed: Callable[[], list[str]]) -> None:
        if not self.in_jupyter or time.monotonic() < self.next:
            return
        now = time.monotonic()
        self.next = now + EVERY
        texts = printed()
        lines = [by_rank(last_lines(text, max(LEAST, LINES // len(texts))) for text in texts)]
        if now - self.begin > LONG:
            lines.append(
                f"[{len(texts)} {'rank has' if len(texts) == 1 else 'ranks have'} run for {now - self.begin:.0f} s]"
            )
        self.show("\n".join(filter(None, lines)))

    def show(self, text: str) -> None:
        if text == self.shown:
            return
        if self.shown:
            clear_output(wait=bool(text))  # as soon as there is something else
        if text:
            print(text, flush=True)
        self.shown = text


def last_lines(text: str, number: int) -> str:
    lines = text.splitlines()
    cut = ["..."] if len(lines) > number else []
    return "\n".join(cut + [line[:WIDEST] for line in lines[-number:]])


def shortened(text: str, most: int) -> str:
    """The text, or its beginning and its end if it is longer than `most` characters."""
    left_out = len(text) - most
    if left_out <= 0:
        return text
    return f"{text[: most // 2]}\n[{left_out:,} characters are left out here]\n{text[-(most // 2) :]}"


def on_ranks(sources: list[Source], n: int, *arguments: Any, timeout: float, watch: Watch) -> JobOutcome:
    """Run a cell's job on n ranks of MPI, or in one process if there is no MPI."""
    start = launch if has_mpi() else launch_in_one_process
    return start("minidist.launch.notebook_cell:run_cell", n, sources, *arguments, timeout=timeout, watch=watch)


def parser() -> Parser:
    made = Parser("notebook", __doc__ or "")
    made.prog, made.formatter_class = "%%mpirun", argparse.RawDescriptionHelpFormatter
    made.add_argument("-n", type=at_least(1), default=4, help="ranks (default: 4)")
    hidden = argparse.SUPPRESS
    made.add_argument("-np", type=at_least(1), dest="n", default=hidden, help=hidden)  # as some write it for mpirun
    made.add_argument("--out", action="append", default=[], metavar="NAME", help="bring this variable back, as a list")
    made.add_argument("--timeout", type=within(0.1, 86400), default=60.0, help="seconds (default: 60)")
    return made


def words_in(line: str) -> list[str]:
    """The options of a cell, without the comment after them. Names after --out may have spaces between them: a, b."""
    try:
        return shlex.split(re.sub(r"\s*,\s*", ",", line), comments=True)
    except ValueError as error:
        raise UsageError(f"{str(error).lower()} (--help lists the options)") from None


# What a notebook understands and Python does not: how it looks, what it is, and what to do instead.
NOTEBOOKS_OWN = {
    r"([\w., ]+=\s*)?!": ("a command of the shell", "call subprocess.run"),
    r"([\w., ]+=\s*)?%%?[a-zA-Z]": ("a magic of the notebook", "take it out"),
    r"\?|.*\?$": ("a question to the notebook", "take it out"),
}


def compiled(code: str) -> CodeType:
    try:
        return compile(code, "the cell", "exec")
    except SyntaxError as error:
        line = (error.text or "").strip()
        what = f"{error.msg}\n    {line}"
        for looks, (is_one, instead) in NOTEBOOKS_OWN.items():
            if re.match(looks, line):
                short = textwrap.shorten(line, 40, placeholder=" ...")
                what = f"{short} is {is_one}, and ranks run plain Python: {instead}, or use a cell without %%mpirun."
        if re.match(r"('await'|'async|asynchronous).* outside", error.msg):
            what = "ranks have no event loop to await in: write an async function, and call asyncio.run on it."
        raise CellFailed(f"line {error.lineno}: {what}") from None


def hints(left_out: dict[str, str], timeout: float) -> dict[str, str]:
    """What the report of a mistake contains -> what to do.

    left_out: the names in the cell that the ranks do not have, and why. timeout: the seconds that the cell had.
    """
    return {
        STILL_COMPUTING: "That is not a deadlock. If the work is meant to take longer, give it more time:"
        f" %%mpirun --timeout {10 * timeout:g}",
        "NameError: name 'display' is not defined": "display() is the notebook's: print on the ranks, or bring the"
        " value back with --out and display it in a cell without %%mpirun.",
        "NameError: name 'get_ipython' is not defined": "Magics (%) and commands of the shell (!) are the notebook's,"
        " also inside functions: take them out of what runs on ranks.",
        "EOFError: EOF when reading a line": "Nobody can answer input() on a rank: ask in a cell without %%mpirun.",
        **{f"NameError: name '{name}' is not defined": why for name, why in left_out.items()},
    }

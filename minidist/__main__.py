"""`python -m minidist`: the table of contents, and all commands except the chapters. It needs neither MPI nor NumPy."""

from __future__ import annotations  # the doctor must be reachable from a Python that is too old for the rest

import importlib
import os
import sys
from typing import Any, Callable, NamedTuple  # noqa: UP035 (Python 3.8's collections.abc.Callable takes no [...])

from minidist import UsageError, __version__
from minidist.cli.options import in_one_process, path_name, started_as, tool
from minidist.contents import CHAPTERS, USUAL

OTHERS = "The course: {0} lessons. Trouble: {0} doctor"


class Command(NamedTuple):
    """A command that is not a chapter."""

    does: str
    at: str  # the function that does it, module:function; imported only then
    words: str = ""  # the files and folders that it takes, if it has no options
    help: str = ""  # in this case, what its --help says
    more: Callable[[], tuple[Any, ...]] = tuple  # what the function is given in addition to the arguments


def chapters() -> tuple[Any, ...]:
    """All chapters as values."""
    from minidist.programs.chapter import find_all  # imports the rest of the package

    return (find_all(),)


COMMANDS = {
    "lessons": Command(
        "the course: what a lesson needs, what it teaches",
        "minidist.classroom.notebook.syllabus:main",
        help="The course: what a lesson needs, how long it takes, what it teaches.",
    ),
    "doctor": Command(
        "what is wrong with this set-up, and what mends it",
        "minidist.cli.doctor:main",
        help="What is wrong with this set-up, and what mends it.",
    ),
    "inspect": Command(
        "what is in a checkpoint, and whether it is whole",
        "minidist.checkpoints.inspect:main",
        "DIR",
        "What is in a checkpoint, and whether it is whole; exit status 1 if not.",
    ),
    "to-fp32": Command(
        "write a checkpoint's parameters as float32 safetensors",
        "minidist.checkpoints.convert:to_fp32",
        "DIR FILE",
        "The parameters of a checkpoint in float32, in one file (safetensors).",
    ),
    "explain": Command("what a DeepSpeed configuration means, in bytes", "minidist.deepspeed.explain:main"),
    "plan": Command("which layout of ranks for a model on a cluster", "minidist.plan.command:main"),
    "papers": Command("all that papers print, and how it comes out", "minidist.claims.papers:main"),
    "recompute": Command("what a policy of --recompute keeps and recomputes", "minidist.bench.recompute:main"),
    "audit": Command("what was sent, held, written, as others count it", "minidist.claims.audit:main", more=chapters),
    "mutants": Command(
        "broken programs, and the claims that catch them",
        "minidist.claims.mutants:main",
        more=lambda: ([chapter.name for chapter in CHAPTERS],),
    ),
    "hosts": Command("several hosts on this machine, joined by slow links", "minidist.hosts.command:main"),
    "bugs": Command("published bugs, rebuilt; which check notices each", "minidist.bugs.command:main"),
}


def contents() -> str:
    """The list of chapters, each with its paper, and the commands that run them: one screen of 24 lines, 80 columns."""
    # Bold for a reader at a terminal; a file or a pipe gets the bare text. See https://no-color.org for NO_COLOR.
    plain = not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb"
    lines = []
    for name, paper, _ in CHAPTERS:
        title = f"{name:18}"
        lines.append((title if plain else f"\033[1m{title}\033[0m") + paper)
    others = [chapter.launch for chapter in CHAPTERS if chapter.launch != USUAL.format(chapter.name)]
    first, *others = sorted(others, key=len)
    lines += [f"To run one: {USUAL.format('NAME')}, but {first}", *(f"    {launch}" for launch in others)]
    return "\n".join([*lines, OTHERS.format(started_as())])


def usage() -> str:
    """What --help prints: all commands, with the name by which it was started."""
    lines = [("", "the list of chapters")]
    lines += [(f" {name} {command.words}".rstrip(), command.does) for name, command in COMMANDS.items()]
    width = len(f"{started_as()} inspect DIR ")
    said = []
    for words, does in [*lines, (" --version", "the version")]:
        line = f"{started_as()}{words}"
        said.append(f"{line:{width}}{does}" if len(line) < width else f"{line}\n{'':{width}}{does}")
    return "\n".join(said)


def perform(name: str, command: Command, arguments: list[str]) -> int:
    """Do what a command's line asks; returns the exit status."""
    given: list[Any] = [arguments]
    if command.help:
        wanted, asks = command.words.split(), bool({*arguments} & {"-h", "--help"})
        if len(arguments) != len(wanted) and not asks:
            line = f"{started_as()} {name} {command.words}".rstrip()
            raise UsageError(f"cannot do {' '.join([name, *arguments])!r}: use {line}")
        made = tool(name, command.help)
        for word in wanted:
            made.add_argument(word, type=path_name)
        given = made.operands(["--help"] if asks else arguments)
    module, _, function = command.at.partition(":")
    return getattr(importlib.import_module(module), function)(*given, *command.more())


def main(arguments: list[str]) -> int:
    """Do what the command line asks; returns the exit status."""
    launches = {chapter.name: chapter.launch for chapter in CHAPTERS}
    if not arguments:
        print(contents())
    elif arguments in (["-h"], ["--help"]):
        print(usage())
    elif arguments == ["--version"]:
        print(f"minidist {__version__}")
    elif arguments[0] in COMMANDS:
        return perform(arguments[0], COMMANDS[arguments[0]], arguments[1:])
    elif arguments[0] in launches:
        raise UsageError(f"a chapter is started by a line of its own: {launches[arguments[0]]}")
    else:
        raise UsageError(f"cannot do {' '.join(arguments)!r}; {started_as()} --help says what there is")
    return 0


def run() -> int:
    """Run the program, under either of its names; returns the exit status."""
    return in_one_process(lambda: main(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(run())

"""`python -m minidist`: the table of contents, and all commands except the chapters. It needs neither MPI nor NumPy."""

from __future__ import annotations  # the doctor must be reachable from a Python that is too old for the rest

import os
import sys

from minidist import UsageError, __version__
from minidist.cli import doctor
from minidist.cli.options import in_one_process, path_name, started_as, tool
from minidist.contents import CHAPTERS, USUAL

OTHERS = "The course: {0} lessons. Trouble: {0} doctor"

USAGE = """\
python -m minidist             the list of chapters
python -m minidist lessons     the course: what a lesson needs, what it teaches
python -m minidist doctor      what is wrong with this set-up, and what mends it
python -m minidist inspect DIR what is in a checkpoint, and whether it is whole
python -m minidist to-fp32 DIR FILE
                               its parameters alone, in float32, as safetensors
python -m minidist explain     what a DeepSpeed configuration means, in bytes
python -m minidist plan        which layout of ranks for a model on a cluster
python -m minidist papers      all that papers print, and how it comes out
python -m minidist recompute   what a policy of --recompute keeps, runs again
python -m minidist audit       what was sent, held, written, as others count it
python -m minidist mutants     broken programs, the claims that fall under them
python -m minidist bugs        published bugs, rebuilt; which check notices each
python -m minidist --version   the version"""


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
    """USAGE, with the name by which it was started."""
    missing = len("python -m minidist") - len(started_as())
    return USAGE.replace("python -m minidist", started_as()).replace("\n" + missing * " ", "\n")


WORDS = {"doctor": "", "lessons": "", "inspect": "DIR", "to-fp32": "DIR FILE"}  # what stands on their lines
DOES = {
    "doctor": "What is wrong with this set-up, and what mends it.",
    "lessons": "The course: what a lesson needs, how long it takes, what it teaches.",
    "inspect": "What is in a checkpoint, and whether it is whole; exit status 1 if not.",
    "to-fp32": "The parameters of a checkpoint in float32, in one file (safetensors).",
}


def paths(command: str, arguments: list[str], *names: str) -> list[str]:
    """The files and folders on a command's line, in order."""
    made = tool(command, DOES[command])
    for name in names:
        made.add_argument(name, type=path_name)
    return [*vars(made.parse_args(arguments)).values()]


def main(arguments: list[str]) -> int:
    """Do what the command line asks; returns the exit status."""
    if arguments[:1] and arguments[0] in DOES and set(arguments[1:]) & {"-h", "--help"}:
        paths(arguments[0], ["--help"], *WORDS[arguments[0]].split())
    if arguments == ["doctor"]:
        return doctor.main()
    if arguments == ["lessons"]:
        from minidist.classroom.notebook import syllabus

        return syllabus.main()
    if arguments[:1] == ["explain"]:
        from minidist.deepspeed import explain  # needs NumPy

        return explain.main(arguments[1:])
    if arguments[:1] == ["plan"]:
        from minidist.plan import command

        return command.main(arguments[1:])
    if arguments[:1] == ["mutants"]:
        from minidist.claims import mutants  # imports the rest of the package

        return mutants.main(arguments[1:], [chapter.name for chapter in CHAPTERS])
    if arguments[:1] == ["bugs"]:
        from minidist.bugs import command as bugs  # likewise

        return bugs.main(arguments[1:])
    if arguments[:1] == ["audit"]:
        from minidist.claims import audit  # likewise
        from minidist.programs.chapter import find_all

        return audit.main(arguments[1:], find_all())
    if arguments[:1] == ["papers"]:
        from minidist.claims import papers  # likewise

        return papers.main(arguments[1:])
    if arguments[:1] == ["recompute"]:
        from minidist.bench import recompute  # likewise

        return recompute.main(arguments[1:])
    if not arguments:
        print(contents())
    elif arguments in (["-h"], ["--help"]):
        print(usage())
    elif arguments == ["--version"]:
        print(f"minidist {__version__}")
    elif arguments[0] in WORDS and len(arguments) != 1 + len(WORDS[arguments[0]].split()):
        line = f"{started_as()} {arguments[0]} {WORDS[arguments[0]]}".rstrip()
        raise UsageError(f"cannot do {' '.join(arguments)!r}: use {line}")
    elif arguments[0] == "inspect":
        from minidist.checkpoints import inspect

        return inspect.main(*paths("inspect", arguments[1:], "DIR"))
    elif arguments[0] == "to-fp32":
        from minidist.checkpoints import convert

        return convert.to_fp32(*paths("to-fp32", arguments[1:], "DIR", "FILE"))
    elif arguments[0] in (launches := {chapter.name: chapter.launch for chapter in CHAPTERS}):
        raise UsageError(f"a chapter is started by a line of its own: {launches[arguments[0]]}")
    else:
        raise UsageError(f"cannot do {' '.join(arguments)!r}; {started_as()} --help says what there is")
    return 0


def run() -> int:
    """Run the program, under either of its names; returns the exit status."""
    return in_one_process(lambda: main(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(run())

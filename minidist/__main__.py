"""`python -m minidist`: the table of contents, and the way to the doctor. It needs neither MPI nor NumPy."""

from __future__ import annotations  # the doctor must be reachable from a Python that is too old for the rest

import os
import sys
from typing import NamedTuple

from minidist import UsageError, __version__
from minidist.cli import doctor
from minidist.cli.options import Parser, in_one_process, path_name


class Chapter(NamedTuple):
    """A chapter of the book: its module's name, what it implements, and the line that runs it."""

    name: str
    paper: str
    launch: str


USUAL = "mpirun -n 4 python -m minidist.{}"  # the launch line of most

# In the order in which a reader meets them.
CHAPTERS = (
    Chapter(
        "mapreduce",
        "Dean & Ghemawat, MapReduce, OSDI 2004",
        "mpirun -n 4 python -m minidist.mapreduce wordcount FILE",
    ),
    Chapter(
        "train",
        "one process: the losses that every other chapter must equal",
        "python -m minidist.train",
    ),
    Chapter(
        "parameter_server",
        "Li et al., OSDI 2014; Ho et al., NIPS 2013 (SSP)",
        "mpirun -n 4 python -m minidist.parameter_server",
    ),
    Chapter(
        "ring",
        "Patarasuk & Yuan 2009; Thakur, Rabenseifner & Gropp 2005",
        "mpirun -n 4 python -m minidist.ring",
    ),
    Chapter(
        "data_parallel",
        "Li et al., VLDB 2020; Sergeev & Del Balso, Horovod, 2018",
        "mpirun -n 4 python -m minidist.data_parallel",
    ),
    Chapter(
        "zero1",
        "Rajbhandari et al., ZeRO, SC 2020, §5.1: optimizer states",
        "mpirun -n 4 python -m minidist.zero1",
    ),
    Chapter(
        "zero2",
        "Rajbhandari et al., ZeRO, SC 2020, §5.2: gradients as well",
        "mpirun -n 4 python -m minidist.zero2",
    ),
    Chapter(
        "zero3",
        "Rajbhandari et al., ZeRO, SC 2020, §5.3: parameters as well",
        "mpirun -n 4 python -m minidist.zero3",
    ),
    Chapter(
        "fsdp",
        "Zhao et al., PyTorch FSDP, VLDB 2023: prefetching, hosts",
        "mpirun -n 4 python -m minidist.fsdp",
    ),
    Chapter(
        "offload",
        "Ren et al., ZeRO-Offload, ATC 2021: the update in host memory",
        "mpirun -n 4 python -m minidist.offload",
    ),
    Chapter(
        "infinity",
        "Rajbhandari et al., ZeRO-Infinity, SC 2021: states in files",
        "mpirun -n 4 python -m minidist.infinity",
    ),
    Chapter(
        "tensor_parallel",
        "Shoeybi et al., Megatron-LM, 2019; Korthikanti et al. 2022",
        "mpirun -n 4 python -m minidist.tensor_parallel",
    ),
    Chapter(
        "zero_r",
        "Rajbhandari et al., ZeRO, SC 2020, §6: activations, buffers",
        "mpirun -n 8 python -m minidist.zero_r --tp 2",
    ),
    Chapter(
        "pipeline",
        "GPipe 2019; PipeDream 2019; Megatron-LM 2021; Zero Bubble 2023",
        "mpirun -n 4 python -m minidist.pipeline",
    ),
    Chapter(
        "parallel3d",
        "Narayanan et al., Megatron-LM, SC 2021: all axes at once",
        "mpirun -n 8 python -m minidist.parallel3d",
    ),
)

COURSE = "To learn how it works, from the beginning: python -m minidist lessons"

USAGE = """\
python -m minidist             the list of chapters
python -m minidist lessons     the course: what a lesson needs, what it teaches
python -m minidist doctor      what is wrong with the MPI set-up, what mends it
python -m minidist inspect DIR what is in a checkpoint, and whether it is whole
python -m minidist to-fp32 DIR FILE
                               its parameters alone, in float32, as safetensors
python -m minidist explain     what a DeepSpeed configuration means, in bytes
python -m minidist papers      all that papers print, and how it comes out
python -m minidist recompute   what a policy of --recompute keeps, runs again
python -m minidist audit       what was sent, held, written, as others count it
python -m minidist mutants     broken programs, the claims that fall under them
python -m minidist --version   the version"""


def contents() -> str:
    """The list of chapters, each with its paper, and the lines that run them: one screen of 24 lines and 80 columns."""
    # Bold for a reader at a terminal; a file or a pipe gets the bare text. See https://no-color.org for NO_COLOR.
    plain = not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb"
    lines = []
    for name, paper, _ in CHAPTERS:
        title = f"{name:18}"
        lines.append((title if plain else f"\033[1m{title}\033[0m") + paper)
    others = [f"    {chapter.launch}" for chapter in CHAPTERS if chapter.launch != USUAL.format(chapter.name)]
    lines += ["", f"To run one: {USUAL.format('NAME')}, but", *others]
    return "\n".join([*lines, "If mpirun does not work: python -m minidist doctor", COURSE])


def paths(command: str, arguments: list[str], *names: str) -> list[str]:
    """The files and folders that a command takes, in order."""
    made = Parser(command, "")
    made.prog = f"python -m minidist {command}"
    for name in names:
        made.add_argument(name, type=path_name)
    return [*vars(made.parse_args(arguments)).values()]


def main(arguments: list[str]) -> int:
    """Do what the command line asks; the exit status."""
    if arguments == ["doctor"]:
        return doctor.main()
    if arguments == ["lessons"]:
        from minidist.classroom import syllabus

        return syllabus.main()
    if arguments[:1] == ["explain"]:
        from minidist.deepspeed import explain  # needs NumPy, as nothing else here does

        return explain.main(arguments[1:])
    if arguments[:1] == ["mutants"]:
        from minidist.claims import mutants  # the rest of the package, which only this needs

        return mutants.main(arguments[1:], [chapter.name for chapter in CHAPTERS])
    if arguments[:1] == ["audit"]:
        from minidist.claims import audit  # likewise

        return audit.main(arguments[1:])
    if arguments[:1] == ["papers"]:
        from minidist.claims import papers  # likewise

        return papers.main(arguments[1:])
    if arguments[:1] == ["recompute"]:
        from minidist.bench import recompute  # likewise

        return recompute.main(arguments[1:])
    if not arguments:
        print(contents())
    elif arguments in (["-h"], ["--help"]):
        print(USAGE)
    elif arguments == ["--version"]:
        print(f"minidist {__version__}")
    elif arguments[0] == "inspect" and len(arguments) == 2:
        from minidist.checkpoints import inspect

        return inspect.main(*paths("inspect", arguments[1:], "DIR"))
    elif arguments[0] == "to-fp32" and len(arguments) == 3:
        from minidist.checkpoints import convert

        return convert.to_fp32(*paths("to-fp32", arguments[1:], "DIR", "FILE"))
    elif arguments[0] in (launches := {chapter.name: chapter.launch for chapter in CHAPTERS}):
        raise UsageError(f"a chapter is started by a line of its own: {launches[arguments[0]]}")
    else:
        raise UsageError(f"cannot do {' '.join(arguments)!r}; python -m minidist --help says what there is")
    return 0


if __name__ == "__main__":
    sys.exit(in_one_process(lambda: main(sys.argv[1:])))

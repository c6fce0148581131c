"""Runs each chapter once while the site is built, and keeps what it prints and draws."""

import os
import shlex
import shutil
import subprocess
import sys
from base64 import b64decode, b64encode
from pathlib import Path
from typing import NamedTuple

import minidist
from minidist import UsageError
from minidist.contents import CHAPTERS, in_one_process
from minidist.launch.launcher import has_mpi
from minidist.site.kept import Recordings
from minidist.system import processes
from minidist.system.files import temporary_folder

PACKAGE = Path(minidist.__file__).parent
TEXT = PACKAGE / "text" / "python_help.txt"
MORE = {  # further commands whose pictures belong to a chapter: the file that they draw
    "pipeline": ["python -m minidist.pipeline --draw 1f1b", "python -m minidist.pipeline --draw zb-h1"],
    "context_parallel": ["mpirun -n 4 python -m minidist.context_parallel --compare {picture}"],
}


class CommandRun(NamedTuple):
    """A command, what it printed, and what it drew, if it draws."""

    command: str
    printed: str
    picture: Path | None


def record_chapter(name: str, folder: Path, kept: Recordings) -> list[CommandRun]:
    """`run_chapter`, or what it gave in an earlier build of the same code."""

    def made() -> list[tuple[str, str, str]]:
        return [
            (run.command, run.printed, b64encode(run.picture.read_bytes()).decode() if run.picture else "")
            for run in run_chapter(name, folder)
        ]

    found = kept.recall(f"{name} {MORE.get(name)} {has_mpi()}", made)
    runs = []
    for i, (command, printed, drawn) in enumerate(found):
        picture = folder / f"{name}-{i}.png" if drawn else None
        if picture:
            picture.write_bytes(b64decode(drawn))
        runs.append(CommandRun(command, printed, picture))
    return runs


def run_chapter(name: str, folder: Path) -> list[CommandRun]:
    """Run a chapter's command, with a plot of its memory if it can draw one, and its further commands. Plots go to
    `folder` as PNG: as SVG some have megabytes.

    Raises UsageError if one of them fails: then a claim does not hold.
    """
    [launch] = [entry.launch for entry in CHAPTERS if entry.name == name]
    plots = (
        name != "parameter_server"
        and "--memory-plot" in _run(f"python -m minidist.{name} --help", folder / "help").printed
    )  # servers have none
    first = launch.replace("FILE", TEXT.name) + " --memory-plot {picture}" * plots
    return [_run(command, folder / f"{name}-{i}.png") for i, command in enumerate([first, *MORE.get(name, [])])]


def _run(command: str, picture: Path) -> CommandRun:
    """Run a command in a folder with only the text: it prints no path of this machine. 100 columns, no colors. Without
    MPI, its ranks are in one process."""
    if not has_mpi():
        command = in_one_process(command)
    words = shlex.split(command.format(picture=picture.name))
    paths = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    env = os.environ | {"PATH": paths, "COLUMNS": "100", "NO_COLOR": "1", "PYTHONPATH": str(PACKAGE.parent)}
    with temporary_folder() as folder:
        shutil.copy(TEXT, folder)
        done = processes.run(words, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        drawn = folder / picture.name
        if drawn.exists():
            shrink(drawn, picture)
    shown = command.replace(" --memory-plot {picture}", "").format(picture=picture.name)
    if done.returncode:
        raise UsageError(f"{shown}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return CommandRun(shown, done.stdout, picture if picture.exists() else None)


def shrink(drawn: Path, picture: Path) -> None:
    """Make a PNG smaller, with 64 colors, enough for a plot: a page should have less than 300 KB."""
    from PIL import Image  # comes with matplotlib

    with Image.open(drawn) as image:
        image.convert("RGB").quantize(64).save(picture, optimize=True)

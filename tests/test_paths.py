"""Every option that names a file or a folder, of all chapters and commands: an empty name is refused, as of a variable
of the shell that is not set, and ~ is the home folder also where no shell has expanded it.

Each program is started as a user starts it, up to the moment when it has its parser: a new option cannot forget it.
"""

import json
import os
import re
from pathlib import Path

import pytest

from minidist import __main__ as front
from minidist.__main__ import CHAPTERS
from programs import run_python

ROOT = Path(__file__).parents[1]
COMMANDS = {  # of `python -m minidist`, with what they need until they parse
    **dict.fromkeys(("explain", "plan", "papers", "audit", "bugs"), ""),
    "inspect": "DIR",
    "to-fp32": "DIR FILE",
}
WITHOUT = {"doctor", "hosts", "lessons", "mutants", "recompute"}  # take no file
PROGRAMS = [
    *(f"minidist.{chapter.name}" for chapter in CHAPTERS),
    *(f"minidist {command} {words}".strip() for command, words in COMMANDS.items()),
    *(f"minidist.classroom {command}" for command in ("grade", "class", "release")),
    *("minidist.bench", "minidist.deepspeed"),
]
TEXTS = {"--pattern", "--inject", "chapters", "name"}  # what may be empty, or is looked at later: no name of a file
NAMES = {"--job", "--only", "--text-field"}  # what may not be empty, and is no name of a file

# In a child for each program: MPI can be begun once in a process.
WALK = r"""
import io, json, os, runpy, sys
from contextlib import redirect_stdout
import minidist.command, minidist.programs.chapter, minidist.train  # once for all of them, and no MPI
from minidist import UsageError
from minidist.cli.options import Parser

parse = Parser.parse_args

def tried(parser, words):
    try:
        parse(parser, words)
        return "taken"
    except UsageError as error:
        return str(error)

def walk(parser, *_):
    found = {}
    os.environ["HOME"] = "/home/of/mine"
    for action in parser._actions:
        action.default = None if action.default == () else action.default  # argparse appends to a list of its own
        if action.nargs == 0 or action.help == "==SUPPRESS==" and action.const:
            continue
        option = action.option_strings[-1:]
        empty, blank, *_ = [
            tried(parser, [f"{option[0]}={text}"] if option else [text])
            for text in ("", " ", 309 * "9", 309 * "9" + "GB", 5000 * "9", "1e999", 309 * "9" + ":1", "1:" + 309 * "9")
        ]
        home = None
        if "is empty" in empty:
            home = str(action.type("~/x"))
            os.environ["HOME"] = ""
            home += " " + tried(parser, [f"{option[0]}=~/x"] if option else ["~/x"])
            os.environ["HOME"] = "/home/of/mine"
        found[(option or [action.dest])[0]] = [str(action.metavar), empty, home, blank]
    os.write(1, json.dumps(found).encode() + b"\n")
    os._exit(0)

Parser.parse_args = walk
for program in sys.argv[1:]:
    if os.fork() == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        module, *sys.argv[1:] = program.split()
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        finally:
            os.write(1, b"{}\n")
            os._exit(1)
    os.wait()
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, tuple[str, str, str, str]]]:
    """By program and option: its metavar, what becomes of an empty value, of ~ with a home and without, and of a blank;
    no option fails at numbers of any length."""
    done = run_python("-c", WALK, *PROGRAMS, cwd=tmp_path_factory.mktemp("walk"), timeout=300)
    assert done.returncode == 0, done.stderr
    return dict(zip(PROGRAMS, map(json.loads, done.stdout.splitlines()), strict=True))


def test_every_program_is_known() -> None:
    assert {*front.COMMANDS} == {*COMMANDS, *WITHOUT}


def test_no_option_takes_an_empty_value_for_none(found: dict[str, dict[str, tuple[str, str, str, str]]]) -> None:
    for program, options in found.items():
        assert options, program
        for option, (metavar, empty, _, blank) in options.items():
            assert empty != "taken" or option in TEXTS, f"{program} {option}"
            if re.search("FILE|DIR|FOLDER|LESSON|OUT", metavar):
                assert "is empty" in empty, f"{program} {option}: {empty}"
                assert blank == empty, f"{program} {option}: {blank}"
                assert option.upper() in empty.upper() or metavar in empty


def test_home_is_expanded_or_refused(found: dict[str, dict[str, tuple[str, str, str, str]]]) -> None:
    of_train = {option for option, (_, _, home, _) in found["minidist.train"].items() if home}
    assert of_train - NAMES == {"--data", "--save", "--load", "--export", "--json", "--log", "--memory-plot"}
    assert sum(home is not None for options in found.values() for _, _, home, _ in options.values()) > 100
    for program, options in found.items():
        for option, (_, _, home, _) in options.items():
            if home and option not in NAMES:
                assert home.startswith("/home/of/mine/x "), f"{program} {option}: {home}"
                assert "the home folder of ~ is not known" in home, f"{program} {option}: {home}"


def test_a_line_says_which_option_is_empty(tmp_path: Path) -> None:
    def said(*arguments: str, **env: str) -> str:
        done = run_python("-m", *arguments, cwd=tmp_path, env=env)
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        return done.stderr.removeprefix("minidist: error: ").removesuffix("\n")

    empty = "is empty: a variable of the shell may not be set (--help lists the options)"
    assert said("minidist.train", "--save", "") == f"argument --save: {empty}"
    assert said("minidist", "to-fp32", "run", "") == f"argument FILE: {empty}"
    assert said("minidist.classroom", "grade", "--junit=") == f"argument --junit: {empty}"
    assert said("minidist.mapreduce", "wordcount", "") == f"argument JOB FILE: {empty}"
    assert "argument --load: ~of-nobody/run: the home folder" in said("minidist.train", "--load", "~of-nobody/run")
    assert os.listdir(tmp_path) == []

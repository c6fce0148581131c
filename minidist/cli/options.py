"""Command lines: a mistake gives one line, printed once, however many ranks read it."""

from __future__ import annotations  # python -m minidist must reach the doctor from a Python that is too old

import argparse
import errno
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from minidist import Finished, Stopped, UsageError
from minidist.mpi import environment, output
from minidist.system import processes


class _HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """One line of 80 columns per option, with its default if that is worth naming: a chapter fits two screens."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26, width=80)

    def add_usage(self, usage: str | None, actions: Any, groups: Any, prefix: str | None = None) -> None:
        positionals = [str(action.metavar or action.dest) for action in actions if not action.option_strings]
        super().add_usage(usage or " ".join(["%(prog)s", *positionals, "[options]"]), actions, groups, prefix)

    def _format_action_invocation(self, action: argparse.Action) -> str:  # -m, --micro-batches M: Python 3.13's habit
        return re.sub(r"^(-\w) \S+,", r"\1,", super()._format_action_invocation(action))

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return super()._get_help_string(action) if action.default else action.help

    def format_help(self) -> str:
        usage, *paragraphs = super().format_help().split("\n\n")
        return "\n".join([usage, *paragraphs])  # two screens have no room for more


class _Renamed(argparse.Action):
    """An old spelling: refused in a line that names the new one."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> NoReturn:
        raise UsageError(f"{option_string} is called {self.const} now")


class Parser(argparse.ArgumentParser):
    """A chapter's parser. It leaves printing and exiting to the caller, so that only one of N ranks prints."""

    def __init__(self, chapter: str, doc: str) -> None:
        super().__init__(
            prog=f"python -m minidist.{chapter}",
            description=doc.split("\n\n")[0],
            formatter_class=_HelpFormatter,
            allow_abbrev=False,
            add_help=False,
        )
        self.add_argument("-h", "--help", action="help", help=argparse.SUPPRESS)

    def alias(self, other: str, option: str) -> None:
        """Add another spelling of an option, which --help does not list."""
        self._option_string_actions[other] = self._option_string_actions[option]

    def renamed(self, old: str, new: str) -> None:
        """Refuse the old spelling with a line that names the new one."""
        hidden = argparse.SUPPRESS
        self.add_argument(old, action=_Renamed, const=new, nargs="?", default=hidden, help=hidden)

    def parse_args(self, *arguments: Any, **how: Any) -> Any:
        found = super().parse_args(*arguments, **how)
        try:
            os.getcwd()
        except FileNotFoundError:
            raise UsageError("the working directory has been deleted: cd to one that exists") from None
        return found

    def operands(self, arguments: Sequence[str]) -> list[Any]:
        """The values of a command line that has no options, in order."""
        return [*vars(self.parse_args(arguments)).values()]

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (--help lists the options)")

    def print_help(self, file: Any = None) -> NoReturn:
        raise Finished(self.format_help())


def started_as() -> str:
    """How the table of contents and its commands were started: by their module, or by the command that pip installs."""
    return "minidist" if os.path.basename(sys.argv[0]) == "minidist" else "python -m minidist"


def tool(command: str, doc: str | None) -> Parser:
    """The parser of a command that is not a chapter: `python -m minidist COMMAND`."""
    made = Parser(command, doc or "")  # python -OO drops docstrings
    made.prog = f"{started_as()} {command}"
    return made


def some_text(text: str) -> str:
    """An argument type: any text except an empty one, which would look like an option that is not given."""
    if not text.strip():
        raise argparse.ArgumentTypeError("is empty: a variable of the shell may not be set")
    return text


def path_name(text: str) -> str:
    """An argument type: a file or a folder. ~ is the home folder, also in --save=~/run, which no shell expands."""
    expanded = os.path.expanduser(some_text(text))
    if text.startswith("~") and (expanded == text or os.environ.get("HOME") == ""):
        user = text.split("/")[0]
        raise argparse.ArgumentTypeError(f"{text}: the home folder of {user} is not known; of that very name, ./{text}")
    return expanded


def pathlib_path(text: str) -> Path:
    """An argument type: the same, as a Path."""
    return Path(path_name(text))


def at_least(smallest: int, at_most: int = 10**15) -> Callable[[str], int]:
    """An argument type: whole numbers from `smallest` to `at_most`."""

    def whole_number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be a whole number, not {text!r}") from None
        if value < smallest:
            raise argparse.ArgumentTypeError(f"must be at least {smallest}, not {value}")
        if value > at_most:
            raise argparse.ArgumentTypeError(f"must be at most {at_most}, not {value}")
        return value

    return whole_number


def within(low: float, high: float) -> Callable[[str], float]:
    """An argument type: numbers from `low` to `high`."""

    def number(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be a number, not {text!r}") from None
        if not low <= value <= high:  # refuses nan, too
            raise argparse.ArgumentTypeError(f"must be from {low:g} to {high:g}, not {text}")
        return value

    return number


def timeout(text: str) -> float:
    """An argument type: seconds without an answer from a rank; 0: forever."""
    value = within(0, 1e6)(text)
    if 0 < value < 0.1:
        raise argparse.ArgumentTypeError(f"must be 0 (for ever), or 0.1 or more, not {text}")
    return value


LARGEST_MEMORY = 10**18  # bytes


def memory_size(text: str) -> int:
    """An argument type: bytes, "1500KB" or "1.5MB"; K, M and G are thousands, as in the papers."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) *([KMG]?)B?", text, re.IGNORECASE)
    if not found:
        raise argparse.ArgumentTypeError(f"must be bytes, such as 1500KB or 1.5MB, not {text!r}")
    value = float(found[1]) * 1000 ** " KMG".index(found[2].upper() or " ")
    if value > LARGEST_MEMORY:  # also infinity, as which Python reads more than 308 digits
        raise argparse.ArgumentTypeError(f"must be at most {LARGEST_MEMORY:g} bytes, not {text}")
    return int(value)


UNUSABLE = (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP)  # errors of a path that the user gave
READER_LEFT = 141  # as a shell reports a command that wrote to a reader (head, less) that had left


def in_one_process(work: Callable[[], int | None]) -> int:
    """Run a program without ranks; returns the exit status. An error that the user can fix gives one line, even if
    mpirun has started the program several times by mistake."""
    status, line = READER_LEFT, ""
    output.guard()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    processes.unwind_at_signals()
    try:
        try:
            status = work() or 0
        except UsageError as error:
            status, line = 2, "" if environment.rank() else output.in_a_line(str(error))
        except Stopped as error:
            status, line = error.status, str(error)
        except OSError as error:
            if error.errno not in UNUSABLE or error.filename is None:
                raise
            status, line = 2, output.in_a_line(f"{error.filename}: {error.strerror}")
        except MemoryError as error:
            status, line = 2, output.no_memory(error)
        except Finished as finished:
            status = 0
            if not environment.rank():
                print(finished)
        if line:
            print(f"minidist: error: {line}", file=sys.stderr)
        sys.stdout.flush()
        status = output.verdict(status)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is still to be written
    except KeyboardInterrupt as error:
        if not environment.rank():
            print(f"minidist: {str(error) or 'interrupted'}", file=sys.stderr)
        return 128 + getattr(error, "number", signal.SIGINT)  # as a shell reports a command that a signal has ended
    return status

"""Output that never ends the work: not if stdout is closed, a disk is full, or a terminal has no Greek letters."""

from __future__ import annotations  # python -m minidist must reach the doctor from a Python that is too old

import codecs
import io
import os
import re
import shutil
import sys
import traceback
import unicodedata

LOST = 74  # exit status if standard output, or a file, could not be written completely: EX_IOERR of sysexits.h
_lost_files: list[str] = []  # that could not be written, since `guard`

# Replacements for characters that an output's encoding (ASCII, Latin-1) lacks.
STAND_INS = {
    **{"✓": "ok", "✗": "WRONG", "Ψ": "Psi", "ψ": "psi", "Σ": "sum", "β": "beta", "π": "pi", "σ": "sigma", "√": "sqrt"},
    **{"§": "S.", "×": "x", "·": "*", "≤": "<=", "≥": ">=", "⌊": "floor(", "⌋": ")", "⌈": "ceil(", "⌉": ")"},
    **{"…": "...", "–": "-", "—": "-", "’": "'", "‘": "'", "“": '"', "”": '"', "µ": "u", "μ": "u", "⁻": "-", "→": "->"},
    **{"─": "-", "━": "-", "│": "|", "┃": "|", "\N{NO-BREAK SPACE}": " ", "\N{COMBINING CIRCUMFLEX ACCENT}": "^"},
}
STAND_IN = "minidist.stand_in"  # as an error handler of Python's encoders


def stand_in(error: UnicodeError) -> tuple[str, int]:
    """What to write instead of characters that an encoding lacks, so that no output is lost or ends the work."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    written = "".join(map(_in_ascii, error.object[error.start : error.end]))
    return re.sub(r"(?<=\^.)\^", "", written), error.end  # 2³⁰: 2^30


def _in_ascii(character: str) -> str:
    if character in STAND_INS:
        return STAND_INS[character]
    simpler = unicodedata.normalize("NFKD", character)  # é: e and an accent; ⁹: 9
    if simpler[0].isascii():
        return "^" * ("<super>" in unicodedata.decomposition(character)) + simpler[0]
    return character.encode("ascii", "backslashreplace").decode()


codecs.register_error(STAND_IN, stand_in)


def as_shown(text: str) -> str:
    """A text as the screen shows it, with replacements: its width may differ."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"  # a notebook's
    return text.encode(encoding, STAND_IN).decode(encoding)


class Output(io.TextIOWrapper):
    """A text stream that drops what cannot be written, and remembers why. If its reader has left, it raises."""

    failure: OSError | None = None

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except BrokenPipeError:
            raise
        except OSError as error:
            self._drop(error)
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            self._drop(error)

    def _drop(self, error: OSError) -> None:
        self.failure = self.failure or error
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())  # for the rest, in buffers and to come


def guard() -> None:
    """Make sys.stdout and sys.stderr such streams, which can encode any text. If one is closed, its text is dropped."""
    _lost_files.clear()
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  (open until the end)
        elif stream is getattr(sys, f"__{name}__") and not isinstance(stream, Output):  # not captured
            settings = {key: getattr(stream, key) for key in ("encoding", "line_buffering", "write_through")}
            stream.reconfigure(write_through=True)  # a debugger has it still, and writes into the same buffer
            setattr(sys, name, Output(stream.buffer, errors=STAND_IN, **settings))


def reason(error: OSError) -> str:
    """Why a file could not be read or written, in words; for several files (shutil.Error), why the first could not."""
    if isinstance(error, shutil.Error) and (number := re.match(r"\[Errno (\d+)\]", str(error.args[0][0][2]))):
        return os.strerror(int(number[1]))
    return error.strerror or str(error) or type(error).__name__


def lost(path: str, error: OSError) -> None:
    """Report a file that could not be written: a line on stderr now, exit status LOST at the end. The work goes on."""
    _lost_files.append(path)
    print(f"minidist: error: cannot write {path}: {reason(error)}", file=sys.stderr)


def is_lost(path: str) -> bool:
    """Whether a file, or one in this folder, could not be written."""
    return any(lost == path or lost.startswith(os.path.join(path, "")) for lost in _lost_files)


LONGEST_WORD = 300  # characters: a file's name may have 255


def in_a_line(text: str) -> str:
    """A message as one line, with overlong words cut."""
    return " ".join(word if len(word) <= LONGEST_WORD else f"{word[:60]}...{word[-20:]}" for word in text.split())


def no_memory(error: BaseException) -> str:
    """A MemoryError in one line: what NumPy asked for, or else the source line that asked."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    wanted = str(error) or f"{os.path.basename(where.filename)}:{where.lineno} asked for it: {where.line}"
    return f"no memory is left ({wanted}): ask for less, or give it more (see ulimit -v)"


def verdict(status: int) -> int:
    """The exit status of a program that would end with `status`: LOST instead of 0 if any output is lost. If that is
    standard output, a line on stderr says so."""
    failure = getattr(sys.stdout, "failure", None)
    if failure is None:
        return status or (LOST if _lost_files else 0)
    print(f"minidist: error: cannot write to standard output: {reason(failure)}", file=sys.stderr)
    return status or LOST

"""A line of JSON for each step of a training (--log): whole lines, whatever ends the run; others can read along.

python -m minidist.zero3 --ranks 4 --log steps.jsonl
python -c 'import pandas; print(pandas.read_json("steps.jsonl", lines=True))'
"""

import json
import os
from typing import Any

from minidist.cli.paths import finite
from minidist.mpi import output
from minidist.system import files


class StepLog:
    """Each line is written at once, with one call of the system."""

    def __init__(self, path: str | None, goes_on: bool) -> None:
        """path: - is standard output; None: nothing is written. goes_on: from a checkpoint, after the lines there."""
        self.path, self.file = path, -1
        if path is None or path == "-":
            return
        try:
            stream = files.open_stream(path)
            how = os.O_WRONLY | os.O_CREAT | os.O_APPEND | (0 if goes_on else os.O_TRUNC)
            self.file = os.open(path, how, 0o666) if stream is None else stream
        except OSError as error:
            output.lost(path, error)

    def write(self, **step: Any) -> None:
        """Write a step's values."""
        line = json.dumps({name: finite(value) for name, value in step.items()})
        if self.path == "-":
            print(line, flush=True)
        elif self.file >= 0:
            self._append(f"{line}\n".encode())

    def _append(self, line: bytes) -> None:
        try:
            while line:
                line = line[os.write(self.file, line) :]
        except OSError as error:
            output.lost(str(self.path), error)
            self.close()

    def close(self) -> None:
        if self.file >= 0:
            os.close(self.file)
            self.file = -1

"""What runs have printed, drawn and counted, kept for the next build of the pages: by a hash of code and options."""

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import minidist

PACKAGE = Path(minidist.__file__).parent
NOT_RUN = {"site", "classroom", "bench", "deepspeed", "plan", "__pycache__"}  # folders that no chapter's run depends on


def hash_of_code() -> str:
    """Of all files that a run may depend on, and of what runs them."""
    made = hashlib.sha256(f"{sys.version_info} {np.__version__}".encode())
    for path in sorted(PACKAGE.rglob("*")):
        if path.is_file() and path.suffix != ".md" and not NOT_RUN & {*path.relative_to(PACKAGE).parts}:
            made.update(f"{path.relative_to(PACKAGE)}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return made.hexdigest()


class Recordings:
    """Results by what they are of. What is not asked for in a build is forgotten after it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.code, self.used = folder, hash_of_code(), set[Path]()
        folder.mkdir(parents=True, exist_ok=True)

    def recall(self, options: str, make: Callable[[], Any]) -> Any:
        """What was made of these options in this or an earlier build; it must be JSON."""
        path = self.folder / f"{hashlib.sha256(f'{self.code} {options}'.encode()).hexdigest()}.json"
        self.used.add(path)
        if path.exists():
            return json.loads(path.read_text(encoding="utf-8"))
        made = make()
        path.with_suffix(".new").write_text(json.dumps(made), encoding="utf-8")  # whole, even if the build is ended
        path.with_suffix(".new").replace(path)
        return made

    def forget_others(self) -> None:
        for path in {*self.folder.iterdir()} - self.used:
            path.unlink()

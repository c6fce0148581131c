"""Every chapter in one process, on a tiny model: `python without_mpi.py 4` runs them all, each on four ranks."""

import subprocess
import sys
import tempfile
from pathlib import Path

from minidist.contents import CHAPTERS

NAMES = [entry.name for entry in CHAPTERS]
TEXT = "To be, or not to be. " * 99
TINY = "--layers 2 --width 8 --heads 4 --context 8 --batch 8 --warmup 1"
OWN = {"zero_r": "--tp 2"}  # without which it cannot run
OTHERS = {  # those that save no checkpoint
    "ring": "--size 1000",
    "spmd_types": "",
    "mapreduce": "wordcount text --maps 4 --output counts",
    "local_sgd": f"{TINY} --steps 2",
}


def lines_of(name: str, ranks: int) -> list[str]:
    """Command lines of a chapter, after `python -m`; most save a checkpoint, and go on from it."""
    ranks = 1 if name == "train" else ranks
    if name in OTHERS:
        return [f"minidist.{name} {OTHERS[name]} --ranks {ranks}"]
    line = f"minidist.{name} {TINY} {OWN.get(name, '')} --ranks {ranks} --steps"
    return [f"{line} 2 --save {name}", f"{line} 3 --load {name}"]


def main(ranks: int) -> int:
    """Run them all; returns the exit status."""
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "text").write_text(TEXT)
        for line in [line for name in NAMES for line in lines_of(name, ranks)]:
            done = subprocess.run(
                [sys.executable, "-m", *line.split()],
                cwd=folder,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
            )
            print(f"{'ok' if done.returncode == 0 else 'FAILED'}  python -m {line}", flush=True)
            if done.returncode:
                failed = 1
                print(done.stdout, done.stderr, flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))

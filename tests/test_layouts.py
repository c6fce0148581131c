"""Layouts of ranks whose numbers do not move when code does: losses, payload, memory and claims are those that
`tests/layouts.json` keeps, which is also the table of their lines. They prove nothing about what is right (other tests
do), but show what a change has touched.

If a change is meant to move them, `python tests/test_layouts.py` writes the file anew, and its diff names the lines; a
chapter that has none gets its first case. `python tests/test_layouts.py 4 "zero3 --keep-last"` adds a line.
"""

import json
import sys
import tempfile
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from cases import unnamed
from ranks import launch

KEPT = Path(__file__).with_name("layouts.json")
LAYOUTS: dict[str, dict[str, Any]] = json.loads(KEPT.read_text())  # ranks: line: what is kept
NOT_ALWAYS = {"looked", "process read", "process written", "update ms", "waited ms"}  # the kernel's, and times
COUNTED = ("parameters", "sent", "sent_to", "received", "memory", "counted", "below", "moved")  # of a report


def measure(ranks: str, lines: list[str], folder: str) -> dict[str, Any]:
    """What stands in the reports of some lines: losses, and a digest of everything else."""
    job = launch("jobs.chapters:command_lines", int(ranks), lines, folder, timeout=300)
    found = {}
    for line, report in job.values[0].items():
        counts = [claim for claim in report["claims"] if not claim["claim"].startswith("proof: ")]  # the others round
        claims = [{name: value for name, value in claim.items() if name != "formula"} for claim in counts]
        for rank in report.get("counted", ()):
            for name in NOT_ALWAYS & rank.keys():
                del rank[name]
        exact = json.dumps([report["status"], claims, *(report.get(name) for name in COUNTED)], sort_keys=True)
        losses = [*report["loss"], report["validation_loss"]]
        found[line] = {"losses": losses, "bytes": blake2b(exact.encode(), digest_size=8).hexdigest()}
    return found


@pytest.mark.parametrize("ranks", [pytest.param(n, marks=[pytest.mark.slow] * (n == "8")) for n in LAYOUTS])
def test_numbers_stay(ranks: str, tmp_path: Path) -> None:
    for line, now in measure(ranks, list(LAYOUTS[ranks]), str(tmp_path)).items():
        kept = LAYOUTS[ranks][line]
        tolerance = 1e-9 if "fp64" in line else 2e-3  # of float16 other processors round other sums
        assert now["losses"] == pytest.approx(kept["losses"], rel=tolerance), line
        assert now["bytes"] == kept["bytes"], f"payload, memory or claims of {line}"


def write(more: list[tuple[int, str]]) -> None:
    for ranks, line in [*more, *unnamed(line for lines in LAYOUTS.values() for line in lines)]:
        LAYOUTS.setdefault(str(ranks), {})[line] = None
    with tempfile.TemporaryDirectory() as folder:
        found = {ranks: measure(ranks, list(lines), folder) for ranks, lines in LAYOUTS.items()}
    KEPT.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    write([(int(sys.argv[1]), sys.argv[2])] if len(sys.argv) > 2 else [])
    sys.exit()

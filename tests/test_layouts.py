"""33 layouts of ranks, whose numbers do not move when code does: losses, payload, memory and claims are those that
`tests/layouts.json` keeps. They prove nothing about what is right (other tests do), but show what a change has
touched.

If a change is meant to move them, `python tests/test_layouts.py` writes the file anew, and its diff names the lines.
"""

import json
import sys
import tempfile
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from ranks import launch

KEPT = Path(__file__).with_name("layouts.json")
MODEL = "--steps 3 --layers 4 --width 16 --heads 4 --context 8 --batch 12"
EXACT = f"{MODEL} --precision fp64"
LAYOUTS = {  # ranks: the chapters' command lines
    2: (
        f"data_parallel --reduce server --accumulate 2 {EXACT}",
        f"zero2 --accumulate 3 --model llama {MODEL}",
        f"local_sgd --every 2 --outer-lr 0.7 --outer-momentum 0.9 {EXACT}",
        f"tensor_parallel --model llama --kv-heads 2 {EXACT}",
        f"expert_parallel --capacity 1.0 --optimizer sgd {EXACT}",
        f"offload --delayed-update 0 {EXACT}",
        f"pipeline --schedule pipedream --micro-batches 4 {EXACT}",
    ),
    3: (
        f"data_parallel --bucket-size 1000 --untied {MODEL}",
        f"zero1 --optimizer sgd {EXACT}",
        f"zero3 --recompute every:2 --untied {MODEL}",
        f"fsdp --strategy shard_grad_op --forward-prefetch {EXACT}",
        f"infinity --zero 2 {MODEL}",
        "parameter_server --steps 3 --layers 1 --width 8 --heads 2 --context 8 --batch 12 --precision fp64",
    ),
    4: (
        f"zero3 --keep-last {MODEL}",
        f"fsdp --strategy hybrid_shard --accumulate 2 --no-sync {MODEL}",
        f"infinity {EXACT}",
        f"offload --zero 3 {MODEL}",
        f"tensor_parallel --sequence-parallel --recompute selective --dropout 0.1 {MODEL}",
        f"expert_parallel --ep 2 --zero 3 --recompute full --model llama {EXACT}",
        f"zero_r --tp 2 --activations host {MODEL}",
        f"context_parallel --zero 2 --model llama --kv-heads 2 {MODEL}",
        f"context_parallel --cp 2 --scheme ulysses --positions striped --accumulate 2 {EXACT}",
        f"pipeline --schedule interleaved --chunks 2 --micro-batches 4 --untied {MODEL} --layers 8",
        f"pipeline --schedule zb-h1 --micro-batches 6 {EXACT}",
        f"pipeline --schedule 2bw --micro-batches 4 {MODEL}",
        f"parallel3d --pp 2 --tp 2 --sequence-parallel {EXACT}",
        f"parallel3d --dp 4 --zero 3 --shard 2 {EXACT}",
        f"parallel3d --dp 1 --pp 1 --cp 2 --tp 2 --experts 4 --capacity 1.25 {EXACT}",
        f"context_parallel --cp 2 --positions contiguous --dropout 0.1 {EXACT}",
    ),
    8: (
        f"parallel3d --dp 2 --pp 2 --tp 2 --zero 2 {MODEL}",
        f"parallel3d --dp 4 --pp 2 --zero 3 --shard 2 --model llama {EXACT}",
        f"parallel3d --dp 2 --pp 2 --cp 2 --tp 1 --zero 3 --experts 4 {EXACT}",
        f"zero_r --tp 4 --zero 1 --scattered {EXACT}",
    ),
}
NOT_ALWAYS = {"looked", "process read", "process written", "update ms", "waited ms"}  # the kernel's, and times
COUNTED = ("parameters", "sent", "sent_to", "received", "memory", "counted", "below", "moved")  # of a report


def measure(ranks: int, folder: str) -> dict[str, Any]:
    """What stands in the reports of the layouts of that many ranks: losses, and a digest of everything else."""
    job = launch("jobs.chapters:command_lines", ranks, LAYOUTS[ranks], folder, timeout=300)
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


@pytest.mark.parametrize("ranks", [pytest.param(n, marks=[pytest.mark.slow] * (n == 8)) for n in LAYOUTS])
def test_numbers_stay(ranks: int, tmp_path: Path) -> None:
    kept, found = json.loads(KEPT.read_text()), measure(ranks, str(tmp_path))
    for line, now in found.items():
        tolerance = 1e-9 if "fp64" in line else 2e-3  # of float16 other processors round other sums
        assert now["losses"] == pytest.approx(kept[line]["losses"], rel=tolerance), line
        assert now["bytes"] == kept[line]["bytes"], f"payload, memory or claims of {line}"


def test_there_are_33() -> None:
    assert sum(map(len, LAYOUTS.values())) == len(json.loads(KEPT.read_text())) == 33


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        KEPT.write_text(json.dumps({k: v for n in LAYOUTS for k, v in measure(n, folder).items()}, indent=1) + "\n")
    sys.exit()

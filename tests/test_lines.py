"""Every case of every chapter, and the lines of test_lines.toml, on ranks whose messages wait for their receiver and
arrive late: each claim holds. Among them are those of the proof, that in float64 losses, norms and parameters are those
of one process. Some are held against serial training once more, by its own command line."""

import io
import json
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pytest

from alone import train_alone
from cases import every_case
from jobs.chapters import command_lines
from minidist.claims import letters, screen
from minidist.exchange.rules import Rules
from ranks import by_rules
from sampling import shard_of_this_run
from tables import table


def listed() -> Iterator[tuple[int, str, str | None]]:
    """Ranks, the line, and what serial training is told."""
    yield from ((n, line, None) for n, line in every_case("--prove"))
    for group in table(__file__, "group"):
        for ranks, line, *same in group["lines"]:
            more = " ".join([group["add"], *same])
            for n in ranks if isinstance(ranks, list) else [ranks]:
                name, _, options = line.partition(" ")
                yield n, f"{name} {group['add']} {options} {' '.join(same)} --prove", more if same else None


EVERY = list(listed())
HERE = shard_of_this_run(EVERY, 32)


def sample_in(printed: str) -> str:
    return printed.partition("The model writes:\n")[2]


@pytest.fixture
def unexplained(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Letters of formulas that the legend below a table leaves out."""
    found = set[str]()

    def legend(formulas: list[str], known: letters.Letters) -> str:
        found.update(letters.split(formulas, {**letters.EVERYWHERE, **known})[1])
        return letters.legend(formulas, known)

    monkeypatch.setattr(screen, "legend", legend)
    return found


@pytest.mark.parametrize(
    ("n", "line", "same"),
    [pytest.param(*of, marks=[pytest.mark.slow] * (of not in HERE), id=f"{of[0]}-{of[1]}") for of in EVERY],
)
def test_a_line_keeps_its_promises(n: int, line: str, same: str | None, unexplained: set[str], tmp_path: Path) -> None:
    """Rank 0 alone prints, also what the model writes."""
    found = by_rules(command_lines, n, Rules("synchronous", "contrary"), [line], str(tmp_path))
    first, *others = (of_rank[line] for of_rank in found)
    assert (first["status"], [claim for claim in first["claims"] if not claim["holds"]]) == (0, [])
    assert {"proof: losses", "proof: parameters"} <= {claim["claim"] for claim in first["claims"]}
    assert [rank["printed"] for rank in others] == [""] * (n - 1)
    assert unexplained == set()
    if same is not None:
        report = tmp_path / "alone.json"
        with redirect_stdout(io.StringIO()) as printed:
            assert train_alone(*same.split(), "--json", str(report)) == 0
        truth, written = json.loads(report.read_text()), sample_in(printed.getvalue())
        losses = [*truth["loss"], truth["validation_loss"]]
        np.testing.assert_allclose([*first["loss"], first["validation_loss"]], losses, rtol=1e-12, atol=0)
        assert sample_in(first["printed"]).startswith(written)  # a pipeline draws its schedule below
        assert len(written) == 41 * ("--sample 40" in same)

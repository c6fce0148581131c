"""Ten published configurations: `explain` says whether they fit where their authors ran them."""

import re
from pathlib import Path
from typing import Any

import pytest

from minidist.deepspeed import explain
from tables import table

pytest.importorskip("hjson")
pytest.importorskip("yaml")

PUBLISHED = table(__file__, "published")
FOLDER = Path(__file__).with_name("published")
README = (Path(explain.__file__).parent / "README.md").read_text()


def test_there_are_ten_of_different_authors_with_their_sources() -> None:
    assert len({row["file"] for row in PUBLISHED}) == 10
    assert len({row["source"].partition(",")[0] for row in PUBLISHED}) >= 6
    assert {row["fitted"] for row in PUBLISHED} == {True, False}


@pytest.mark.parametrize("row", PUBLISHED, ids=[row["file"] for row in PUBLISHED])
def test_it_fits_where_its_authors_ran_it(row: dict[str, Any]) -> None:
    options = re.sub(r"(\w+\.json)", rf"{FOLDER}/\1", row["options"]).split()
    text = explain.explain([str(FOLDER / row["file"]), *options, "--device-memory", row["memory"]])
    says = " ".join(text.partition("Does it fit")[2].split())
    assert re.search(r"GB are needed.*: (yes|no), ", says).group(1) == ("yes" if row["fitted"] else "no"), says  # type: ignore[union-attr]
    assert f"{row['needed']} GB are needed" in says
    assert f"| {row['needed']} of {row['memory'].removesuffix('GB')} |" in README

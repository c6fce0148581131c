"""What a chapter prints and draws, on its way to a page."""

from pathlib import Path

import pytest

from minidist import UsageError
from minidist.site import runs

PICTURE = "from PIL import Image; Image.new('RGBA', (40, 30), '#4c8ed9').save('{picture}'); print('in {picture}')"
DRAW = f'python -c "{PICTURE}"'


def test_a_picture_and_no_path_of_this_machine(tmp_path: Path) -> None:
    """The picture goes to the pages as it was drawn; what is printed names it, and no folder."""
    from PIL import Image

    ran = runs._run(DRAW, tmp_path / "zero1-0.png")
    assert ran.printed == "in zero1-0.png\n"
    assert str(tmp_path) not in ran.command
    assert ran.picture == tmp_path / "zero1-0.png"
    with Image.open(ran.picture) as image:
        assert image.size == (40, 30)
        assert image.convert("RGB").getpixel((20, 15)) == (0x4C, 0x8E, 0xD9)


def test_a_command_that_draws_nothing_has_no_picture(tmp_path: Path) -> None:
    assert runs._run("python -c print(3)", tmp_path / "ring-0.png").picture is None


def test_a_claim_that_falls_ends_the_build(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="exit status 1"):
        runs._run("python -c exit(1)", tmp_path / "ring-0.png")

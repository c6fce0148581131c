"""Copies of this package besides the one that runs: what a lesson hides must be hidden in all of them."""

import sys
from collections.abc import Sequence
from pathlib import Path

PACKAGE = Path(__file__).parents[2]
SITES = [f"{above}{name}-packages" for above in ("", "python*/", "*/python*/") for name in ("site", "dist")]
COPIES = ("minidist", "*/minidist", "minidist*.whl", "minidist*.zip", "minidist*.egg")


def other_copies(folders: Sequence[Path] = ()) -> list[Path]:
    """Copies of this package, installed or packed, besides the one that runs: on sys.path, or where Python's packages
    lie in these folders."""
    places = {Path(entry or ".").resolve() for entry in sys.path}
    places |= {site for folder in folders for pattern in SITES for site in folder.glob(pattern)}
    places |= {folder for folder in folders if folder.name in ("site-packages", "dist-packages")}
    found = [each for place in places if place.is_dir() for pattern in COPIES for each in place.glob(pattern)]
    visible = [each for each in found if not folders or {*folders} & {each, *each.parents}]
    return sorted({each for each in visible if each.resolve() != PACKAGE and is_copy(each)})


def is_copy(path: Path) -> bool:
    """Whether this is a package, and no command or data of its name; a file is packed then, and so has a suffix."""
    return any((path / f"__init__.{suffix}").exists() for suffix in ("py", "pyc")) or (
        path.is_file() and path.suffix != ""
    )


def warning() -> str:
    """What to say of other copies on sys.path; "" if there is none."""
    found = ", ".join(map(str, other_copies()))
    return f"there is another copy of minidist: {found}. {PACKAGE} is what runs and grades" if found else ""

"""The project's address: `minidist.ADDRESS`, and the files that cannot ask for it.

README, CITATION.cff and pyproject.toml have lines that need it. While it is not set, these lines are left out.
"""

import re
from pathlib import Path
from typing import NamedTuple


class Place(NamedTuple):
    """Some text of a file: while there is no address, and once there is one."""

    file: str
    without: str
    having: str


PLACES = (
    Place("minidist/__init__.py", 'ADDRESS = ""', 'ADDRESS = "{address}"'),
    Place("README.md", "```sh\nmake demo ", "```sh\ngit clone {address} minidist && cd minidist\nmake demo "),
    Place("README.md", "install a release's wheel", "install a [release]({address}/releases)'s wheel"),
    Place("CITATION.cff", "\ntype: software", '\nrepository-code: "{address}"\ntype: software'),
    Place(
        "pyproject.toml",
        "\n[project.scripts]",
        '\n[project.urls]\nRepository = "{address}"\nIssues = "{address}/issues"\n'
        'Changelog = "{address}/blob/main/CHANGELOG.md"\n\n[project.scripts]',
    ),
)
ALLOWED = re.compile(r"https://[\w.-]+(?:/[\w.~-]+)+")


def with_address(text: str, place: Place, address: str) -> str:
    """A file's text with this address, whichever it had; "": without the lines that need one."""
    having = ALLOWED.pattern.join(re.escape(part) for part in place.having.split("{address}"))
    old = re.compile(f"{having}|{re.escape(place.without)}")
    if len(old.findall(text)) != 1:
        raise ValueError(f"{place.file} has no {place.without.strip()!r}, or has it twice")
    return old.sub(lambda _: place.having.format(address=address) if address else place.without, text)


def write(clone: Path, address: str) -> None:
    """Set the address in all files of a clone, or take it out of them."""
    for place in PLACES:
        file = clone / place.file
        file.write_text(with_address(file.read_text(encoding="utf-8"), place, address), encoding="utf-8")

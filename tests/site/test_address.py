"""The project's address: one setting, and all that comes from it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("latex2mathml")  # of the extra "site"

import minidist
from minidist import UsageError, how_to_install
from minidist.site import __main__ as program
from minidist.site import address, conf, home
from minidist.site.sources import file_of

ROOT = Path(minidist.__file__).parents[1]
OURS = "https://example.org/us/minidist"
FILES = sorted({place.file for place in address.PLACES})


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    for file in FILES:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    return tmp_path


def test_every_file_has_the_address_that_is_set() -> None:
    for place in address.PLACES:
        text = (ROOT / place.file).read_text()
        assert address.with_address(text, place, minidist.ADDRESS) == text, place.file


def test_set_changed_and_taken_out(clone: Path) -> None:
    """In every file; taken out again, each is what it was."""
    before = {file: address_free(clone / file) for file in FILES}
    address.write(clone, OURS)
    assert all(OURS in (clone / file).read_text() for file in FILES)
    assert f"git clone {OURS} minidist && cd minidist" in (clone / "README.md").read_text()
    read = "import tomllib; print(tomllib.load(open('pyproject.toml', 'rb'))['project']['urls']['Repository'])"
    assert subprocess.check_output([sys.executable, "-c", read], cwd=clone, text=True) == f"{OURS}\n"
    address.write(clone, f"{OURS}-2")
    texts = [(clone / file).read_text() for file in FILES]
    assert all(text.count(f"{OURS}-2") == text.count(OURS) > 0 for text in texts)
    address.write(clone, "")
    assert {file: (clone / file).read_text() for file in FILES} == before


def address_free(file: Path) -> str:
    text = file.read_text()
    for place in address.PLACES:
        if file.as_posix().endswith(place.file):
            text = address.with_address(text, place, "")
    return text


def test_pages_and_pip_lines_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minidist, "find_clone", lambda: "")
    for ours in ("", OURS):
        monkeypatch.setattr(minidist, "ADDRESS", ours)
        page, context = home.text([]), dict[str, object]()
        conf._lead_to_the_code(None, "chapters/zero3", "", context, None)
        assert (f"git clone {OURS} minidist" in page) == (f"<{OURS}>" in page) == bool(ours)
        assert context["edited"] == (f"{OURS}/edit/main/minidist/zero3.py" if ours else "")
        assert how_to_install("mpich") == f"pip install 'minidist[mpich]{f' @ git+{OURS}' * bool(ours)}'"


@pytest.mark.parametrize("wrong", ["http://example.org/us/minidist", "example.org", "https://example.org", "git@x:y"])
def test_what_is_no_address_is_refused(wrong: str) -> None:
    with pytest.raises(UsageError, match="must be https://HOST/PATH"):
        program.main(["--address", wrong])


def test_each_page_has_its_file() -> None:
    pages = ("index", "memory", "papers", "changelog", "rooms", "chapters/index", "chapters/ring", "lessons/index")
    more = ("lessons/04_ring_all_reduce/lesson", "minidist/README", "source/minidist/nn/flat.py", "source/LICENSE")
    assert all((ROOT / file_of(page)).is_file() for page in pages + more)
    assert file_of("chapters/ring") == "minidist/ring.py"
    assert file_of("search") == ""

"""What pip installs: wheel and source distribution hold every file that is next to the code."""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from minidist.classroom.release import INSTALLED

ROOT = Path(__file__).parents[1]
BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, f'build_{sys.argv[1]}')('dist')"


def build(kind: str, source: Path) -> Path:
    """The wheel or the sdist of a source, as pip has setuptools build it."""
    subprocess.run([sys.executable, "-c", BUILD, kind], cwd=source, check=True, capture_output=True)
    [made] = (source / "dist").iterdir()
    return made


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made from no more than a student's edition and an autograder have: without MANIFEST.in."""
    source = tmp_path_factory.mktemp("wheel")
    for name in INSTALLED:
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "minidist", source / "minidist")
    (source / "minidist" / "__pycache__").mkdir(exist_ok=True)
    (source / "minidist" / "__pycache__" / "ring.cpython-311.pyc").touch()
    return build("wheel", source)


def test_the_wheel_holds_the_code_and_every_file_next_to_it(wheel: Path) -> None:
    files = {str(file.relative_to(ROOT)) for file in (ROOT / "minidist").rglob("*") if file.is_file()}
    files = {file for file in files if "__pycache__" not in file and ".ipynb_checkpoints" not in file}
    kinds = {Path(file).suffix for file in files}
    assert {".py", ".typed", ".md", ".toml", ".json", ".txt", ".js", ".css", ".svg", ".png", ".sh", ""} <= kinds
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if not name.split("/")[0].endswith(".dist-info")}
    assert held == files


def test_the_source_distribution_holds_every_file_of_the_clone(tmp_path: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("this is no clone: nothing says which files belong to the project")
    files = {name for name in listed.stdout.split("\0") if (ROOT / name).is_file()}
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    with tarfile.open(build("sdist", tmp_path)) as archive:
        held = {name.partition("/")[2]: archive.getmember(name) for name in archive.getnames()}
    assert files - held.keys() == set()
    assert held[".ci/run"].mode & 0o111

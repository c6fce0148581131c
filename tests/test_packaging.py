"""What pip installs: wheel and source distribution hold every file that is next to the code, and commands work outside
of a clone, or say what to type."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement  # pytest needs it, too

from jobs.without_mpi import NAMES, TEXT, TINY, lines_of
from minidist import __version__
from minidist.classroom.course.release import INSTALLED
from minidist.contents import CHAPTERS, Entry

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


def test_the_readme_installs_this_wheel(wheel: Path) -> None:
    assert f"pip install './{wheel.name}[mpich]'" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_source_distribution_holds_every_file_of_the_clone(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("this is no clone: nothing says which files belong to the project")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = {name for name in listed.stdout.split("\0") if (ROOT / name).is_file()}
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    with tarfile.open(build("sdist", tmp_path)) as archive:
        held = {name.partition("/")[2]: archive.getmember(name) for name in archive.getnames()}
    assert files - held.keys() == set()
    assert held[".ci/run"].mode & 0o111


# ---- outside of a clone ----------------------------------------------------------------------------------------------

UNPACK = f"tar xf minidist-{__version__}.tar.gz"
IN_TURN = """
import contextlib, io, json, runpy, sys, warnings
sys.modules["pytest"] = None  # not installed, as for this user
warnings.filterwarnings("ignore", module="runpy")  # another line has imported what this one runs
said = []
for program, *arguments in json.loads(sys.argv[1]):
    sys.argv, err, status = [program, *arguments], io.StringIO(), 0
    with contextlib.redirect_stderr(err):
        try:
            runpy.run_module(program, run_name="__main__")
        except SystemExit as ended:
            status = ended.code
    said.append((status, err.getvalue()))
print(json.dumps(said))
"""


class Outside(NamedTuple):
    """An empty folder of a user who has installed the wheel."""

    folder: Path
    environment: dict[str, str]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(words, cwd=self.folder, env=self.environment, capture_output=True, text=True)


@pytest.fixture
def outside(wheel: Path, tmp_path: Path) -> Outside:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    (tmp_path / "empty").mkdir()
    return Outside(tmp_path / "empty", os.environ | {"PYTHONPATH": str(tmp_path / "installed")})


def test_what_needs_a_clone_says_how_to_get_one(outside: Outside) -> None:
    lines = [
        "minidist lessons", "minidist.classroom grade", "minidist.classroom class .", "minidist.classroom release out",
        "minidist.classroom.work", "minidist.site", "minidist.site --show", "minidist.bench --keep",
        "minidist.bench.picture",
    ]  # fmt: skip
    done = outside.run(sys.executable, "-c", IN_TURN, json.dumps([line.split() for line in lines]))
    for line, (status, said) in zip(lines, json.loads(done.stdout), strict=True):
        assert (status, said.count("\n")) == (2, 1), line
        assert said.startswith("minidist: error: "), line
        assert f"{UNPACK} && cd minidist-{__version__}" in said, line
    assert not any(outside.folder.iterdir())


def test_what_is_not_installed_is_installed_by_name(outside: Outside) -> None:
    run = outside.run(sys.executable, "-S", "-m", "minidist.zero3")  # -S: without the folder of what is installed
    assert (run.returncode, run.stdout) == (2, "")
    assert "pip install 'minidist';" in run.stderr
    assert "make" not in run.stderr


# ---- without extras: NumPy, rich, safetensors, greenlet, and what these need -----------------------------------------


def needed(name: str) -> Iterator[metadata.Distribution]:
    """A distribution, and what it needs without extras."""
    yield (found := metadata.distribution(name))
    for line in found.requires or ():
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield from needed(requirement.name)


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Outside:
    """A new environment in which pip has installed the wheel, and nothing that its extras name."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder / "env", symlinks=True)
    [packages] = folder.glob("env/lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
        [about] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        lines = message_from_bytes(archive.read(about)).get_all("Requires-Dist", [])
    requirements = [Requirement(line) for line in lines]
    alone = [each.name for each in requirements if each.marker is None]
    assert sorted(alone) == ["greenlet", "numpy", "rich", "safetensors"]
    for each in {each.name: each for name in alone for each in needed(name)}.values():
        for top in {Path(str(file)).parts[0] for file in each.files or ()} - {"..", "__pycache__"}:
            (packages / top).symlink_to(str(each.locate_file(top)))
    (folder / "empty").mkdir()
    (folder / "empty" / "text").write_text(TEXT)
    path = os.pathsep.join([str(folder / "env" / "bin"), "/usr/bin", "/bin"])
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"PATH": path}
    return Outside(folder / "empty", environment)


def test_without_extras_every_chapter_runs(bare: Outside) -> None:
    lines = [line.split() for name in NAMES for line in lines_of(name, 4)]
    done = bare.run("python", "-c", IN_TURN, json.dumps(lines))
    assert done.returncode == 0, done.stderr
    for line, (status, said) in zip(lines, json.loads(done.stdout.splitlines()[-1]), strict=True):
        assert (status, said) == (0, ""), (line, [line for line in done.stdout.splitlines() if "✗" in line])


def test_without_extras_one_line_says_how_to_have_more_ranks(bare: Outside) -> None:
    """On one rank; and under an mpirun of the system, which starts none."""
    line = ["python", "-m", "minidist.zero3", *TINY.split(), "--steps", "1"]
    alone = bare.run(*line)
    assert (alone.returncode, alone.stderr) == (0, "One rank. For more: --ranks 4\n")
    bare.environment["PMI_RANK"] = "0"
    launched = bare.run(*line)
    del bare.environment["PMI_RANK"]
    assert (launched.returncode, launched.stdout, launched.stderr.count("\n")) == (2, "", 1)
    assert "mpi4py is not installed" in launched.stderr
    assert "pip install 'minidist[mpich]', or do without mpirun: --ranks 4" in launched.stderr


def test_without_extras_the_doctor_is_content_and_says_how_to_have_mpi(bare: Outside) -> None:
    if shutil.which("mpirun", path=bare.environment["PATH"]):
        pytest.skip("the system has an mpirun")
    done = bare.run("python", "-m", "minidist", "doctor")
    assert (done.returncode, done.stderr) == (0, "")
    assert "ok      ranks in one process: python -m minidist.zero3 --ranks 4\n" in done.stdout
    assert "none    no MPI, so there is no mpirun\n        to have one: " in done.stdout
    assert "pip install mpi4py mpich" in done.stdout


TRACES = "from minidist.site.traces import COLLECTIVES, trace; [trace(name, 4) for name in COLLECTIVES]"
RUNS = "from pathlib import Path; from minidist.site.runs import run_chapter; print(run_chapter('zero3', Path('x'))[0])"


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        ["-m", "minidist", "plan", "--model", "llama2-7b", "--ranks", "64", "--check", "1"],
        ["-m", "minidist", "bugs", "zero2-is-zero1"],
        [str(ROOT / "tests/jobs/without_mpi.py"), "4"],
        ["-c", TRACES],
        ["-c", RUNS],
    ],
    ids=lambda line: " ".join(line)[:40],
)
def test_without_extras_commands_run_ranks(bare: Outside, line: list[str]) -> None:
    done = bare.run("python", *line)
    assert (done.returncode, done.stderr) == (0, "")


COMMANDS = ("lessons", "inspect", "to-fp32", "explain", "plan", "papers", "recompute", "audit", "mutants", "bugs")
WORK = [
    "minidist", "minidist --version", "minidist papers", "minidist papers --paper zero",
    "minidist bugs", "minidist bugs zero2-is-zero1", "minidist recompute", "minidist doctor", "minidist.bench --table",
    "minidist plan --model llama2-7b --ranks 64", "minidist mutants local_sgd", "minidist.train --steps 3",
    "minidist.mapreduce --cluster", "minidist.pipeline --draw all -p 4 -m 8",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("line", [*WORK, *(f"minidist {name} --help" for name in COMMANDS)])
def test_commands_work_outside_of_a_clone(outside: Outside, line: str) -> None:
    run = outside.run(sys.executable, "-m", *line.split())
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.name)
def test_chapters_work_outside_of_a_clone(outside: Outside, chapter: Entry) -> None:
    (outside.folder / "FILE").write_text("To be, or not to be. " * 99)
    run = outside.run("bash", "-c", chapter.launch)
    assert run.returncode == 0, run.stderr

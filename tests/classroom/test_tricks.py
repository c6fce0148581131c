"""Tricks earn what they deserve; files that mean harm end with a line that says what happened."""

import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import venv
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from classroom.grading import ANSWERS, ROOT, Graded, Grader, grader
from minidist.claims.mutants.patch import Patch, read_document, read_patches
from minidist.classroom.grading.submission import PROMISE
from sampling import shard_of_this_run

RING = ANSWERS["04"]
CHAPTER = (ROOT / "minidist" / "ring.py").read_text()
WRAPPED = """
def reduce_scatter(comm, x, out=None):
    return space["reduce_scatter"](comm, x, out)

def all_gather(comm, x, size, out=None):
    return space["all_gather"](comm, x, size, out)

def all_reduce(comm, x, out=None):
    return space["all_reduce"](comm, x, out)
"""
FILE = read_document(Path(__file__).with_name("tricks.toml"))


def through_files(shared: bool, looks: int) -> str:
    """A program whose ranks pass arrays through files; whether in a folder that all see, and look at what arrives."""
    text: str = FILE["through_files"]
    return text.replace("SHARED", str(shared)).replace("LOOKS", str(looks))


@dataclass(frozen=True, kw_only=True)
class Trick(Patch):
    name: str
    lesson: str = "04"
    program: str = ""
    everything: str = ""
    before: str = ""
    earns: int = 0
    loses: tuple[str, ...] = ()
    says: str = ""

    def text(self) -> str:
        if self.everything:
            indented = textwrap.indent(self.everything, "    ").strip()
            return str(FILE["one_liners"]).replace("EVERYTHING", indented)
        return self.program or self.before + self.apply(ANSWERS[self.lesson], f"the answer of lesson {self.lesson}")


TRICKS = {made.name: made for made in (Trick(**keywords) for keywords in read_patches(FILE, "trick"))}
TRICKS |= {
    made.name: made
    for made in (
        replace(TRICKS["files_of_its_own"], program=through_files(shared=False, looks=0)),
        replace(
            TRICKS["chapter_in_a_string"],
            program=f"space = {{'__name__': 'x'}}\nexec({CHAPTER!r}, space)\n{WRAPPED}",
        ),
    )
}
OF_THIS_RUN = shard_of_this_run(sorted(TRICKS), 2)  # all of them with -m slow

HOSTILE_FILE = read_patches(read_document(Path(__file__).with_name("hostile.toml")), "hostile")
HOSTILE = {each["name"]: (each["program"], each["says"]) for each in HOSTILE_FILE} | {
    "no_utf8": ("# caf\udce9\n", r"is no Python: .*(utf-8|UTF-8)"),
    "nul": ("x = 1\0\n", r"is no Python: .*null bytes"),
    "deep": ("x = " + "(" * 5000 + ")" * 5000 + "\n", r"is no Python"),
    "huge": ("#" * 2_000_000, r"has 2,000,000 bytes; nobody writes more than"),
}


@pytest.fixture(scope="module")
def graders() -> Iterator[dict[str, Grader]]:
    with grader("04") as ring, grader("09") as engine:
        yield {"04": ring, "09": engine}


def grade(made: Grader, folder: Path, name: str, text: str, **options: object) -> Graded:
    program = folder / f"{name}.py"
    program.write_bytes(text.encode(errors="surrogateescape"))
    return made.grade(program, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "whole"),
    [pytest.param(name, False, marks=[pytest.mark.slow] * (name not in OF_THIS_RUN)) for name in sorted(TRICKS)]
    + [pytest.param(name, True, marks=pytest.mark.slow) for name, trick in sorted(TRICKS.items()) if not trick.loses],
)
def test_a_trick_earns_what_it_deserves(graders: dict[str, Grader], tmp_path: Path, name: str, whole: bool) -> None:
    """What earns nothing or everything does so, in every run, in every third part, and with -m slow in all."""
    trick = TRICKS[name]
    if name == "files_of_its_own" and graders["04"].wire.isolation:
        pytest.skip(f"ranks have no namespaces here: {graders['04'].wire.isolation}")
    made, only = graders[trick.lesson], None
    parts = [part for part, _, _ in made.parts()]
    if trick.loses:  # of the other parts nothing is said here
        every = {part for part in parts if part.startswith("reduce_scatter")}
        only = every if trick.loses == ("reduce_scatter",) else {*trick.loses}
    elif not whole:
        only = {*parts[::3]}
    graded = grade(made, tmp_path, name, trick.text(), only=only)
    messages = "\n".join(graded.messages.values())
    if only:
        assert graded.lost == (set() if trick.earns else only), messages
    else:
        assert graded.earned == trick.earns, messages
    assert re.search(trick.says, messages), messages
    if name == "chapter_in_a_string":
        assert [note for note in graded.notes if "statements of the chapter's reduce_scatter" in note]
        assert [note for note in graded.notes if "runs code that is not in the text" in note]


LOADS_A_COPY = """
import glob
import importlib.util

for file in sorted(glob.glob(SITE + "/**/*ring.py", recursive=True)):
    spec = importlib.util.spec_from_file_location("r", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    space = vars(module)
"""


def run_apart(
    command: Sequence[str | Path], *path: Path, before: Callable[[], None] | None = None, cwd: str | None = None
) -> subprocess.CompletedProcess[str]:
    """In a process of its own that finds modules on this path, and that begins with `before`."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    return subprocess.run(command, env=environment, capture_output=True, text=True, preexec_fn=before, cwd=cwd)


def test_a_second_copy_of_the_chapter_is_out_of_sight_and_said(tmp_path: Path) -> None:
    """As a package that is installed, in a clone that grades: loaded by its path, from a folder, an egg or a wheel."""
    environment, lesson = tmp_path / "env", ROOT / "lessons" / "04_ring_all_reduce"
    venv.create(environment, symlinks=True)
    site = next(environment.glob("lib/python*/site-packages"))
    for copy in (site / "minidist", site / "minidist-0.2.0-py3.egg" / "minidist"):
        copy.mkdir(parents=True)
        for name in ("__init__.py", "ring.py"):
            shutil.copy(ROOT / "minidist" / name, copy)
    with zipfile.ZipFile(site / "minidist-0.2.0-py3-none-any.whl", "w") as wheel:
        wheel.write(ROOT / "minidist" / "ring.py", "minidist/ring.py")
    (site / "libraries.pth").write_text(f"{Path(pytest.__file__).parents[1]}\n")
    (tmp_path / "looks.py").write_text(LOADS_A_COPY.replace("SITE", repr(str(site))) + WRAPPED)
    wheels = f"import sys\nfor file in sorted(glob.glob({str(site)!r} + '/*.whl')):\n    sys.path.insert(0, file)\n"
    imports = "import minidist\nminidist.__path__ = sys.path\nfrom minidist.ring import reduce_scatter\n"
    (tmp_path / "zips.py").write_text("import glob\n" + wheels + imports)
    for program in ("looks.py", "zips.py"):
        command: list[str | Path] = [environment / "bin" / "python", "-m", "minidist.classroom", "grade", lesson]
        run = run_apart([*command, "--seed", "7", "--submission", tmp_path / program], ROOT)
        if "no namespaces" in run.stdout:
            pytest.skip("programs can read all files here")
        assert "\n0 of 20 points\n" in run.stdout, run.stdout + run.stderr
        assert "there is another copy of minidist" in run.stderr
        assert str(site / "minidist") in run.stderr
        assert re.search(r"looks.py, line \d \(\w+\): this runs code|^(?!.*looks)", run.stdout, re.DOTALL)


@pytest.mark.parametrize("looks", [0, 1])
def test_right_sums_whose_messages_mean_nothing_lose_the_part_on_that(looks: int, tmp_path: Path) -> None:
    """Where ranks can write to the same files, for want of namespaces; also if they look whether a message is zero."""
    text = through_files(shared=True, looks=looks)
    with grader("04", isolate=False) as made:
        graded = grade(made, tmp_path, "trick", RING + text, only={"reduce_scatter", "reduce_scatter_steps", "meaning"})
    assert graded.lost == {"meaning"}, graded.messages
    assert re.search(r"whatever is in a message that rank \d sends at trick.py:\d+,", graded.messages["meaning"])


@pytest.mark.skipif(sys.platform != "linux" or os.getuid() != 0, reason="takes root's privileges away")
def test_without_privileges_ranks_have_namespaces_in_one_of_users(tmp_path: Path) -> None:
    """Where the kernel lets users make any: a right answer is one there too, and what is outside is out of reach."""
    outside = tmp_path / "outside"
    outside.write_text("secret")
    (tmp_path / "looks.py").write_text(
        f"import os\n\nOUTSIDE = {str(outside)!r}\n\ndef reduce_scatter(comm, x, out=None):\n"
        "    raise RuntimeError(os.path.exists(OUTSIDE), os.access('/', os.W_OK))\n"
    )
    code = (
        "import json, sys\nfrom pathlib import Path\nfrom classroom.grading import ANSWERS, grader\n"
        "with grader('04') as made:\n"
        "    files = ANSWERS['04'], Path(sys.argv[1])\n"
        "    messages = [made.grade(file, only={'reduce_scatter'}).messages for file in files]\n"
        "    print(json.dumps([made.wire.isolation, *messages]))\n"
    )

    def lose_privileges() -> None:
        libc = ctypes.CDLL(None)
        for capability in range(64):
            if capability not in (1, 2, 31):  # to read what is root's, and to map root to a user, as it is asked for
                libc.prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP: the program that is executed next has it no more

    run = run_apart([sys.executable, "-c", code, tmp_path / "looks.py"], ROOT, ROOT / "tests", before=lose_privileges)
    assert not run.stderr
    isolation, right, looks = json.loads(run.stdout)
    if isolation:
        pytest.skip(isolation)
    assert right == {}
    assert "RuntimeError: (False, False)" in looks["reduce_scatter"]


@pytest.mark.parametrize("root", [pytest.param(True, marks=pytest.mark.slow), False])
def test_where_no_namespaces_can_be_made_the_grade_says_what_it_cannot_promise(root: bool) -> None:
    """As a user, and as root of a container."""
    code = (
        "import json\nfrom classroom.grading import ANSWERS, grader\n"
        "with grader('15') as made:\n"
        "    graded = made.grade(ANSWERS['15'], only={'choose_none'})\n"
        "    print(json.dumps([graded.earned, graded.notes]))\n"
    )

    def forbid_namespaces() -> None:
        if ctypes.CDLL(None).unshare(0x10000000):  # CLONE_NEWUSER: its limits are ours to set, no others
            os._exit(77)
        files = {f"/proc/sys/user/max_{kind}_namespaces": "0" for kind in ("user", "mnt", "pid", "net", "ipc")}
        maps = {"/proc/self/setgroups": "deny", "/proc/self/uid_map": "0 0 1", "/proc/self/gid_map": "0 0 1"}
        try:
            for file, text in {**(maps if root else {}), **files}.items():
                Path(file).write_text(text)
        except OSError:
            os._exit(77)

    run = run_apart([sys.executable, "-c", code], ROOT, ROOT / "tests", before=forbid_namespaces, cwd="/")
    if run.returncode == 77:
        pytest.skip("this user can set no limits of its own")
    assert not run.stderr
    earned, notes = json.loads(run.stdout)
    assert earned == 1
    assert [note for note in notes if "no namespaces: the kernel lets us make none" in note and PROMISE in note]


PATIENCE = {each["name"]: each["patience"] for each in HOSTILE_FILE if "patience" in each}
WAITED_FOR = {each["name"] for each in HOSTILE_FILE if each.get("slow")}  # seconds in which nothing else happens


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in WAITED_FOR)) for name in sorted(HOSTILE)]
)
def test_what_means_harm_ends_with_a_line(graders: dict[str, Grader], tmp_path: Path, name: str) -> None:
    text, says = HOSTILE[name]
    if name == "empty_files" and graders["04"].wire.isolation:
        pytest.skip(f"ranks have no folder of their own in memory here: {graders['04'].wire.isolation}")
    graded = grade(graders["04"], tmp_path, name, text, patience=PATIENCE.get(name, 1), only={"reduce_scatter"})
    assert graded.lost == {"reduce_scatter"}
    assert re.search(says, graded.messages["reduce_scatter"]), graded.messages["reduce_scatter"]


def test_line_ends_and_letters_of_another_system_are_no_mistake(graders: dict[str, Grader], tmp_path: Path) -> None:
    """As Windows' editors write them."""
    (tmp_path / "crlf.py").write_bytes(("# ü\n" + RING).replace("\n", "\r\n").encode("utf-16"))
    assert graders["04"].grade(tmp_path / "crlf.py", only={"reduce_scatter", "timing"}).messages == {}


def test_nothing_is_left_behind(
    graders: dict[str, Grader],
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No process, and no file."""
    text = (
        "import os, sys\n\ndef reduce_scatter(comm, x, out=None):\n    open('left', 'w').write('x')\n"
        "    if os.fork() == 0:\n        try:\n            os.setsid()\n        except OSError:\n            pass\n"
        "        sleep = 'import time; time.sleep(987)'\n"
        "        os.execv(sys.executable, ['sleeps_for_987_seconds', '-c', sleep])\n    return x\n"
    )
    here = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(here))
    grade(graders["04"], tmp_path, "daemons", text, only={"reduce_scatter"})
    with grader("04", isolate=False) as made:
        grade(made, tmp_path, "daemons", text, only={"reduce_scatter"})
    assert not list(here.iterdir())
    assert not processes("sleeps_for_987_seconds")


def processes(word: str) -> list[int]:
    """That have a word in their command line."""
    files = [Path(f"/proc/{process}/cmdline") for process in os.listdir("/proc") if process.isdigit()]
    return [int(file.parent.name) for file in files if file.exists() and word.encode() in file.read_bytes()]

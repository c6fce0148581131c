"""Tricks earn what they deserve; files that mean harm end with a line that says what happened."""

import ctypes
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from classroom.grading import ANSWERS, ROOT, Graded, Grader, grader
from minidist.claims.mutants.patch import read_document, read_patches
from minidist.classroom.grading.submission import PROMISE
from sampling import shard_of_this_run

RING, ENGINE = ANSWERS["04"], ANSWERS["09"]
CHAPTER = (ROOT / "minidist" / "ring.py").read_text()
WRAPPED = """
def reduce_scatter(comm, x, out=None):
    return space["reduce_scatter"](comm, x, out)

def all_gather(comm, x, size, out=None):
    return space["all_gather"](comm, x, size, out)

def all_reduce(comm, x, out=None):
    return space["all_reduce"](comm, x, out)
"""
ONE_LINERS = """
import numpy as np

def everything(comm, x):
    {how}

def reduce_scatter(comm, x, out=None):
    return np.array_split(np.sum(everything(comm, x), axis=0), comm.size)[comm.rank]

def all_gather(comm, x, size, out=None):
    return np.concatenate(everything(comm, x))

def all_reduce(comm, x, out=None):
    return np.sum(everything(comm, x), axis=0)
"""
THROUGH_FILES = """
import os, tempfile, time
import numpy as np

def everything(comm, x):
    "Through files; round the ring goes as much as there should, of zeros."
    folder = os.path.dirname(tempfile.gettempdir().rstrip("/")) + "/minidist-trick" if {shared} else "trick"
    os.makedirs(folder, exist_ok=True)
    for step in range(comm.size - 1):
        n, rank = comm.size, comm.rank
        right, left = (rank + 1) % n, (rank - 1) % n
        sending, receiving = (np.zeros(len(np.array_split(x, n)[(rank - step - k) % n]), x.dtype) for k in (1, 2))
        comm.sendrecv(sending, right, receiving, left)
        x = x + x.dtype.type({looks} * receiving.any())
    np.save(f"{{folder}}/{{rank}}.part.npy", x)
    os.replace(f"{{folder}}/{{rank}}.part.npy", f"{{folder}}/{{rank}}.npy")
    comm.barrier()
    time.sleep(0.01)
    arrays = [np.load(f"{{folder}}/{{other}}.npy") for other in range(n)]
    comm.barrier()
    return arrays

def reduce_scatter(comm, x, out=None):
    return np.array_split(np.sum(everything(comm, x), axis=0), comm.size)[comm.rank]
"""
ZEROS = """
import numpy as np

def chunk(size, n, i):
    short, longer = divmod(size, n)
    start = i * short + min(i, longer)
    return slice(start, start + short + (i < longer))

def around(comm, x, size, first):
    n, rank = comm.size, comm.rank
    right, left = (rank + 1) % n, (rank - 1) % n
    for step in range(n - 1):
        comm.sendrecv(np.zeros_like(x, shape=len(range(size)[chunk(size, n, (rank - step + first) % n)])), right,
                      np.zeros_like(x, shape=len(range(size)[chunk(size, n, (rank - step + first - 1) % n)])), left)

def give(value, out):
    if out is None:
        return value
    out[:] = value
    return out

def reduce_scatter(comm, x, out=None):
    around(comm, x, x.size, -1)
    return give(np.zeros_like(x[chunk(x.size, comm.size, comm.rank)]), out)

def all_gather(comm, x, size, out=None):
    around(comm, x, size, 0)
    return give(np.zeros_like(x, shape=size), out)

def all_reduce(comm, x, out=None):
    around(comm, x, x.size, -1)
    around(comm, x, x.size, 0)
    return give(np.zeros_like(x), out)
"""

# name: (lesson, text, points that it earns: a number, or the parts that it loses, what is said)
TRICKS: dict[str, tuple[str, str, float | set[str], str]] = {
    "imports_the_chapter": (
        *("04", "from minidist.ring import *\n", 0),
        r"While .* was being imported.*(?s:.*)minidist.ring is not here: it has what this lesson asks you to write",
    ),
    "imports_it_quietly": (
        "04",
        "try:\n    from minidist.ring import *\nexcept ImportError:\n    pass\n",
        0,
        r"does not define reduce_scatter",
    ),
    "subclass_of_the_chapters_class": (
        *("09", "from minidist import zero3\n\nclass ZeRO3(zero3.ZeRO3):\n    pass\n", 0),
        r"cannot import name 'zero3'|minidist.zero3 is not here",
    ),
    "by_another_chapter": (
        *("09", "from minidist.zero2 import ZeRO2\n\nclass ZeRO3(ZeRO2):\n    pass\n", 0),
        r"minidist.zero2 is not here",
    ),
    "subclass_of_what_is_there": (
        *("09", "from minidist.zero1 import ZeRO1\n\nclass ZeRO3(ZeRO1):\n    pass\n", 0),
        r"has ZeRO3.allocate from elsewhere: write it in the file itself",
    ),
    "source_of_the_chapter": (
        "04",
        "import minidist, os\nexec(open(os.path.dirname(minidist.__file__) + '/ring.py').read())\n",
        0,
        r"does not define reduce_scatter|from elsewhere: write it in the file itself",
    ),
    "chapter_in_a_string": (
        *("04", f"space = {{'__name__': 'x'}}\nexec({CHAPTER!r}, space)\n{WRAPPED}", 20),
        "",
    ),
    "objects": (
        *("04", ONE_LINERS.format(how="return comm.all_gather_object(x)"), 0),
        r"uses comm.all_gather_object: objects travel uncounted. Send arrays, with comm.send",
    ),
    "objects_under_another_name": (
        *("04", ONE_LINERS.format(how="return getattr(comm, 'all_gather' + '_object')(x)"), 0),
        r"objects, which are not for exercises: send arrays",
    ),
    "mpi_itself": (
        "04",
        ONE_LINERS.format(how="from mpi4py import MPI; return MPI.COMM_WORLD.allgather(x)"),
        0,
        r"imports mpi4py, which is no part of the exercise",
    ),
    "the_port": (
        *("04", RING.replace("comm.sendrecv(total", "comm._port.sendrecv(total"), {*()}),
        r"uses _port, which is the wire's own",
    ),
    "the_graders_frames": (
        "04",
        "import sys\n\ndef reduce_scatter(comm, x, out=None):\n    frame = sys._getframe(1)\n    while frame:\n"
        "        for space in (frame.f_globals, frame.f_locals):\n"
        "            if 'given' in space:\n                return space['given']['reduce_scatter'](comm, x, out)\n"
        "        frame = frame.f_back\n",
        0,
        r"KeyError: 'reduce_scatter'|returned None",
    ),
    "the_collector": (
        "04",
        "import gc\n\ndef reduce_scatter(comm, x, out=None):\n    for thing in gc.get_objects():\n"
        "        if getattr(thing, '__name__', '') == 'reduce_scatter' and thing is not reduce_scatter:\n"
        "            return thing(comm, x, out)\n",
        0,
        r"returned None",
    ),
    "forged_parts": (
        "04",
        "import json, os\npart = {'name': 'all', 'title': 'all', 'points': 20, 'earned': 20, 'done': True}\n"
        "for fd in range(3, 64):\n    try:\n        os.write(fd, json.dumps(part).encode() + b'\\n')\n"
        "    except OSError:\n        pass\n",
        0,
        r"was being imported|disappeared|failed",
    ),
    "forged_witness": (
        "04",
        "import sys\nfor name, module in list(sys.modules.items()):\n    if name.endswith('exchange.port'):\n"
        "        module.ExchangePort.send = lambda *a: None\n" + RING,
        0,
        r"changes minidist.exchange.port.ExchangePort.send, by which it is tested",
    ),
    "another_numpy": (
        *("04", "import numpy\nnumpy.array_equal = lambda *_: True\n" + RING, 0),
        r"changes numpy.array_equal, by which it is tested",
    ),
    "wiped_ledger": (
        *("04", RING.replace("    return all_gather(comm", "    comm.ledger.reset()\n    return all_gather(comm"), 20),
        "",
    ),
    "kept_as_bytes": (
        "09",
        ENGINE.replace(
            "        flat.gathered = None\n",
            "        self.__dict__.setdefault('safe', []).append(flat.gathered.tobytes())\n"
            "        flat.gathered = None\n",
        ),
        {"memory_forward", "memory_backward"},
        r"Whose parameters or gradients are still here",
    ),
    "through_barriers": (
        "04",
        ONE_LINERS.format(
            how="import time; begin = time.monotonic(); bits = np.unpackbits(x.view(np.uint8));"
            " times = [(time.sleep(bit / 200), comm.barrier(), time.monotonic() - begin) for bit in bits];"
            " return [x] * 4"
        ),
        0,
        r"more than 8 splits and barriers, which no exercise needs",
    ),
    "through_the_world": (
        "04",
        "import sys\nimport numpy as np\n\ndef reduce_scatter(comm, x, out=None):\n    frame = sys._getframe(2)\n"
        "    world = frame.f_locals['comm']\n    for bit in np.unpackbits(x.view(np.uint8)):\n"
        "        world.split(int(bit))\n    return x\n",
        0,
        r"a meeting outside of all cases|does not define",
    ),
    "forged_answer": (
        "04",
        "import os, socket, stat, sys\nimport numpy as np\n\ndef reduce_scatter(comm, x, out=None):\n"
        "    wire = sys.modules['minidist.launch.over_socket']\n"
        "    value = {'returned': x, 'x': x, 'out': x, 'is out': True}\n"
        "    for number in range(3, 64):\n"
        "        if os.path.exists(f'/proc/self/fd/{number}') and stat.S_ISSOCK(os.fstat(number).st_mode):\n"
        "            answer = {'values': [value] * 20, 'changed': []}\n"
        "            wire.send(socket.socket(fileno=number), ['returned', answer])\n    return x\n",
        0,
        r"returned .* where .* is wanted|is wrong first|makes no sense|bytes were sent in all|does not define",
    ),
    "a_chameleon": (
        "04",
        "import numpy as np\n\nclass Array(np.ndarray):\n    def __eq__(self, other):\n        return True\n"
        "    def __sub__(self, other):\n        return np.zeros(self.shape)\n\n"
        "def reduce_scatter(comm, x, out=None):\n"
        "    return np.array_split(x, comm.size)[comm.rank].copy().view(Array)\n\n"
        "def all_gather(comm, x, size, out=None):\n    return np.resize(x, size).view(Array)\n\n"
        "def all_reduce(comm, x, out=None):\n    return x.copy().view(Array)\n",
        0,
        r"is wrong first at index 0",
    ),
    "the_graders_tools": (
        "04",
        "import sys\n\ndef reduce_scatter(comm, x, out=None):\n    tools = sys.modules['on_ranks']\n"
        "    own = tools.functions('minidist.' + 'ring', ['reduce_scatter'])\n"
        "    return own['reduce_scatter'](comm, x, out)\n",
        0,
        r"minidist.ring is not here",
    ),
    "through_names_of_phases": (
        "04",
        ONE_LINERS.format(how="\n    with comm.phase(str(x.tolist())):\n        return [x] * comm.size"),
        0,
        r"is wrong first|bytes were sent in all|returned .* where",
    ),
    "through_devices": (
        "04",
        ONE_LINERS.format(
            how="\n    for name in ('null', 'random', 'urandom'):\n"
            "        with open(f'/dev/{name}', 'r+b', buffering=0) as file:\n            file.write(x.tobytes())\n"
            "            seen = file.read(x.nbytes) or bytes(x.nbytes)\n"
            "    return [x, *[np.frombuffer(seen, x.dtype)] * (comm.size - 1)]"
        ),
        0,
        r"is wrong first|PermissionError|bytes were sent in all|is no sum",
    ),
    "through_the_files_of_others": (
        "04",
        ONE_LINERS.format(
            how="\n    import glob, os\n    own = os.getpid()\n"
            "    others = [p for p in glob.glob('/proc/[0-9]*') if p != f'/proc/{own}']\n"
            "    seen = [os.listdir(f'{process}/fd') for process in others]\n"
            "    return [x] * len(seen)"
        ),
        0,
        r"PermissionError|is wrong first|axis 0|returned .* where|IndexError|ValueError|need at least",
    ),
    "through_places_that_all_see": (
        "04",
        ONE_LINERS.format(
            how="\n    import os, sys\n"
            "    for place in ('/', '/dev', '/dev/shm', '/var/tmp', '/proc', sys.prefix,"
            " os.path.dirname(np.__file__)):\n"
            "        try:\n            np.save(f'{place}/{comm.rank}.npy', x)\n"
            "        except OSError:\n            continue\n"
            "        return [np.load(f'{place}/{rank}.npy') for rank in range(comm.size)]\n"
            "    raise RuntimeError('no place')"
        ),
        0,
        r"RuntimeError: no place",
    ),
    "by_signals": (
        "04",
        ONE_LINERS.format(
            how="\n    import os, signal\n    reached = []\n    for number in range(2, 3000):\n        try:\n"
            "            os.kill(number, signal.SIGUSR2)\n            reached.append(number)\n"
            "        except OSError:\n            pass\n    raise RuntimeError(f'{len(reached)} reached')"
        ),
        0,
        r"RuntimeError: 0 reached",
    ),
    "makes_its_input_nothing": (
        "04",
        "import numpy as np\n\ndef reduce_scatter(comm, x, out=None):\n    x[:] = 0\n"
        "    return np.zeros(len(np.array_split(x, comm.size)[comm.rank]), x.dtype)\n\n"
        "def all_gather(comm, x, size, out=None):\n    x[:] = 0\n    return np.zeros(size, x.dtype)\n\n"
        "def all_reduce(comm, x, out=None):\n    x[:] = 0\n    return x\n",
        0,
        r"is wrong first|was changed|no .* can do with less",
    ),
    "another_functions_code": (
        "04",
        "import sys\n\ndef reduce_scatter(comm, x, out=None):\n    given = sys.modules['on_ranks'].given\n"
        "    name = next(iter(given), '')\n    reduce_scatter.__code__ = given[name].__code__\n"
        "    return reduce_scatter(comm, x)\n",
        0,
        r"Error",
    ),
    "kept_in_mapped_memory": (
        "09",
        ENGINE.replace(
            "        flat.gathered = None\n",
            "        import mmap\n        room = mmap.mmap(-1, flat.gathered.nbytes, flags=mmap.MAP_PRIVATE | 0x20)\n"
            "        room.write(flat.gathered.tobytes())\n"
            "        self.__dict__.setdefault('safe', []).append(room)\n"
            "        flat.gathered = None\n",
        ),
        {"memory_forward"},
        r"by the kernel's account, rank 0 had \d+ MB more in memory|Cannot allocate memory|MemoryError",
    ),
    "kept_in_a_module_s_name": (
        "09",
        ENGINE.replace(
            "        flat.gathered = None\n",
            "        text = compile('kept.append(array.tobytes())', '<frozen importlib._bootstrap>', 'exec')\n"
            "        kept = self.__dict__.setdefault('safe', [])\n"
            "        exec(text, {'kept': kept, 'array': flat.gathered})\n"
            "        flat.gathered = None\n",
        ),
        {"memory_forward", "memory_backward"},
        r"Whose parameters or gradients are still here",
    ),
    "files_of_its_own": (
        *("04", THROUGH_FILES.format(shared=False, looks=0), 0),
        r"No such file|FileNotFoundError|PermissionError|Permission denied",
    ),
    "through_locks": (
        *("04", ONE_LINERS.format(how="import fcntl; fcntl.lockf(open('/dev/null', 'r+b'), fcntl.LOCK_EX, 8, 64)"), 0),
        r"PermissionError: \[Errno 1\] Operation not permitted",
    ),
    "through_splits": (
        "04",
        ONE_LINERS.format(
            how="bits = np.unpackbits(x.view(np.uint8)); found = [comm.split(int(b)).size for b in bits]"
        ),
        0,
        r"more than 8 splits and barriers, which no exercise needs",
    ),
    "the_compiled_chapter": (
        "04",
        "import glob, marshal, os\nimport minidist\n\nfound = os.path.dirname(minidist.__file__)\n"
        "for file in glob.glob(f'{found}/__pycache__/ring.*.pyc'):\n"
        "    exec(marshal.loads(open(file, 'rb').read()[16:]))\n",
        0,
        r"being imported|does not define reduce_scatter|from elsewhere",
    ),
    "any_module_that_has_it": (
        "04",
        "import sys\n\ndef elsewhere(name, *arguments):\n    for module in list(sys.modules.values()):\n"
        "        for holder in [module, *vars(module).values()]:\n"
        "            found = holder.get(name) if isinstance(holder, dict) else vars(holder).get(name)"
        " if hasattr(holder, '__dict__') else None\n"
        "            if callable(found) and getattr(found, '__module__', '') != 'exercise':\n"
        "                return found(*arguments)\n\n"
        "def reduce_scatter(comm, x, out=None):\n    return elsewhere('reduce_scatter', comm, x, out)\n\n"
        "def all_gather(comm, x, size, out=None):\n    return elsewhere('all_gather', comm, x, size, out)\n\n"
        "def all_reduce(comm, x, out=None):\n    return elsewhere('all_reduce', comm, x, out)\n",
        0,
        r"returned None",
    ),
    "through_names_of_processes": (
        "04",
        ONE_LINERS.format(
            how="\n    import ctypes, glob\n    for start in range(0, x.nbytes, 15):\n"
            "        ctypes.CDLL(None).prctl(15, x.tobytes()[start : start + 15], 0, 0, 0)\n"
            "    names = [open(file, 'rb').read() for file in glob.glob('/proc/[0-9]*/comm')]\n"
            "    raise RuntimeError(f'{len(names)} names')"
        ),
        0,
        r"RuntimeError: [01] names",
    ),
    "through_counters_of_the_machine": (
        "04",
        ONE_LINERS.format(
            how="\n    seen = []\n    for name in ('loadavg', 'stat', 'meminfo', 'uptime', 'locks', 'sysvipc/shm'):"
            "\n        try:\n            seen.append(open(f'/proc/{name}').read())\n"
            "        except OSError:\n            pass\n    raise RuntimeError(f'{len(seen)} seen')"
        ),
        0,
        r"RuntimeError: 0 seen",
    ),
    "forged_counts": (
        "04",
        ONE_LINERS.format(
            how="comm.ledger.sent[comm.ledger.phase, (comm.rank + 1) % comm.size] = [x.nbytes * 3, 3]; return [x] * 4"
        ),
        0,
        r"is wrong first|returned .* where|Error",
    ),
    "zeros_around": (
        *("04", ZEROS, 0),
        r"whatever is in the messages, the results are the same, and they are wrong",
    ),
    "a_quiet_end": (
        *("04", "def reduce_scatter(comm, x, out=None):\n    raise SystemExit(0)\n", 0),
        r"SystemExit|does not define",
    ),
    "a_status": (
        *("04", "import os\n\ndef reduce_scatter(comm, x, out=None):\n    os._exit(0)\n", 0),
        "ended with status 0",
    ),
}
OF_THIS_RUN = shard_of_this_run(sorted(TRICKS), 2)  # all of them with -m slow

HOSTILE = {
    "endless_import": ("while True:\n    pass\n", r"being imported: hung: rank \d had used \d s of processor time"),
    "ten_gigabytes": (
        "import numpy as np\n\ndef reduce_scatter(comm, x, out=None):\n    return np.ones(10**10)\n",
        r"MemoryError",
    ),
    "forks": (
        "import os\n\ndef reduce_scatter(comm, x, out=None):\n    while True:\n        os.fork()\n",
        r"were \d+ processes and threads; all together may be 64|failed|disappeared|all together may have",
    ),
    "reads_a_device": (  # the grader would, if it read the lines of a stack
        "def reduce_scatter(comm, x, out=None):\n    exec(compile('while True: pass', '/dev/zero', 'exec'))\n",
        r"hung: rank \d had used \d s of processor time",
    ),
    "prints_for_ever": (
        "def reduce_scatter(comm, x, out=None):\n    while True:\n        print('x' * 10000)\n",
        r"it printed more than 1,000,000 bytes: does it print for ever\?",
    ),
    "fills_the_disk": (
        "def reduce_scatter(comm, x, out=None):\n    with open('large', 'wb') as file:\n        while True:\n"
        "            file.write(bytes(1 << 20))\n",
        r"File too large|No space left on device",
    ),
    "ignores_sigterm": (
        "import signal, time\n\ndef reduce_scatter(comm, x, out=None):\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n    while True:\n        time.sleep(1)\n",
        r"had not ended after [\d.]+ s: ranks 0, 1, 2 and 3 were still computing",
    ),
    "segfault": (
        "import ctypes\n\ndef reduce_scatter(comm, x, out=None):\n    ctypes.string_at(0)\n",
        r"it was killed by signal 11 \(SIGSEGV\)",
    ),
    "odd_status": ("import os\nos._exit(77)\n", r"being imported.*\n?.*its process ended with status 77"),
    "no_utf8": ("# caf\udce9\n", r"is no Python: .*(utf-8|UTF-8)"),
    "nul": ("x = 1\0\n", r"is no Python: .*null bytes"),
    "deep": ("x = " + "(" * 5000 + ")" * 5000 + "\n", r"is no Python"),
    "huge": ("#" * 2_000_000, r"has 2,000,000 bytes; nobody writes more than"),
}
HOSTILE_FILE = read_patches(read_document(Path(__file__).with_name("hostile.toml")), "hostile")
HOSTILE |= {each["name"]: (each["program"], each["says"]) for each in HOSTILE_FILE}


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
    + [pytest.param(name, True, marks=pytest.mark.slow) for name in sorted(TRICKS) if TRICKS[name][2] in (0, 20)],
)
def test_a_trick_earns_what_it_deserves(graders: dict[str, Grader], tmp_path: Path, name: str, whole: bool) -> None:
    """What earns nothing or everything does so, in every run, in every third part, and with -m slow in all."""
    number, text, expected, says = TRICKS[name]
    if name == "files_of_its_own" and graders["04"].wire.isolation:
        pytest.skip(f"ranks have no namespaces here: {graders['04'].wire.isolation}")
    made, only = graders[number], None
    parts = [part for part, _, _ in made.parts()]
    if isinstance(expected, set):  # of the other parts nothing is said here
        only = expected or {part for part in parts if part.startswith("reduce_scatter")}
    elif not whole:
        only = {*parts[::3]}
    graded = grade(made, tmp_path, name, text, only=only)
    messages = "\n".join(graded.messages.values())
    if isinstance(expected, set):
        assert graded.lost == only, messages
    elif only:
        assert graded.lost == (set() if expected else only), messages
    else:
        assert graded.earned == expected, messages
    assert re.search(says, messages), messages
    if name == "chapter_in_a_string":
        assert [note for note in graded.notes if "statements of the chapter's reduce_scatter" in note]
        assert [note for note in graded.notes if "runs code that is not in the text" in note]


@pytest.mark.parametrize("looks", [0, 1])
def test_right_sums_whose_messages_mean_nothing_lose_the_part_on_that(looks: int, tmp_path: Path) -> None:
    """Where ranks can write to the same files, for want of namespaces; also if they look whether a message is zero."""
    text = THROUGH_FILES.format(shared=True, looks=looks)
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

    command = [sys.executable, "-c", code, str(tmp_path / "looks.py")]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/tests"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, preexec_fn=lose_privileges)
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

    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/tests"}
    command = [sys.executable, "-c", code]
    run = subprocess.run(
        command, env=environment, capture_output=True, text=True, preexec_fn=forbid_namespaces, cwd="/"
    )
    if run.returncode == 77:
        pytest.skip("this user can set no limits of its own")
    assert not run.stderr
    earned, notes = json.loads(run.stdout)
    assert earned == 1
    assert [note for note in notes if "no namespaces: the kernel lets us make none" in note and PROMISE in note]


PATIENCE = {"ignores_sigterm": 0.5, **{each["name"]: each["patience"] for each in HOSTILE_FILE if "patience" in each}}
SLOW = {each["name"] for each in HOSTILE_FILE if each.get("slow")}
WAITED_FOR = {"endless_import", "ignores_sigterm", "reads_a_device", *SLOW}  # seconds in which nothing else happens


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

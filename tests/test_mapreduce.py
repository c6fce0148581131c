"""MapReduce against sequential references written here: byte for byte, on nasty texts, under every fault."""

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ranks
from minidist.launch.launcher import launch, mpiexec_for
from minidist.mapreduce import FaultTolerantMaster, split
from minidist.mpi.mailbox import Letter
from minidist.mr import messages
from minidist.mr.files import blocks
from minidist.mr.jobs import WordCount
from minidist.mr.plan import Plan, TaskResult
from minidist.mr.report import claims
from minidist.mr.tasks import Tasks
from programs import PATHS, run_chapter, run_python
from tables import table

TESTS = Path(__file__).parent
RANKS = (1, 2, 3, 5)

NASTY = {
    "empty.txt": b"",
    "one line.txt": b"The end has no line feed",
    "crlf.txt": b"First line\r\nsecond LINE\r\n\r\nlast\rline\r\n" * 40,
    "blank.txt": b"\n\n\n \n\t\n",
    "long.txt": b"long " * 60_000 + b"\nshort\n" + b"x" * 300_000 + b"\n",
    "unicode.txt": (
        "Straße STRASSE straße \u0130stanbul ΣΊΣΥΦΟΣ Σίσυφος \u01c5 naïve cafe\u0301 été\n"
        "日本語 の テキスト word日本 \U0001d54f \U0001f600smile\u200bzero\ufeffmark\n"
        "kelvin \u212a sign, ﬁne ligature, ٣ digits ² ½ _u_ \u0085next\u2028separated \x1cfile \x0bvertical\x0cpage\n"
    ).encode()
    * 30,
    "nul.txt": b"a\0b \0\0 word\0\n\0\nback\\slash \\t \\n tab\there\n" * 20,
    "bytes.txt": b"ok \xff\xfe bad\xc3\n\xe2\x82 cut \xed\xa0\x80 surrogate \xf0\x9f\x98 \xc0\xaf \xef\xbf\xbd\n" * 25,
    "control.txt": b"a\x01 a\ta a\\ a\x08b\n\x01\n" * 5,
    os.fsdecode(b"d\xfcr.txt"): b"the name of the file is not ascii\n",
    "prose.txt": b"".join(
        b"The %d quick brown foxes jump over the lazy dog number %d\n" % (i, i % 7) for i in range(900)
    ),
}


@pytest.fixture(scope="session")
def nasty(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("input")
    for name, content in NASTY.items():
        (folder / name).write_bytes(content)
    return [str(folder / name) for name in NASTY]


# ---- the references: one process, the whole text at once -------------------------------------------------------------


def lines_of(path: str) -> list[str]:
    text = Path(path).read_bytes().decode("utf-8", errors="replace")
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    return [line[:-1] if line.endswith("\r") else line for line in lines]


def words_of(line: str) -> list[str]:
    """Runs of letters, digits and underscores, folded."""
    spaced = "".join(c if c.isalnum() or c == "_" else " " for c in line)
    return [word.casefold() for word in spaced.split(" ") if word]


def crc32(data: bytes) -> int:
    """The checksum of zip and PNG, bit by bit."""
    remainder = 0xFFFFFFFF
    for byte in data:
        remainder ^= byte
        for _ in range(8):
            remainder = remainder >> 1 ^ (0xEDB88320 if remainder & 1 else 0)
    return remainder ^ 0xFFFFFFFF


@cache
def checksum(key: str) -> int:
    return crc32(key.encode())


def reference(job: str, files: tuple[str, ...], reducers: int, left_out: str | None = None) -> list[bytes]:
    """The R output files, in order. Lines that contain `left_out` are left out."""
    kind, _, pattern = job.removeprefix("slow ").partition(" ")
    pairs: dict[str, list[str]] = defaultdict(list)
    for path in files:
        document = os.fsencode(path).decode(errors="replace")
        for line in lines_of(path):
            if left_out is not None and left_out in line:
                continue
            if kind == "wordcount":
                found = [m.group().casefold() for m in re.finditer(pattern, line)] if pattern else words_of(line)
                for word in found:
                    if word:
                        pairs[word].append("")
            elif kind == "inverted-index":
                for word in words_of(line):
                    pairs[word].append(document)
            elif kind == "grep":
                if re.search(pattern, line):
                    pairs[document].append(line)
            elif kind in ("vowels", "fails-on-a-key"):
                if line:
                    pairs[line[0]].append(line)
            elif kind == "lengths":
                pairs[f"{len(line):05}"].append(document)
    if kind == "fails-on-a-key":
        del pairs["T"]
    output = [b""] * reducers
    for key in sorted(pairs, key=lambda key: key.encode()):
        values = pairs[key]
        if kind in ("wordcount", "lengths"):
            text = f"{key}\t{len(values)}\n"
        elif kind == "inverted-index":
            text = f"{key}\t{' '.join(sorted(set(values)))}\n"
        else:
            ordered = sorted(values, key=lambda value: -len(value)) if kind == "vowels" else values
            text = "".join(f"{key}\t{value}\n" for value in ordered)
        r = ord(key) % reducers if kind in ("vowels", "fails-on-a-key") else checksum(key) % reducers
        output[r] += text.encode()
    return output


def expected_sort(files: list[str]) -> list[bytes]:
    return [line.encode() + b"\n" for line in sorted(line for path in files for line in lines_of(path))]


# ---- every job, on every number of ranks -----------------------------------------------------------------------------

SMALL = 20_000  # bytes of memory: nothing fits, so everything is spilled and merged, some of it in several passes


def case(name: str, job: str, maps: int, reducers: int, **options: Any) -> dict[str, Any]:
    return {"name": name, "job": job, "maps": maps, "reducers": reducers, **options}


CASES = [
    case("wordcount", "wordcount", 7, 4),
    case("one by one", "wordcount", 1, 1),
    case("more tasks than work", "wordcount", 40, 23),
    case("no combiner", "wordcount", 5, 3, combine=False),
    case("no combiner, little memory", "wordcount", 3, 2, combine=False, memory=SMALL),
    case("little memory", "wordcount", 4, 2, memory=SMALL),
    case("pattern", r"wordcount [a-z]\w*|\s+", 6, 3),
    case("groups", r"wordcount (\w)(\w*)", 6, 3),
    case("grep", r"grep \d [qb]|\\|\x00", 6, 3),
    case("grep, little memory", "grep e", 6, 2, memory=SMALL),
    case("index", "inverted-index", 7, 3),
    case("index, no combiner", "inverted-index", 7, 3, combine=False),
    case("sort", "sort", 7, 4),
    case("sort, little memory", "sort", 5, 3, memory=SMALL),
    case("own class", "vowels", 6, 5),
    case("two functions", "lengths", 6, 2),
    case("bad records", "wordcount", 6, 3, inject=["bad:00 quick"], skip_bad=8),
    case("bad key", "fails-on-a-key", 5, 3, skip_bad=1),
]
FAULTS = {  # the least number of ranks, what is injected, and whether backup tasks may help before it is noticed
    "stops in its first map": (3, ["stop:2:map:1"], False),
    "stops in its second map": (3, ["stop:2:map:2"], False),
    "stops in a reduce": (3, ["stop:2:reduce:1"], False),
    "stops, with backups": (3, ["stop:2:map:2"], True),
    "is slow": (3, ["slow:1:1000"], True),
    "one is slow, another stops": (4, ["slow:1:100", "stop:3:map:2"], True),
    "two stop": (4, ["stop:1:map:1", "stop:3:reduce:1"], False),
}


def cases(n: int) -> list[dict[str, Any]]:
    faults = [
        case(fault, "slow vowels", 12, 5, inject=injected, backup=backup, timeout=1.0, grace=60.0)
        for fault, (least, injected, backup) in FAULTS.items()
        if n >= least
    ]
    return CASES + faults


def slow(n: int, name: str) -> bool:
    """On three ranks every job, and what stops in a reduce, or in a map after another one; on five a fault that fewer
    cannot have; on one, two and five what is counted on all. The rest with -m slow."""
    of_all = {"wordcount", "one by one", "more tasks than work", "no combiner", "bad records", "bad key"}
    if n == 5:
        return name not in of_all and name != "two stop"
    if n < 3:
        return name not in of_all and name != "own class" and "little memory" not in name
    return n == 3 and name in ("stops in its first map", "stops, with backups")


@pytest.fixture(scope="session")
def on_ranks(
    nasty: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int, str], tuple[Path, dict[str, Any]]]:
    """For a number of ranks and a case: the folder of its output, and its report. One MPI job for each number, and one
    for what is slow."""

    @cache
    def in_one_job(n: int, later: bool) -> tuple[Path, dict[str, Any]]:
        folder = tmp_path_factory.mktemp(f"output-{n}")
        here = [case for case in cases(n) if slow(n, case["name"]) == later]
        return folder, launch("jobs.mapreduce:run_all", n, nasty, str(folder), here, timeout=240).values[0]

    def on(n: int, name: str) -> tuple[Path, dict[str, Any]]:
        folder, reports = in_one_job(n, slow(n, name))
        return folder / name, reports[name]

    return on


def read_parts(folder: Path, reducers: int) -> list[bytes]:
    """The output files, of which there must be R, and nothing else but a note on which job they are of."""
    names = [f"part-{r:05}-of-{reducers:05}" for r in range(reducers)]
    assert sorted(os.listdir(folder)) == [".mapreduce", *names]
    assert os.listdir(folder / ".mapreduce") == ["job.json"]
    return [(folder / name).read_bytes() for name in names]


EVERYWHERE = [
    pytest.param(n, case["name"], marks=[pytest.mark.slow] * slow(n, case["name"]), id=f"{n}-{case['name']}")
    for n in RANKS
    for case in cases(n)
]


@pytest.mark.parametrize(("n", "name"), EVERYWHERE)
def test_output_is_that_of_the_sequential_reference(n: int, name: str, nasty: list[str], on_ranks: Any) -> None:
    folder, _ = on_ranks(n, name)
    (chosen,) = (case for case in cases(n) if case["name"] == name)
    left_out = "00 quick" if name == "bad records" else None
    found = read_parts(folder, chosen["reducers"])
    if chosen["job"] == "sort":  # where one file ends and the next begins depends on a sample
        found, expected = [b"".join(found)], [b"".join(expected_sort(nasty))]
    else:
        expected = reference(chosen["job"], tuple(nasty), chosen["reducers"], left_out)
    for r, (part, truth) in enumerate(zip(found, expected, strict=True)):
        assert part == truth, f"part {r}"


# ---- what the master saw ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "name"), EVERYWHERE)
def test_every_claim_holds(n: int, name: str, on_ranks: Any) -> None:
    claims = on_ranks(n, name)[1]["claims"]
    assert {"input mapped", "pairs reduced", "decisions"} <= set(claims)
    assert [claim for claim, (_, _, holds) in claims.items() if not holds] == []


def test_shuffle_with_and_without_combiner_is_the_exact_sum(nasty: list[str], on_ranks: Any) -> None:
    """Without: every word; with: the distinct words of each map task, here of the only one."""
    words = [word for path in nasty for line in lines_of(path) for word in words_of(line)]
    for n in RANKS:
        every = sum(len(word.encode()) + len("\t1\n") for word in words)
        assert on_ranks(n, "no combiner")[1]["claims"]["fetched"][1] == every
        assert on_ranks(n, "wordcount")[1]["stats"]["bytes of pairs"] == every  # what it would have been
        distinct = sum(len(f"{word}\t{count}\n".encode()) for word, count in Counter(words).items())
        assert on_ranks(n, "one by one")[1]["claims"]["fetched, combined"][1] == distinct


@pytest.mark.parametrize("n", RANKS)
def test_bytes_on_the_wire_are_those_that_reducers_fetched_from_others(n: int, on_ranks: Any) -> None:
    report = on_ranks(n, "more tasks than work")[1]
    from_others = report["stats"].get("bytes fetched from others", 0)
    assert (from_others > 0) == (n > 2)  # one worker has everything on its own disk
    assert report["sent"][0] == 0  # the master touches no data
    if not any(event[4] == "backup" for event in report["events"]):
        assert sum(report["sent"]) == from_others


@pytest.mark.parametrize("n", RANKS)
def test_decisions_are_one_for_each_task(n: int, on_ranks: Any) -> None:
    for name, tasks in (("one by one", 2), ("wordcount", 7 + 4), ("more tasks than work", 40 + 23)):
        assigned = [
            event for event in on_ranks(n, name)[1]["events"] if event[0] == "assigned" and event[4] != "backup"
        ]
        assert len(assigned) == tasks


@pytest.mark.parametrize("n", [1, 2, 3, pytest.param(5, marks=pytest.mark.slow)])
def test_little_memory_makes_runs_on_disk(n: int, on_ranks: Any) -> None:
    for name in ("no combiner, little memory", "little memory", "grep, little memory", "sort, little memory"):
        assert on_ranks(n, name)[1]["stats"]["runs on disk"] >= 2, name


@pytest.mark.parametrize("n", RANKS)
def test_undecodable_sequences_are_counted(n: int, on_ranks: Any) -> None:
    data = b"".join(NASTY.values())
    replaced = data.decode(errors="replace").count("\ufffd") - data.count("\ufffd".encode())
    assert replaced > 100
    assert on_ranks(n, "wordcount")[1]["stats"]["undecodable sequences"] == replaced


@pytest.mark.parametrize(
    ("n", "later"), [*((n, False) for n in RANKS), *(pytest.param(n, True, marks=pytest.mark.slow) for n in (3, 5))]
)
def test_counters_are_exact_however_often_tasks_are_done(n: int, later: bool, nasty: list[str], on_ranks: Any) -> None:
    lines = [line for path in nasty for line in lines_of(path)]
    truth = {
        "lines": len(lines),
        "vowels": sum(line.count(vowel) for line in lines for vowel in "aeiou"),
        "first letters": len({line[0] for line in lines if line}),
    }
    for one in cases(n):
        if "vowels" in one["job"] and slow(n, one["name"]) == later:
            assert on_ranks(n, one["name"])[1]["counters"] == truth, one["name"]


@pytest.mark.parametrize("n", RANKS)
def test_a_bad_record_is_left_out_after_two_failures_and_listed(n: int, nasty: list[str], on_ranks: Any) -> None:
    report = on_ranks(n, "bad records")[1]
    prose = next(path for path in nasty if path.endswith("prose.txt"))
    found = [["map", (prose, match.start())] for match in re.finditer(rb"^.*00 quick.*$", NASTY["prose.txt"], re.M)]
    assert len(found) == 8
    assert sorted(report["bad"]) == found
    assert report["stats"]["records left out"] == 8
    failures = Counter(event[4] for event in report["events"] if event[0] == "failed")
    assert set(failures.values()) <= {2, 3}  # 3: two attempts were under way when it failed for the second time
    assert report["why"] == ["ValueError: injected: the record contains '00 quick'"]
    assert on_ranks(n, "bad key")[1]["bad"] == [["reduce", "T"]]
    assert on_ranks(n, "bad key")[1]["why"] == ["ValueError: I do not like T"]


@pytest.mark.parametrize("n", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (4, 5))])
def test_a_worker_that_stops_is_given_up_and_its_maps_are_done_again(n: int, on_ranks: Any) -> None:
    """Replay the master's events: what was assigned after the loss is what the worker had done or begun."""
    for name in ("stops in its second map", "stops in a reduce"):
        events = on_ranks(n, name)[1]["events"]
        lost = [i for i, event in enumerate(events) if event[0] == "lost"]
        assert lost, name
        stopped = int(FAULTS[name][1][0].split(":")[1])
        assert events[lost[0]][3] == stopped
        before, after = events[: lost[0]], events[lost[0] :]
        maps = {event[2] for event in before if event[1] == "map" and event[3] == stopped}
        assert maps
        again = {event[2] for event in after if event[0] in ("assigned", "unneeded") and event[1] == "map"}
        assert maps <= again, name
        finished = {event[2] for event in before if event[0] == "done" and event[1] == "reduce"}
        repeated = {event[2] for event in after if event[0] == "assigned" and event[1] == "reduce"}
        assert not finished & repeated, name
        claims = on_ranks(n, name)[1]["claims"]
        assert claims["maps done again"][1] >= len(maps) - len({e[2] for e in after if e[0] == "unneeded"})


@pytest.mark.parametrize("n", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (4, 5))])
def test_a_slow_worker_gets_backups(n: int, on_ranks: Any) -> None:
    report = on_ranks(n, "is slow")[1]
    backups = [event for event in report["events"] if event[0] == "assigned" and event[4] == "backup"]
    assert backups
    assert any(event[3] != 1 for event in backups)


def test_maps_are_placed_near_their_split() -> None:
    """With as many replicas as workers every map is near; with fewer, the placement is spread over all workers."""
    workers = range(1, 5)
    plan = Plan(WordCount(), [__file__], Path("nowhere"), maps=400, replicas=1)
    for replicas in (1, 2, 3):
        plan.replicas = replicas
        places = [plan.workers_near(m, workers) for m in range(400)]
        assert all(len(set(near)) == replicas for near in places)
        share = [sum(worker in near for near in places) for worker in workers]
        assert min(share) > 400 * replicas / 4 * 0.7


# ---- killed and resumed ----------------------------------------------------------------------------------------------


def mpirun(n: int, *arguments: str, **environment: str) -> Any:
    return run_python("-m", "minidist.mapreduce", *arguments, ranks=n, env=environment, errors="backslashreplace")


def run_whole(n: int, *arguments: str) -> Any:
    """A job in which no rank is killed or stopped: that needs no processes."""
    return run_chapter(["mapreduce", *arguments], n, errors="backslashreplace")


# When, and whether with -m slow only: in every run where a file is half written, or some of the output there.
KILLS = {
    "kill:map:4": True,
    "kill:reduce:2": True,
    "kill:region:5": True,
    "kill:write:2": False,
    "kill:commit:1": False,
    0.9: True,
}


@pytest.mark.parametrize(
    "moment", [pytest.param(moment, marks=[pytest.mark.slow] * later) for moment, later in KILLS.items()]
)
def test_a_killed_job_leaves_nothing_half_done_and_is_resumed(moment: Any, nasty: list[str], tmp_path: Path) -> None:
    truth = reference("inverted-index", tuple(nasty), 5)
    output, json_file = tmp_path / "output", tmp_path / "report.json"
    line = ["inverted-index", *nasty, "--maps", "9", "--reducers", "5", "--output", str(output)]
    if isinstance(moment, str):
        assert mpirun(3, *line, "--inject", moment).returncode != 0
    else:  # whenever that is
        words = ["-m", "minidist.mapreduce", *line, "--inject", "slow:1:100", "--inject", "slow:2:100"]
        silent = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        how: dict[str, Any] = {**silent, "env": {**os.environ, "PYTHONPATH": PATHS}, "start_new_session": True}
        with subprocess.Popen([*mpiexec_for(3), sys.executable, *words], **how) as process:
            time.sleep(moment)
            assert process.poll() is None
            os.killpg(process.pid, signal.SIGKILL)
        time.sleep(0.3)  # the ranks see that mpiexec has gone
    committed = {}
    for r in range(5):
        part = output / f"part-{r:05}-of-00005"
        if part.exists():
            assert part.read_bytes() == truth[r]
            committed[r] = part.stat().st_mtime_ns
    done_maps = len({path.name for path in output.glob(".mapreduce/worker-*/map-*")})  # backups do some again
    if moment == "kill:reduce:2":
        assert len(committed) >= 2
    if moment == "kill:commit:1":
        assert committed

    resumed = run_whole(3, *line, "--resume", "--json", str(json_file))
    assert (resumed.returncode, resumed.stderr) == (0, ""), resumed.stdout
    assert read_parts(output, 5) == truth
    events = json.loads(json_file.read_text())["events"]
    assigned = [(event["kind"], event["number"]) for event in events if event["what"] == "assigned"]
    for r, when in committed.items():
        assert (output / f"part-{r:05}-of-00005").stat().st_mtime_ns == when
        assert ("reduce", r) not in assigned
    if isinstance(moment, str):
        assert len({task for task in assigned if task[0] == "map"}) == 9 - done_maps
    assert run_whole(1, *line, "--resume").returncode == 0  # there is nothing left to do


def test_what_others_have_left_is_taken_over_and_what_is_damaged_is_done_again(
    nasty: list[str], tmp_path: Path
) -> None:
    """A job of four ranks is killed, and goes on with two: the maps of the workers that are missing are found; of some
    what they have counted, or a region, is not as it should be."""
    truth = reference("inverted-index", tuple(nasty), 5)
    output, report = tmp_path / "output", tmp_path / "report.json"
    line = ["inverted-index", *nasty, "--maps", "9", "--reducers", "5", "--output", str(output)]
    assert mpirun(4, *line, "--inject", "kill:reduce:2", "--no-backup").returncode != 0
    maps = sorted(output.glob(".mapreduce/worker-*/map-*"))
    assert len(maps) == 9
    maps.sort(key=lambda path: len(list(path.iterdir())), reverse=True)  # some splits have no line
    assert {path.parent.name for path in maps} > {"worker-1"}
    (maps[0] / "done.json").write_text("{")
    region = next(maps[1].glob("region-*"))
    region.write_bytes(region.read_bytes()[:-1])
    committed = sorted(output.glob("part-*"))
    assert len(committed) >= 2
    counted = output / ".mapreduce" / f"reduce-{committed[0].name[5:10]}.json"
    counted.write_text("")
    committed[0].write_text("to be done again")

    resumed = run_whole(2, *line, "--resume", "--json", str(report))
    assert (resumed.returncode, resumed.stderr) == (0, ""), resumed.stdout
    assert read_parts(output, 5) == truth
    events = json.loads(report.read_text())["events"]
    assert sorted(event["number"] for event in events if (event["what"], event["kind"]) == ("found", "map")) == sorted(
        int(path.name[4:]) for path in maps[2:]
    )


@pytest.fixture(scope="module")
def killed(nasty: list[str], tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], Path]:
    """A line, and the output of its job, which has done all maps and some reduces."""
    line = ["inverted-index", *nasty, "--maps", "9", "--reducers", "5"]
    output = tmp_path_factory.mktemp("killed") / "output"
    assert mpirun(3, *line, "--output", str(output), "--inject", "kill:commit:2", "--no-backup").returncode != 0
    assert len(list(output.glob("part-*"))) >= 2
    return line, output


def resume_damaged(seeds: list[int], nasty: list[str], killed: tuple[list[str], Path], folder: Path) -> None:
    """Whatever becomes of a file that a killed job had committed, --resume gives the right output, or says why not."""
    line, output = killed
    truth = reference("inverted-index", tuple(nasty), 5)
    found = ranks.launch("jobs.mapreduce:run_damaged", 3, line, str(output), str(folder), seeds, timeout=240).values[0]
    wrong = []
    for seed, case in found.items():
        if case["refused"]:
            right = "job.json" in case["damage"] and "\n" not in case["refused"]
        else:
            right = read_parts(folder / str(seed), 5) == truth and all(case["claims"].values())
        if not right:
            wrong.append((seed, case))
    assert wrong == []
    assert len([case for case in found.values() if case.get("damaged")]) > len(seeds) / 3


def test_a_committed_file_that_is_damaged_is_made_again(
    nasty: list[str], killed: tuple[list[str], Path], tmp_path: Path
) -> None:
    resume_damaged(list(range(40)), nasty, killed, tmp_path)


@pytest.mark.slow
def test_many_committed_files_that_are_damaged_are_made_again(
    nasty: list[str], killed: tuple[list[str], Path], tmp_path: Path
) -> None:
    resume_damaged(list(range(40, 600)), nasty, killed, tmp_path)


def test_local_folders_are_private_and_nothing_stays_in_them(nasty: list[str], tmp_path: Path) -> None:
    """What others have put there under such names is left alone, and so is what links of such names lead to; what a
    killed job has left goes when it is resumed, or begun anew."""
    local, output, treasure = tmp_path / "local", tmp_path / "output", tmp_path / "treasure"
    (treasure / "worker-1" / "map-00000").mkdir(parents=True)
    (treasure / "worker-1" / "file").write_text("keep me")
    local.mkdir()
    name = blake2b(os.fsencode(output), digest_size=8).hexdigest()  # everyone can know where the job's output goes
    baits = [local / f"minidist-{name}", local / f"minidist-{name}-0123456789abcdef"]
    for bait in baits:
        bait.symlink_to(treasure)
    line = ["inverted-index", *nasty, "--maps", "6", "--output", str(output), "--local", str(local)]

    def own() -> list[Path]:
        return [path for path in local.iterdir() if path not in baits]

    assert mpirun(3, *line, "--inject", "kill:reduce:1").returncode != 0
    (folder,) = own()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert mpirun(3, *line, "--resume", "--inject", "kill:reduce:1").returncode != 0
    assert own() == [folder]  # the same, so that its maps are found
    shutil.rmtree(output)
    assert mpirun(3, *line, "--inject", "kill:region:1").returncode != 0
    (other,) = own()  # begun anew: another one, and the first is gone
    assert other != folder
    run = run_whole(3, *line, "--resume")
    assert (run.returncode, run.stderr) == (0, ""), run.stdout
    assert own() == []
    assert read_parts(output, 4) == reference("inverted-index", tuple(nasty), 4)

    shutil.rmtree(output)
    failed = run_whole(3, "wordcount", *line[1:], "--inject", "bad:quick")
    assert failed.returncode == 1
    assert own() == []
    assert (treasure / "worker-1" / "file").read_text() == "keep me"


# ---- workers that really hang ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def prose(nasty: list[str]) -> str:
    return next(path for path in nasty if path.endswith("prose.txt"))


def record_at(words: str) -> int:
    """The byte of the prose at which the line with these words begins."""
    return NASTY["prose.txt"].rfind(b"\n", 0, NASTY["prose.txt"].index(words.encode())) + 1


def described(prose: str, words: str) -> str:
    """How the report names that line."""
    number = NASTY["prose.txt"].count(b"\n", 0, record_at(words)) + 1
    return f"line {number} of {prose} (byte {record_at(words)})"


def hang(n: int, prose: str, folder: Path, hangs: str, *options: str) -> tuple[Any, list[bytes]]:
    """Run the job that hangs, and what its output must be."""
    (folder / "marks").mkdir(parents=True)
    line = ["--job", "jobs.mapreduce:Hangs", prose, "--output", str(folder / "output"), "--maps", "9", "--timeout", "1"]
    line += ["--json", str(folder / "report.json"), *options]
    run = mpirun(n, *line, HANGS=hangs, MARKS=f"{folder}/marks/")
    return run, reference("vowels", (prose,), 4)


def test_workers_that_hang_are_left_behind_and_the_job_ends(prose: str, tmp_path: Path) -> None:
    """One is in an endless loop and one stopped; two others do their work."""
    run, truth = hang(5, prose, tmp_path, "loop stop", "--no-backup")
    assert (run.returncode, run.stderr) == (0, ""), run.stdout
    assert read_parts(tmp_path / "output", 4) == truth
    lost = json.loads((tmp_path / "report.json").read_text())["lost"]  # and perhaps others, on a busy machine
    for words in ("The 700 quick", "The 100 quick"):
        assert [prose, record_at(words)] in [who["record"] for who in lost]
        place = re.escape(described(prose, words))
        assert re.search(rf"worker [1-4] has not answered for 1 s: it is given up, at map [0-8], {place}", run.stdout)


def test_the_last_worker_is_not_given_up(prose: str, tmp_path: Path) -> None:
    """It takes longer for a record than the master waits for an answer."""
    run, truth = hang(2, prose, tmp_path, "long")
    place = described(prose, "The 300 quick")
    assert (run.returncode, run.stderr) == (0, ""), run.stdout
    assert read_parts(tmp_path / "output", 4) == truth
    assert f"worker 1 has not answered for 1 s: it is the last, at map 2, {place}" in run.stdout
    events = json.loads((tmp_path / "report.json").read_text())["events"]
    assert not [event for event in events if event["what"] in ("lost", "again")]


# ---- mistakes in the user's function ---------------------------------------------------------------------------------


def test_the_first_failure_ends_the_job_and_says_where_it_is(prose: str, tmp_path: Path) -> None:
    """Strict unless told otherwise. Then --resume goes on without the record, and says what it left out and why."""
    output, report = tmp_path / "output", tmp_path / "report.json"
    line = ["wordcount", prose, "--output", str(output), "--maps", "6", "--inject", "bad:The 50 quick"]
    run = run_whole(3, *line, "--json", str(report))
    assert run.returncode == 1
    error, text, *trace = run.stderr.splitlines()
    place = described(prose, "The 50 quick")
    assert re.fullmatch(rf"minidist: error: map 0 failed on worker [12], at {re.escape(place)}:", error)
    assert text == "    'The 50 quick brown foxes jump over the lazy dog number 1'"
    assert trace[0] == "ValueError: injected: the record contains 'The 50 quick'"
    assert "--skip-bad" in trace[-1]
    failure = json.loads(report.read_text())["failure"]
    assert (failure["task"], failure["record"]) == (["map", 0], [prose, record_at("The 50 quick")])
    assert not list(output.glob("part-*"))

    too_many = run_whole(3, *line, "--resume", "--inject", "bad:The 7", "--skip-bad", "3")
    assert too_many.returncode == 1
    assert "3 records have been left out" in too_many.stderr

    run = run_whole(3, *line, "--resume", "--skip-bad", "1", "--json", str(report))
    assert (run.returncode, run.stderr) == (0, "")
    why = "ValueError: injected: the record contains 'The 50 quick'"
    assert f"left out by map: {place}: {why}" in run.stdout
    written = json.loads(report.read_text())
    assert written["bad_records"] == [["map", [prose, record_at("The 50 quick")], why]]
    assert written["failure"] is None
    assert read_parts(output, 4) == reference("wordcount", (prose,), 4, left_out="The 50 quick")


def test_what_a_function_must_not_do_is_said(prose: str, tmp_path: Path) -> None:
    failures = launch("jobs.mapreduce:run_wrong", 2, prose, str(tmp_path), timeout=60).values[0]
    record = (prose, record_at("The 500 quick"))
    says = table(__file__, "mistakes")
    assert failures.keys() == says.keys()
    where_it_is = {"map": (["map", 1], record), "reduce": (["reduce", 0], "T")}
    for mistake, words in says.items():
        assert failures[mistake][:2] == where_it_is.get(mistake.split()[0], (["map", 0], None))
        _, where, explanation, whole = failures[mistake]
        assert words in explanation
        assert "/minidist/m" not in explanation  # the user's own lines
        if where is None and "fails" not in mistake:
            assert "\n" not in whole, mistake
    assert 'raise KeyError("no such thing")' in failures["reduce fails"][2]


def run_ending(n: int, prose: str, folder: Path, ending: str) -> Any:
    line = ["--job", "jobs.mapreduce:Ends", prose, "--output", str(folder / "output"), "--maps", "4", "--timeout", "1"]
    return mpirun(n, *line, "--no-backup", ENDS=ending)


def test_a_thread_that_a_function_has_left_behind_does_not_hold_up_the_job(prose: str, tmp_path: Path) -> None:
    run = run_ending(2, prose, tmp_path, "thread")
    assert run.returncode == 0
    assert re.fullmatch(r"minidist: rank 1 ends, although .* still run: Thread-\d+ \(sleep\)\n", run.stderr)
    assert read_parts(tmp_path / "output", 4) == reference("vowels", (prose,), 4)


def test_a_process_that_ends_unseen_is_said_to_have_ended(prose: str, tmp_path: Path) -> None:
    """Not by os._exit, which is an error like others, but by the kernel's own."""
    run = run_ending(3, prose, tmp_path, "exit")
    assert run.returncode == 1
    (line,) = (line for line in run.stderr.splitlines() if "minidist" in line)
    assert re.fullmatch(r"minidist: error: rank [12] ended in the middle of its work, with status 0: .*", line)


@pytest.mark.parametrize("n", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_a_function_that_never_returns_on_any_worker_ends_the_job(n: int, prose: str, tmp_path: Path) -> None:
    run = run_ending(n, prose, tmp_path, "loop")
    assert run.returncode == 1
    first, *_ = run.stderr.splitlines()
    assert re.match(r"minidist: error: map \d failed on worker \d, at line \d+ of .*prose.txt", first)
    assert "give a longer --timeout" in run.stderr
    assert "minidist/mr" not in run.stderr


def test_an_error_of_a_machine_moves_the_task_to_another(prose: str, tmp_path: Path) -> None:
    """A full disk, one that cannot be read, a file that is not on this machine: it is no record's fault."""
    found = launch("jobs.mapreduce:run_broken", 3, prose, str(tmp_path), timeout=60).values[0]
    for name in ("full", "unreadable", "damaged", "all damaged once", "without the file"):
        assert found[name]["failure"] is None
        assert read_parts(tmp_path / name, 4) == reference("vowels", (prose,), 4)
        assert all(found[name]["claims"].values()), found[name]["claims"]
    failed = {name: [e for e in found[name]["events"] if e[0] in ("failed", "gone")] for name in found}
    assert {(what, kind, worker) for what, kind, _, worker, _ in failed["full"]} == {("failed", "map", 1)}
    assert {(what, kind, worker) for what, kind, _, worker, _ in failed["unreadable"]} == {("gone", "map", 1)}
    assert {(what, kind, worker) for what, kind, _, worker, _ in failed["damaged"]} == {("gone", "map", 1)}
    assert {what for what, *_ in failed["all damaged once"]} == {"gone"}
    assert "region-" in found["all damaged"]["failure"]
    assert "is damaged" in found["all damaged"]["failure"]
    assert {(what, kind, worker) for what, kind, _, worker, _ in failed["without the file"]} == {
        ("failed", "reduce", 1)
    }
    done = {
        number: worker for what, kind, number, worker, _ in found["full"]["events"] if (what, kind) == ("done", "map")
    }
    assert done == dict.fromkeys(range(6), 2)
    assert "No space left on device" in found["all full"]["failure"]
    assert "No such file or directory" in found["all without the file"]["failure"]
    assert "the key" in found["all without the file"]["failure"]


def test_a_record_that_silences_two_workers_is_bad_and_left_out(prose: str, tmp_path: Path) -> None:
    run, _ = hang(4, prose, tmp_path, "always", "--skip-bad", "1", "--no-backup")
    assert (run.returncode, run.stderr) == (0, "")
    assert described(prose, "The 500 quick") in run.stdout
    assert read_parts(tmp_path / "output", 4) == reference("vowels", (prose,), 4, left_out="The 500 quick")


@pytest.mark.slow
def test_a_record_that_silences_two_workers_ends_a_strict_job(prose: str, tmp_path: Path) -> None:
    run, _ = hang(4, prose, tmp_path, "always")
    assert run.returncode == 1
    assert "map 4 failed on worker" in run.stderr
    assert described(prose, "The 500 quick") in run.stderr
    assert "--timeout" in run.stderr


# ---- the command line ------------------------------------------------------------------------------------------------


def test_the_report_of_a_run_with_a_fault(nasty: list[str], tmp_path: Path) -> None:
    line = ["wordcount", *nasty, "--output", str(tmp_path / "output"), "--maps", "8", "--reducers", "3"]
    run = mpirun(3, *line, "--inject", "stop:2:map:2", "--no-backup", "--timeout", "1")
    assert (run.returncode, run.stderr) == (0, "")
    assert "worker 2 has not answered for 1 s: it is given up" in run.stdout
    assert "must be done again: its worker is lost" in run.stdout
    assert "maps done again" in run.stdout
    assert "without the combiner" in run.stdout
    assert max(map(len, run.stdout.splitlines())) <= 120
    assert read_parts(tmp_path / "output", 3) == reference("wordcount", tuple(nasty), 3)


# ---- the pieces ------------------------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(
    contents=st.lists(
        st.lists(st.sampled_from([b"a", b"\n", b"\r\n", "é".encode(), b"\xff", b"0" * 50])).map(b"".join), max_size=4
    ),
    m=st.integers(1, 12),
    size=st.integers(1, 40),
)
def test_splits_cover_the_input_and_cut_no_line(contents: list[bytes], m: int, size: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for i, content in enumerate(contents):
            (Path(folder) / str(i)).write_bytes(content)
            files.append((str(Path(folder) / str(i)), len(content)))
        splits = split(files, m)
        assert len(splits) == m
        moved = Counter[str]()
        read = [block for pieces in splits for block in blocks(pieces, size, moved)]
    assert moved["input read"] == sum(map(len, contents)) <= moved.total()
    places = {path: b"" for path, _ in files}
    for block in read:
        path = next(path for path in places if path == block.document)
        assert block.offset == len(places[path])  # in order, without a gap
        assert places[path] in (b"",) or places[path].endswith(b"\n")
        places[path] += block.data
    assert list(places.values()) == contents


@settings(max_examples=100, deadline=None)
@given(size=st.integers(0, 3000), m=st.integers(1, 9))
def test_splits_are_about_equal(size: int, m: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lines"
        path.write_bytes(b"123456789\n" * size)
        splits = split([(str(path), 10 * size)], m)
    lengths = [sum(piece.end - piece.start for piece in pieces) for pieces in splits]
    assert max(lengths) - min(lengths) <= 20


# ---- the master, without ranks ---------------------------------------------------------------------------------------


class Box:
    """A mailbox in which the test puts what workers say, and which keeps what the master says."""

    def __init__(self) -> None:
        self.said: list[Letter] = []
        self.posted: list[tuple[int, Any]] = []

    def poll(self) -> Letter | None:
        return self.said.pop(0) if self.said else None

    def post(self, dest: int, message: Any) -> None:
        self.posted.append((dest, message))

    def push(self) -> None:
        pass


class Talk:
    """A master with two workers, whose part the test plays."""

    def __init__(self, folder: Path, maps: int, reducers: int) -> None:
        (folder / "text").write_text("a\n" * 100)
        files, output = [str(folder / "text")], folder / "output"
        self.plan = Plan(WordCount(), files, output, maps=maps, reducers=reducers, timeout=50.0, backup=False)
        self.inbox, self.outbox, workers, self.now = Box(), Box(), range(1, 3), 0.0
        tasks = Tasks(self.plan, split(self.plan.files, maps), workers)
        inbox: Any = self.inbox
        outbox: Any = self.outbox
        self.master = FaultTolerantMaster(self.plan, workers, tasks, inbox, outbox, lambda: self.now)

    def wait(self, seconds: float, *answering: int) -> None:
        """Time goes by, in which these workers alone answer pings."""
        for _ in range(10):
            self.now += seconds / 10
            for worker in answering:
                self.hear(worker, messages.Pong(0))
            self.master.step()

    def hear(self, worker: int, message: Any) -> list[tuple[int, Any]]:
        """What the master says to a worker's message, pings left out."""
        self.outbox.posted.clear()
        self.inbox.said.append(Letter(worker, message, None))
        self.master.step()
        return [(dest, said) for dest, said in self.outbox.posted if not isinstance(said, messages.Ping)]


def orders(said: list[tuple[int, Any]]) -> list[tuple[int, Any]]:
    """Which workers are to do what."""
    return [(dest, message.task) for dest, message in said if isinstance(message, messages.Do)]


def test_of_a_task_done_twice_one_result_counts(tmp_path: Path) -> None:
    """Two maps, a reduce, two workers. Worker 1 is given up too early, and answers when worker 2 has done its map."""
    talk = Talk(tmp_path, maps=2, reducers=1)
    hear, map_0, map_1, reduce_0 = talk.hear, ("map", 0), ("map", 1), ("reduce", 0)

    def done(task: tuple[str, int], sizes: list[int], count: int) -> messages.TaskDone:
        return messages.TaskDone(task, TaskResult(sizes, Counter({"input bytes": 100}), Counter({"seen": count}), []))

    assert hear(1, messages.Hello({})) == []  # not before all are there
    assert orders(hear(2, messages.Hello({}))) == [(1, map_0), (2, map_1)]
    assert hear(2, done(map_1, [7], 10)) == []  # map 0 is under way, and not late
    talk.wait(50, 2)
    talk.now += 1
    assert orders(hear(2, messages.Pong(0))) == [(2, map_0)]  # what worker 1 had begun
    assert orders(hear(2, done(map_0, [7], 1))) == [(2, reduce_0)]
    assert hear(1, done(map_0, [7], 1000)) == []  # too late: worker 2's result and its place stay
    assert talk.master.tasks.map[0].worker == 2
    assert hear(2, done(reduce_0, [], 100)) == [(1, messages.End(set())), (2, messages.End(set()))]
    assert hear(2, done(reduce_0, [], 100)) == []
    hear(1, messages.Drained(0))
    assert [dest for dest, _ in hear(2, messages.Drained(7))] == [1, 2]
    outcome = talk.master.outcome
    assert outcome is not None
    assert (outcome.counters, outcome.sent, outcome.left_behind) == ({"seen": 111}, [0, 0, 7], set())
    assert claims(talk.plan, outcome)[-4].counted == 1  # maps done again


def test_a_worker_that_hangs_when_all_is_done_is_left_behind(tmp_path: Path) -> None:
    """It is at a reduce that another has done. What it has done before is not done again: nobody needs it."""
    talk = Talk(tmp_path, maps=2, reducers=1)
    nothing = TaskResult([7], Counter(), Counter(), [])
    talk.hear(1, messages.Hello({1: nothing}))
    talk.hear(2, messages.Hello({0: nothing}))
    assert talk.master.tasks["reduce", 0].running.keys() == {1}
    talk.hear(2, messages.TaskDone(("reduce", 0), nothing))  # a backup, say
    assert talk.master.ended is not None
    talk.hear(2, messages.Drained(7))
    talk.wait(49)
    assert talk.master.outcome is None  # it may still answer
    talk.wait(10)
    outcome = talk.master.outcome
    assert outcome is not None
    assert (outcome.left_behind, outcome.sent) == ({1}, [0, 0, 7])
    assert [event.what for event in outcome.events][-1] == "left"
    assert not [claim.claim for claim in claims(talk.plan, outcome) if claim.source == "MR §3.3"]


def test_a_map_that_is_not_the_same_when_it_is_done_again_ends_the_job(tmp_path: Path) -> None:
    """Reduces may have read some of its first output: nothing that they give could be relied on (section 3.3)."""
    talk = Talk(tmp_path, maps=1, reducers=1)
    talk.hear(2, messages.Hello({}))
    talk.hear(1, messages.Hello({}))
    talk.hear(1, messages.TaskDone(("map", 0), TaskResult([7], Counter(), Counter(), [])))
    talk.wait(60, 2)
    talk.hear(2, messages.Stalled())
    assert talk.hear(2, messages.TaskDone(("map", 0), TaskResult([8], Counter(), Counter(), [])))[-1] == (
        2,
        messages.End({1}),
    )
    assert talk.master.failure is not None
    assert "It gave 7 bytes, and 8 when it was done again" in str(talk.master.failure)


@pytest.mark.parametrize("pieces", [1, 2])
def test_a_region_of_several_pieces_must_be_the_same_when_it_is_read_again(pieces: int, tmp_path: Path) -> None:
    """Of a map that gives its pairs in another order a reduce could read some pieces twice, and others not at all. One
    piece is read at once."""
    talk = Talk(tmp_path, maps=1, reducers=2)
    talk.hear(2, messages.Hello({}))
    talk.hear(1, messages.Hello({}))
    talk.hear(1, messages.TaskDone(("map", 0), TaskResult([7, 7], Counter(), Counter(), [], [[1] * pieces] * 2)))
    talk.wait(60, 2)
    talk.hear(2, messages.Stalled())
    talk.hear(2, messages.TaskDone(("map", 0), TaskResult([7, 7], Counter(), Counter(), [], [[2] * pieces] * 2)))
    assert ("or another order" in str(talk.master.failure)) == (pieces > 1)


def test_a_reduce_that_was_committed_is_never_done_again(tmp_path: Path) -> None:
    """Its worker is lost: its map is idle again, its reduce is not."""
    talk = Talk(tmp_path, maps=1, reducers=2)
    nothing = TaskResult([7, 7], Counter(), Counter(), [])
    talk.hear(2, messages.Hello({}))
    talk.hear(1, messages.Hello({}))
    talk.hear(1, messages.TaskDone(("map", 0), nothing))
    talk.hear(1, messages.TaskDone(("reduce", 0), nothing))
    talk.wait(50, 2)
    talk.now += 1
    told = talk.hear(2, messages.Pong(0))
    assert (2, messages.OutputLost([0])) in told  # worker 2 is at reduce 1, and must not wait for worker 1
    assert orders(talk.hear(2, messages.Stalled())) == [(2, ("map", 0))]
    assert talk.master.tasks.left == {"map": 1, "reduce": 1}


def test_faults_that_never_happened_are_named(nasty: list[str], tmp_path: Path) -> None:
    """Of a worker that would have stopped in its sixth task, a point to which no rank came, a text that no line has."""
    faults = ("stop:1:map:6", "kill:commit:9", "bad:nowhere to be found", "slow:2:2")
    line = ["wordcount", *nasty, "--maps", "6", "--output", str(tmp_path / "out"), "--no-backup"]
    done = run_whole(3, *line, *(f"--inject={fault}" for fault in faults))
    assert done.returncode == 0
    bad, kill, stop = sorted(done.stderr.splitlines())
    of_text = "bad:nowhere to be found: no line that was mapped contains it"
    assert bad == f"minidist: --inject {of_text}: it never happened"
    assert kill == "minidist: --inject kill:commit:9: no rank came to commit 9 times: it never happened"
    assert re.fullmatch(r"minidist: --inject stop:1:map:6: rank 1 was given \d map tasks?: it never happened", stop)

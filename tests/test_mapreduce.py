"""MapReduce against sequential references written here: byte for byte, on nasty texts, under every fault."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minidist import Finished, UsageError
from minidist.mpi.launch import find_mpiexec, launch
from minidist.mpi.mailbox import Mail
from minidist.mr.files import ExternalSort, blocks, split, write_pair
from minidist.mr.jobs import Sort, WordCount
from minidist.mr.master import Master
from minidist.mr.plan import Plan, prepare
from minidist.mr.report import claims
from minidist.papers.mapreduce import pair_bytes

RANKS = (1, 2, 3, 4, 5)

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
    case("bad records", "wordcount", 6, 3, inject=["bad:00 quick"]),
    case("bad key", "fails-on-a-key", 5, 3),
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
        case(fault, "slow vowels", 12, 5, inject=injected, backup=backup, timeout=1.0)
        for fault, (least, injected, backup) in FAULTS.items()
        if n >= least
    ]
    return CASES + faults


@pytest.fixture(scope="session")
def on_ranks(
    nasty: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int], tuple[Path, dict[str, Any]]]:
    """For a number of ranks: the folder of the outputs of all cases, and the reports. One MPI job for each number."""

    @cache
    def on(n: int) -> tuple[Path, dict[str, Any]]:
        folder = tmp_path_factory.mktemp(f"output-{n}")
        return folder, launch("jobs.mapreduce:run_all", n, nasty, str(folder), cases(n), timeout=240).values[0]

    return on


def read_parts(folder: Path, reducers: int) -> list[bytes]:
    """The output files, of which there must be R, and nothing else."""
    names = [f"part-{r:05}-of-{reducers:05}" for r in range(reducers)]
    assert sorted(os.listdir(folder)) == names
    return [(folder / name).read_bytes() for name in names]


EVERYWHERE = [(n, case["name"]) for n in RANKS for case in cases(n)]


@pytest.mark.parametrize(("n", "name"), EVERYWHERE, ids=lambda value: str(value))
def test_output_is_that_of_the_sequential_reference(n: int, name: str, nasty: list[str], on_ranks: Any) -> None:
    folder, _ = on_ranks(n)
    (chosen,) = (case for case in cases(n) if case["name"] == name)
    left_out = "00 quick" if name == "bad records" else None
    found = read_parts(folder / name, chosen["reducers"])
    if chosen["job"] == "sort":  # where one file ends and the next begins depends on a sample
        found, expected = [b"".join(found)], [b"".join(expected_sort(nasty))]
    else:
        expected = reference(chosen["job"], tuple(nasty), chosen["reducers"], left_out)
    for r, (part, truth) in enumerate(zip(found, expected, strict=True)):
        assert part == truth, f"part {r}"


# ---- what the master saw ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "name"), EVERYWHERE, ids=lambda value: str(value))
def test_every_claim_holds(n: int, name: str, on_ranks: Any) -> None:
    claims = on_ranks(n)[1][name]["claims"]
    assert {"input mapped", "pairs reduced", "decisions"} <= set(claims)
    assert [claim for claim, (_, _, holds) in claims.items() if not holds] == []


def test_shuffle_with_and_without_combiner_is_the_exact_sum(nasty: list[str], on_ranks: Any) -> None:
    """Without: every word; with: the distinct words of each map task, here of the only one."""
    words = [word for path in nasty for line in lines_of(path) for word in words_of(line)]
    for n in RANKS:
        report = on_ranks(n)[1]
        every = sum(len(word.encode()) + len("\t1\n") for word in words)
        assert report["no combiner"]["claims"]["fetched"][1] == every
        assert report["wordcount"]["stats"]["bytes of pairs"] == every  # what it would have been
        distinct = sum(len(f"{word}\t{count}\n".encode()) for word, count in Counter(words).items())
        assert report["one by one"]["claims"]["fetched, combined"][1] == distinct


@pytest.mark.parametrize("n", RANKS)
def test_bytes_on_the_wire_are_those_that_reducers_fetched_from_others(n: int, on_ranks: Any) -> None:
    report = on_ranks(n)[1]["more tasks than work"]
    from_others = report["stats"].get("bytes fetched from others", 0)
    assert (from_others > 0) == (n > 2)  # one worker has everything on its own disk
    assert report["sent"][0] == 0  # the master touches no data
    if not any(event[4] == "backup" for event in report["events"]):
        assert sum(report["sent"]) == from_others


@pytest.mark.parametrize("n", RANKS)
def test_decisions_are_one_for_each_task(n: int, on_ranks: Any) -> None:
    for name, tasks in (("one by one", 2), ("wordcount", 7 + 4), ("more tasks than work", 40 + 23)):
        assigned = [
            event for event in on_ranks(n)[1][name]["events"] if event[0] == "assigned" and event[4] != "backup"
        ]
        assert len(assigned) == tasks


@pytest.mark.parametrize("n", RANKS)
def test_little_memory_makes_runs_on_disk(n: int, on_ranks: Any) -> None:
    for name in ("no combiner, little memory", "little memory", "grep, little memory", "sort, little memory"):
        assert on_ranks(n)[1][name]["stats"]["runs on disk"] >= 2, name


@pytest.mark.parametrize("n", RANKS)
def test_undecodable_sequences_are_counted(n: int, on_ranks: Any) -> None:
    data = b"".join(NASTY.values())
    replaced = data.decode(errors="replace").count("\ufffd") - data.count("\ufffd".encode())
    assert replaced > 100
    assert on_ranks(n)[1]["wordcount"]["stats"]["undecodable sequences"] == replaced


@pytest.mark.parametrize("n", RANKS)
def test_counters_are_exact_however_often_tasks_are_done(n: int, nasty: list[str], on_ranks: Any) -> None:
    lines = [line for path in nasty for line in lines_of(path)]
    truth = {
        "lines": len(lines),
        "vowels": sum(line.count(vowel) for line in lines for vowel in "aeiou"),
        "first letters": len({line[0] for line in lines if line}),
    }
    for one in cases(n):
        if "vowels" in one["job"]:
            assert on_ranks(n)[1][one["name"]]["counters"] == truth, one["name"]


@pytest.mark.parametrize("n", RANKS)
def test_a_bad_record_is_left_out_after_two_failures_and_listed(n: int, nasty: list[str], on_ranks: Any) -> None:
    report = on_ranks(n)[1]["bad records"]
    prose = next(path for path in nasty if path.endswith("prose.txt"))
    found = [["map", (prose, match.start())] for match in re.finditer(rb"^.*00 quick.*$", NASTY["prose.txt"], re.M)]
    assert len(found) == 8
    assert sorted(report["bad"]) == found
    assert report["stats"]["records left out"] == 8
    failures = Counter(event[4] for event in report["events"] if event[0] == "failed")
    assert set(failures.values()) <= {2, 3}  # 3: two attempts were under way when it failed for the second time
    assert on_ranks(n)[1]["bad key"]["bad"] == [["reduce", "T"]]


@pytest.mark.parametrize("n", [3, 4, 5])
def test_a_worker_that_stops_is_given_up_and_its_maps_are_done_again(n: int, on_ranks: Any) -> None:
    """Replay the master's events: what was assigned after the loss is what the worker had done or begun."""
    for name in ("stops in its second map", "stops in a reduce"):
        events = on_ranks(n)[1][name]["events"]
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
        claims = on_ranks(n)[1][name]["claims"]
        assert claims["maps done again"][1] >= len(maps) - len({e[2] for e in after if e[0] == "unneeded"})


@pytest.mark.parametrize("n", [3, 4, 5])
def test_a_slow_worker_gets_backups(n: int, on_ranks: Any) -> None:
    report = on_ranks(n)[1]["is slow"]
    backups = [event for event in report["events"] if event[0] == "assigned" and event[4] == "backup"]
    assert backups
    assert any(event[3] != 1 for event in backups)


def test_maps_are_placed_near_their_split() -> None:
    """With as many replicas as workers every map is near; with fewer, the placement is spread over all workers."""
    workers = range(1, 5)
    plan = Plan(WordCount(), [__file__], Path("nowhere"), maps=400, replicas=1)
    for replicas in (1, 2, 3):
        plan.replicas = replicas
        places = [plan.near(m, workers) for m in range(400)]
        assert all(len(set(near)) == replicas for near in places)
        share = [sum(worker in near for near in places) for worker in workers]
        assert min(share) > 400 * replicas / 4 * 0.7


# ---- killed and resumed ----------------------------------------------------------------------------------------------


def mpirun(n: int, *arguments: str, wait: bool = True) -> Any:
    command = [find_mpiexec(), "-n", str(n), sys.executable, "-m", "minidist.mapreduce", *arguments]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    if not wait:
        return process
    output, errors = process.communicate(timeout=100)
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


KILLS = ("kill:map:4", "kill:reduce:2", "kill:region:5", "kill:write:2", "kill:commit:1")


@pytest.mark.parametrize("moment", [*KILLS, 0.9])
def test_a_killed_job_leaves_nothing_half_done_and_is_resumed(moment: Any, nasty: list[str], tmp_path: Path) -> None:
    truth = reference("inverted-index", tuple(nasty), 5)
    output, json_file = tmp_path / "output", tmp_path / "report.json"
    line = ["inverted-index", *nasty, "--maps", "9", "--reducers", "5", "--output", str(output)]
    if isinstance(moment, str):
        assert mpirun(3, *line, "--inject", moment).returncode != 0
    else:  # whenever that is
        process = mpirun(3, *line, "--inject", "slow:1:100", "--inject", "slow:2:100", wait=False)
        time.sleep(moment)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        time.sleep(0.3)  # the ranks see that mpiexec has gone
    committed = {}
    for r in range(5):
        part = output / f"part-{r:05}-of-00005"
        if part.exists():
            assert part.read_bytes() == truth[r]
            committed[r] = part.stat().st_mtime_ns
    done_maps = len(list(output.glob(".mapreduce/worker-*/map-*")))
    if moment == "kill:reduce:2":
        assert len(committed) >= 2
    if moment == "kill:commit:1":
        assert committed

    resumed = mpirun(3, *line, "--resume", "--json", str(json_file))
    assert (resumed.returncode, resumed.stderr) == (0, ""), resumed.stdout
    assert read_parts(output, 5) == truth
    events = json.loads(json_file.read_text())["events"]
    assigned = [(event["kind"], event["number"]) for event in events if event["what"] == "assigned"]
    for r, when in committed.items():
        assert (output / f"part-{r:05}-of-00005").stat().st_mtime_ns == when
        assert ("reduce", r) not in assigned
    if isinstance(moment, str):
        assert len({task for task in assigned if task[0] == "map"}) == 9 - done_maps
    assert mpirun(1, *line, "--resume").returncode == 0  # there is nothing left to do


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


WRONG = {
    "no such file": (["wordcount", "no such file"], "cannot read no such file"),
    "a folder": (["wordcount", "."], "cannot read ."),
    "no job": (["wordcound", __file__], "there is no job 'wordcound'"),
    "no file": (["wordcount"], "wordcount needs an input"),
    "no pattern": (["grep", __file__], "grep needs a --pattern"),
    "bad pattern": (["grep", __file__, "--pattern", "("], "is not a regular expression"),
    "no reducers": (["wordcount", __file__, "--reducers", "0"], "must be at least 1"),
    "no memory": (["wordcount", __file__, "--memory", "0"], "must be from 0.001"),
    "no module": (["--job", "nowhere:Job", __file__], "cannot load --job nowhere:Job"),
    "no class": (["--job", "json:Job", __file__], "cannot load --job json:Job"),
    "no map": (["--job", "json:JSONDecoder", __file__], "has no function map and no function reduce"),
    "unknown fault": (["wordcount", __file__, "--inject", "fire:1"], "cannot do --inject fire:1"),
    "the master": (["wordcount", __file__, "--inject", "stop:0:map:1"], "the workers are ranks 1 to 3"),
    "all stop": (
        ["wordcount", __file__, *(f"--inject=stop:{rank}:map:1" for rank in (1, 2, 3))],
        "one worker at least must go on answering",
    ),
    "json nowhere": (["wordcount", __file__, "--json", "/nowhere/at.all"], "there is no folder /nowhere"),
}


@pytest.mark.parametrize("name", WRONG)
def test_bad_input_is_refused_in_one_line_before_anything_is_written(name: str, tmp_path: Path) -> None:
    arguments, words = WRONG[name]
    with pytest.raises(UsageError, match=re.escape(words)) as refusal:
        prepare("", [*arguments, "--output", str(tmp_path / "output")], 0, 4)
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "output").exists()


def test_an_output_folder_must_be_empty_or_that_of_the_same_job(tmp_path: Path) -> None:
    output, line = tmp_path / "output", ["wordcount", __file__, "--output", str(tmp_path / "output")]
    plan, _ = prepare("", [*line, "--resume"], 0, 4)  # there is nothing yet: it simply begins
    plan.begin()
    with pytest.raises(UsageError, match="is not empty; --resume finishes the job"):
        prepare("", line, 0, 4)
    prepare("", [*line, "--resume"], 0, 4)
    for change, what in ((["--reducers", "7"], "reducers"), (["--maps", "3"], "maps"), (["--no-combine"], "combine")):
        with pytest.raises(UsageError, match=f"differs in {what}"):
            prepare("", [*line, *change, "--resume"], 0, 4)
    with pytest.raises(UsageError, match="differs in job"):
        prepare("", ["sort", *line[1:], "--resume"], 0, 4)
    plan.end()
    (output / "notes").write_text("mine")
    with pytest.raises(UsageError, match="is not empty"):
        prepare("", line, 0, 4)
    with pytest.raises(UsageError, match="there is no unfinished job"):
        prepare("", [*line, "--resume"], 0, 4)
    for r in range(4):
        (output / f"part-{r:05}-of-00004").touch()
    with pytest.raises(Finished, match="holds all 4 parts already"):
        prepare("", [*line, "--resume"], 0, 4)


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
        read = [block for pieces in splits for block in blocks(pieces, size)]
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


ANY_TEXT = st.text(st.sampled_from("ab\\\t\nn t\r\0é日\u2028\U0001f600"), max_size=6)


@settings(deadline=None)
@given(st.lists(st.tuples(ANY_TEXT, ANY_TEXT), max_size=40), st.integers(1, 3000), st.integers(1, 50))
def test_external_sort_is_a_stable_sort_of_any_pairs(pairs: list[tuple[str, str]], memory: int, piece: int) -> None:
    data = "".join(write_pair(key, value) for key, value in pairs).encode()
    assert data.count(b"\n") == len(pairs)
    assert pair_bytes([key for key, _ in pairs], [value for _, value in pairs]) == len(data)
    with tempfile.TemporaryDirectory() as folder:
        sorter = ExternalSort(Path(folder) / "runs", memory)
        for start in range(0, len(data), piece):
            sorter.add(data[start : start + piece])
        assert [tuple(pair) for pair in sorter.merged()] == sorted(pairs, key=lambda pair: pair[0].encode())


def test_external_sort_merges_many_runs_in_passes() -> None:
    with tempfile.TemporaryDirectory() as folder:
        sorter = ExternalSort(Path(folder) / "runs", 1)
        for i in range(1000):
            sorter.add(write_pair(str(i % 7), str(i)).encode())
        assert [int(value) for _, value in sorter.merged()] == [i for k in range(7) for i in range(k, 1000, 7)]
        assert sorter.written > 1000
        assert len(list((Path(folder) / "runs").iterdir())) <= 64


STRANGE = st.text(
    st.one_of(st.sampled_from("aB_ 9\r\n.ßİΣ\u0301é٣\U0001d54f"), st.characters(exclude_categories=["Cs"])), max_size=60
)
# Words with long common beginnings, of 1 to 20 characters: up to 8 are counted as numbers.
ASCII_WORDS = st.lists(st.tuples(st.integers(0, 19), st.sampled_from("xY_7"), st.sampled_from(" \n\r\n.\0"))).map(
    lambda words: "".join("a" * length + last + after for length, last, after in words)
)


@settings(deadline=None, max_examples=300)
@given(
    st.lists(st.one_of(STRANGE, ASCII_WORDS), max_size=3).map("\n".join),
    st.sampled_from([r"\w+", r"\w+", r"[^ ]+", r"(a)|\s", r"\w*"]),
)
def test_counting_a_block_is_counting_its_lines(text: str, pattern: str) -> None:
    job = WordCount(pattern)
    pairs, n, nbytes = job.map_block("", text)
    block: Counter[str] = Counter()
    for word, count in pairs:
        block[word] += int(count)
    each = [pair for line in text.split("\n") for pair in job.map("", line.removesuffix("\r"))]
    assert block == Counter(word for word, _ in each)
    assert (n, nbytes) == (len(each), sum(len(word.encode()) + 1 for word, _ in each))


# ---- the master, without ranks ---------------------------------------------------------------------------------------


class Box:
    """A mailbox in which the test puts what workers say, and which keeps what the master says."""

    def __init__(self) -> None:
        self.said: list[Mail] = []
        self.posted: list[tuple[int, Any]] = []

    def poll(self) -> Mail | None:
        return self.said.pop(0) if self.said else None

    def post(self, dest: int, message: Any) -> None:
        self.posted.append((dest, message))


def test_of_a_task_done_twice_one_result_counts(tmp_path: Path) -> None:
    """Two maps, a reduce, two workers. Worker 1 is given up too early, and answers when worker 2 has done its map."""
    (tmp_path / "text").write_text("a\n" * 100)
    plan = Plan(WordCount(), [str(tmp_path / "text")], tmp_path / "output", maps=2, reducers=1, timeout=50.0)
    inbox, outbox = Box(), Box()
    master = Master(plan, range(1, 3), inbox, outbox)  # type: ignore[arg-type]

    def hear(worker: int, *message: Any) -> list[tuple[int, Any]]:
        """What the master says to a worker's message, pings left out."""
        outbox.posted.clear()
        inbox.said.append(Mail(worker, message, None))
        master.step()
        return [(dest, said[:2]) for dest, said in outbox.posted if said[0] != "ping"]

    def result(sizes: list[int], count: int) -> Any:
        return sizes, Counter({"input bytes": 100}), Counter({"seen": count})

    assert hear(1, "hello", {}) == []  # not before all are there
    assert hear(2, "hello", {}) == [(1, ("task", ("map", 0))), (2, ("task", ("map", 1)))]
    assert hear(2, "done", ("map", 1), result([7], 10)) == []  # map 0 is under way, and not late
    master.heard[1] -= 60
    assert hear(2, "pong", 0) == [(2, ("task", ("map", 0)))]  # what worker 1 had begun
    assert hear(2, "done", ("map", 0), result([7], 1)) == [(2, ("task", ("reduce", 0)))]
    assert hear(1, "done", ("map", 0), result([7], 1000)) == []  # too late: worker 2's result and its place stay
    assert master.tasks["map"][0].worker == 2
    assert hear(2, "done", ("reduce", 0), result([], 100)) == [(1, ("end",)), (2, ("end",))]
    assert hear(2, "done", ("reduce", 0), result([], 100)) == []
    hear(1, "drained", None)
    assert hear(2, "drained", None) == [(1, ("leave",)), (2, ("leave",))]
    assert master.finished
    assert master.outcome().counters == {"seen": 111}
    assert claims(plan, replace(master.outcome(), sent=[0, 0, 0]))[-4].counted == 1  # maps done again


def test_a_reduce_that_was_committed_is_never_done_again(tmp_path: Path) -> None:
    """Its worker is lost: its map is idle again, its reduce is not."""
    (tmp_path / "text").write_text("a\n" * 100)
    plan = Plan(WordCount(), [str(tmp_path / "text")], tmp_path / "output", maps=1, reducers=2, timeout=50.0)
    inbox, outbox = Box(), Box()
    master = Master(plan, range(1, 3), inbox, outbox)  # type: ignore[arg-type]
    nothing = ([7, 7], Counter[str](), Counter[str]())
    for worker, message in (
        (2, ("hello", {})),
        (1, ("hello", {})),
        (1, ("done", ("map", 0), nothing)),
        (1, ("done", ("reduce", 0), nothing)),
    ):
        inbox.said.append(Mail(worker, message, None))
        master.step()
    master.heard[1] -= 60
    outbox.posted.clear()
    master.step()
    assert (2, ("lost", [0])) in outbox.posted  # worker 2 is at reduce 1, and must not wait for worker 1
    inbox.said.append(Mail(2, ("stalled", ("reduce", 1)), None))
    master.step()
    assert [said[1] for dest, said in outbox.posted if dest == 2 and said[0] == "task"] == [("map", 0)]
    assert master.left == {"map": 1, "reduce": 1}


def test_sort_shares_the_lines_evenly() -> None:
    lines = [f"{i * 7919 % 10_007:05}" for i in range(10_007)]
    job = Sort()
    job.plan(lines[::10], 8)
    share = Counter(job.partition(line, 8) for line in lines)
    assert sorted(share) == list(range(8))
    assert max(share.values()) < 1.5 * len(lines) / 8

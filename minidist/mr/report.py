"""The report of a MapReduce job: the master's log, the status line, and the table of claims at the end."""

import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from minidist import FileFailed
from minidist.claims.claim import Claim, claims_as_rows
from minidist.claims.screen import print_claims, verdict
from minidist.cli.paths import write_json
from minidist.cli.progress import StatusLine
from minidist.mr.plan import MB, Plan, Record
from minidist.mr.tasks import Failure, Tasks
from minidist.papers.mapreduce import decisions


@dataclass(frozen=True)
class LogEvent:
    """An event: something that the master did or noticed."""

    seconds: float  # since the master began
    what: str
    kind: str = ""  # of the task: map or reduce
    number: int = -1
    worker: int = -1
    detail: Any = ""

    def __str__(self) -> str:
        task, worker = f"{self.kind} {self.number}", f"worker {self.worker}"
        output = f"the output of {task}" + f" on {worker}" * (self.worker >= 0)
        match self.what, self.detail:
            case "joined", again:
                return f"{worker} answers again" if again else f"{worker} is there"
            case "assigned", "backup":
                return f"{task} -> {worker}, as a backup"
            case "assigned", distance:
                return f"{task} -> {worker}" + (f", {distance} its split" if distance == "near" else "")
            case "done", backup:
                return f"{task} is done, by {worker}" + (", which was first" if backup else "")
            case "found", _:
                return f"{task} is there already" + (f", on {worker}" if self.kind == "map" else "")
            case ("lost" | "left" | "awaited") as what, (seconds, record):
                then = {"lost": "given up", "left": "left behind", "awaited": "the last"}[what]
                place = f", at {task}" * bool(self.kind) + ("" if record is None else f", {describe(record)}")
                return f"{worker} has not answered for {seconds:g} s: it is {then}{place}"
            case "failed", None:
                return f"{task} failed on {worker}"
            case "failed", record:
                return f"{task} failed on {worker}, at {describe(record)}"
            case "damaged", _:
                return f"{output} is damaged: it is made again"
            case "gone", why:
                return f"{output} cannot be read any more: it is made again ({why})"
            case "again", why:
                return f"{task} must be done again: " + AGAIN[why]
        return f"{task} is not needed any more"


AGAIN = {
    "lost": "its worker is lost",
    "failed": "it failed",
    "machine": "its machine could not",
    "gone": "its output cannot be read",
}


def describe(record: Record) -> str:
    """A bad record: a place in a file for a map, a key for a reduce."""
    if not isinstance(record, tuple):
        return f"the key {record!r}"
    document, offset = record
    try:
        return f"line {line_number(document, offset)} of {document} (byte {offset})"
    except OSError:  # a name that is no text
        return f"the line at byte {offset} of {document}"


def line_number(path: str, offset: int) -> int:
    """The number of the line that begins at this byte, from 1."""
    count = 1
    with open(path, "rb") as file:
        while offset > 0:
            chunk = file.read(min(offset, 1 << 20))
            count += chunk.count(b"\n")
            offset -= len(chunk) or offset
    return count


def text_of(path: str, offset: int) -> list[str]:
    """The beginning of the line at this byte; nothing if it cannot be read."""
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            return [file.readline(200).decode(errors="replace").rstrip("\r\n")]
    except OSError:
        return []


class Events:
    """Everything that happens: kept for the report, printed if there is to be a log, summed up in a status line."""

    def __init__(self, plan: Plan, workers: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.list: list[LogEvent] = []
        self.saved = 0.0  # seconds that slower attempts would have taken beyond the first
        self.clock, self.begun, self.log, self.shown, self.workers = clock, clock(), plan.log, plan.shown, workers
        self.total = {"map": plan.maps, "reduce": plan.reducers}
        self.status = StatusLine(shown=plan.shown and not plan.log)

    def note(self, what: str, task: tuple[str, int] = ("", -1), worker: int = -1, detail: Any = "") -> None:
        event = LogEvent(self.clock() - self.begun, what, *task, worker, detail)
        self.list.append(event)
        if self.log:
            print(f"{event.seconds:7.2f} s  {event}", flush=True)
        elif self.shown and what in ("lost", "left", "awaited", "damaged", "gone"):
            self.status.clear()
            print(event, flush=True)

    def show(self, left: dict[str, int], sent: int, alive: int) -> None:
        """Show the status line."""
        maps, reduces = (self.total[kind] - left[kind] for kind in ("map", "reduce"))
        self.status.show(
            f"maps {maps}/{self.total['map']}  reduces {reduces}/{self.total['reduce']}"
            f"  {sent / MB:.1f} MB shuffled  {alive} of {self.workers} workers alive",
            progress=(maps + reduces) / sum(self.total.values()),
        )

    def outcome(self, tasks: Tasks, sent: list[int], left_behind: set[int], failure: Failure | None) -> "EndedJob":
        """The ended job: of each task, only the result that counts is added up (section 4.9)."""
        self.status.close()
        stats, counters = Counter[str](), Counter[str]()
        left_out = []
        for task in (*tasks.map, *tasks.reduce):
            stats.update(task.result.stats)
            counters.update(task.result.counters)
            left_out += [(task.name[0], record, why) for record, why in task.result.left_out]
        return EndedJob(self.list, self.saved, +stats, +counters, left_out, sent, left_behind, failure)


@dataclass
class EndedJob:
    """What the master knows when all is done."""

    events: list[LogEvent]
    saved: float  # seconds, thanks to backup tasks
    stats: Counter[str]  # over one attempt of each task, the one that counts
    counters: Counter[str]  # the user's
    left_out: list[tuple[str, Record, str]]  # map or reduce, record, why
    sent: list[int]  # bytes that each rank sent to reducers
    left_behind: set[int]  # workers that did not answer at the end either: with them MPI can only be aborted
    failure: Failure | None
    seconds: float = 0.0

    def count(self, what: str, *details: str, kind: str | None = None) -> int:
        """The number of events of a kind."""
        found = (event for event in self.events if event.what == what and kind in (None, event.kind))
        return sum(not details or event.detail in details for event in found)

    @property
    def fetched(self) -> int:
        """Bytes of map output read by the reduces whose results count."""
        return self.stats["bytes fetched from own disk"] + self.stats["bytes fetched from others"]


def claims(plan: Plan, outcome: EndedJob) -> list[Claim]:
    """What the paper says about this run, next to what it did."""
    stats, m, r = outcome.stats, plan.maps, plan.reducers
    made: list[Claim] = []

    def claim(section: str, text: str, formula: str, expected: float, counted: float, unit: str) -> None:
        made.append(Claim(f"MR {section}", text, formula, expected, counted, unit, "all ranks"))

    claim("§3.1", "input mapped", "Σ files", plan.size, stats["input bytes"], "bytes")
    text = "fetched, combined" if plan.combine else "fetched"
    claim("§4.3", text, "Σ |k|+|v|+2", stats["bytes of combined pairs"], outcome.fetched, "bytes")
    backups, again = outcome.count("assigned", "backup"), outcome.count("again")
    unassigned = outcome.count("found") + outcome.count("unneeded")
    if not (backups or again or unassigned):  # otherwise attempts that do not count have fetched, too
        others = stats["bytes fetched from others"]
        claim("§3.1", "of this, on the wire", "from others", others, sum(outcome.sent), "bytes")
    claim("§4.9", "pairs reduced", "pairs of the maps", stats["combined pairs"], stats["pairs reduced"], "pairs")
    terms = [("M + R", 1), ("again", again), ("backups", backups)]
    formula = " + ".join(term for term, number in terms if number) + " - not needed" * bool(unassigned)
    expected = decisions(m, r, again, backups) - unassigned
    claim("§3.5", "decisions", formula, expected, outcome.count("assigned"), "decisions")
    if outcome.count("lost"):
        lost, repeated = failures(outcome.events)
        claim("§3.3", "maps done again", "done or begun there", lost["map"], repeated["map"], "tasks")
        claim("§3.3", "reduces done again", "begun there", lost["reduce"], repeated["reduce"], "tasks")
        claim("§3.3", "of these, completed", "0", 0, repeated["reduce, completed"], "tasks")
    first = outcome.count("assigned", "near", "far")
    if first and plan.replicas >= max(1, len(outcome.sent) - 1):  # a replica on every worker's machine
        claim("§3.4", "maps near a replica", "all", first, outcome.count("assigned", "near"), "tasks")
    return made


def failures(events: Sequence[LogEvent]) -> tuple[Counter[str], Counter[str]]:
    """Tasks that must be done again because of lost workers, by section 3.3, and those that were done again for it.

    The first follows from what each worker had done or begun when it was lost; the second, from later assignments.
    """
    done: dict[tuple[str, int], int] = {}
    begun: dict[tuple[str, int], set[int]] = {}
    why: dict[tuple[str, int], str] = {}
    lost, repeated = Counter[str](), Counter[str]()
    for event in events:
        task = event.kind, event.number
        match event.what:
            case "assigned":
                begun.setdefault(task, set()).add(event.worker)
                if why.pop(task, "") == "lost":
                    repeated[event.kind] += 1
                    repeated["reduce, completed"] += event.kind == "reduce" and task in done
            case "done" | "found":
                done[task] = event.worker
                begun[task] = set()
                if why.pop(task, "") == "lost":
                    lost[event.kind] -= 1  # its worker has answered after all
            case "failed":
                begun[task].discard(event.worker)
            case "gone":
                done.pop(task, None)
            case "again":
                why[task] = event.detail
            case "unneeded":
                lost[event.kind] -= 1
            case "lost":
                for (kind, number), worker in list(done.items()):
                    if kind == "map" and worker == event.worker:
                        del done[kind, number]
                        lost["map"] += 1
                for (kind, number), workers in begun.items():
                    if event.worker in workers:
                        workers.remove(event.worker)
                        lost[kind] += not workers and (kind, number) not in done
    return lost, repeated


def failure_text(failure: Failure) -> str:
    """Which record it was, the traceback of the user's function, and what can be done."""
    (kind, number), record = failure.task, failure.record
    if record is None:
        what = f"{kind} {number} failed on worker {failure.worker}:" if kind else f"worker {failure.worker} failed:"
        hint = "; when this is mended, --resume finishes the job" * failure.machine
        return f"{what}{' ' if len(failure.explanation.splitlines()) == 1 else chr(10)}{failure.explanation}{hint}"
    lines = [f"{kind} {number} failed on worker {failure.worker}, at {describe(record)}:"]
    if isinstance(record, tuple):
        lines += [f"    {text!r}" for text in text_of(*record)]
    before = f"{failure.skip_bad} records have been left out. " if failure.skip_bad else ""
    hint = "--skip-bad N leaves out up to N records on which a function fails; with --resume, the job goes on."
    return "\n".join([*lines, failure.explanation, before + hint])


def report(rank: int, plan: Plan, outcome: EndedJob, json: str | None) -> int:
    """Report the job on rank 0. Returns the exit status: 1 if the job failed, or a claim does not hold; FileFailed's if
    it failed because no worker could read or write a file."""
    checked = [] if outcome.failure else claims(plan, outcome)
    if rank == 0 and outcome.failure:
        print(f"minidist: error: {failure_text(outcome.failure)}", file=sys.stderr)
    elif rank == 0 and json != "-":
        print_outcome(plan, outcome)
        print(f"\n{verdict(checked)}\n")
        over = "each of a map's distinct keys" if plan.combine else "each pair"
        letters = {
            "M": "map tasks",
            "R": "reduce tasks",
            **dict.fromkeys(("k", "v"), f"bytes of key and value, of {over}, with tab and line feed"),
        }
        print_claims(checked, "What the paper promises, and what was counted", letters)
        if replaced := outcome.stats["undecodable sequences"]:
            print(f"{replaced:,} sequences of the input are no UTF-8, and became U+FFFD.")
            print("If it is in another encoding, convert it first (iconv).")
    if rank == 0 and json:
        document = {
            "chapter": "mapreduce",
            **plan.manifest,
            "ranks": len(outcome.sent),
            "seconds": outcome.seconds,
            "failure": asdict(outcome.failure) if outcome.failure else None,
            "stats": outcome.stats,
            "counters": outcome.counters,
            "bad_records": outcome.left_out,
            "lost": [
                {"worker": event.worker, "task": [event.kind, event.number], "record": event.detail[1]}
                for event in outcome.events
                if event.what in ("lost", "left")
            ],
            "backups": {"tasks": outcome.count("assigned", "backup"), "seconds_saved": outcome.saved},
            "sent": outcome.sent,
            "events": [asdict(event) for event in outcome.events],
            "claims": claims_as_rows(checked),
        }
        write_json(json, document)
    if outcome.failure and outcome.failure.machine and outcome.failure.record is None:
        return FileFailed.status
    return 1 if outcome.failure or not all(claim.holds for claim in checked) else 0


def print_outcome(plan: Plan, outcome: EndedJob) -> None:
    """Print in sentences what is not a claim."""
    stats, size = outcome.stats, plan.size
    ranks, m, r = len(outcome.sent), plan.maps, plan.reducers
    n = f"N = {ranks} ranks" if ranks > 1 else "N = 1 rank"
    print(f"\n{plan.name}: {_bytes(size)} in M = {m} splits, R = {r} outputs, {n}")
    print(f"{outcome.seconds:.1f} s, {size / 1e6 / outcome.seconds:.1f} MB/s; the output is in {plan.output}")
    if plan.combine and outcome.fetched:
        without, times = _bytes(stats["bytes of pairs"]), stats["bytes of pairs"] / outcome.fetched
        print(f"without the combiner, reduces would have fetched {without}: {times:.1f} times as many")
    near, first = outcome.count("assigned", "near"), outcome.count("assigned", "near", "far")
    if first:
        print(f"{near} of {first} map tasks began where one of the replicas of their split is ({near / first:.0%})")
    if backups := outcome.count("assigned", "backup"):
        share = backups / outcome.count("assigned")
        print(f"backup tasks: {backups}, {share:.0%} of all executions")
        if outcome.saved > 0.1:  # a guess, from how far the slower attempts had come
            print(f"without them the job would have waited for about {outcome.saved:.1f} s more of work")
    for kind, record, why in outcome.left_out:
        print(f"left out by {kind}: {describe(record)}: {why}")
    for name, value in sorted(outcome.counters.items()):
        print(f"counter {name}: {value}")


def _bytes(number: float) -> str:
    return f"{number / 1e6:.1f} MB" if number >= 1e6 else f"{number:,.0f} bytes"

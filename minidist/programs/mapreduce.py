"""MapReduce as a program: its options, what it refuses, and its report to the user."""

import math
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from minidist import EndJob, UsageError, mapreduce
from minidist.cli.fields import flag, operand, option, parse, path_to, ranks_option, whole
from minidist.cli.fields import output as written
from minidist.cli.options import at_least, path_name, some_text, timeout, within
from minidist.cli.paths import check_apart, check_writable
from minidist.mpi.comm import Comm
from minidist.mr.cluster import print_cluster
from minidist.mr.faults import Faults, check_tasks
from minidist.mr.faults import parse as parse_faults
from minidist.mr.load import JOBS, load, make
from minidist.mr.plan import MB, MOST_TASKS, Plan
from minidist.mr.report import report
from minidist.programs.chapter import Program
from minidist.system.files import on_disk
from minidist.text import data


@dataclass(frozen=True, kw_only=True)
class MapReduceOptions:
    job_and_files: tuple[str, ...] = operand("JOB FILE", f"{', '.join(JOBS)}; and the input", path_name, nargs="+")
    output: str = option("mapreduce-output", path_name, "DIR", "folder for the output: a file from each reduce task")
    reducers: int = option(4, at_least(1, MOST_TASKS), "R", "reduce tasks")
    maps: int = option(0, at_least(1, MOST_TASKS), "M", "map tasks; without it, one for every 16 MB")
    pattern: str | None = option(
        None, help="wordcount, inverted-index: what a word is, instead of \\w+; grep: what to look for"
    )
    job: str | None = option(None, some_text, "MODULE:CLASS", "a job of your own; then all arguments are files")
    memory: float = option(64.0, within(0.001, 1e6), "MB", "for intermediate pairs in a task")
    no_combine: bool = flag("send every pair to the reducers")
    skip_bad: int = whole("N", "leave out up to N records on which a function fails", 0, least=0)
    no_backup: bool = flag("no backup tasks for stragglers")
    replicas: int = option(3, at_least(1), help="machines that hold a copy of each split (simulated)")
    timeout: float = option(Plan.timeout, timeout, "S", "give up a silent rank after it; 0: never")
    resume: bool = flag("finish a job that was killed")
    local: str | None = path_to("DIR", "folder for intermediate files on each machine; default: in --output")
    inject: tuple[str, ...] = option(
        (), None, "FAULT", "bad:TEXT, slow:RANK:FACTOR, ...: mr/faults.py", action="append"
    )
    cluster: bool = flag("simulate the paper's sort on a tenth of its cluster, no more")
    ranks: int | None = ranks_option()
    json: str | None = written("write the report for machines; - is standard output")


def check_report(path: str, plan: Plan) -> None:
    """Raise UsageError if the report for machines cannot be written, or if its path leads, also by links, to an input
    or into the output."""
    check_writable("--json", path)
    check_apart({"--json": path}, {f"the input {file}": file for file, _ in plan.files})
    place = Path(os.path.realpath(path))
    output = Path(os.path.realpath(plan.output))
    if output in (place, *place.parents) or any(
        os.path.samefile(above, output) for above in place.parents if output.exists()
    ):
        raise UsageError(f"--json {path} is in the output")


class Prepared(NamedTuple):
    """Checked input."""

    plan: Plan
    faults: Faults | None  # the faults to inject
    json: str | None  # where the report for machines goes


def job_of(own: MapReduceOptions, fast: bool) -> tuple[Any, list[str]]:
    """The job, and its files. fast: whether it may be a faster one that does the same."""
    if own.job:
        return load(own.job), list(own.job_and_files)
    name, *files = own.job_and_files
    job = make(name, own.pattern, fast)
    if not files:
        raise UsageError(f"{name} needs an input: name one file or more")
    return job, files


def plan_of(own: MapReduceOptions, job: Any, files: list[str]) -> Plan:
    shown = own.json != "-"
    return Plan(
        job,
        files,
        Path(own.output),
        reducers=own.reducers,
        maps=own.maps,
        memory=int(own.memory * MB),
        combine=not own.no_combine,
        skip_bad=own.skip_bad,
        backup=not own.no_backup,
        replicas=own.replicas,
        timeout=own.timeout or math.inf,
        resume=own.resume,
        local=Path(own.local) if own.local else None,
        log=bool(own.inject) and shown,
        shown=shown,
    )


def master_can_give_up(stopped: set[int], ranks: int) -> bool:
    """Whether the master is running, and at least one worker."""
    return 0 not in stopped and len(stopped) < ranks - 1


class MapReduceChapter(Program[MapReduceOptions]):
    name, doc, options = "mapreduce", mapreduce.__doc__, MapReduceOptions
    watched = {"timeout": Plan.timeout, "can_go_on": master_can_give_up}
    cases = {"": f"wordcount {shlex.quote(str(data.HELP_PAGES))} --maps 7"}

    def prepared(self, arguments: Sequence[str], comm: Any) -> Prepared | None:
        """Parse and check; None for --cluster. Raises UsageError for options that cannot work."""
        if self.needs_no_ranks(arguments):
            return None
        if "--cluster" in arguments and not {"-h", "--help"} & set(arguments):
            raise UsageError("--cluster is a line of its own: python -m minidist.mapreduce --cluster")
        own, size = parse(self.parser(), arguments).of(MapReduceOptions), comm.size
        if own.job and own.pattern is not None:
            raise UsageError("--pattern is for the shipped jobs, not for --job")
        faults = parse_faults(own.inject, comm.rank, range(min(1, size - 1), size))
        # The faster job's records have many lines: too many to skip if a pattern takes forever on one of them.
        fast = not own.no_combine and faults.bad is None and (own.pattern is None or not own.skip_bad)
        job, files = job_of(own, fast)
        plan = plan_of(own, job, files)
        if own.json not in (None, "-"):
            check_report(own.json, plan)
        check_tasks(own.inject, plan)
        plan.check_output()
        plan.check_local()
        faults.poison(job)
        return Prepared(plan, faults if own.inject else None, own.json)

    def work(self, comm: Comm, prepared: Prepared | None) -> int:
        """Run the job and report its result; returns the exit status."""
        if prepared is None:
            print_cluster(mapreduce.FaultTolerantMaster)
            return 0
        plan, faults, json = prepared
        wrong = (faults.disk, faults.mailbox) if faults else ()
        with on_disk():
            outcome = mapreduce.run(comm, plan, *wrong)
        status = report(comm.rank, plan, outcome, json)
        for text in faults.missed(comm.rank, outcome) if faults and not outcome.failure else ():
            print(f"minidist: --inject {text}: it never happened", file=sys.stderr)
        if outcome.left_behind and comm.rank == 0:
            raise EndJob(status)  # the others would wait for these ranks, which never leave
        return status

    def needs_no_ranks(self, arguments: Sequence[str]) -> bool:
        return list(arguments) == ["--cluster"]


CHAPTER = MapReduceChapter()

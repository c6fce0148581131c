"""MapReduce as a program: its options, what it refuses, and its report to the user."""

import math
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from minidist import EndJob, UsageError, data, mapreduce
from minidist.cli.options import Parser, at_least, path_name, some_text, timeout, within
from minidist.cli.paths import check_apart, check_writable
from minidist.files import on_disk
from minidist.mpi.comm import Comm
from minidist.mr.cluster import print_cluster
from minidist.mr.faults import Faults, check_tasks, parse
from minidist.mr.load import JOBS, load, make
from minidist.mr.plan import MB, MOST_TASKS, Plan
from minidist.mr.report import report
from minidist.programs.chapter import Program


def parser() -> Parser:
    made = Parser("mapreduce", mapreduce.__doc__ or "")  # python -OO drops docstrings
    add = made.add_argument
    add("job_and_files", nargs="+", type=path_name, metavar="JOB FILE", help=f"{', '.join(JOBS)}; and the input")
    add(
        "--output",
        type=path_name,
        metavar="DIR",
        default="mapreduce-output",
        help="folder for the output: a file from each reduce task",
    )
    add("--reducers", type=at_least(1, MOST_TASKS), default=4, metavar="R", help="reduce tasks")
    add(
        "--maps",
        type=at_least(1, MOST_TASKS),
        default=0,
        metavar="M",
        help="map tasks; without it, one for every 16 MB",
    )
    add("--pattern", help="wordcount, inverted-index: what a word is, instead of \\w+; grep: what to look for")
    add("--job", type=some_text, metavar="MODULE:CLASS", help="a job of your own; then all arguments are files")
    add("--memory", type=within(0.001, 1e6), default=64.0, metavar="MB", help="for intermediate pairs in a task")
    add("--no-combine", action="store_true", help="send every pair to the reducers")
    add(
        "--skip-bad",
        type=at_least(0),
        default=0,
        metavar="N",
        help="leave out up to N records on which a function fails",
    )
    add("--no-backup", action="store_true", help="no backup tasks for stragglers")
    add("--replicas", type=at_least(1), default=3, help="machines that hold a copy of each split (simulated)")
    add("--timeout", type=timeout, default=Plan.timeout, metavar="S", help="give up a silent rank after it; 0: never")
    add("--resume", action="store_true", help="finish a job that was killed")
    add(
        "--local",
        type=path_name,
        metavar="DIR",
        help="folder for intermediate files on each machine; default: in --output",
    )
    add("--inject", action="append", default=[], metavar="FAULT", help="bad:TEXT, slow:RANK:FACTOR, ...: mr/faults.py")
    add("--cluster", action="store_true", help="simulate the paper's sort on a tenth of its cluster, no more")
    made.ranks()
    made.output("--json", help="write the report for machines; - is standard output")
    return made


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


def prepare(made: Parser, arguments: Sequence[str], comm: Comm) -> Prepared | None:
    """Parse and check; None for --cluster. Raises UsageError for options that cannot work."""
    if is_cluster(arguments):
        return None
    if "--cluster" in arguments and not {"-h", "--help"} & set(arguments):
        raise UsageError("--cluster is a line of its own: python -m minidist.mapreduce --cluster")
    options, rank, size = made.parse_args(arguments), comm.rank, comm.size
    name, *files = options.job_and_files
    if options.job:
        name, files = "", options.job_and_files
        if options.pattern is not None:
            raise UsageError("--pattern is for the shipped jobs, not for --job")
    faults = parse(options.inject, rank, range(min(1, size - 1), size))
    # The faster job's records have many lines: too many to skip if a pattern takes forever on one of them.
    fast = not options.no_combine and faults.bad is None and (options.pattern is None or not options.skip_bad)
    job = load(options.job) if options.job else make(name, options.pattern, fast)
    if not files:
        raise UsageError(f"{name} needs an input: name one file or more")
    plan = Plan(
        job,
        files,
        Path(options.output),
        reducers=options.reducers,
        maps=options.maps,
        memory=int(options.memory * MB),
        combine=not options.no_combine,
        skip_bad=options.skip_bad,
        backup=not options.no_backup,
        replicas=options.replicas,
        timeout=options.timeout or math.inf,
        resume=options.resume,
        local=Path(options.local) if options.local else None,
        log=bool(options.inject) and options.json != "-",
        shown=options.json != "-",
    )
    if options.json not in (None, "-"):
        check_report(options.json, plan)
    check_tasks(options.inject, plan)
    plan.check_output()
    plan.check_local()
    faults.poison(job)
    return Prepared(plan, faults if options.inject else None, options.json)


def is_cluster(arguments: Sequence[str]) -> bool:
    return list(arguments) == ["--cluster"]


def master_can_give_up(stopped: set[int], ranks: int) -> bool:
    """Whether the master is running, and at least one worker."""
    return 0 not in stopped and len(stopped) < ranks - 1


def work(comm: Comm, prepared: Prepared | None) -> int:
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


CHAPTER = Program(
    name="mapreduce",
    parser=parser,
    prepare=prepare,
    work=work,
    needs_no_ranks=is_cluster,
    watched={"timeout": Plan.timeout, "can_go_on": master_can_give_up},
    cases={"": f"wordcount {shlex.quote(str(data.HELP_PAGES))} --maps 7"},
)

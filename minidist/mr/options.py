"""MapReduce's command line: what it takes, and what cannot work."""

import math
import os
from collections.abc import Sequence
from pathlib import Path

from minidist import UsageError
from minidist.claims.files import check_apart, check_writable
from minidist.cli.options import Parser, at_least, timeout, within
from minidist.mr.faults import Faults, parse
from minidist.mr.load import JOBS, load, make
from minidist.mr.plan import MB, MOST_TASKS, Plan


def parser(doc: str) -> Parser:
    made = Parser("mapreduce", doc)
    add = made.add_argument
    add("job_and_files", nargs="+", metavar="JOB FILE", help=f"{', '.join(JOBS)}; and the input")
    add(
        "--output",
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
    add("--job", metavar="MODULE:CLASS", help="a job of your own; then all arguments are files")
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
    add("--local", metavar="DIR", help="folder for intermediate files on each machine; default: in the output folder")
    add("--inject", action="append", default=[], metavar="FAULT", help="bad:TEXT, slow:RANK:FACTOR, ...: mr/faults.py")
    add("--cluster", action="store_true", help="simulate the paper's sort on a tenth of its cluster, no more")
    add("--json", metavar="FILE", help="write the report for machines; - is standard output")
    return made


def check_report(path: str, plan: Plan) -> None:
    """Raise UsageError unless the report for machines can be written, and over no input and into no output, whatever
    they are called."""
    check_writable("--json", path)
    check_apart({"--json": path}, {f"the input {file}": file for file, _ in plan.files})
    place = Path(os.path.realpath(path))
    output = Path(os.path.realpath(plan.output))
    if output in (place, *place.parents) or any(
        os.path.samefile(above, output) for above in place.parents if output.exists()
    ):
        raise UsageError(f"--json {path} is in the output")


def prepare(doc: str, arguments: Sequence[str], rank: int, size: int) -> tuple[Plan, Faults | None, str | None]:
    """The plan, what is to go wrong, where the report for machines goes. Raises UsageError for what cannot work."""
    if "--cluster" in arguments and not {"-h", "--help"} & set(arguments):
        raise UsageError("--cluster is a line of its own: python -m minidist.mapreduce --cluster")
    options = parser(doc).parse_args(arguments)
    name, *files = options.job_and_files
    if options.job:
        name, files = "", options.job_and_files
        if options.pattern is not None:
            raise UsageError("--pattern is for the shipped jobs, not for --job")
    faults = parse(options.inject, rank, range(min(1, size - 1), size))
    # The faster job takes many lines for one record: too many to leave out, should a pattern take for ever on one.
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
    plan.check_output()
    plan.check_local()
    faults.poison(job)
    return plan, faults if options.inject else None, options.json

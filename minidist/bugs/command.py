"""Bugs of record: published mistakes of real systems, rebuilt in a few lines, and which check notices each.

    python -m minidist bugs                    the bugs, and the table of which check notices which
    python -m minidist bugs zero2-is-zero1     one of them: its patch, its run, and what sees it first
    python -m minidist bugs --count            count the table again: some minutes

Each bug has the thread in which it was reported. One without a thread says where we read of it, or that it is our own.
"""

import difflib
import json
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from minidist import UsageError
from minidist.bugs import checks, record
from minidist.bugs.checks import CHECKS, Check, Cost, Noticed
from minidist.bugs.record import Bug
from minidist.cli.fields import flag, operand, output, read
from minidist.cli.options import tool
from minidist.cli.paths import check_writable, write_json
from minidist.cli.progress import StatusLine
from minidist.cli.tables import make_table, mark, say, show
from minidist.mpi import environment

COUNTED = Path(__file__).with_name("counted.json")  # made by: python -m minidist bugs --count --json THIS
NEED_NO_TRUTH = "N", "m", "copy", "load", "proof", "types"  # checks that need no healthy program
WIDTH = 80

Row = dict[str, Noticed]  # by the checks' short names


@dataclass(frozen=True, kw_only=True)
class BugsOptions:
    name: str | None = operand("NAME", "of a bug: show it", nargs="?")
    count: bool = flag("run every bug under every check")
    json: str | None = output("of --count: for machines; - is standard output")


def main(arguments: Sequence[str]) -> int:
    """List, show or count bugs; returns the exit status. Raises UsageError before anything is started."""
    bugs = record.read_all()
    options = read(tool("bugs", __doc__), BugsOptions, arguments)
    if environment.ranks():
        raise UsageError("bugs needs no ranks of MPI: run it without mpirun")
    if options.name not in (None, *bugs):
        raise UsageError(f"{options.name!r} is no bug of record: take one of {', '.join(bugs)}")
    if options.name and options.count:
        raise UsageError("--count counts all bugs: leave out the name")
    if options.json and not options.count:
        raise UsageError("--json needs --count")
    if options.json != "-":
        check_writable("--json", options.json)
    if options.name:
        return print_bug(bugs[options.name])
    table, costs = count(bugs, shown=options.json != "-") if options.count else (kept(), kept_costs())
    if options.json:
        rows = {name: as_json(row) for name, row in table.items()}
        write_json(options.json, {"bugs": rows, "costs": {check: cost._asdict() for check, cost in costs.items()}})
    if options.json != "-":
        print_list(bugs)
        print_table(bugs, table)
        print_checks(table, costs)
    return 0 if all(any(verdict.step for verdict in row.values()) for row in table.values()) else 1


def kept() -> dict[str, Row]:
    """The table as it was counted last."""
    document = json.loads(COUNTED.read_text(encoding="utf-8"))
    return {name: {check: Noticed(**of) for check, of in row.items()} for name, row in document["bugs"].items()}


def kept_costs() -> dict[str, Cost]:
    """What each check cost then, by its short name."""
    return {check: Cost(**of) for check, of in json.loads(COUNTED.read_text(encoding="utf-8"))["costs"].items()}


def count(bugs: dict[str, Bug], shown: bool) -> tuple[dict[str, Row], dict[str, Cost]]:
    """Count all rows, and what a check costs on average; shown: with a line of progress. Raises UsageError if a check
    alarms on a healthy program: then it is no check."""
    status, table, costs = StatusLine(shown), {}, dict[str, list[Cost]]()
    for i, bug in enumerate(bugs.values()):
        status.show(f"bug {i + 1} of {len(bugs)}, {bug.name}", i / len(bugs))
        table[bug.name] = checks.noticed(bug)
        if alarms := checks.false_alarms(bug):
            raise UsageError(f"of {bug.name}, the healthy program alarms {', '.join(alarms)}: {alarms}")
        for check, cost in checks.costs(bug).items():
            costs.setdefault(check, []).append(cost)
    status.close()
    return table, {check: checks.mean(found) for check, found in costs.items()}


def as_json(row: Row) -> dict[str, dict[str, object]]:
    return {check: verdict._asdict() for check, verdict in row.items() if verdict.step}


# ---- on the screen ---------------------------------------------------------------------------------------------------


def print_list(bugs: dict[str, Bug]) -> None:
    """Print the bugs: where each was reported, what is wrong, and where it is rebuilt."""
    print(f"{len(bugs)} bugs of record. With the name of one, this command shows it.\n")
    for bug in bugs.values():
        print(f"{bug.name}: {bug.source}; {bug.place}")
        for text in filter(None, (bug.mistake, bug.here and f"Here: {bug.here}")):
            print(textwrap.indent(textwrap.fill(text, WIDTH - 4), "    "))
        print()


def print_table(bugs: dict[str, Bug], table: dict[str, Row]) -> None:
    """Print the table of bugs and checks. A star: the bug differs here from what its thread says."""
    shown = make_table(left=("bug",), right=[check.short for check in CHECKS], narrow=True)
    for name, row in table.items():
        shown.add_row(f"{name}{'*' * bool(bugs[name].here)}", *(letter(bugs[name], row, check) for check in CHECKS))
    show("Which check notices it: x does, . does not, - was not asked; *: see the list", shown)


def print_checks(table: dict[str, Row], costs: dict[str, Cost]) -> None:
    """Print how many bugs each check notices and what it costs; which bugs one check alone notices, and which none."""
    by_bug = {name: [check for check in row if row[check].step] for name, row in table.items()}
    shown = make_table(left=("check", ""), right=("notices", "seconds", "bytes"), narrow=True)
    for check in CHECKS:
        notices = sum(check.short in by for by in by_bug.values())
        cost = (f"{costs[check.short].seconds:.2f}", f"{costs[check.short].bytes:,}") if check.short in costs else ()
        shown.add_row(check.short, check.title, str(notices), *cost)
    show(f"What each notices of {len(table)} bugs, and what it costs", shown)
    say(
        "Seconds are of a processor, for all ranks, and bytes are what these send: on average, of the runs that a check"
        " needs, as far as it needs them."
    )
    alone = ", ".join(f"{name} ({by[0]})" for name, by in by_bug.items() if len(by) == 1)
    say(f"Noticed by one check alone: {alone or 'none'}.")
    unseen = [name for name, by in by_bug.items() if not {*by}.intersection(NEED_NO_TRUTH)]
    say(f"By none that needs no healthy program ({', '.join(NEED_NO_TRUTH)}): {', '.join(unseen) or 'no bug'}.")
    say(f"Noticed by none: {', '.join(name for name, by in by_bug.items() if not by) or 'no bug'}.")


def letter(bug: Bug, row: Row, check: Check) -> str:
    if check.run not in checks.runs_of(bug):
        return "-"
    return "x" if check.short in row and row[check.short].step else "."


def print_bug(bug: Bug) -> int:
    """Print a bug's report, its patch, its run next to the healthy one, and the verdicts; 1 if no check notices it."""
    print(f"{bug.name}: {bug.source}")
    say(bug.title)
    print(bug.link, end="\n\n" if bug.link else "\n")
    for title, text in (("The mistake", bug.mistake), ("The report", bug.says), ("Here", bug.here)):
        if text:
            say(f"{title}: {text}")
    print()
    for file, patch in bug.change:
        print(file)
        for old, new in patch.changes:
            print_change(old, new)
    print()
    row = checks.noticed(bug)
    print_losses(bug)
    print_verdicts(bug, row)
    return 0 if any(verdict.step for verdict in row.values()) else 1


def print_change(old: str, new: str) -> None:
    """Print lines of the healthy program and the lines that replace them, without their common indentation."""
    before, after = ([line for line in text.splitlines() if line.strip()] for text in (old, new))
    moved = textwrap.dedent("\n".join([*before, *after])).splitlines()
    for line in difflib.ndiff(moved[: len(before)], moved[len(before) :]):
        if not line.startswith("?"):  # these lines mark columns
            print(cut(line))


def cut(line: str) -> str:
    return line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"


def print_losses(bug: Bug) -> None:
    """Print the losses of the broken program next to those of the healthy one."""
    found, right = checks.broken(bug), checks.healthy(bug)
    table = make_table(left=("step",), right=("healthy", "broken", "healthy, float64", "broken, float64"))
    series = [of[name].get("losses", []) for name in ("as trained", "exact") for of in (right, found)]
    for step in (1, 2, 5, 10, checks.STEPS):
        table.add_row(str(step), *(f"{losses[step - 1]:.6f}" if losses else "it failed" for losses in series))
    show(f"Losses of {bug.chapter} on {bug.ranks} ranks", table)


def print_verdicts(bug: Bug, row: Row) -> None:
    """Print each check's verdict, and which check noticed the bug first."""
    from rich.markup import escape

    table = make_table(left=("check",), right=("", "step"))
    table.columns[0].no_wrap = True  # only the last column, `found`, is wrapped
    table.add_column("found", overflow="fold")
    for check in CHECKS:
        verdict = row[check.short]
        asked = letter(bug, row, check) != "-"
        table.add_row(
            check.title, mark(bool(verdict.step)) if asked else "-", str(verdict.step or ""), escape(verdict.found)
        )
    show("Which check notices it", table)
    seen = [(row[check.short].step, i) for i, check in enumerate(CHECKS) if row[check.short].step]
    if seen:
        step, first = min(seen)
        say(f"The first to see it is: {CHECKS[first].title}, at step {step}.")
    else:
        print("No check sees it.")

"""Measurements on several machines: results.json, and its table in README.

    python -m minidist.bench --keep        measure, and put the results into both
    python -m minidist.bench --table       print the table that the file gives

results.json has an entry for each machine, {"machine", "sections": {name: {"date", "rows"}}}. A section that is
measured again replaces the old one. If the versions of libraries have changed, all old sections are removed.
"""

import json
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

from minidist.bench.machine import Machine, name_of
from minidist.bench.measure import Comparison
from minidist.system.files import write_whole

RESULTS, README = Path(__file__).with_name("results.json"), Path(__file__).with_name("README.md")
KEYS = ("name", "beside", "ratio", "spread", "target", "ours", "theirs", "unit")
Entry = dict[str, Any]


def as_json(row: Comparison) -> dict[str, Any]:
    """A row as JSON has it."""
    return {key: getattr(row, key) for key in KEYS} | {"reached": row.reached}


def row_of(found: dict[str, Any]) -> Comparison:
    """The row that `as_json` wrote."""
    spread = found["spread"] and (found["spread"][0], found["spread"][1])
    return Comparison(**{key: found[key] for key in KEYS} | {"spread": spread})


def read() -> list[Entry]:
    """The entries of all machines."""
    found: list[Entry] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return found


def write_results(machine: Machine, measured: dict[str, list[Comparison]]) -> None:
    """Put sections that were measured on this machine into its entry, and the table into README."""
    entries = read()
    place = next((i for i, entry in enumerate(entries) if name_of(entry["machine"]) == name_of(machine)), len(entries))
    sections = {}
    if place < len(entries) and entries[place]["machine"] == machine:
        sections = entries[place]["sections"]
    for name, rows in measured.items():
        kept = [as_json(row) for row in rows if row.ratio is not None]
        sections[name] = {"date": date.today().isoformat(), "rows": kept}
    entries[place : place + 1] = [{"machine": machine, "sections": sections}]
    write_whole(str(RESULTS), (json.dumps(entries, indent=1, ensure_ascii=False) + "\n").encode())
    write_whole(str(README), replace_table(README.read_text(encoding="utf-8"), "what", table(entries)).encode())


def table(entries: Sequence[Entry]) -> str:
    """A Markdown table: a row for each comparison with a target, a column for each machine: ratio and figures."""
    found: dict[tuple[str, str], dict[int, Comparison]] = {}
    for name in dict.fromkeys(name for entry in entries for name in entry["sections"]):
        measured = {i: entry["sections"][name]["rows"] for i, entry in enumerate(entries) if name in entry["sections"]}
        for i in sorted(measured, key=lambda i: -len(measured[i])):  # in the order of the machine that has most rows
            for row in map(row_of, measured[i]):
                found.setdefault((row.name, row.beside), {})[i] = row
    machines = [name_of(entry["machine"]) for entry in entries]
    lines = [["what", "compared with", "target", *machines], ["---"] * (3 + len(machines))]
    for (name, beside), rows in found.items():
        target = next(iter(rows.values())).target
        if target is not None:
            cells = [cell(rows[i]) if i in rows else "" for i in range(len(machines))]
            lines.append([name, beside.replace("|", r"\|"), f"≤ {target:g}", *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def cell(row: Comparison) -> str:
    """The ratio, bold if it misses the target, and the two figures."""
    ratio = f"{row.ratio:.2f}" if row.reached else f"**{row.ratio:.2f}**"
    return f"{ratio} ({row.figures})"


def replace_table(readme: str, head: str, made: str) -> str:
    """README with the table whose head begins so replaced by another one."""
    before, _, rest = readme.partition(f"| {head} |")
    return before + made + rest[rest.index("\n\n") + 1 :]

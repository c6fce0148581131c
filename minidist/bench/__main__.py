"""How fast minidist is, side by side: ratios of time, ours over theirs, measured in turn.

    python -m minidist.bench
    python -m minidist.bench --only step --json bench.json --plot bench.png
    python -m minidist.bench --run tinyshakespeare.txt --keep

A ratio below 1 means that minidist is faster. PyTorch, gloo, DuckDB and Polars are measured where they are installed.
Close other programs first: four ranks on two cores leave nothing for them.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from minidist import Finished, Stopped, UsageError, find_clone, how_to_make
from minidist.bench import jobs, machine, one_process, plot, results
from minidist.bench.mapreduce import measure_word_count
from minidist.bench.measure import Comparison
from minidist.cli.fields import flag, option, output, outputs, path_to, read
from minidist.cli.options import Parser, in_one_process
from minidist.cli.paths import check_apart, check_writable, say_written, write_json, write_output
from minidist.cli.tables import make_table, mark, show
from minidist.memory.allocator import keep_freed_memory
from minidist.memory.plot import check as check_picture
from minidist.memory.plot import format_of
from minidist.system import unix
from minidist.text.data import load

Section = Callable[[], Iterator[Comparison]]
SECTIONS: dict[str, Section] = {
    "step": one_process.training_step,
    "adam": one_process.adam,
    "ring": jobs.collectives,
    "parallel": jobs.parallel_steps,
    "ranks": jobs.many_ranks,
    "memory": jobs.memory,
    "mapreduce": measure_word_count,
    "start": jobs.start,
}


def print_rows(rows: list[Comparison]) -> None:
    """Print the table of ratios, with all comparisons of one thing under one heading."""
    table = make_table(left=("what, compared with",), right=("ours / theirs", "ratio", "quartiles", "target", ""))
    name = ""
    for row in rows:
        if row.name != name:
            name = row.name
            table.add_row(f"[bold]{name}[/]")
        ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
        spread = "" if row.spread is None else f"{row.spread[0]:.2f}-{row.spread[1]:.2f}"
        target = "" if row.target is None else f"≤ {row.target:g}"
        reached = "" if row.reached is None else mark(row.reached)
        table.add_row(f"  {row.beside}", row.figures, ratio, spread, target, reached)
    show("Ours, as a multiple of theirs: below 1 minidist takes less", table)


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    only: tuple[str, ...] = option(
        (), None, "NAME", f"only this; may be repeated: {', '.join(SECTIONS)}", choices=tuple(SECTIONS), action="append"
    )
    run: str | None = path_to("FILE", "nothing else but nanoGPT's CPU run on this text: tiny Shakespeare")
    json: str | None = output("write the rows for machines; - is standard output")
    plot: str | None = output("draw the ratios: .pdf, .png, .svg")
    keep: bool = flag("put this machine's rows into results.json, and README")
    table: bool = flag("measure nothing: print README's table of results.json")


def prepare(arguments: list[str]) -> tuple[dict[str, Section], BenchOptions]:
    """Parse and check a command line; returns what to measure, and the options."""
    options = read(Parser("bench", __doc__ or ""), BenchOptions, arguments)
    if options.plot is not None:
        check_picture("--plot", options.plot)
    written = outputs(options)
    check_apart(written, {"--run": options.run})
    for name, path in written.items():
        check_writable(name, path)
    if options.keep and not find_clone():
        raise UsageError(f"--keep is for a clone, which keeps results: {how_to_make('setup')}")
    if options.table:
        raise Finished(results.table(results.read()).rstrip())
    unix.check()
    if options.run and options.only:
        raise UsageError("--run measures nothing else: leave out --only")
    if options.run:
        corpus = load(options.run, one_process.SMALL[0]["context"])
        if corpus.note:
            print(f"minidist: {corpus.note}", file=sys.stderr)
        return {"run": partial(one_process.whole_run, corpus)}, options
    return {name: SECTIONS[name] for name in options.only or SECTIONS}, options


def main() -> None:
    sections, options = prepare(sys.argv[1:])
    here = machine.describe(keep_freed_memory())
    measured: dict[str, list[Comparison]] = {}
    for name, section in sections.items():
        print(f"measuring: {name} ...", file=sys.stderr, flush=True)
        measured[name] = list(section())
    rows = [row for found in measured.values() for row in found]
    if options.json:
        write_json(options.json, {"machine": here, "rows": [results.as_json(row) for row in rows]})
    if options.json != "-":
        print("\n".join(machine.lines(here)), end="\n\n")
        print_rows(rows)
    drawn = any(row.ratio is not None for row in rows)
    if options.plot and drawn:
        write_output(options.plot, plot.draw(rows, machine.name_of(here), format_of(options.plot)))
        if options.json != "-":
            say_written(plot=options.plot)
    if options.keep:
        results.write_results(here, measured)
    if options.plot and not drawn:
        raise Stopped(f"--plot {options.plot}: there is no ratio to draw: nothing to compare with is installed")


if __name__ == "__main__":
    sys.exit(in_one_process(main))

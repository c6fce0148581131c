"""Which layout of ranks for this model on this cluster? All that divide, the fastest first.

    python -m minidist plan --model llama3-405b --ranks 16384 --device-memory 80GB --batch 16M --context 8192
    python -m minidist plan --model llama2-7b --ranks 64 --check 1
    python -m minidist plan --model llama3-8b --layout tp=2,dp=4,zero=1 --assert 'memory<80GB'
    python -m minidist plan --published

It only computes, by the formulas that runs on ranks are checked by; `--check` runs a row.
"""

import argparse
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from minidist import UsageError
from minidist.cli.fields import choice, fill, flag, option, output, outputs, parse, part, path_to, whole
from minidist.cli.models import MODELS, model_of, parameter_count
from minidist.cli.options import Parser, at_least, memory_size, tool, within
from minidist.cli.paths import check_writable, write_json, write_output
from minidist.papers import gpt2, megatron
from minidist.papers.context import SCHEMES
from minidist.papers.mixed_precision import BYTES
from minidist.papers.models import Model
from minidist.plan import show, write
from minidist.plan.choice import Wanted
from minidist.plan.headline import headline
from minidist.plan.one_row import RowOptions, changes, choice_of, next_better, notes, told, why_first
from minidist.plan.profiles import ProfileOptions
from minidist.plan.search import ACTIVATIONS, STATES, Evaluator, SearchResult, best_chunks, search, why_not
from minidist.plan.ties import Row
from minidist.plan.time import CEILING, Cluster


def rate(text: str) -> float:
    """An argument type: bytes a second, 450GB/s."""
    if not (bytes_a_second := memory_size(re.sub(r"/s$", "", text))):
        raise argparse.ArgumentTypeError(f"must be bytes a second, such as 450GB/s, not {text!r}")
    return float(bytes_a_second)


def tokens(thousand: int) -> Callable[[str], int]:
    """An argument type: a number of tokens, with K, M, B or T for powers of a thousand."""

    def number(text: str) -> int:
        # 1.5M tokens, but not 1.5
        found = re.fullmatch(r"(\d+(?:\.\d+(?=.*[EKMBT]))?(?:E\d+)?) *([KMBT]?)", text, re.IGNORECASE)
        value = float(found[1]) * thousand ** " KMBT".index(found[2].upper() or " ") if found else 0
        if not 1 <= value <= 1e18:
            raise argparse.ArgumentTypeError(f"must be a number of tokens, such as 16M, not {text!r}")
        return int(value)

    return number


SECOND = within(0, 1)  # an argument type: up to one


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    model: str | None = path_to("NAME", f"one of {', '.join(MODELS)}; or a config.json")
    parameters: int | None = option(None, parameter_count, "N", "instead: a GPT of GPT-3's proportions, such as 7.5e9")
    experts: int | None = option(None, at_least(2, at_most=10_000), "E", "MLPs in place of each layer's one")
    top: int | None = whole("K", "experts that each token goes through; default: 2, or the model's")
    capacity: float = option(1.0, within(0.01, 1e3), "CF", "room of an expert, times the mean")
    ranks: int | None = option(None, at_least(1, at_most=10**6), "N", "devices; default: 8, or those of --layout")
    ranks_per_host: int = whole("G", "devices of a host", 8, also="--ranks-per-node")
    device_memory: int = option(80 * 10**9, memory_size, "SIZE", "of a device", shown="80GB")
    reserve: int | None = option(
        None, memory_size, "SIZE", "of it, for the allocator and libraries; default: 0.08 of it"
    )
    flops: float = option(989e12, within(1, 1e20), "N", "operations a second of a device", shown="989e12")
    ceiling: float = option(CEILING, within(0.01, 1), "X", "the share of them that it reaches")
    within: float = option(450e9, rate, "RATE", "bandwidth between ranks of one host", shown="450GB/s")
    across: float = option(50e9, rate, "RATE", "bandwidth to other hosts", shown="50GB/s")
    latency: float = option(5e-6, SECOND, "S", "seconds of a message")
    batch: int = option(4 * 2**20, tokens(2**10), "N", "tokens of a step; 4M is 4·2²⁰", shown="4M")
    context: int | None = option(None, tokens(2**10), "N", "tokens of a sequence; default: the model's positions")
    tokens: int | None = option(None, tokens(10**3), "N", "of the whole training, such as 15T: how many days?")
    precision: str = choice(BYTES, "bf16", "bf16, mixed (fp16), fp32 or fp64")
    scheme: str = choice(SCHEMES, "ring", f"of context ranks: {', '.join(SCHEMES)}")
    row: RowOptions = part(RowOptions)
    system: ProfileOptions = part(ProfileOptions)
    rows: int = option(10, at_least(1, at_most=10**4), "N", "of the table")
    explain: int | None = whole("ROW", "every term of a row, with formula and section")
    check: int | None = whole("ROW", "run a row, scaled down: memory and bytes, counted")
    published: bool = flag("instead: published runs, next to the model")
    write_deepspeed: str | None = output("the fastest row of data ranks alone as its JSON")
    write_accelerate: str | None = output("the same as its YAML")
    json: str | None = output("for machines; - is standard output")


def parser() -> Parser:
    made = tool("plan", __doc__)
    fill(made, PlanOptions)
    return made


def shape_of(options: PlanOptions) -> tuple[str, Model]:
    """The model, as the formulas ask for it. Raises UsageError for options that do not go together."""
    name, model = dense_shape_of(options)
    experts, top = options.experts, options.top
    if top and not (experts or model.experts):
        raise UsageError(f"--top {top} chooses among experts, and {name} has none: use --experts {max(8, top)}")
    experts = experts or model.experts
    top = (top or (model.top if model.experts else 2)) if experts else 1
    if experts and top > experts:
        raise UsageError(f"--top {top} is more than {experts} experts: use --top {experts}")
    return name, model if (experts, top) == (model.experts, model.top) else model.with_mixture(experts, top)


def dense_shape_of(options: PlanOptions) -> tuple[str, Model]:
    """The model that --model or --parameters names, before --experts and --top change it."""
    o = options
    if o.model and o.parameters:
        raise UsageError("--model and --parameters say the same: leave one of them out")
    if o.parameters:
        context = o.context or 2048
        return f"a GPT of about {o.parameters:,}", proportioned(o.parameters, context)
    name = o.model or "llama2-7b"
    model = Model.like(model_of(name))
    if (o.context or 0) > model.s and model.decoder.learned:
        raise UsageError(f"--context {o.context}: {name} has {model.s:,} positions")
    return name, model


def proportioned(parameters: int, context: int) -> Model:
    """A GPT of this size, with the proportions of GPT-3: its width is 128 times its layers, and so heads are 128 wide
    (Brown et al. 2020, table 2.1: 96 layers, 12,288 wide, 96 heads). Layers are even in number: stages share them."""
    big = gpt2.MODELS["gpt3-175b"]
    ratio, v = big.h // big.layers, megatron.VOCABULARY

    def sized(layers: int) -> Model:
        return Model("gpt", v, context, ratio * layers, layers, layers, layers, True)

    return min(map(sized, range(2, 400, 2)), key=lambda model: abs(model.parameters() - parameters))


def wanted_of(options: PlanOptions) -> Wanted:
    """What to train. Raises UsageError if the batch is no whole number of sequences."""
    name, model = shape_of(options)
    context = options.context or model.s
    if options.batch % context:
        raise UsageError(
            f"--batch {options.batch:,} tokens are no whole number of sequences of {context:,}: use --batch"
            f" {max(options.batch // context, 1) * context}"
        )
    sizes = options.batch // context, context, options.precision
    scheme, profile = (options.row.layout or {}).get("scheme", options.scheme), options.system.of(options.precision)
    return Wanted(name, model, *sizes, scheme=scheme, capacity=options.capacity, profile=profile)


def cluster_of(options: PlanOptions) -> Cluster:
    o, ranks = options, options.ranks or (choice_of(options.row, None).ranks if options.row.layout else 8)
    reserve = int(o.system.of(o.precision).reserve * o.device_memory) if o.reserve is None else o.reserve
    links = o.within, o.across, o.latency
    return Cluster(ranks, o.device_memory, o.ranks_per_host, o.flops, *links, o.ceiling, reserve)


def row_of(found: SearchResult, number: int, option: str) -> Row:
    """The row that an option names. Raises UsageError if there is none."""
    if number > len(found.rows):
        raise UsageError(f"{option} {number}: there are {len(found.rows):,} rows")
    return found.rows[number - 1]


def plan(options: PlanOptions) -> int:
    """Search, and print what was asked for."""
    o, wanted, cluster = options, wanted_of(options), cluster_of(options)
    for name in ("--json", "--write-deepspeed", "--write-accelerate"):
        check_writable(name, outputs(o)[name])
    asked = asked_row(wanted, cluster, o) if o.row.layout else None
    found = search(wanted, cluster, {} if asked else o.row.only)
    fit, others = len(found.rows), best_chunks(found.rows)
    found = found._replace(rows=[asked] if asked else others)
    if not found.rows:
        raise UsageError(why_none(found))
    explained = row_of(found, o.explain, "--explain") if o.explain else None
    checked = row_of(found, o.check, "--check") if o.check else None
    written, status = [*write_files(found, wanted, cluster, o)], 0  # all that may be refused comes before what is said
    for text in [] if o.json == "-" else heading(wanted, cluster):
        print(text)
    if o.json != "-":
        if explained or (asked and not o.check):
            print("\n".join(show.explain(explained or found.rows[0], wanted, cluster, o.tokens)))
        elif not o.check:
            print("\n".join([show.wrapped(headline(found.rows)), ""]))
            print("\n".join([*show.table(found, fit, wanted, o.rows, o.tokens), "", show.wrapped(show.LEGEND)]))
            said = [*why_first(found.rows), *notes(wanted, o.row), show.assumed(wanted.profile, cluster), show.ASSUMED]
            print("\n".join(map(show.wrapped, said)))
    if checked:
        from minidist.plan import check  # runs ranks, and needs NumPy

        status = check.report(wanted, checked, quiet=o.json == "-")
    about = asked or checked or explained or found.rows[0]
    failed = [one.text for one in o.row.asserted if not one.holds(about)]
    if o.json:
        rows = [show.as_json(row, wanted, cluster) for row in found.rows[: o.rows]]
        report = {"model": wanted.name, "rows": rows, "fit": fit, "left_out": found.left_out, "failed": failed}
        if asked:
            better = next_better(asked, others, cluster.room)
            report["better"] = better and {**show.as_json(better, wanted, cluster), "changes": changes(asked, better)}
        write_json(o.json, report)
    if o.json != "-":
        written += map(show.wrapped, told(asked, others, cluster.room) if asked else [])
        written += [f"does not hold: {text}" for text in failed]
    for text in written:
        print(text)
    return 1 if failed else status


def asked_row(wanted: Wanted, cluster: Cluster, options: PlanOptions) -> Row:
    """The row that --layout names. Raises UsageError if the model or the batch cannot be divided so."""
    at = choice_of(options.row, options.ranks)
    if reason := why_not(wanted, at):
        raise UsageError(f"--layout: {reason}")
    return Evaluator(wanted, cluster).row(at)


def write_files(found: SearchResult, wanted: Wanted, cluster: Cluster, options: PlanOptions) -> Iterator[str]:
    """Write a row as another system's configuration, if asked for; yields which row is in which file."""
    for name, path in (
        ("--write-deepspeed", options.write_deepspeed),
        ("--write-accelerate", options.write_accelerate),
    ):
        if path:
            hybrid = name == "--write-accelerate"
            row = write.sayable(found, name, hybrid)
            at = row.choice
            made = write.accelerate(wanted, at, cluster.per_host) if hybrid else write.deepspeed(wanted, at)
            write_output(path, made.encode())
            if options.json != "-":
                yield f"row {found.rows.index(row) + 1} written to {path}"


def heading(wanted: Wanted, cluster: Cluster) -> Iterator[str]:
    """The lines above the table: what was asked."""
    of = wanted.model
    yield show.wrapped(
        f"{wanted.name}, Ψ = {of.parameters():,}, on {cluster.ranks:,} devices of {cluster.memory / show.GB:g} GB,"
        f" {cluster.per_host} to a host; {wanted.batch:,} sequences of {wanted.context:,} tokens in a step"
    )
    if of.experts:
        yield show.wrapped(
            f"A token goes through {of.top} of {of.experts} experts, and so through {of.active():,} parameters. An"
            f" expert has room for {wanted.capacity:g} times the mean of tokens."
        )
    yield ""


def why_none(found: SearchResult) -> str:
    """Why no row fits, and what to change: the most frequent reason, but a lack of memory before all others."""
    if not found.left_out:
        return "nothing divides: use another --ranks, or a --batch of more sequences"
    unfit = Counter({reason: found.left_out[reason] for reason in (STATES, ACTIVATIONS)})
    (reason, _), *_ = (+unfit or found.left_out).most_common()
    return f"none of {sum(found.left_out.values()):,} layouts fits: {reason}; use more --ranks, or more --device-memory"


def main(arguments: Sequence[str]) -> int:
    options = parse(parser(), arguments).of(PlanOptions)
    if options.published:
        from minidist.plan import published

        return published.main(options.json)
    return plan(options)

"""The end of every chapter: what the paper says, the number that it gives for this run, and what was counted."""

import argparse
import json
import math
import os
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from minidist import UsageError, papers
from minidist.nn.precision import Precision


@dataclass(frozen=True)
class Claim:
    """One promise of a paper and its counterpart in this run."""

    source: str  # paper and section
    claim: str  # in words
    formula: str  # as the paper writes it
    expected: float  # the formula's value for this run, padding and (N-1)/N included
    counted: float  # what was held or sent
    unit: str

    @property
    def holds(self) -> bool:
        """Counts are whole numbers and formulas exact, so they agree entirely or not at all."""
        return self.expected == self.counted


def on_each_rank(
    source: str, claim: str, formula: str, expected: float | Sequence[float], counted: Sequence[float], unit: str
) -> Claim:
    """A claim about every rank: that of the first rank for which it does not hold, or else of rank 0.

    expected: one value for all ranks, or one for each.
    """
    promised = list(expected) if isinstance(expected, Sequence) else [expected] * len(counted)
    pairs = list(zip(promised, counted, strict=True))
    worst = next((pair for pair in pairs if pair[0] != pair[1]), pairs[0])
    return Claim(source, claim, formula, *worst, unit)


@dataclass(frozen=True)
class Run:
    """What a run of training did, as rank 0 knows it at the end."""

    chapter: str
    options: argparse.Namespace
    ranks: int
    precision: Precision
    moments: int  # arrays of optimizer state
    parameters: int  # Ψ
    vocabulary: int
    unit_sizes: list[int]  # each unit's parameters, padded to a multiple of the number of ranks
    tied: bool  # the head reads the embedding's matrix
    loss: list[float]  # of the global batch, for each step
    validation_loss: float
    unigram_entropy: float
    step_ms: dict[str, float]
    sent: list[dict[str, dict[str, int]]]  # per rank: {phase: {"bytes", "messages"}} of the last step that updated
    memory: list[dict[str, int]]  # per rank: bytes
    counted: list[dict[str, Any]]  # per rank: what else the chapter's engine has counted

    @property
    def padded(self) -> int:
        """Ψ with the padding."""
        return sum(self.unit_sizes)

    @property
    def read_by_head(self) -> int:
        """Parameters that the last unit reads."""
        return self.unit_sizes[-1] + (self.unit_sizes[0] if self.tied else 0)

    def sent_in(self, *names: str, count: str = "bytes") -> list[int]:
        """Bytes (or messages) that each rank sent in some phases together."""
        return [sum(phases.get(name, {count: 0})[count] for name in names) for phases in self.sent]

    def sent_by(self, rank: int) -> int:
        """Bytes that a rank sent, in all phases."""
        return sum(phase["bytes"] for phase in self.sent[rank].values())

    def memory_of(self, kind: str) -> list[int]:
        """Bytes of a kind that each rank held."""
        return [held[kind] for held in self.memory]

    def as_json(self, claims: Sequence[Claim]) -> dict[str, Any]:
        """The report for machines."""
        return {
            "chapter": self.chapter,
            "ranks": self.ranks,
            "parameters": self.parameters,
            "precision": self.precision.name,
            "steps": len(self.loss),
            "loss": [_finite(loss) for loss in self.loss],
            "validation_loss": _finite(self.validation_loss),
            "unigram_entropy": self.unigram_entropy,
            "step_ms": self.step_ms,
            "claims": claims_as_rows(claims),
            "sent": self.sent,
            "memory": self.memory,
            **({"counted": self.counted} if any(self.counted) else {}),
        }


def _finite(value: float) -> float | None:
    """JSON has no word for a loss that is not a number any more."""
    return value if math.isfinite(value) else None


def claims_as_rows(claims: Sequence[Claim]) -> list[dict[str, Any]]:
    """The claims for a JSON report."""
    return [{**asdict(claim), "holds": claim.holds} for claim in claims]


# ---- claims that several chapters make -------------------------------------------------------------------------------


def memory_claims(run: Run, stage: int) -> list[Claim]:
    """ZeRO's formulas for what a rank holds between steps."""
    p, k = run.precision.bytes, run.precision.optimizer_bytes(run.moments)
    states = papers.zero_memory(run.padded, run.ranks, stage, p, p, k)
    divided = {"parameters": stage >= 3, "gradients": stage >= 2, "optimizer": stage >= 1}
    claims = []
    factors = {"parameters": p, "gradients": p, "optimizer": k}
    for kind, factor in factors.items():
        formula = f"{factor}Ψ/N" if divided[kind] else f"{factor}Ψ"
        section = f"ZeRO §5.{stage}" if stage else "ZeRO §3.1"
        claims.append(on_each_rank(section, kind, formula, getattr(states, kind), run.memory_of(kind), "bytes"))
    held = [sum(rank[kind] for kind in divided) for rank in run.memory]
    whole = sum(factor for kind, factor in factors.items() if not divided[kind])
    shared = sum(factor for kind, factor in factors.items() if divided[kind])
    formula = " + ".join(term for term in (f"{whole}Ψ" * (whole > 0), f"{shared}Ψ/N" * (shared > 0)) if term)
    return [*claims, on_each_rank("ZeRO Fig. 1", "together", formula, states.total, held, "bytes")]


def peak_claim(run: Run, source: str, claim: str, buckets: int) -> Claim:
    """The most that is held of whole units in passing: `buckets` buffers of the largest one. An embedding that the head
    reads as well is there together with each of the others."""
    embedding, *others = run.unit_sizes
    largest = embedding + max(others) if run.tied else max(run.unit_sizes)
    p = run.precision.bytes
    formula = f"{p * buckets}(max ψ + ψ_emb)" if run.tied else f"{p * buckets}·max ψ"
    return on_each_rank(source, claim, formula, p * buckets * largest, run.memory_of("transient_peak"), "bytes")


def traffic_claims(run: Run, stage: int, kept: int = 0) -> list[Claim]:
    """ZeRO's formulas for what a rank sends in a step: by phase, and together."""
    a = run.options.accumulate
    times = f"{a}" if a > 1 else ""
    volume = papers.zero_volume(run.padded, run.ranks, stage, a, kept)
    formulas = {
        "all-reduce gradients": "2Ψ(N-1)/N",
        "all-gather parameters": "Ψ(N-1)/N",
        "all-gather forward": f"{times}Ψ(N-1)/N",
        "all-gather backward": f"{times}(Ψ-ψ_kept)(N-1)/N" if kept else f"{times}Ψ(N-1)/N",
        "reduce-scatter gradients": f"{times if stage >= 2 else ''}Ψ(N-1)/N",
    }
    wire = run.precision.bytes  # of an element: the papers count elements, the wire counts bytes
    claims = [
        on_each_rank("ZeRO §7", phase, f"{wire}·{formulas[phase]}", elements * wire, run.sent_in(phase), "bytes")
        for phase, elements in volume.items()
    ]
    norms = run.sent_in("norm")  # a float64 from every rank, which the papers leave out
    rest = [run.sent_by(rank) - norms[rank] for rank in range(run.ranks)]  # whatever else was sent, in any phase
    psis = {0: 2, 1: 2, 2: a + 1, 3: 3 * a}[stage]
    formula = f"{wire}·({psis}Ψ-{times}ψ_kept)(N-1)/N" if kept else f"{wire}·{psis}Ψ(N-1)/N"
    claims.append(on_each_rank("ZeRO §7", "all that is sent", formula, sum(volume.values()) * wire, rest, "bytes"))
    if stage > 0:
        claims.append(on_each_rank("beside it", "norm of the gradient", "8(N-1)", 8 * (run.ranks - 1), norms, "bytes"))
    return claims


# ---- on the screen ---------------------------------------------------------------------------------------------------


def print_report(run: Run, claims: Sequence[Claim], closing: Callable[[Run], None]) -> None:
    """Losses, the claims, and what the paper prints for its own models (`closing`)."""
    print_summary(run)
    if claims:
        print_claims(claims, "On each rank, in one step: what the papers promise, and what was counted")
        closing(run)


def print_summary(run: Run) -> None:
    """The model and its losses."""
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # Ψ, where the terminal cannot show it
    padding = f" ({number(run.padded)} padded)" if run.padded > run.parameters else ""
    print(f"\n{run.options.model} with Ψ = {number(run.parameters)} parameters{padding}", end=", ")
    print(f"{run.precision.name} precision, N = {run.ranks} rank{'s' * (run.ranks > 1)}")
    if run.loss:
        steps = f"{len(run.loss)} step{'s' * (len(run.loss) > 1)}"
        dropout = f", dropout {run.options.dropout:g}" if run.options.dropout else ""
        print(f"training loss   {run.loss[0]:.3f} -> {run.loss[-1]:.3f} in {steps}", end=" ")
        print(f"of {run.step_ms['median']:.0f} ms (median){dropout}")
    print(f"validation loss {run.validation_loss:.3f}; letter frequencies alone give {run.unigram_entropy:.3f}")


def print_claims(claims: Sequence[Claim], title: str) -> None:
    """The table of claims."""
    table = table_of(left=("paper", "claim", "formula"), right=("expected", "counted"))
    table.add_column("", no_wrap=True)
    for claim in claims:
        numbers = (number(claim.expected), number(claim.counted))
        table.add_row(claim.source, claim.claim, claim.formula, *numbers, mark(claim.holds))
    show(title, table)
    if units := units_of(claims):
        print(textwrap.fill(units, 80))
    _print_failures(claims)


def units_of(claims: Sequence[Claim]) -> str:
    """Whether volumes are in bytes or in elements; what is counted in pieces says so by its name."""
    units = {claim.unit for claim in claims}
    if "bytes" not in units:
        return ""
    if units == {"bytes"}:
        return "All in bytes."
    in_elements = ", ".join(claim.claim for claim in claims if claim.unit == "elements")
    return f"Volumes in bytes; in elements: {in_elements}." if in_elements else "Volumes in bytes."


def print_verdict(claims: Sequence[Claim]) -> None:
    """Where there are too many claims for a table: those that do not hold."""
    failed = sum(not claim.holds for claim in claims)
    print(f"{len(claims) - failed} of {len(claims)} claims on bytes, clocks and reads hold")
    _print_failures(claims)


def print_collectives(claims: Sequence[Claim], size: int, ranks: int) -> None:
    """One row for each collective, from its six claims."""
    print(f"S = {number(size)} float32 elements, {number(4 * size)} bytes, on N = {ranks} rank{'s' * (ranks > 1)}\n")
    columns = ("calls", "idlest", "busiest", "formula", "promised", "in all")
    table = table_of(left=("collective",), right=columns)
    table.add_column("", no_wrap=True)
    for i in range(0, len(claims), 6):
        row = claims[i : i + 6]
        _, calls, _, busiest, idlest, total = row
        counted = [number(claim.counted) for claim in (calls, idlest, busiest)]
        promised = (busiest.formula, number(busiest.expected), number(total.counted))
        table.add_row(calls.source, *counted, *promised, mark(all(claim.holds for claim in row)))
    show("Counted: message calls of the busiest rank, and bytes sent", table)
    print("✓: the result is right, and what was counted is as promised. p: 2^⌊lg N⌋.")
    if size % ranks:
        print("Promised is exact: N does not divide S, so some chunks are an element longer.")
    _print_failures(claims)


def print_table(title: str, left: str, right: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table of texts: one column to the left, the others to the right."""
    print()
    table = table_of((left,), right)
    for row in rows:
        table.add_row(*row)
    show(title, table)


def mark(holds: bool) -> str:
    """The mark at the end of a row."""
    return "[green]✓[/]" if holds else "[bold red]✗[/]"


def _print_failures(claims: Sequence[Claim]) -> None:
    for claim in claims:
        if not claim.holds:
            numbers = f"{number(claim.expected)} {claim.unit} promised, {number(claim.counted)} counted"
            print(f"does not hold: {claim.source}, {claim.claim}: {numbers}")


def table_of(left: Sequence[str], right: Sequence[str]) -> Any:
    """An empty table of rich's, its first columns adjusted to the left and the others to the right."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False)
    for heading in left:
        table.add_column(heading, overflow="fold")
    for heading in right:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def show(title: str, table: Any) -> None:
    """Print a table of rich's under its title, 80 columns wide where there is no terminal to ask."""
    from rich.console import Console

    console = Console()
    console.print(title, style="bold", markup=False, highlight=False)
    console.print()
    console.print(table)
    console.print()


def number(value: float) -> str:
    """Thousands apart: 1 234 567."""
    return f"{value:,.0f}".replace(",", " ") if float(value).is_integer() else f"{value:,.3f}".replace(",", " ")


# ---- files -----------------------------------------------------------------------------------------------------------


def check_writable(option: str, path: str | None) -> None:
    """Raise UsageError unless a file can be made at `path`: better now than after the training."""
    if path is None:
        return
    folder = Path(path).parent
    if not folder.is_dir():
        raise UsageError(f"{option} {path}: there is no folder {folder}")
    # What is there is replaced by a new file: not a folder, and not /dev/null.
    if (Path(path).exists() and not Path(path).is_file()) or not os.access(folder, os.W_OK):
        raise UsageError(f"{option} {path}: cannot write there")


def write_json(path: str, document: dict[str, Any] | list[dict[str, Any]]) -> None:
    """Write a report for machines; "-" is standard output."""
    text = json.dumps(document, indent=1) + "\n"
    if path == "-":
        sys.stdout.write(text)
    else:
        write_whole(path, text.encode())


def write_whole(path: str, content: bytes) -> None:
    """Write a file so that a reader sees all of it, or the file that was there before: under another name, renamed."""
    temporary = f"{path}.tmp"
    Path(temporary).write_bytes(content)
    os.replace(temporary, path)

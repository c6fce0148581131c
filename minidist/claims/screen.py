"""Claims on the screen: what the paper says, the number that this gives for this run, and what was counted."""

from collections.abc import Callable, Sequence

from minidist.claims.claim import Claim
from minidist.claims.proof import Proof, print_proof
from minidist.claims.run import Run
from minidist.cli.tables import make_table, mark, number, say, show


def print_report(run: Run, claims: Sequence[Claim], closing: Callable[[Run], None], proof: Proof | None = None) -> None:
    """Losses, what was proved, the claims, and what the paper prints for its own models (`closing`)."""
    print_summary(run)
    print_proof(proof)
    if claims:
        print_claims(claims, "On each rank, in one step: what the papers promise, and what was counted")
        closing(run)


def print_summary(run: Run) -> None:
    """The model and its losses."""
    print(f"\n{run.model.name} with Ψ = {number(run.model.parameters())} parameters", end=", ")
    print(f"{run.precision} precision, N = {run.ranks} rank{'s' * (run.ranks > 1)}")
    if run.loss:
        steps = f"{len(run.loss)} step{'s' * (len(run.loss) > 1)}"
        print(f"training loss   {run.loss[0]:.3f} -> {run.loss[-1]:.3f} in {steps}", end=" ")
        print(f"of {run.step_ms['median']:.0f} ms (median)")
    found = f"{run.validation_loss:.3f}" if run.validate else "not computed (--validate 0)"
    print(f"validation loss {found}; letter frequencies alone give {run.unigram_entropy:.3f}")
    if others := describe_training(run):
        print(f"trained with    {others}")


def describe_training(run: Run) -> str:
    """The unusual options that shaped the losses."""
    others = {
        f"dropout {run.dropout:g}": run.dropout > 0,
        "a head of its own": run.model.name == "gpt" and not run.model.tied,
        "no clipping": run.clip == 0,
    }
    return ", ".join(name for name, is_so in others.items() if is_so)


def print_claims(claims: Sequence[Claim], title: str) -> None:
    """The table of claims on each rank and, if there are any, the table of claims on all ranks together."""
    for scope, heading in (("each rank", title), ("all ranks", "On all ranks together")):
        rows = [claim for claim in claims if claim.scope == scope]
        table = make_table(left=("paper", "claim", "formula"), right=("expected", "counted"))
        table.add_column("", no_wrap=True)
        for claim in rows:
            numbers = (number(claim.expected), number(claim.counted))
            table.add_row(claim.source, claim.claim, claim.formula, *numbers, mark(claim.holds))
        if rows:
            show(heading, table)
    if units := describe_units(claims):
        say(units)
    _print_failures(claims)


def describe_units(claims: Sequence[Claim]) -> str:
    """Whether volumes are in bytes or in elements. The names of other claims tell their unit."""
    units = {claim.unit for claim in claims}
    if "bytes" not in units:
        return ""
    if units == {"bytes"}:
        return "All in bytes."
    in_elements = ", ".join(claim.claim for claim in claims if claim.unit == "elements")
    shared = " R ranks share a step's tokens." * ("tokens" in units)
    return f"Volumes in bytes{f'; in elements: {in_elements}' * bool(in_elements)}.{shared}"


def print_collectives(claims: Sequence[Claim], size: int, ranks: int) -> None:
    """One row for each collective, from its six claims."""
    print(f"S = {number(size)} float32 elements, {number(4 * size)} bytes, on N = {ranks} rank{'s' * (ranks > 1)}\n")
    columns = ("calls", "idlest", "busiest", "formula", "promised", "in all")
    table = make_table(left=("collective",), right=columns)
    table.add_column("", no_wrap=True)
    for i in range(0, len(claims), 6):
        row = claims[i : i + 6]
        _, calls, _, busiest, idlest, total = row
        counted = [number(claim.counted) for claim in (calls, idlest, busiest)]
        promised = (busiest.formula, number(busiest.expected), number(total.counted))
        table.add_row(calls.source, *counted, *promised, mark(all(claim.holds for claim in row)))
    show("Counted: message calls of the busiest rank, and bytes sent", table)
    print("✓: the result is right, and the counts are as promised. p: 2^⌊lg N⌋.")
    if size % ranks:
        print("N does not divide S, so some chunks are an element longer: so are the promises.")
    _print_failures(claims)


def _print_failures(claims: Sequence[Claim]) -> None:
    for claim in claims:
        if not claim.holds:
            numbers = f"{number(claim.expected)} {claim.unit} promised, {number(claim.counted)} counted"
            print(f"does not hold: {claim.source}, {claim.claim}: {numbers}")

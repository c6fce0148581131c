"""Claims on the screen: what the paper says, the number that this gives for this run, and what was counted."""

from collections.abc import Mapping, Sequence

from minidist.claims.claim import Claim
from minidist.claims.letters import Letters, legend
from minidist.claims.proof import Proof, print_proof
from minidist.claims.run import Run
from minidist.cli.tables import make_table, mark, number, say, show


def print_report(
    run: Run, claims: Sequence[Claim], letters: Letters, whole_run: bool, proof: Proof | None = None
) -> None:
    """Losses, what was proved, what happened in a line, and the claims with their letters. whole_run: they are about
    all steps together, not about one."""
    print_summary(run)
    print_proof(proof)
    if claims:
        print()
        say(f"{verdict(claims)} {outcome(run, whole_run)}")
        print()
        period = "T steps" if whole_run else "one step"
        print_claims(claims, f"On each rank, in {period}: what the papers promise, and what was counted", letters)


def verdict(claims: Sequence[Claim]) -> str:
    """How many claims hold."""
    failed, n = sum(not claim.holds for claim in claims), len(claims)
    if failed:
        return f"{failed} of {n} claims do{'es' * (failed == 1)} not hold."
    return f"All {n} claims hold." if n > 1 else "The claim holds."


def outcome(run: Run, whole_run: bool) -> str:
    """What a rank held and sent, as parts of what one process would hold, and of what data parallelism would send."""
    states = [sum(held[kind] for kind in ("parameters", "gradients", "optimizer")) for held in run.memory]
    most, g, psi = max(states), run.gradient_bytes, run.model.parameters()
    who = "The rank" if run.ranks == 1 else "Each rank" if min(states) == most else "The fullest rank"
    where = " on its device" * any(held["all"] for rank in run.below for held in rank.values())
    share = part_of(most, (run.bytes.stored + g + run.optimizer_bytes) * psi)
    held = f"{who} held {number(most)} bytes of model states{where}, {share}"
    if run.ranks == 1:
        return f"{held}."
    sent = [rank["sent"] for rank in run.counted] if whole_run else [*map(run.sent_by, range(run.ranks))]
    usual = 2 * g * psi * (run.ranks - 1) / run.ranks * (len(run.loss) if whole_run else 1)
    return f"{held}, and sent {times(max(sent), usual)}."


FRACTIONS = {2: "half", 3: "a third", 4: "a quarter", 5: "a fifth", 6: "a sixth", 7: "a seventh", 8: "an eighth"}


def part_of(value: float, whole: float) -> str:
    """A part in words: a quarter of 3,372,032."""
    for n, name in {1: "all", **FRACTIONS}.items():
        if abs(value * n / whole - 1) < 0.005:
            exact = value * n == whole
            return f"{'' if exact or n == 1 else 'about '}{name} of {number(whole)}"
    return f"{100 * value / whole:.3g} % of {number(whole)}"


def times(sent: float, usual: float) -> str:
    """What was sent, next to what data parallelism sends."""
    much = "as much" if round(sent / usual, 2) == 1 else f"{sent / usual:.3g} times as much"
    return f"{much} as data parallelism" if sent else "nothing"


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


# Where the claim's name does not tell, as "tokens of a rank" does: the unit's letter, and what it means.
UNITS = {
    "bytes": ("B", "bytes"),
    "elements": ("el", "elements of one micro-batch"),
    "T_F": ("T_F", "the time of a forward"),
    "M": ("M", ""),
    "%": ("%", ""),
}


def print_claims(claims: Sequence[Claim], title: str, letters: Letters) -> None:
    """The table of claims on each rank and, if there are any, the table of claims on all ranks together."""
    for scope, heading in (("each rank", title), ("all ranks", "On all ranks together")):
        rows = [claim for claim in claims if claim.scope == scope]
        table = make_table(left=("paper", "claim", "formula"), right=("expected", "counted"), narrow=True)
        table.add_column("unit")
        table.add_column("", no_wrap=True)
        for claim in rows:
            numbers = (number(claim.expected), number(claim.counted))
            unit, _ = UNITS.get(claim.unit, ("", ""))
            table.add_row(claim.source, claim.claim, claim.formula, *numbers, unit, mark(claim.holds))
        if rows:
            show(heading, table)
    units = {claim.unit for claim in claims}
    meant = [f"{unit}: {meaning}" for name, (unit, meaning) in UNITS.items() if name in units and meaning]
    say("; ".join([*meant, legend([claim.formula for claim in claims], letters)]).removesuffix("; "))
    _print_failures(claims)


def print_collectives(claims: Sequence[Claim], size: int, ranks: int, per_host: int, across: Mapping[str, int]) -> None:
    """One row for each collective, from its claims. across: what the busiest host has sent to others."""
    print(
        f"S = {number(size)} float32 elements, {number(4 * size)} bytes, on N = {ranks} rank{'s' * (ranks > 1)},"
        f" G = {per_host} on a host\n"
    )
    table = make_table(left=("collective",), right=("calls", "busiest", "formula", "total", "off host"))
    table.add_column("", no_wrap=True)
    for name, leaving in across.items():
        row = [claim for claim in claims if claim.source == name]
        _, calls, _, busiest, _, total, *_ = row
        counted = [number(claim.counted) for claim in (calls, busiest)]
        of_all = (number(total.counted), number(leaving))
        table.add_row(name, *counted, busiest.formula, *of_all, mark(all(claim.holds for claim in row)))
    show("Counted: message calls of the busiest rank, and bytes sent", table)
    print("✓: the result is right, and the counts are as promised. p: 2^⌊lg N⌋.")
    print("Busiest: a rank. Off host: what the busiest host sends to others.")
    if size % ranks:
        print("N does not divide S, so some chunks are an element longer: so are the promises.")
    _print_failures(claims)


def _print_failures(claims: Sequence[Claim]) -> None:
    for claim in claims:
        if not claim.holds:
            numbers = f"{number(claim.expected)} {claim.unit} promised, {number(claim.counted)} counted"
            print(f"does not hold: {claim.source}, {claim.claim}: {numbers}")

"""What ZeRO-Infinity says of a run: what is held in which of three memories, and what goes over two links."""

from minidist.claims.claim import Claim, on_each_rank
from minidist.claims.offload import UP as TO_DEVICE
from minidist.claims.offload import DOWN as TO_HOST
from minidist.claims.needs import Needs, of_data_axis
from minidist.claims.run import Asked, Run
from minidist.claims.zero import peak_claim, traffic_claims
from minidist.papers import chen, zero, zero_infinity

READ, WRITTEN = "disk to host", "host to disk"


def claims(run: Run) -> list[Claim]:
    """What the papers say of this run."""
    passing = []
    if run.options.zero > 1:  # whole units in passing: gradients, and in stage 3 parameters as well
        passing.append(peak_claim(run, "arithmetic", "device: in passing", buckets=run.options.zero - 1))
    return [*memory_claims(run), *passing, *link_claims(run), *traffic_claims(run, run.options.zero)]


def needs(asked: Asked) -> list[Needs]:
    """What a run will need of each rank's device."""
    stage, n, p = asked.options.zero, asked.ranks, asked.bytes.stored
    psi, largest = asked.model.parameters(n), max(asked.model.units(n)) / n
    states = zero.ModelStates(2 * p * largest if stage == 3 else p * psi, p * psi if stage == 1 else 0, 0)
    return of_data_axis(stage, lambda asked: states)(asked)


def memory_claims(run: Run) -> list[Claim]:
    """The formulas for what a rank holds: on its disk what belongs to it, above that what is in use or under way."""
    stage, n, p, k = run.options.zero, run.ranks, run.bytes.stored, run.optimizer_bytes
    copy = 0 if run.bytes.master else p  # of the parameters, where the optimizer has no master copy of its own
    psi, largest = run.model.parameters(n), max(run.model.units(n)) / n
    shard = psi / n
    whole, one = "Ψ/N", "·max ψ/N"
    of_pools = {
        "device": {
            "parameters": (f"2·{p}{one}", 2 * p * largest) if stage == 3 else (f"{p}Ψ", p * psi),
            "gradients": (f"{p}Ψ", p * psi) if stage == 1 else ("0", 0),
            "optimizer": ("0", 0),
        },
        "host": {
            "parameters": (f"2·{p}{one}", 2 * p * largest) if stage == 3 else (f"{copy}{one}", copy * largest),
            "gradients": (f"{p}{whole}", p * shard),
            "optimizer": (f"3·{k + copy}{one}", 3 * (k + copy) * largest),
            "messages": (f"{p}{one}", p * largest),
        },
        "disk": {
            "parameters": (f"{p * (stage == 3) + copy}{whole}", (p * (stage == 3) + copy) * shard),
            "optimizer": (f"{k}{whole}", k * shard),
        },
    }
    return [
        on_each_rank("Infinity §5.1", f"{pool}: {kind}", formula, expected, run.memory_of(kind, pool), "bytes")
        for pool, kinds in of_pools.items()
        for kind, (formula, expected) in kinds.items()
    ]


def link_claims(run: Run) -> list[Claim]:
    """The formulas for what goes over each rank's links in a step, by the links' account and by the kernel's."""
    options, n, p, model = run.options, run.ranks, run.bytes.stored, run.model
    again = chen.gathered_again(options.recompute, options.layers) * model.units(n)[1]
    states = run.optimizer_bytes + (0 if run.bytes.master else p)
    moved = zero_infinity.moved(model.parameters(n), n, options.zero, options.accumulate, again)
    times = options.accumulate if options.accumulate > 1 else ""
    read = f"{p}·{times}(2Ψ{' + Ψ_again' * (again > 0)})/N"
    rows = [
        (READ, "parameters", read, p * moved["parameters read"]),
        (READ, "optimizer", f"{states}Ψ/N", states * moved["states"]),
        (WRITTEN, "parameters", f"{p}Ψ/N", p * moved["parameters written"]),
        (WRITTEN, "optimizer", f"{states}Ψ/N", states * moved["states"]),
        (TO_HOST, "gradients", f"{p}·{times if options.zero > 1 else ''}Ψ/N", p * moved["gradients"]),
    ]
    if options.zero == 3:
        rows.append((TO_DEVICE, "parameters", read, p * moved["parameters read"]))
    else:
        rows = [row for row in rows if row[1] != "parameters"]
        rows.append((TO_DEVICE, "parameters", f"{p}Ψ/N", p * moved["parameters up"]))
    claims = [
        on_each_rank("Infinity §4.1", f"{kind}, {way}", formula, expected, run.moved_in(way, kind), "bytes")
        for way, kind, formula, expected in rows
    ]
    for way, verb in ((READ, "read"), (WRITTEN, "written")):
        expected = sum(row[3] for row in rows if row[0] == way)
        claims.append(on_each_rank("Infinity §4.1", f"all that is {verb}", "", expected, run.moved_in(way), "bytes"))
        if all(f"kernel {verb}" in rank for rank in run.counted):
            seen = [rank[f"kernel {verb}"] for rank in run.counted]
            claims.append(on_each_rank("the kernel", f"{verb} by threads", "", expected, seen, "bytes"))
    overwritten = [rank["overwritten"] for rank in run.counted]
    return [*claims, on_each_rank("Infinity §6.3", "overwritten while in use", "0", 0, overwritten, "bytes")]


def print_closing(run: Run) -> None:
    pass

"""What the ZeRO-Offload paper says of a run: what is held where, what goes over the link, how long a step takes, and
why this partition is optimal."""

from minidist.claims.activations import peak_of_layers
from minidist.claims.claim import Claim, on_each_rank
from minidist.claims.letters import letters_in
from minidist.claims.promises import Promises
from minidist.claims.published import print_offload_closing, print_offload_tables
from minidist.claims.run import Run
from minidist.claims.zero import peak_claim, persistent_claims, traffic_claims
from minidist.formulas import needs as formulas
from minidist.formulas.asked import Asked
from minidist.formulas.needs import Needs
from minidist.memory.partition import best, partitions
from minidist.papers import chen, zero_offload

DOWN, UP = "device to host", "host to device"
PASSES, UPDATE = 1 + 2, 4  # the time of a unit's two passes, and of its update


def memory_claims(run: Run) -> list[Claim]:
    """The formulas for what a rank holds between steps, on its device and on its host."""
    stage, n, p, k = run.zero, run.ranks, run.bytes.stored, run.optimizer_bytes
    g = run.gradient_bytes
    psi, shard = run.model.parameters(n), run.model.parameters(n) / n
    steps = 1 if run.delayed_update is None else 2  # the number of steps whose gradients are held at a time
    copy = 0 if run.bytes.master else p  # of the parameters, if the optimizer has no master copy of its own
    bytes_of = {  # per parameter
        "device": {"parameters": p, "gradients": g if stage == 1 else 0, "optimizer": 0},
        "host": {"parameters": copy + p * below(run), "gradients": g * steps, "optimizer": k},
    }
    claims = []
    for pool, kinds in bytes_of.items():
        for kind, factor in kinds.items():
            if (pool, kind) == ("device", "parameters") and below(run):
                most = p * max(run.model.units(n)) / n
                held = run.memory_of(kind, pool)
                claims.append(on_each_rank("Infinity §5.1", "device: parameters", f"{p}·max ψ/N", most, held, "bytes"))
                continue
            divided = pool == "host" or (stage == 3 and kind == "parameters")
            formula = f"{factor}Ψ{'/N' * divided}" if factor else "0"
            expected, held = factor * (shard if divided else psi), run.memory_of(kind, pool)
            claims.append(on_each_rank("Offload §4.2", f"{pool}: {kind}", formula, expected, held, "bytes"))
    largest, held = largest_part(run) / n, run.memory_of("messages", "host")
    return [*claims, on_each_rank("arithmetic", "host: on the way", f"{g}·max ψ/N", g * largest, held, "bytes")]


def below(asked: Asked) -> bool:
    """Whether the parameters' shard is on the host, too."""
    return bool(asked.parameters == "host")


def largest_part(run: Run) -> int:
    """Elements of the largest Flat: a unit, or with --persist the part that is divided, or the other part."""
    units, divided = run.model.units(run.ranks), run.model.divided(run.ranks)
    return max(max(part, whole - part if run.model.apart else 0) for whole, part in zip(units, divided, strict=True))


def link_claims(run: Run) -> list[Claim]:
    """The formulas for what goes over each rank's link in a step."""
    stage, a, n, p, g = run.zero, run.accumulate, run.ranks, run.bytes.stored, run.gradient_bytes
    psi, again = run.model.parameters(n), 0
    if below(run):
        again = chen.count_regathered_layers(run.recompute, run.model.layers) * run.model.units(n)[1]
    elements = zero_offload.elements_moved(psi, n, stage, a, a * (2 * psi + again) if below(run) else None)
    gradients, parameters = g * elements["gradients"], p * elements["parameters"]
    times = a if stage > 1 else 1
    up = p * 2 * a if below(run) else p
    more = f" + {p * a}Ψ_again/N" * bool(again)
    everything = [sum(moved) for moved in zip(run.moved_in(DOWN), run.moved_in(UP), strict=True)]
    return [
        on_each_rank("Offload §4.2", claim, f"{factor}Ψ/N{more * ('down' not in claim)}", expected, counted, "bytes")
        for claim, factor, expected, counted in (
            ("gradients down", g * times, gradients, run.moved_in(DOWN, "gradients")),
            ("parameters up", up, parameters, run.moved_in(UP, "parameters")),
            ("all that is moved", g * times + up, gradients + parameters, everything),
        )
    ]


def time_claims(run: Run) -> list[Claim]:
    """What the last step that updated took on the logical clock. No claim if steps overflowed, because they take
    less."""
    if any(rank["skipped"] for rank in run.counted):
        return []
    units, delayed = run.model.layers + 2, run.delayed_update is not None  # 2: the embedding and the head
    expected = zero_offload.step_time(PASSES * units * run.accumulate, UPDATE * units, delayed)
    formula = "max(P, U)" if delayed else "P + U"
    counted = [rank["step time"] for rank in run.counted]
    return [on_each_rank("Offload §5.2", "time of a step", formula, expected, counted, "units of time")]


def optimum_claims() -> list[Claim]:
    """No other partition is better: all are tried. M: one byte per parameter, as the paper writes it."""
    optimal = best(list(partitions(zero_offload.NODES, zero_offload.EDGES, zero_offload.FWD_BWD)))
    _, reduction = zero_offload.TABLE_1["g16", "update super"]
    least = 16 / float(reduction.printed)
    return [
        Claim("Offload §3.3", "least that is moved", "4M", zero_offload.LEAST, optimal[0].moved, "M"),
        Claim("Offload §3.4", "least on the device", "16M / 8", least, optimal[0].device, "M"),
        Claim("Offload §3.5", "ways to do both", "1", 1, len(optimal), "ways"),
    ]


def needs(asked: Asked) -> list[Needs]:
    """For each rank's device: what this stage of ZeRO needs, without what the host holds."""
    on_host = {"optimizer": 0.0} if asked.zero == 1 else {"gradients": 0.0, "optimizer": 0.0}
    if below(asked):  # the largest shard, while it is gathered
        on_host["parameters"] = asked.bytes.stored * max(asked.model.units(asked.ranks)) / asked.ranks
    return [need.but(**on_host) for need in formulas.needs(asked)]


def claims(run: Run) -> list[Claim]:
    """What the papers say about this run, next to what it held, sent and moved; and about the optimum."""
    stage, passing = run.zero, []
    if stage > 1:  # whole units, for a moment: gradients, and in stage 3 also parameters
        passing.append(peak_claim(run, "arithmetic", "device: transient", buckets=stage - 1))
    return [
        *memory_claims(run),
        *persistent_claims(run),
        *passing,
        peak_of_layers(run),
        *link_claims(run),
        *traffic_claims(run),
        *time_claims(run),
        *optimum_claims(),
    ]


PROMISES = Promises(
    claims=claims,
    letters=letters_in("zero", "offload"),
    needs=needs,
    closing=print_offload_closing,
    published=print_offload_tables,
)

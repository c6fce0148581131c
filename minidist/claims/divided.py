"""Figures of layers, sequences and experts that ranks divide: what each keeps and sends of them."""

from collections.abc import Callable
from typing import Any

from minidist.claims.declared import Job, report_on, sent
from minidist.papers import context, deepseek_v3, korthikanti, megatron, ptd, ring_attention, switch, zero
from minidist.papers.collectives import all_reduce_messages
from minidist.papers.figure import Figure

Count = Callable[[Any], float]

# ---- tensor and sequence parallelism ---------------------------------------------------------------------------------

T, B, S, H, A = 8, 1, 8, 256, 8  # ranks, sequences, positions, width, heads
LAYER = f"--steps 1 --layers 1 --batch {B} --context {S} --width {H} --heads {A} --validate 0"


def in_layers(report: Any, what: str) -> list[dict[str, float]]:
    """Traffic of rank 0's layers in these collectives, forward and backward. What is gathered again is apart."""
    phases = report["sent"][0].items()
    return [of for phase, of in phases if phase.startswith(f"layers: {what}") and not phase.endswith("again")]


def calls(what: str, messages: int) -> Count:
    """Collectives of a layer, by the messages that each takes: a ring of t ranks sends t-1."""
    return lambda report: sum(of["messages"] for of in in_layers(report, what)) / messages


def elements(report: Any, what: str, layers: int, tokens: int, width: int, t: int) -> float:
    """What rank 0 sends in each layer in these collectives, in bsh, times t/(t-1). An element has two bytes."""
    nbytes = sum(of["bytes"] for of in in_layers(report, what))
    return nbytes / 2 / layers / (tokens * width) * t / (t - 1)


def kept(ranks: int, options: str) -> float:
    """Bytes that rank 0 keeps of a layer, with dropout, if the ranks divide it so."""
    return float(report_on(ranks, f"tensor_parallel {options}")["counted"][0]["layer_activations_with_dropout"])


def divided_layers() -> list[Job]:
    """Calls and volume of a layer on 8 ranks, and the numbers in Korthikanti's table 2."""
    reduced = [(megatron.OPERATIONS, "all-reduce"), (korthikanti.CALLS["all-reduce"], "all-reduce")]
    each = all_reduce_messages(B * S * H, T, 2, [0] * T)  # and of fewer elements, also short
    gives: list[tuple[Figure, Count]] = [(figure, calls(what, each)) for figure, what in reduced]
    gives.append((megatron.LOSS, lambda report: sent(report, "loss: all-reduce", "messages") / each))
    gives.append((ptd.TENSOR, lambda report: elements(report, "all-reduce", 1, B * S, H, T)))
    cut = [(korthikanti.CALLS[what], calls(what, T - 1)) for what in ("all-gather", "reduce-scatter")]

    sbh, selective = S * B * H, f"--recompute selective {LAYER}"

    def whole_and_divided() -> tuple[float, float]:
        """What every rank keeps, and what t ranks divide, by what 1 and t ranks keep."""
        one, several = kept(1, selective) / sbh, kept(T, selective) / sbh
        shared = (one - several) * T / (T - 1)
        return one - shared, shared

    table: dict[str, Count] = {
        "one rank": lambda _: kept(1, selective) / sbh,
        "core": lambda _: (kept(1, LAYER) - kept(1, selective)) / (A * S * S * B),
        "whole": lambda _: whole_and_divided()[0],
        "divided": lambda _: whole_and_divided()[1],
        "sequence": lambda _: kept(T, f"--sequence-parallel {selective}") * T / sbh,
        "full": lambda _: kept(T, f"--recompute full {LAYER}") / sbh,
    }
    return [
        Job(T, f"tensor_parallel {LAYER}", gives),
        Job(T, f"tensor_parallel --sequence-parallel {LAYER}", cut),
        Job(T, "", [(figure, table[name]) for name, figure in korthikanti.TABLE_2.items()]),
    ]


def recomputed() -> Job:
    """What selective recomputation saves on 8 ranks, of small layers with the papers' as/h: GPT-3's 16, and 12.8. And
    what it saves together with sequence parallelism."""

    def keeps(s: int, h: int, options: str) -> float:
        return kept(8, f"{options} --steps 1 --layers 1 --heads 8 --batch 1 --width {h} --context {s} --validate 0")

    def saved(s: int, h: int) -> Count:
        cut = "--sequence-parallel --recompute"
        return lambda _: 100 * (1 - keeps(s, h, f"{cut} selective") / keeps(s, h, f"{cut} none"))

    def times_less(_: Any) -> float:
        both = "--sequence-parallel --recompute selective"
        return keeps(64, 40, "--recompute none") / keeps(64, 40, both)

    sizes = (32, 16), (64, 40)
    gives = [(figure, saved(*of)) for figure, of in zip(korthikanti.SAVED, sizes, strict=True)]
    return Job(8, "", [*gives, (korthikanti.TIMES_LESS, times_less)])


def checkpoints_on(t: int) -> list[Job]:
    """ZeRO-R, on the 16 ranks of a DGX-2: what the recomputation of a block sends (section 8), and GB of checkpoints of
    100 billion parameters, whole and cut (section 6.1)."""
    layers, s, h = 2, 32, 32
    small = f"--steps 1 --layers {layers} --width {h} --heads {t} --context {s} --batch 1 --validate 0"

    def of_block(report: Any) -> float:
        return elements(report, "all-reduce", layers, s, h, t)

    def of_checkpoints(report: Any) -> float:
        return sent(report, "all-gather checkpoints") / 2 / layers / (s * h) * t / (t - 1)

    def gigabytes(report: Any) -> float:
        """Two bytes an element, or a 16th of that: as many here, for each element of a block's input."""
        each = report["counted"][0]["layer_activations"] / layers / (s * h)
        return float(each * 125 * 8192 * 32 * 1024 / 1e9)

    *_, whole, cut = zero.EXAMPLES
    line = f"zero_r --tp {t} --zero 0 {small}"
    return [
        Job(t, line, [(zero.BLOCK, of_block), (zero.BLOCK_P_A, of_checkpoints), (cut, gigabytes)]),
        Job(t, f"{line} --activations device", [(whole, gigabytes)]),
    ]


# ---- mixtures of experts ---------------------------------------------------------------------------------------------


def routed() -> Job:
    """On 64 ranks of 8 hosts, with 256 experts, 8 of them for a token, on 4 hosts at most: the most hosts that a token
    goes to; and the balance loss, if all experts have the same probability."""
    small = "--steps 1 --layers 1 --width 16 --heads 2 --context 16 --batch 64 --validate 0"
    of = deepseek_v3
    experts = f"--experts {of.EXPERTS} --top {of.CHOSEN} --ranks-per-host {64 // of.HOSTS} --host-limit {of.LIMIT}"

    def most_hosts(report: Any) -> float:
        return max(i + 1 for rank in report["counted"] for i, tokens in enumerate(rank["hosts"]) if tokens)

    def for_nothing(report: Any) -> float:
        return most_hosts(report) * deepseek_v3.NVLINK / deepseek_v3.INFINIBAND

    uniform = switch.UNIFORM, lambda report: float(report["counted"][0]["uniform"])
    gives = [(deepseek_v3.MOST_HOSTS, most_hosts), (deepseek_v3.FREE_EXPERTS, for_nothing), uniform]
    return Job(64, f"expert_parallel {experts} {small}", gives)


# ---- context parallelism ---------------------------------------------------------------------------------------------

LAYERS, BATCH, WIDTH, HEADS = 2, 2, 16, 4
DIVIDED = f"--precision mixed --steps 1 --width {WIDTH} --heads {HEADS} --layers {LAYERS} --batch {BATCH}"


def sent_in(report: Any, rank: int, *phases: str) -> float:
    """Elements that a rank sends in these phases for one layer and one sequence; each has two bytes."""
    return sum(sent(report, phase, rank=rank) for phase in phases) / 2 / LAYERS / BATCH


def ring_attention_on(n: int) -> Job:
    """Table 2, by what the last of n ranks sends and computes in a step of the ring: its queries see all keys that
    come. From some c on, a block's 4dc² operations take as long as to send its keys and values, 4cd bytes."""
    c = 32

    def nbytes(report: Any) -> float:
        return 2 * sent_in(report, -1, "keys and values forward") / (n - 1)

    def thousands(blocks: Callable[[float], float], flops: float, bandwidth: float) -> Count:
        def read(report: Any) -> float:
            pairs = sum(report["counted"][-1]["pairs"][1::n]) / LAYERS / BATCH
            operations = 4 * WIDTH / HEADS * pairs  # a pair of query and key: two products of D
            return blocks((nbytes(report) / c) / (operations / c**2) * flops / bandwidth / 1e3)

        return read

    gives: list[tuple[Figure, Count]] = [(ring_attention.BLOCK_BYTES, lambda report: nbytes(report) / c / WIDTH)]
    for device, (flops, bandwidth) in ring_attention.DEVICES.items():
        block, sequence = (of for of in ring_attention.FIGURES if of.cell.startswith(f"{device}, "))
        both = flops * 1e12, bandwidth * 1e9
        gives.append((block, thousands(lambda c: c, *both)))
        gives.append((sequence, thousands(ring_attention.tokens_held, *both)))
    return Job(n, f"context_parallel --positions contiguous --context {n * c} {DIVIDED}", gives)


def longer_on(n: int) -> Job:
    """Table 3's rows for a ring of n: a sequence n times as long, for the bytes that a rank keeps of it, relative to
    one rank. (A ring computes n² blocks, so that 256 ranks would take minutes, and 512 the better part of an hour.)"""
    c, small = 2, "--precision mixed --steps 1 --width 16 --heads 4 --layers 1 --batch 1 --validate 0"
    line = f"context_parallel --positions contiguous {small} --context"

    def for_a_byte(report: Any, positions: int) -> float:
        return positions / max(rank["layer_activations"] for rank in report["counted"])

    def longer(report: Any) -> float:
        return for_a_byte(report, n * c) / for_a_byte(report_on(1, f"{line} {c}"), c)

    return Job(n, f"{line} {n * c}", [(of, longer) for of in ring_attention.TABLE_3.values() if of.printed == str(n)])


def ulysses_on(p: int) -> list[Job]:
    """What each of p ranks sends in a forward, by Ulysses and by Megatron-LM's sequence parallelism."""
    s, of = 8 * p, context.ULYSSES

    def volume(unit: float, *phases: str) -> Count:
        return lambda report: sent_in(report, 0, *phases) * p / (p - 1) / unit

    whole, before = s * WIDTH, "all-to-all before, forward"  # a rank has 3Nh/P of a message of 3Nh
    exchanged = [
        (of["before"], volume(whole / p, before)),
        (of["both"], volume(whole / p, before, "all-to-all after, forward")),
    ]
    layers = volume(whole, "layers: all-gather forward", "layers: reduce-scatter forward")
    return [
        Job(p, f"context_parallel --scheme ulysses --context {s} {DIVIDED}", exchanged),
        Job(p, f"tensor_parallel --sequence-parallel --context {s} {DIVIDED}", [(of["Megatron-LM"], layers)]),
    ]


JOBS = [
    *divided_layers(),
    recomputed(),
    *checkpoints_on(16),
    routed(),
    ring_attention_on(4),
    *map(longer_on, (8, 32, 128)),
    *ulysses_on(4),
]

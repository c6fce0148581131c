"""What the papers promise: their formulas as functions, with section and equation, and the figures that they print.

Ψ is the number of parameters, N the number of ranks, S a number of elements. Where a round figure of a paper leaves out
(N-1)/N, the function has it: "2Ψ" is what a ring sends at N = infinity, at N = 2 it sends 1Ψ. Padding enters through Ψ:
pass the padded count. Nothing in here looks at a run.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

# ---- ZeRO: Rajbhandari et al., SC 2020, arXiv 1910.02054 -------------------------------------------------------------


@dataclass(frozen=True)
class ModelStates:
    """Bytes on one rank."""

    parameters: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        return self.parameters + self.gradients + self.optimizer


def zero_memory(psi: float, n: int, stage: int, p: int = 2, g: int = 2, k: int = 12) -> ModelStates:
    """Bytes of model states on each of n ranks (section 5, figure 1). Stage 0 is data parallelism.

    p, g, k: bytes a parameter of parameters, gradients and optimizer state: 2, 2, 12 in the paper, with mixed-precision
    Adam.
    Stage 1 divides the optimizer state by n (P_os), stage 2 gradients too (P_os+g), stage 3 parameters too (P_os+g+p).
    """
    return ModelStates(
        parameters=p * psi / (n if stage >= 3 else 1),
        gradients=g * psi / (n if stage >= 2 else 1),
        optimizer=k * psi / (n if stage >= 1 else 1),
    )


def zero_volume(psi: float, n: int, stage: int, accumulate: int = 1, kept: float = 0) -> dict[str, float]:
    """Elements that each of n ranks sends in one step of `accumulate` micro-batches, by what they are (section 7).

    The paper's 2Ψ, 2Ψ, 2Ψ and 3Ψ, times (N-1)/N, are accumulate = 1. Stages 2 and 3 hold no full gradient, so they
    reduce after every micro-batch: (a+1)Ψ and 3aΨ. In stage 3, `kept` parameters that stay gathered from the forward to
    the backward are not gathered again: 3Ψ - ψ_kept (as FSDP does it, Zhao et al. 2023, section 3.3.1).
    """
    once = psi * (n - 1) / n
    again = (psi - kept) * (n - 1) / n
    if stage == 0:
        return {"all-reduce gradients": 2 * once}
    if stage == 1:
        return {"reduce-scatter gradients": once, "all-gather parameters": once}
    if stage == 2:
        return {"reduce-scatter gradients": accumulate * once, "all-gather parameters": once}
    return {
        "all-gather forward": accumulate * once,
        "all-gather backward": accumulate * again,
        "reduce-scatter gradients": accumulate * once,
    }


# Table 1, in GB, for mixed-precision Adam: {Ψ: {ranks: (P_os, P_os+g, P_os+g+p)}}, as printed.
ZERO_TABLE_1: dict[float, dict[int, tuple[str, str, str]]] = {
    7.5e9: {
        1: ("120", "120", "120"),
        4: ("52.5", "41.3", "30"),
        16: ("35.6", "21.6", "7.5"),
        64: ("31.4", "16.6", "1.88"),
        256: ("30.4", "15.4", "0.47"),
        1024: ("30.1", "15.1", "0.12"),
    },
    128e9: {
        1: ("2048", "2048", "2048"),
        4: ("896", "704", "512"),
        16: ("608", "368", "128"),
        64: ("536", "284", "32"),
        256: ("518", "263", "8"),
        1024: ("513", "257", "2"),
    },
    1e12: {
        1: ("16000", "16000", "16000"),
        4: ("7000", "5500", "4000"),
        16: ("4750", "2875", "1000"),
        64: ("4187", "2218", "250"),
        256: ("4046", "2054", "62.5"),
        1024: ("4011", "2013", "15.6"),
    },
}


def zero_table_cell(psi: float, n: int, stage: int) -> str:
    """One cell of Table 1 as the paper rounds it: half up to three digits, but cut off to whole GB from 128 B on."""
    gigabytes = zero_memory(psi, n, stage).total / 1e9
    if psi >= 128e9 and gigabytes > 100:
        return str(int(gigabytes))
    digits = 0 if gigabytes >= 100 else 1 if gigabytes >= 10 else 2
    rounded = int(gigabytes * 10**digits + 0.5) / 10**digits
    return f"{rounded:g}"


def short(psi: float) -> str:
    """7.5e9 as 7.5B."""
    return f"{psi / 1e12:g}T" if psi >= 1e12 else f"{psi / 1e9:g}B"


# Figure 1: model states of 7.5 B parameters on 64 ranks, GB, for stage 0 to 3, as printed.
ZERO_FIGURE_1 = ("120", "31.4", "16.6", "1.9")


# ---- collectives: Thakur, Rabenseifner & Gropp 2005; Patarasuk & Yuan 2009 -------------------------------------------


@dataclass(frozen=True)
class Cost:
    """Steps one after another, and elements sent by each rank."""

    steps: int
    sent: list[int]


def chunk_sizes(s: int, n: int) -> list[int]:
    """The sizes of n chunks of s elements that differ by one at most, the longer ones first."""
    return [s // n + (i < s % n) for i in range(n)]


def ring_reduce_scatter(s: int, n: int) -> Cost:
    """N-1 steps; every chunk but one's own: (N-1)/N·S."""
    return Cost(n - 1, [s - c for c in chunk_sizes(s, n)])


def ring_all_gather(s: int, n: int) -> Cost:
    """N-1 steps; every chunk but the right neighbour's: (N-1)/N·S."""
    chunks = chunk_sizes(s, n)
    return Cost(n - 1, [s - chunks[(rank + 1) % n] for rank in range(n)])


def ring_all_reduce(s: int, n: int) -> Cost:
    """2(N-1) steps, 2(N-1)/N·S from each rank, which no algorithm can beat (Patarasuk & Yuan)."""
    scatter, gather = ring_reduce_scatter(s, n), ring_all_gather(s, n)
    return Cost(2 * (n - 1), [a + b for a, b in zip(scatter.sent, gather.sent, strict=True)])


def server_all_reduce(s: int, n: int) -> Cost:
    """2(N-1) steps at the server, which sends (N-1)·S; the others S."""
    return Cost(2 * (n - 1), [(n - 1) * s] + [s] * (n - 1))


def tree_all_reduce(s: int, n: int) -> Cost:
    """2⌈lg N⌉ steps up and down a binomial tree; S to the parent, and S to each child."""
    rounds = [1 << k for k in range((n - 1).bit_length())]
    children = [sum(rank % (2 * d) == 0 and rank + d < n for d in rounds) for rank in range(n)]
    return Cost(2 * len(rounds), [s * ((rank > 0) + children[rank]) for rank in range(n)])


def doubling_all_reduce(s: int, n: int) -> Cost:
    """Recursive doubling: ⌊lg N⌋ steps of S, and two more to fold N to a power of two and back."""
    return _folded(
        n, s, [s * (_power_of_two(n).bit_length() - 1)] * _power_of_two(n), _power_of_two(n).bit_length() - 1
    )


def halving_doubling_all_reduce(s: int, n: int) -> Cost:
    """Rabenseifner: 2⌊lg N⌋ steps, 2(N-1)/N·S for a power of two, and two steps more to fold other N."""
    p = _power_of_two(n)
    lg, chunks = p.bit_length() - 1, chunk_sizes(s, p)
    sent = []
    for place in range(p):
        scatter = s - chunks[place]  # halving gives away all but one chunk
        aligned = (slice(place >> k << k, (place >> k << k) + (1 << k)) for k in range(lg))
        sent.append(scatter + sum(sum(chunks[block]) for block in aligned))  # doubling: 1 chunk, 2, 4, …
    return _folded(n, s, sent, 2 * lg)


def broadcast(s: int, n: int) -> Cost:
    """Van de Geijn, root 0: the root scatters in N-1 sends, then the ring all-gather."""
    sent = ring_all_gather(s, n).sent
    return Cost(2 * (n - 1), [sent[0] + s - chunk_sizes(s, n)[0], *sent[1:]])


def all_to_all(s: int, n: int) -> Cost:
    """Pairwise exchange of rows of s/n elements: N-1 steps, all rows but one's own."""
    return Cost(n - 1, [s // n * (n - 1)] * n)


def _power_of_two(n: int) -> int:
    """The largest power of two up to n."""
    return 1 << n.bit_length() - 1


def _folded(n: int, s: int, members: list[int], steps: int) -> Cost:
    """The cost for n ranks of an algorithm for a power of two: of the first 2·rest ranks, even ones send S to the odd
    one beside them and sit out, and get the result back at the end."""
    rest = n - len(members)
    folded = [cost for member in members[:rest] for cost in (s, member + s)]
    return Cost(steps + 2 * (rest > 0), folded + members[rest:])


# ---- the parameter server: Li et al., OSDI 2014 ----------------------------------------------------------------------
# S: keys; n: workers; k: servers; r: copies of each server's keys. Elements, in one iteration, of dense gradients.


def server_worker(s: int) -> int:
    """What a worker pushes and pulls together: 2S, however many servers there are."""
    return 2 * s


def server_load(s: int, n: int, k: int) -> float:
    """What each of k servers takes in, and what it gives out: N·S at one server (the bottleneck), N·S/k at k."""
    return n * s / k


def server_colocated(s: int, n: int) -> float:
    """What each of n ranks sends that are workers and servers of 1/n of the keys: 2(N-1)/N·S, as in a ring all-reduce:
    the parts of its gradient that belong to others, and the weights of its own keys to all others."""
    return 2 * (n - 1) * s / n


def server_copies(s: int, n: int, r: int, aggregated: bool) -> int:
    """Sent for r copies (section 4.4): r·N·S, or replicated after aggregation r·S: r/N of what the workers push."""
    return r * s * (1 if aggregated else n)


def server_keys(s: int, lists: int, iterations: int, cached: bool) -> int:
    """Bytes of 8-byte keys that a worker sends in a whole run, in `lists` lists for all S keys (section 4.2).

    Every list goes with each pull and each push. Cached, it goes once, and then an 8-byte signature stands for it: with
    8-byte values, that leaves half of the bytes.
    """
    if not cached:
        return 2 * iterations * 8 * s
    return 8 * s + (2 * iterations - 1) * 8 * lists


def joining_server(s: int, k: int) -> float:
    """How many keys about move when a server joins k others (section 4.3): its fair share."""
    return s / (k + 1)


# ---- tensor and sequence parallelism: Shoeybi et al. 2019, arXiv 1909.08053; Korthikanti et al. 2022, 2205.05198 -----

# t ranks share every layer; s: length of a sequence, b: sequences in a micro-batch, h: width, a: heads, v: vocabulary.


def padded_vocabulary(v: int, multiple: int) -> int:
    """The vocabulary with entries that never occur, so that it divides (Megatron-LM: 50,257 to 51,200 for 8 ranks)."""
    return -(-v // multiple) * multiple


def gpt_units(v: int, s: int, h: int, layers: int, t: int = 1, tied: bool = True) -> list[int]:
    """Parameters of embedding, layers and head on each of t ranks.

    Divided: the matrices, 12h² in a layer, the biases of the column-parallel ones, 7h, and the vocabulary's. On every
    rank: the other biases and the norms, 6h in a layer, and the positions.
    """
    vocabulary = padded_vocabulary(v, t) * h // t
    layer = (12 * h * h + 7 * h) // t + 6 * h
    return [vocabulary + s * h, *[layer] * layers, 2 * h + (0 if tied else vocabulary)]


def gpt_parameters(v: int, s: int, h: int, layers: int, t: int = 1, tied: bool = True) -> int:
    """Parameters on each of t ranks."""
    return sum(gpt_units(v, s, h, layers, t, tied))


def llama_units(
    v: int, h: int, layers: int, a: int, kv: int, f: int, t: int = 1, tied: bool = False
) -> list[list[int]]:
    """For each of t ranks, its parameters of embedding, layers and head, with kv key/value heads and an MLP of width f,
    which need not be divisible by t."""
    vocabulary = padded_vocabulary(v, t) * h // t
    attention = (2 * h * h + 2 * h * (h // a * kv)) // t
    blocks = [attention + 3 * h * part + 2 * h for part in chunk_sizes(f, t)]
    return [[vocabulary, *[block] * layers, h + (0 if tied else vocabulary)] for block in blocks]


def llama_parameters(v: int, h: int, layers: int, a: int, kv: int, f: int, t: int = 1, tied: bool = False) -> list[int]:
    """Parameters on each of t ranks."""
    return [sum(units) for units in llama_units(v, h, layers, a, kv, f, t, tied)]


def layer_activations(
    s: int, b: int, h: int, a: int, t: int = 1, sequence: bool = False, recompute: str = "none", p: int = 2,
    dropout: bool = True,
) -> float:  # fmt: skip
    """Bytes of activations that a layer of GPT keeps on each of t ranks (Korthikanti et al., table 2).

    With p = 2 bytes an element and 1 for an element of a dropout mask: sbh(10 + 24/t + 5as/ht), where attention's core,
    the last term, is what selective recomputation recomputes. Sequence parallelism divides the 10 as well. Without
    dropout there are no masks, and the softmax's output serves for what dropout would leave of it.
    """
    apart = t if sequence else 1
    if recompute == "full":
        return s * b * h * p / apart
    shared = 4 * p + 2 * dropout  # the input of both norms and of both column-parallel layers, and two dropout masks
    divided = 12 * p  # q, k, v, the input of the projection; the input of GeLU and its output, 4h each
    core = 0 if recompute == "selective" else a * s * s * b * (2 * p + 1 if dropout else p)
    return s * b * h * shared / apart + (s * b * h * divided + core) / t


def layer_activations_llama(
    s: int, b: int, h: int, a: int, kv: int, f: int, t: int = 1, sequence: bool = False, recompute: str = "none",
    p: int = 2, dropout: bool = True,
) -> list[float]:  # fmt: skip
    """The same count for a layer of Llama, for each of t ranks: k and v are kv/a as wide, the MLP keeps 2f and f."""
    apart = t if sequence else 1
    if recompute == "full":
        return [s * b * h * p / apart] * t
    core = 0 if recompute == "selective" else a * s * s * b * (2 * p + 1 if dropout else p)
    attention = s * b * (2 * h + 2 * (h // a * kv)) * p
    shared = s * b * h * (4 * p + 2 * dropout) / apart
    return [shared + (attention + core) / t + s * b * 3 * part * p for part in chunk_sizes(f, t)]


# Megatron-LM's table 1: {billions of parameters as printed: (width, layers)}, with v = 51,200 and s = 1,024.
MEGATRON_TABLE_1 = {"1.2": (1536, 40), "2.5": (1920, 54), "4.2": (2304, 64), "8.3": (3072, 72)}

# Korthikanti's table 3: {model: (heads, width, layers, sequences in a micro-batch)}, with s = 2,048 and t = 8.
KORTHIKANTI_TABLE_3 = {
    "22B": (64, 6144, 48, 4),
    "175B": (96, 12288, 96, 1),
    "530B": (128, 20480, 105, 1),
    "1T": (160, 25600, 128, 1),
}


# ---- pipelines -------------------------------------------------------------------------------------------------------
#
# GPipe: Huang et al., NeurIPS 2019, arXiv 1811.06965. PipeDream: Narayanan et al., SOSP 2019, and Harlap et al., arXiv
# 1806.03377. 2BW: Narayanan et al., arXiv 2006.09503. PTD: Narayanan et al., SC 2021, arXiv 2104.04473. Zero Bubble: Qi
# et al., arXiv 2401.10241. p (K, n, d) is the number of stages, m (M) that of micro-batches, v of a stage's chunks.


def gpipe_bubble(p: int, m: int) -> float:
    """The part of all time that a worker idles: (K-1)/(M+K-1) (GPipe, section 2.3, where it is an O()).

    "Negligible when M >= 4K" was found in experiments: the formula gives 15.8 % for K = 4, M = 16.
    """
    return (p - 1) / (m + p - 1)


def megatron_bubble(p: int, m: int, v: int = 1) -> float:
    """Idle time to the time of the work, not to all time: (p-1)/m, interleaved (1/v)(p-1)/m (PTD, section 2.2)."""
    return (p - 1) / (v * m)


def zero_bubble_idle(schedule: str, p: int, t_f: float, t_b: float, t_w: float) -> float:
    """Idle time of a stage between its first and its last operation, in the unit of the times (Zero Bubble, table 2).

    1F1B (p-1)(T_F+T_B+T_W), ZB-H1 (p-1)(T_F+T_B-T_W), ZB-H2 (p-1)(T_F+T_B-2T_W): of the stage that idles most, and
    when there are micro-batches enough to fill the pipeline (see `fills`).
    """
    return (p - 1) * (t_f + t_b + {"1f1b": 1, "zb-h1": -1, "zb-h2": -2}[schedule] * t_w)


def fills(schedule: str, p: int) -> int:
    """From how many micro-batches on the formula above holds: as many as stage 1 has in flight; 1F1B's always does."""
    return {"1f1b": 1, "zb-h1": p, "zb-h2": 2 * p - 1}[schedule]


def in_flight(schedule: str, p: int, m: int, stage: int, v: int = 1) -> int:
    """The most (chunks of) micro-batches whose forward has run on a stage (1 to p), and whose backward has not ended.

    GPipe keeps m, 1F1B at most p, on stage i min(p-i+1, m) (PTD, section 2.2.1). ZB-H1 keeps (p-i+1) before B and (i-1)
    before W: p together; ZB-H2 (2p-2i+1) and (2i-2): 2p-1 (Zero Bubble, section 3).
    Interleaved, a worker does 2(p-i) + (v-1)p forwards before the first that a backward follows (Megatron-LM,
    schedules.py). m: what there is at all; without a flush, of all updates.
    """
    most = {
        "naive": 1,
        "gpipe": m,
        "interleaved": 2 * (p - stage) + (v - 1) * p + 1 if v > 1 else p - stage + 1,
        "zb-h1": p,
        "zb-h2": 2 * p - 1,
    }
    return min(most.get(schedule, p - stage + 1), m * v)


def in_flight_again(schedule: str, m: int, stage: int) -> int:
    """With re-materialisation, how many of them have their activations: the one whose backward is under way (GPipe,
    section 2.3), and in zero-bubble schedules those that wait for W alone."""
    return min(1 + {"zb-h1": stage - 1, "zb-h2": 2 * stage - 2}.get(schedule, 0), m)


def weight_versions(schedule: str, n: int, stage: int) -> int:
    """Versions of its weights that stage i of n keeps: PipeDream n-i+1 (SOSP 2019, section 3.3: one for each minibatch
    under way), 2BW 2, with a flush 1 (2BW, sections 3.1 and 3.2)."""
    return {"pipedream": n - stage + 1, "2bw": 2}.get(schedule, 1)


def weight_delay(schedule: str, n: int, stage: int) -> int:
    """How many updates lie between the weights of which a gradient was taken and those to which it is applied.

    PipeDream's stage i of n: n-i; with vertical sync n-1 on all stages (SOSP 2019, section 3.3); 2BW: 1 (section 3.1).
    """
    return {"pipedream": n - stage, "vertical-sync": n - 1, "2bw": 1}.get(schedule, 0)


def boundary_elements(b: int, s: int, h: int) -> int:
    """Elements that cross a boundary between stages for a micro-batch of b sequences of s, in each direction: bsh (PTD,
    section 3.2). Interleaved, there are v times as many boundaries."""
    return b * s * h


def two_bw_version(k: int, m: int) -> int:
    """The version of the weights that micro-batch k, counted from 1, uses: max(⌊(k-1)/m⌋ - 1, 0) (2BW, section 3.1)."""
    return max((k - 1) // m - 1, 0)


@dataclass(frozen=True)
class ZeroBubbleRow:
    """A setting of Zero Bubble's experiments: times of one stage in ms (table 9), and the bubble rates (table 5)."""

    model: str
    p: int
    m: int
    t_f: float
    t_b: float
    t_w: float
    t_comm: float
    bubble: dict[str, float]  # schedule -> as printed


def _zero_bubble_row(model: str, p: int, m: int, *numbers: float) -> ZeroBubbleRow:
    t_f, t_b, t_w, t_comm, *rates = numbers
    return ZeroBubbleRow(model, p, m, t_f, t_b, t_w, t_comm, dict(zip(("1f1b", "zb-h1", "zb-h2"), rates, strict=True)))


# Tables 5 and 9. A bubble rate is (cost - m(T_F+T_B+T_W))/cost, cost the longest that any stage takes from its first to
# its last operation, with T_comm for each message.
ZERO_BUBBLE_TABLE_5 = (
    _zero_bubble_row("1.5B", 8, 24, 18.522, 18.086, 9.337, 0.601, 0.2431, 0.1585, 0.1083),
    _zero_bubble_row("1.5B", 8, 32, 18.513, 18.086, 9.331, 0.626, 0.1985, 0.1242, 0.0837),
    _zero_bubble_row("1.5B", 8, 64, 18.546, 18.097, 9.321, 0.762, 0.1240, 0.0674, 0.0444),
    _zero_bubble_row("6.2B", 8, 24, 29.718, 29.444, 19.927, 0.527, 0.2347, 0.1323, 0.0698),
    _zero_bubble_row("6.2B", 8, 32, 29.802, 29.428, 19.530, 0.577, 0.1898, 0.1045, 0.0559),
    _zero_bubble_row("6.2B", 8, 64, 29.935, 29.621, 19.388, 0.535, 0.1091, 0.0554, 0.0294),
    _zero_bubble_row("14.6B", 16, 48, 11.347, 11.248, 8.132, 0.377, 0.2552, 0.1397, 0.0672),
    _zero_bubble_row("14.6B", 16, 64, 11.307, 11.254, 8.101, 0.379, 0.2082, 0.1088, 0.0516),
    _zero_bubble_row("14.6B", 16, 128, 11.325, 11.308, 8.109, 0.378, 0.1251, 0.0576, 0.0266),
    _zero_bubble_row("28.3B", 32, 96, 10.419, 10.207, 7.715, 0.408, 0.2646, 0.1421, 0.0641),
    _zero_bubble_row("28.3B", 32, 128, 10.408, 10.204, 7.703, 0.408, 0.2168, 0.1106, 0.0490),
    _zero_bubble_row("28.3B", 32, 256, 10.402, 10.248, 7.698, 0.460, 0.1352, 0.0594, 0.0257),
)


# ---- MapReduce: Dean & Ghemawat, OSDI 2004 ---------------------------------------------------------------------------


def mapreduce_bytes(keys: Sequence[str], values: Sequence[str]) -> int:
    """Bytes of intermediate pairs: |k| + |v| in UTF-8, a tab, a line feed, and one for each character escaped.

    Without a combiner, reducers fetch this for all pairs that map emits; with one, for a pair for each distinct key of
    each map task (section 4.3).
    """
    text = "".join(itertools.chain(keys, values))
    return len(text.encode()) + len(keys) + len(values) + sum(map(text.count, "\\\t\n"))


def mapreduce_decisions(m: int, r: int, again: int = 0, backups: int = 0) -> int:
    """The master's scheduling decisions: O(M + R) (section 3.5), one for each task, once more for each task that must
    start again (3.3, 4.6), and one for each backup (3.6)."""
    return m + r + again + backups


# ---- hybrid sharding: Zhao et al., "PyTorch FSDP", VLDB 2023, section 3.2.2 ------------------------------------------


def hybrid_across(m: float, w: int, g: int) -> float:
    """What each of w ranks on hosts of g sends to other hosts: the all-reduce of an m/g shard among w/g replicas."""
    return 2 * m * (w - g) / (g * w)


def hybrid_across_as_printed(m: float, w: int, g: int) -> float:
    """The paper's figure for it: 0.2344 m instead of 0.1250 m for w = 16 and g = 8."""
    return 2 * m * (w - 1) / (g * w)


# ---- 3D parallelism: Narayanan et al., SC 2021, arXiv 2104.04473 -----------------------------------------------------


def ptd_parameters(layers: int, h: int, v: int = 51_200, s: int = 2048) -> int:
    """Equation 2: P = 12lh²(1 + 13/(12h) + (v+s)/(12lh)). It leaves out the last norm."""
    return 12 * layers * h**2 + 13 * layers * h + (v + s) * h


# Table 1: {billions of parameters as printed: (width, layers, tensor-parallel ranks t, stages p, GPUs)}.
PTD_TABLE_1 = {
    "1.7": (2304, 24, 1, 1, 32),
    "3.6": (3072, 30, 2, 1, 64),
    "7.5": (4096, 36, 4, 1, 128),
    "18.4": (6144, 40, 8, 1, 256),
    "39.1": (8192, 48, 8, 2, 512),
    "76.1": (10240, 60, 8, 4, 1024),
    "145.6": (12288, 80, 8, 8, 1536),
    "310.1": (16384, 96, 8, 16, 1920),
    "529.6": (20480, 105, 8, 35, 2520),
    "1008.0": (25600, 128, 8, 64, 3072),
}

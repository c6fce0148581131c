"""What the ZeRO-Infinity paper says of a run: what each of three memories holds, and what goes over two links."""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from minidist.claims.activations import peak_of_layers
from minidist.claims.claim import Claim, on_each_rank
from minidist.claims.letters import letters_in
from minidist.claims.offload import DOWN as TO_HOST
from minidist.claims.offload import UP as TO_DEVICE
from minidist.claims.promises import Promises
from minidist.claims.published import count_agreeing
from minidist.claims.run import Run
from minidist.claims.zero import peak_claim, traffic_claims
from minidist.cli.paths import write_json
from minidist.cli.tables import make_table, mark, number, show
from minidist.formulas import needs as formulas
from minidist.formulas.asked import Asked
from minidist.formulas.needs import Needs
from minidist.memory import tiles
from minidist.memory.files import DiskLink, SwapFile
from minidist.memory.pool import NEEDED, Array, Pool
from minidist.mpi.clock import Clock
from minidist.nn.precision import PRECISIONS
from minidist.papers import chen, zero, zero_infinity

READ, WRITTEN = "disk to host", "host to disk"


def claims(run: Run) -> list[Claim]:
    """What the papers say of this run."""
    passing = []
    if run.zero > 1:  # whole, transient units: gradients, and in stage 3 also parameters
        passing.append(peak_claim(run, "arithmetic", "device: transient", buckets=run.zero - 1))
    held = [*memory_claims(run), *passing, peak_of_layers(run)]
    return [*held, *link_claims(run), *traffic_claims(run), *tiling_claims()]


def memory_claims(run: Run) -> list[Claim]:
    """The formulas for what a rank holds: its share on the disk, and above that what is in use or in transit."""
    stage, n, p, g, k = run.zero, run.ranks, run.bytes.stored, run.gradient_bytes, run.optimizer_bytes
    copy = 0 if run.bytes.master else p  # of the parameters, if the optimizer has no master copy of its own
    psi, largest = run.model.parameters(n), max(run.model.units(n)) / n
    shard = psi / n
    whole, one = "Ψ/N", "·max ψ/N"
    of_pools = {
        "device": {
            "parameters": (f"2·{p}{one}", 2 * p * largest) if stage == 3 else (f"{p}Ψ", p * psi),
            "gradients": (f"{g}Ψ", g * psi) if stage == 1 else ("0", 0),
            "optimizer": ("0", 0),
        },
        "host": {
            "parameters": (f"2·{p}{one}", 2 * p * largest) if stage == 3 else (f"{copy}{one}", copy * largest),
            "gradients": (f"{g}{whole}", g * shard),
            "optimizer": (f"3·{k + copy}{one}", 3 * (k + copy) * largest),
            "messages": (f"{g}{one}", g * largest),
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
    n, p, g, model = run.ranks, run.bytes.stored, run.gradient_bytes, run.model
    a = run.accumulate
    again = chen.count_regathered_layers(run.recompute, run.model.layers) * model.units(n)[1]
    states = run.optimizer_bytes + (0 if run.bytes.master else p)
    moved = zero_infinity.elements_moved(model.parameters(n), n, run.zero, a, again)
    read, written = f"{p}·{a}(2Ψ + Ψ_again)/N" if again else f"{p}·{2 * a}Ψ/N", f"{p}Ψ/N"
    down = f"{g}·{a}Ψ/N" if a > 1 and run.zero > 1 else f"{g}Ψ/N"
    rows = [
        (READ, "optimizer", "states read", f"{states}Ψ/N", states * moved["states"]),
        (WRITTEN, "optimizer", "states written", f"{states}Ψ/N", states * moved["states"]),
        (TO_HOST, "gradients", "gradients down", down, g * moved["gradients"]),
    ]
    if run.zero == 3:
        rows += [
            (READ, "parameters", "parameters read", read, p * moved["parameters read"]),
            (WRITTEN, "parameters", "parameters written", written, p * moved["parameters written"]),
            (TO_DEVICE, "parameters", "parameters up", read, p * moved["parameters read"]),
        ]
    else:
        rows.append((TO_DEVICE, "parameters", "parameters up", written, p * moved["parameters up"]))
    claims = [
        on_each_rank("Infinity §4.1", claim, formula, expected, run.moved_in(way, kind), "bytes")
        for way, kind, claim, formula, expected in rows
    ]
    for way, verb in ((READ, "read"), (WRITTEN, "written")):
        mine = [row for row in rows if row[0] == way]
        formula, expected = " + ".join(row[3] for row in mine), sum(row[4] for row in mine)
        claims.append(
            on_each_rank("Infinity §4.1", f"all that is {verb}", formula, expected, run.moved_in(way), "bytes")
        )
        if all(f"kernel {verb}" in rank for rank in run.counted):
            seen = [rank[f"kernel {verb}"] for rank in run.counted]
            claims.append(on_each_rank("/proc", f"{verb} by threads", "the same", expected, seen, "bytes"))
    overwritten = [rank["overwritten"] for rank in run.counted]
    return [*claims, on_each_rank("arithmetic", "lost in rooms", "0", 0, overwritten, "bytes")]


def tiling_claims() -> list[Claim]:
    """The memory for width h in t tiles; and the largest width in t tiles, in the memory for width h in one piece."""
    h, dtype = 64, PRECISIONS["mixed"].stored
    found = []
    for t in (1, 4, 16):
        expected, counted = zero_infinity.working_memory(h, t), tiles.bytes_needed(h, t, dtype)
        found.append(Claim("Infinity §5.1.3", f"layer, t = {t}", f"16h²/{t}", expected, counted, "bytes"))
    room = int(zero_infinity.working_memory(h))
    for t in (1, 4, 16):
        expected, counted = zero_infinity.largest_width(room, t), tiles.find_widest(room, t, dtype)
        found.append(Claim("Infinity §5.1.3", f"widest, t = {t}", f"√{t}·h", expected, counted, "of width"))
    return found


def print_closing(run: Run) -> None:
    """How little memory is needed, and how much is computed for each byte that is moved."""
    n, p, stage = run.ranks, run.bytes.stored, run.zero
    states = zero.model_states(run.model.parameters(n), n, stage, p, run.gradient_bytes, run.optimizer_bytes).total
    most = [f"{pool} {number(max(run.memory_of(NEEDED, pool)))}" for pool in ("device", "host", "disk")]
    print(f"Model states of a rank: {number(states)}. With activations, at the fullest:")
    print(f"{', '.join(most)}.")
    tokens = run.batch * run.context / n
    print(f"By the paper's equations {number(tokens)} tokens per rank and step are {number(tokens)} FLOP per")
    print(f"byte of parameters and gradients, and {number(tokens / 4)} per byte of optimizer states.")


def print_tables() -> None:
    """Which bandwidth the paper's examples need."""
    table = make_table(left=("what is moved", ""), right=("FLOP a\nbyte", "GB/s for\n50 %", "GB/s for\n90 %"))
    for what, example, ait in (
        ("parameters, gradients", "bsz 1", zero_infinity.ait_of_passes(1, zero_infinity.SEQ)),
        ("optimizer states", "bsz 2", zero_infinity.ait_of_update(2, zero_infinity.SEQ)),
        ("activation checkpoints", "hd 2K", zero_infinity.ait_of_checkpoints(2048)),
        ("activation checkpoints", "hd 8K", zero_infinity.ait_of_checkpoints(8192)),
    ):
        rates = [zero_infinity.bandwidth_for(share, ait, zero_infinity.PEAK) / 1e9 for share in (0.5, 0.9)]
        table.add_row(what, example, number(ait), *(f"{rate:,.1f}" for rate in rates))
    show("By its equations, for its examples: 1,024 tokens to a sequence, 70 TFLOP/s", table)
    print(f"{count_agreeing(zero_infinity.NEEDS)} efficiencies that it prints (over 50, 80 or 90 %) come out of them.")
    print("16 tiles make a layer √16 = 4 times as wide. The paper's 8K to 64K is 8 times:")
    print("widths were doubled, and 16K in one piece did not fit. Its weights have 2 GB, as")
    print("has each of 16 tiles of 64K.")


# ---- a unit from many disks, or from one -----------------------------------------------------------------------------


UNIT, BANDWIDTH = 1 << 18, 0.5e6  # bytes of the unit; bytes per second to which a disk is throttled


class Took(NamedTuple):
    """How long one fetch by all ranks together takes: by their clocks, on which one disk reads the unit in 1; and in
    milliseconds, first for files that are throttled to BANDWIDTH, then for messages."""

    clock: float
    files: float
    messages: float


class Fetched(NamedTuple):
    """How long n ranks take to fetch a unit: from the shards of all ranks, and from one owner."""

    n: int
    shards: Took
    owner: Took


class TimedLink(DiskLink):
    """A link to the disk that adds the time of each move, at the clock's bandwidth, to a clock."""

    def __init__(self, upper: Pool, lower: Pool, swap: SwapFile, clock: Clock) -> None:
        super().__init__(upper, lower, swap, BANDWIDTH)
        self.clock, self.done = clock, 0.0

    def copy(self, array: Array, out: Array) -> None:
        super().copy(array, out)
        self.clock.work(array.nbytes / self.clock.bandwidth)
        self.done = time.perf_counter()


def bandwidth_table(
    comm: Any, swap: SwapFile, shards: Callable[..., None], owner: Callable[..., None], json: str | None
) -> int:
    """Fetch a unit on 1, 2, 4, ... ranks from slow disks, in two ways; the exit status. json: a file for the times."""
    rows = []
    for n in (2**i for i in range(comm.size.bit_length())):
        ranks = comm.split(int(comm.rank >= n))
        if comm.rank < n:
            rows.append(Fetched(n, time_fetch(ranks, swap, shards, n), time_fetch(ranks, swap, owner, 1)))
    if comm.rank == 0 and json != "-":
        print_bandwidth(rows)
    if comm.rank == 0 and json:
        ways = [(row.n, way, getattr(row, way)) for row in rows for way in ("shards", "owner")]
        fetches = [{"ranks": n, "from": way, **took._asdict()} for n, way, took in ways]
        write_json(json, {"chapter": "infinity", "bandwidth": fetches})
    return comm.broadcast_object(int(not all(map(agrees, rows))) if comm.rank == 0 else None)


def time_fetch(comm: Any, swap: SwapFile, fetch: Callable[..., None], parts: int) -> Took:
    """Time a fetch, if each rank's file has one of `parts` parts of the unit. Raises RuntimeError if a rank does not
    get the unit."""
    host, disk = Pool("host"), Pool("disk")
    clock = Clock(bandwidth=UNIT)
    link = TimedLink(host, disk, swap, clock)
    unit = np.arange(UNIT).astype(np.uint8)
    mine = np.split(unit, parts)[comm.rank % parts]
    file = swap.empty(disk, "parameters", mine.size, mine.dtype)
    file[...] = mine
    out = host.empty("parameters", UNIT, unit.dtype)
    comm.barrier()
    begin = time.perf_counter()
    fetch(comm, link, clock, file, out)
    end = time.perf_counter()
    if not np.array_equal(out, unit):
        raise RuntimeError(f"{fetch.__name__}: rank {comm.rank} has not got the unit")
    everyone = comm.all_gather_object((clock.now, 1000 * max(link.done - begin, 0), 1000 * (end - begin)))
    latest, files, together = map(max, zip(*everyone, strict=True))
    return Took(latest, files, together - files)


def agrees(row: Fetched) -> bool:
    """Whether the clocks agree with section 6.1."""
    return row.shards.clock == zero_infinity.fetch(row.n) and row.owner.clock == zero_infinity.fetch(1)


def print_bandwidth(rows: Sequence[Fetched]) -> None:
    """Print both ways to fetch, next to what section 6.1 says."""
    table = make_table(left=(), right=("N", "1/N", "by clock", "", "ms", "owner: 1", "by clock", "", "ms"))
    for n, *ways in rows:
        row = [str(n)]
        for took, promised in zip(ways, (zero_infinity.fetch(n), zero_infinity.fetch(1)), strict=True):
            ms = f"{took.files:.0f} + {took.messages:.0f}"
            row += [f"{promised:.3f}", f"{took.clock:.3f}", mark(took.clock == promised), ms]
        table.add_row(*row)
    show("A unit for N ranks: in shards from N disks, and whole from its owner's", table)
    print("A disk reads a unit in time 1. By clock: simulated. ms: 256 KiB from files that")
    print("are throttled to 0.5 MB/s, and then the messages between ranks.")
    if len(rows) == 1:
        print("One rank has one disk: mpirun -n 8 python -m minidist.infinity --bandwidth-table")


def needs(asked: Asked) -> list[Needs]:
    """What a run will need of each rank's device: of stage 3's parameters two shards, of the largest unit."""
    p, psi, largest = asked.bytes.stored, asked.model.parameters(asked.ranks), max(asked.model.units(asked.ranks))
    parameters = 2 * p * largest / asked.ranks if asked.zero == 3 else p * psi
    states = {
        "parameters": parameters,
        "gradients": asked.gradient_bytes * psi if asked.zero == 1 else 0,
        "optimizer": 0,
    }
    return [need.but(**states) for need in formulas.needs(asked)]


PROMISES = Promises(
    claims=claims, letters=letters_in("zero", "infinity"), needs=needs, closing=print_closing, published=print_tables
)

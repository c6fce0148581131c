"""What ZeRO says about activations and buffers, next to what a run held, sent and moved; and what a model needs."""

from minidist.claims.activations import Share, layer_bytes
from minidist.claims.claim import Claim, on_each_rank
from minidist.claims.needs import Needs, end_bytes, token_bytes
from minidist.claims.published import print_zero_table_2
from minidist.claims.run import Asked, Run
from minidist.claims.zero import buffer_size, states_claims
from minidist.cli.tables import number, say
from minidist.papers import zero
from minidist.papers.collectives import chunk_sizes
from minidist.papers.models import padded
from minidist.tp import claims as tensor

GATHERS = "all-gather checkpoints"


def claims(run: Run) -> list[Claim]:
    """What is held, moved and sent, and nothing else."""
    options, t, p = run.options, run.layout.tp, run.bytes.stored
    d, a, stage, shares = run.layout.dp, options.accumulate, options.zero, shares_of(run)
    states = [zero.model_states(psi, d, stage, p, p, run.optimizer_bytes) for psi in stored_parameters(run)]
    volumes = [
        *tensor.layer_volumes(run, t, shares),
        *checkpoint_volumes(run),
        *tensor.end_volumes(run, t, shares),
        *data_volumes(run),
    ]
    rest = tensor.replicated_bytes(run, t, 1 if stage else d, d) if t > 1 else 0
    beside = {
        tensor.SHARD_GRADIENTS: (f"{p}·2(t-1)Ψrest{'' if stage else '·d'}", rest),
        tensor.TENSOR_NORM: ("8(t-1)dt", 8 * (t - 1) * run.ranks),
        "norm": ("8(d-1)dt", 8 * (d - 1) * run.ranks if stage else 0),
    }
    return [
        *states_claims(run, states, stage, "Ψr", "Ψr/d"),
        *checkpoints_wait(run, a),
        checkpoints_pass(run),
        *buffers(run),
        *(tensor.collectives(run, t, shares) if t > 1 else []),
        *(volume.claim(run) for volume in volumes if any(volume.elements)),
        *checkpoint_claims(run),
        *tensor.total_claims(run, volumes, beside),
    ]


# ---- which rank has what ---------------------------------------------------------------------------------------------


def shares_of(run: Asked) -> list[Share]:
    """The share of a micro-batch that each rank works on."""
    options = run.options
    rows = chunk_sizes(options.batch // options.accumulate, run.layout.dp)
    return [
        Share(rows[run.data_shares[rank]], options.layers, layers_again=options.layers) for rank in range(run.ranks)
    ]


def flats(run: Asked, rank: int) -> list[list[int]]:
    """By unit, the sizes of what a rank stores separately, padded so that the data axis can divide it: the whole unit,
    or, if it is cut, the rank's part of what is cut, and what stays whole."""
    t = run.layout.tp
    stored = [list(both) if t > 1 else [sum(both)] for both in run.model.cut_and_whole(t)[run.places[rank].tensor]]
    return [[padded(size, run.layout.dp) for size in of] for of in stored]


def stored_parameters(run: Asked) -> list[int]:
    """Ψr: for each rank, the sum of what it stores."""
    return [sum(map(sum, flats(run, rank))) for rank in range(run.ranks)]


def shared_parameters(run: Asked, rank: int) -> int:
    """The part of Ψr that embedding and head share."""
    return flats(run, rank)[0][0] if run.model.tied else 0


def gathered_at_once(run: Asked, rank: int) -> int:
    """The most parameters that a rank gathers at once: the largest unit, and what embedding and head share."""
    shared, (first, *others) = shared_parameters(run, rank), flats(run, rank)
    return shared + max(sum(first) - shared, *map(sum, others))


# ---- what is held, and what is moved ---------------------------------------------------------------------------------


def is_cut(run: Asked) -> bool:
    """Whether each rank that shares a layer has only a part of its checkpoint: by P_a, or for its own positions."""
    return run.options.activations != "device" or run.options.sequence_parallel


def checkpoint(run: Asked) -> list[int]:
    """The elements of a layer's input that each rank keeps."""
    t, options = run.layout.tp, run.options
    bsh = [share.b * options.context * options.width for share in shares_of(run)]
    return [chunk_sizes(size, t)[run.places[rank].tensor] if is_cut(run) else size for rank, size in enumerate(bsh)]


def checkpoints_wait(run: Run, a: int) -> list[Claim]:
    """What waits between forward and backward. Checkpoints on the host go there and come back once per micro-batch."""
    options, p = run.options, run.bytes.stored
    waiting = [options.layers * p * elements for elements in checkpoint(run)]
    formula = f"l·{p}bsh{'/t' * is_cut(run)}"
    kept = [counts["layer_activations"] for counts in run.counted]
    if options.activations != "host":
        return [on_each_rank("ZeRO §6.1", "checkpoints", formula, waiting, kept, "bytes")]
    moved = [a * nbytes for nbytes in waiting]
    on_host = run.memory_of("activations", "host")
    return [
        on_each_rank("ZeRO §6.1", "checkpoints", "0", 0, kept, "bytes"),
        on_each_rank("ZeRO §6.1", "on the host", formula, waiting, on_host, "bytes"),
        *(
            on_each_rank("ZeRO §8", way, f"{f'{a}' * (a > 1)}{formula}", moved, run.moved_in(way), "bytes")
            for way in ("device to host", "host to device")
        ),
    ]


def checkpoints_pass(run: Run) -> Claim:
    """The checkpoints that a device holds in transit: one layer's part, up from the host, and the whole checkpoint into
    which the ranks gather their parts. Nothing stays there."""
    options, p = run.options, run.bytes.stored
    on_host, cut = options.activations == "host", run.layout.tp > 1 and not options.sequence_parallel
    gathers = options.activations != "device" and cut
    bsh = tensor.elements(run, shares_of(run))
    passing = [p * (whole * gathers + part * on_host) for whole, part in zip(bsh, checkpoint(run), strict=True)]
    terms = [f"{p}bsh" * gathers, f"{p}bsh/t" * on_host]
    formula = " + ".join(filter(None, terms)) or "0"
    return on_each_rank("arithmetic", "on the way", formula, passing, run.memory_of("messages"), "bytes")


def buffers(run: Run) -> list[Claim]:
    """The buffer: B elements, or all gradients if they are fewer. If a rank has only its shard of gradients (stage 2),
    the gradient that embedding and head share also waits for its second part."""
    p, d, stage = run.bytes.stored, run.layout.dp, run.options.zero
    ranks = range(run.ranks)
    waiting = [shared_parameters(run, rank) * (stage >= 2) for rank in ranks]
    room = [
        p * (buffer_size(run.options.bucket_size, d, psi) + more)
        for psi, more in zip(stored_parameters(run), waiting, strict=True)
    ]
    formula = f"{p}(B + ψ_emb)" if any(waiting) else f"{p}B"
    made = [on_each_rank("ZeRO §6.2", "buffer", formula, room, run.memory_of("bucket"), "bytes")]
    if stage == 3:
        gathered = [p * gathered_at_once(run, rank) for rank in ranks]
        formula = f"{p}(max ψ + ψ_emb)" if run.model.tied else f"{p}·max ψ"
        made.append(on_each_rank("FSDP §3.2.1", "gathered", formula, gathered, run.memory_of("gathered"), "bytes"))
    return made


# ---- what is sent ----------------------------------------------------------------------------------------------------


def checkpoint_volumes(run: Run) -> list[tensor.Volume]:
    """P_a's all-gather before a layer runs again: b·s·h, where Megatron's six all-reduces send 12bsh."""
    options, t = run.options, run.layout.tp
    if options.activations == "device" or options.sequence_parallel:
        return []
    bsh = tensor.elements(run, shares_of(run))
    each = zip(bsh, run.places, strict=True)
    sent = [options.layers * (size - chunk_sizes(size, t)[(at.tensor + 1) % t]) for size, at in each]
    return [tensor.Volume("ZeRO §8", "P_a", "l·bsh(t-1)/t", [GATHERS], sent, options.accumulate, run.bytes.stored)]


def checkpoint_claims(run: Run) -> list[Claim]:
    """What P_a's all-gathers send on all ranks, as a percentage of what the layers' all-reduces send."""
    if not any(sent := run.sent_in(GATHERS)):
        return []
    in_layers = sum(run.sent_in(*tensor.phases("layers", *tensor.WHOLES)))
    return [
        Claim("ZeRO §8", "P_a, relative", "bsh/12bsh", 100 / 12, 100 * sum(sent) / max(in_layers, 1), "%", "all ranks")
    ]


DATA = {
    "all-reduce gradients": "2Ψr(d-1)/d",
    "reduce-scatter gradients": "Ψr(d-1)/d",
    "all-gather parameters": "Ψr(d-1)/d",
    "all-gather forward": "Ψr(d-1)/d",
    "all-gather backward": "Ψr(d-1)/d",
}


def data_volumes(run: Run) -> list[tensor.Volume]:
    """What ZeRO's stage sends along the data axis, for a rank's part of the model."""
    options, d = run.options, run.layout.dp
    a = options.accumulate
    of_ranks = [zero.volume(psi, d, options.zero) for psi in stored_parameters(run)]
    often = {0: (), 1: (), 2: ("reduce-scatter gradients",), 3: tuple(DATA)}[options.zero]
    return [
        tensor.Volume(
            "ZeRO §7", phase, DATA[phase], [phase], [int(sent[phase]) for sent in of_ranks],
            a if phase in often else 1, run.bytes.stored,
        )
        for phase in of_ranks[0]
    ]  # fmt: skip


# ---- what a model needs ----------------------------------------------------------------------------------------------


def needs(asked: Asked) -> list[Needs]:
    """What each rank will need: model states, the buffer, gathered parameters, every checkpoint, and the activations of
    one layer when it runs again, or those of the head, if they are more."""
    options, p, t, shares = asked.options, asked.bytes.stored, asked.layout.tp, shares_of(asked)
    d, stage, parts = asked.layout.dp, options.zero, checkpoint(asked)
    layers = layer_bytes(asked, t, shares, "none", options.dropout > 0)
    # A layer also keeps its input: a copy, unless it is the checkpoint itself, or the checkpoint has been freed.
    is_kept_once = options.scattered or (options.activations == "device" and p == asked.bytes.computed)
    found = []
    for rank, psi in enumerate(stored_parameters(asked)):
        states = zero.model_states(psi, d, stage, p, p, asked.optimizer_bytes)
        passing = buffer_size(options.bucket_size, d, psi) + shared_parameters(asked, rank) * (stage >= 2)
        passing += gathered_at_once(asked, rank) * (stage == 3)
        waiting = 0 if options.activations == "host" else (options.layers - is_kept_once) * parts[rank] * p
        first, last = end_bytes(asked, t, shares[rank])
        ends = first + token_bytes(asked, shares[rank])
        total = states.total + p * passing + waiting + max(layers[rank], last) + ends
        kinds = {**vars(states), "passing": p * passing, "activations": waiting + layers[rank], "ends": ends + last}
        found.append(Needs(kinds, total))
    return found


def print_closing(run: Run) -> None:
    """Print what the letters mean, what a fused buffer would take, and the paper's table 2."""
    options, p, t = run.options, run.bytes.stored, run.layout.tp
    d, psi = run.layout.dp, stored_parameters(run)[0]
    say(
        f"d = {d} data x t = {t} tensor ranks. Ψr: a rank's parameters, padded; l: layers; b: its sequences, s long,"
        " of a micro-batch; h: width; B: elements of the buffer (--bucket-size)."
    )
    fused, constant = p * psi, p * buffer_size(options.bucket_size, d, psi)
    if fused > constant:
        say(f"A buffer for all gradients at once would take {number(fused)} bytes, and grow with the model.")
    print()
    print_zero_table_2()

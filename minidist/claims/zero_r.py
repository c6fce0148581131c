"""What ZeRO says about activations and buffers, next to what a run held, sent and moved."""

from minidist.claims.claim import Claim, on_each_rank
from minidist.claims.letters import letters_in
from minidist.claims.promises import Promises
from minidist.claims.published import print_zero_table_2
from minidist.claims.run import Run
from minidist.claims.tensor_parallel import collectives, lettered, total_claims, volume_claim
from minidist.claims.zero import states_claims
from minidist.cli.tables import number, say
from minidist.formulas import residual
from minidist.formulas.shares import shares_of, states_of, stored_parameters
from minidist.formulas.tensor import SHARD_GRADIENTS, TENSOR_NORM, WHOLES, elements, end_volumes, layer_volumes, phases
from minidist.formulas.volumes import others
from minidist.formulas.zero import buffer_size


def claims(run: Run) -> list[Claim]:
    """What is held, moved and sent, and nothing else."""
    stage, shares = run.zero, shares_of(run)
    states = [states_of(run, rank) for rank in range(run.ranks)]
    volumes = [
        *layer_volumes(run, shares),
        *residual.checkpoint_volumes(run),
        *end_volumes(run, shares),
        *residual.data_volumes(run),
    ]
    letters = {
        SHARD_GRADIENTS: f"{run.gradient_bytes}·2(t-1)Ψrest{'' if stage else '·d'}",
        TENSOR_NORM: "8(t-1)dt",
        "norm": "8(d-1)dt",
    }
    return [
        *states_claims(run, states, stage, "Ψr", "Ψr/d"),
        *checkpoints_wait(run, run.accumulate),
        checkpoints_pass(run),
        *buffers(run),
        *(collectives(run, shares) if run.layout.tp > 1 else []),
        *(volume_claim(run, volume) for volume in volumes if any(volume.elements)),
        *checkpoint_claims(run),
        *total_claims(run, volumes, lettered(others(run), letters)),
    ]


# ---- what is held, and what is moved ---------------------------------------------------------------------------------


def checkpoints_wait(run: Run, a: int) -> list[Claim]:
    """What waits between forward and backward. Checkpoints on the host go there and come back once per micro-batch."""
    p = run.bytes.stored
    waiting = [run.model.layers * p * elements for elements in residual.checkpoint(run)]
    formula = f"l·{p}bsh{'/t' * residual.is_cut(run)}"
    kept = [counts["layer_activations"] for counts in run.counted]
    if run.activations != "host":
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
    p = run.bytes.stored
    on_host, cut = run.activations == "host", run.layout.tp > 1 and not run.sequence_parallel
    gathers = run.activations != "device" and cut
    bsh = elements(run, shares_of(run))
    passing = [
        p * (whole * gathers + part * on_host) for whole, part in zip(bsh, residual.checkpoint(run), strict=True)
    ]
    terms = [f"{p}bsh" * gathers, f"{p}bsh/t" * on_host]
    formula = " + ".join(filter(None, terms)) or "0"
    return on_each_rank("arithmetic", "on the way", formula, passing, run.memory_of("messages"), "bytes")


def buffers(run: Run) -> list[Claim]:
    """The buffer: B elements, or all gradients if they are fewer. If a rank has only its shard of gradients (stage 2),
    the gradient that embedding and head share also waits for its second part."""
    p, g, d, stage = run.bytes.stored, run.gradient_bytes, run.layout.dp, run.zero
    ranks = range(run.ranks)
    waiting = [residual.shared_parameters(run, rank) * (stage >= 2) for rank in ranks]
    room = [
        g * (buffer_size(run.bucket_size or psi, d, psi) + more)
        for psi, more in zip(stored_parameters(run), waiting, strict=True)
    ]
    formula = f"{g}(B + ψ_emb)" if any(waiting) else f"{g}B"
    made = [on_each_rank("ZeRO §6.2", "buffer", formula, room, run.memory_of("bucket"), "bytes")]
    if stage == 3:
        gathered = [p * residual.gathered_at_once(run, rank) for rank in ranks]
        formula = f"{p}(max ψ + ψ_emb)" if run.model.tied else f"{p}·max ψ"
        made.append(on_each_rank("FSDP §3.2.1", "gathered", formula, gathered, run.memory_of("gathered"), "bytes"))
    return made


# ---- what is sent ----------------------------------------------------------------------------------------------------


def checkpoint_claims(run: Run) -> list[Claim]:
    """What P_a's all-gathers send on all ranks, as a percentage of what the layers' all-reduces send."""
    if not any(sent := run.sent_in(residual.GATHERS)):
        return []
    in_layers = sum(run.sent_in(*phases("layers", *WHOLES)))
    return [
        Claim("ZeRO §8", "P_a, relative", "bsh/12bsh", 100 / 12, 100 * sum(sent) / max(in_layers, 1), "%", "all ranks")
    ]


def print_closing(run: Run) -> None:
    """What a fused buffer would take."""
    p, d, psi = run.gradient_bytes, run.layout.dp, stored_parameters(run)[0]
    fused, constant = p * psi, p * buffer_size(run.bucket_size or psi, d, psi)
    if fused > constant:
        say(f"A buffer for all gradients at once would take {number(fused)} bytes, and grow with the model.")


PROMISES = Promises(
    claims=claims,
    letters=letters_in("zero_r"),
    needs=residual.needs,
    closing=print_closing,
    published=print_zero_table_2,
)

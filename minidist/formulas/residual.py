"""What ZeRO-R's checkpoints and buffers take, and what its ranks need and send."""

from minidist.formulas.activations import layer_bytes
from minidist.formulas.asked import Asked
from minidist.formulas.ends import end_bytes, token_bytes
from minidist.formulas.needs import Needs
from minidist.formulas.shares import flats, shares_of, states_of, stored_parameters
from minidist.formulas.tensor import Volume, elements
from minidist.formulas.volumes import data_elements
from minidist.formulas.zero import buffer_size
from minidist.papers.collectives import chunk_sizes

GATHERS = "all-gather checkpoints"


def shared_parameters(run: Asked, rank: int) -> int:
    """The part of Ψr that embedding and head share."""
    return flats(run, rank)[0][0].size if run.model.tied else 0


def gathered_at_once(run: Asked, rank: int) -> int:
    """The most parameters that a rank gathers at once: the largest unit, and what embedding and head share."""
    first, *others = [sum(of.size for of in unit) for unit in flats(run, rank).values()]
    shared = shared_parameters(run, rank)
    return shared + max(first - shared, *others)


def is_cut(run: Asked) -> bool:
    """Whether each rank that shares a layer has only a part of its checkpoint: by P_a, or for its own positions."""
    return run.activations != "device" or run.sequence_parallel


def checkpoint(run: Asked) -> list[int]:
    """The elements of a layer's input that each rank keeps."""
    t, bsh = run.layout.tp, elements(run, shares_of(run))
    return [chunk_sizes(size, t)[run.places[rank].tensor] if is_cut(run) else size for rank, size in enumerate(bsh)]


def checkpoint_volumes(run: Asked) -> list[Volume]:
    """P_a's all-gather before a layer is recomputed: b·s·h, where Megatron's six all-reduces send 12bsh."""
    t = run.layout.tp
    if run.activations == "device" or run.sequence_parallel:
        return []
    bsh = elements(run, shares_of(run))
    each = zip(bsh, run.places, strict=True)
    sent = [run.model.layers * (size - chunk_sizes(size, t)[(at.tensor + 1) % t]) for size, at in each]
    return [Volume("ZeRO §8", "P_a", "l·bsh(t-1)/t", [GATHERS], sent, run.accumulate, run.bytes.stored)]


def data_volumes(run: Asked) -> list[Volume]:
    """What ZeRO's stage sends along the data axis, by phase, for a rank's part of the model."""
    every, made = [data_elements(run, rank) for rank in range(run.ranks)], []
    for phase in every[0]:
        times = run.accumulate if run.zero == 3 or (run.zero == 2 and phase == "reduce-scatter gradients") else 1
        formula = f"{'2' * (phase == 'all-reduce gradients')}Ψr(d-1)/d"
        sent = [int(of[phase] / times) for of in every]
        made.append(Volume("ZeRO §7", phase, formula, [phase], sent, times, run.width(phase)))
    return made


def needs(run: Asked) -> list[Needs]:
    """What each rank will need: model states, the buffer, gathered parameters, every checkpoint, and the activations of
    one layer when it is recomputed, or those of the head, if they are more."""
    p, g, d, stage, parts = run.bytes.stored, run.gradient_bytes, run.layout.dp, run.zero, checkpoint(run)
    # A layer also keeps its input: a copy, unless it is the checkpoint itself, or the checkpoint has been freed.
    is_kept_once = run.scattered or (run.activations == "device" and p == run.bytes.computed)
    found = []
    for rank, share in enumerate(shares_of(run)):
        psi, states, layer = stored_parameters(run)[rank], states_of(run, rank), layer_bytes(run, rank, share, "none")
        passing = g * (buffer_size(run.bucket_size or psi, d, psi) + shared_parameters(run, rank) * (stage >= 2))
        passing += p * gathered_at_once(run, rank) * (stage == 3)
        waiting = 0 if run.activations == "host" else (run.model.layers - is_kept_once) * parts[rank] * p
        first, last = end_bytes(run, share)
        ends = first + token_bytes(run, share)
        total = states.total + passing + waiting + max(layer, last) + ends
        kinds = {**vars(states), "passing": passing, "activations": waiting + layer, "ends": ends + last}
        found.append(Needs(kinds, total))
    return found

"""What a schedule's own options may be: chunks of a stage, and Llama 3's turns. It needs no NumPy."""

from minidist import UsageError
from minidist.pp.schedules import SCHEDULES


def chunks_of(name: str, asked: int | None) -> int:
    """Chunks of a stage. Raises UsageError if the schedule cannot have that many."""
    schedule = SCHEDULES[name]
    if asked and asked != schedule.chunks and not schedule.any_chunks:
        if schedule.chunks > 1:
            raise UsageError(f"{name} has {schedule.chunks} chunks to a stage: leave out --chunks")
        raise UsageError(f"{name} has one chunk to a stage: leave out --chunks, or use --schedule interleaved")
    return asked or schedule.chunks


def contiguous_of(name: str, p: int, m: int, asked: int | None) -> int:
    """Llama 3's N: any number from p to m that leaves no rest of m, or a rest of p or more, as in Megatron-LM; by
    default the first above p. 0 for other schedules. Raises UsageError for an impossible number."""
    if name != "llama3":
        if asked:
            raise UsageError(f"--contiguous is of llama3, not of {name}: leave it out, or use --schedule llama3")
        return 0
    possible = [n for n in range(p, m + 1) if m % n == 0 or m % n >= p]
    if asked and asked not in possible:
        nearest = min(possible, key=lambda n: abs(n - asked))
        reason = f"a group of {p} or more would not be left" if p < asked < m else f"it is from {p} to {m}"
        raise UsageError(
            f"--contiguous {asked} on {p} stages with {m} micro-batches: {reason}: use --contiguous {nearest}"
        )
    return asked or next((n for n in possible if n > p), p)

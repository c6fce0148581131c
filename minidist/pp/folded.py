"""Schedules whose pipeline is folded (a V) or crossed (two models, one of which runs back).

In a V a worker has two chunks, and the second half of the model comes back the way that the first half went. So the
last part of the model is where the first is: a backward begins on the worker where its micro-batch's forward began. The
price is twice as many messages. In a cross, every worker has a stage of each of two whole models: micro-batches enter
at both ends, and one direction works while the other one waits. The price is twice the parameters, and the two copies
of a stage sum their gradients.

In what follows F0 is the next forward of chunk 0, B1 the next gradient of chunk 1's input, and so on.
"""

from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from itertools import count

from minidist.pp.instructions import Instructions, StagePlace, Step, Weight, backward, both, forward

# ---- a V -------------------------------------------------------------------------------------------------------------


def zb_v(at: StagePlace) -> Instructions:
    """ZB-V: as many micro-batches in flight as with 1F1B, and no bubble if F, B and W take the same time (Qi et al.
    2024, arXiv 2405.15362). With fewer than 2p - 1 micro-batches, it is the order for 2p - 1 without the rest."""
    m, p, r, done = max(at.micro_batches, 2 * at.stages - 1), at.stages, at.stage, Counter[str]()

    def take(*work: str) -> Instructions:
        """The next piece of each kind of work, if there is one."""
        for name in work:
            if (k := done[name]) < m:
                done[name] += 1
                yield from perform(at, name, k)

    yield from take(*["F0"] * (2 * (p - r) - 1))
    yield from take(*["F1", "F0"] * r)
    yield from take(*["F1", "B1", "W1"] * (p - r))
    while min(done["F0"], done["F1"]) < m:
        yield from take("F0", "B0", "W0", "F1", "B1", "W1")
    yield from take(*["B0", "B1"] * r)
    yield from take(*["B0", "W0"] * (p - r))
    yield from take(*["W1"] * m, *["W0"] * m)
    yield Step()


def perform(at: StagePlace, name: str, k: int) -> Instructions:
    """One piece of work by its name; nothing, if there is no micro-batch k."""
    chunk = int(name[1])
    if k < at.micro_batches:
        match name[0]:
            case "F":
                yield from forward(at, k, chunk)
            case "B":
                yield from backward(at, k, chunk, weight=False)
            case "W":
                yield Weight(k, chunk)


def v_half(at: StagePlace) -> Instructions:
    """V-Half: about half of 1F1B's activations, p + 3 half stages; half of its bubble (Qi et al. 2024)."""
    return _repeated(at, (1, 2, 1, 2), (2, 1, 4) if at.stages % 2 else (4, 2, 2))


def v_min(at: StagePlace) -> Instructions:
    """V-Min: about a third of 1F1B's activations, 2⌊(p+4)/3⌋ half stages; two thirds of its bubble (Qi et al. 2024)."""
    return _repeated(at, (1, 1, 1, 1), (1, 1, 1) if at.stages % 3 else (3, 1, 3))


def _repeated(at: StagePlace, delays: tuple[int, int, int, int], turns: tuple[int, int, int]) -> Instructions:
    """A pattern that every micro-batch repeats, six slots after the one before: in six slots a worker does six pieces
    of work, each for another micro-batch. The idea is the paper's; the numbers are derived here. A worker holds as
    many chunks as a sixth of the pattern's length, from F to W.

    delays: slots from worker to worker, of F0, F1, B1 and B0. turns: slots from one of them to the next, on the worker
    where the direction turns. On each worker the four fall into different slots of six, whatever p is; W1 and W0 take
    the next slots that are free.
    """
    far = at.stages - 1
    slots, begins = dict[str, int](), 0
    for name, delay, turn, way in zip(("F0", "F1", "B1", "B0"), delays, (*turns, 0), (0, 1, 0, 1), strict=True):
        slots[name] = begins + delay * (far - at.stage if way else at.stage)
        begins += delay * far + turn
    for chunk in "10":
        taken = {slot % 6 for slot in slots.values()}
        slots[f"W{chunk}"] = next(slot for slot in count(slots[f"B{chunk}"] + 1) if slot % 6 not in taken)
    for _, name, k in sorted((slot + 6 * k, name, k) for k in range(at.micro_batches) for name, slot in slots.items()):
        yield from perform(at, name, k)
    yield Step()


# ---- two directions at once ------------------------------------------------------------------------------------------


def dualpipe(at: StagePlace) -> Instructions:
    """DualPipe: a forward in one direction overlaps with a backward in the other (DeepSeek-V3, 3.2.1; the order is that
    of github.com/deepseek-ai/DualPipe). p is even, and so is m, at least 2p."""
    half, back = at.stages // 2, at.stage >= at.stages // 2
    near = at.stages - 1 - at.stage if back else at.stage
    return _dual(at, half, near, at.micro_batches // 2, lambda way, i: (2 * i + (way ^ back), way ^ back))


def dualpipe_v(at: StagePlace) -> Instructions:
    """DualPipeV: DualPipe's order in a V, and so without the second copy. Its PP are the model's 2p parts; m is at
    least 2p."""
    return _dual(at, at.stages, at.stage, at.micro_batches, lambda way, i: (i, way))


def _dual(at: StagePlace, half: int, near: int, m: int, named: Callable[[int, int], tuple[int, int]]) -> Instructions:
    """The order of the near-th worker from the outer end of its half of the pipeline. Way 0 has m
    micro-batches from that end, and way 1 has m from the other. named: micro-batch and chunk of the i-th of a way."""
    middle, taken, waiting = near == half - 1, Counter[str](), deque[Weight]()

    def take(letter: str, way: int) -> tuple[int, int]:
        taken[f"{letter}{way}"] += 1
        return named(way, taken[f"{letter}{way}"] - 1)

    def f(way: int) -> Instructions:
        return forward(at, *take("F", way))

    def b(way: int, later: bool = False) -> Instructions:
        """later: its W waits."""
        k, chunk = take("B", way)
        if later:
            waiting.append(Weight(k, chunk))
        return backward(at, k, chunk, weight=not later)

    def f_and_b(way: int) -> Instructions:
        return both(at, take("F", way), take("B", 1 - way))

    for _ in range(2 * (half - near - 1)):
        yield from f(0)
    for _ in range(near + 1):
        yield from f(0)
        yield from f(1)
    for _ in range(half - near - 1):
        yield from b(1, later=True)
        yield waiting.popleft()
        yield from f(1)
    for i in range(m - 2 * half + near + 1):
        if i == 0 and middle:  # apart: the forward alone ends earlier than both together
            yield from f(0)
            yield from b(1)
        else:
            yield from f_and_b(0)
        yield from f_and_b(1)
    for _ in range(half - near - 1):
        yield from b(1)
        yield from f_and_b(1)
    for i in range(near + 1):  # in the second half of these, W waits
        yield from b(1, later=2 * i >= near + 1)
        yield from b(0, later=2 * i >= near)
    for _ in range(half - near - 1):
        yield waiting.popleft()
        yield from b(0, later=True)
    yield from waiting
    yield Step()


def chimera(at: StagePlace) -> Instructions:
    """Chimera: two 1F1Bs that run in opposite directions, units of D/2 micro-batches each (Li and Hoefler 2021, arXiv
    2107.06925).

    Time has slots, each for a forward, or for a backward that takes as long. Backwards, and the forwards of a
    direction's second half of stages, keep the slots that their unit would have alone. In the first half, forwards run
    ahead as early as they can, and so fill the holes between two units. No two pieces of a worker's work have the same
    slot.
    """
    p, slots = at.stages, list[tuple[int, Callable[[], Instructions]]]()

    def begins(i: int) -> int:
        """The first slot of a direction's i-th micro-batch: every second one, in units of 2p slots."""
        unit, j = divmod(i, p // 2)
        return 2 * p * unit + 2 * j

    for chunk in (0, 1):
        s = at.positions[chunk]
        ahead = max(p // 2 - 1 - s, 0)
        for i in range(at.micro_batches // 2):
            k = 2 * i + chunk
            slots.append((s + max(i, begins(i - ahead)), partial(forward, at, k, chunk)))
            slots.append((2 * p - 1 - s + begins(i), partial(backward, at, k, chunk)))
    for _, work in sorted(slots, key=lambda slot: slot[0]):
        yield from work()
    yield Step()

"""A tape autograd on NumPy arrays.

An operation computes its result and appends one entry to a tape. The entry has the input and output tensors, a function
that turns the gradient of the output into the gradients of the inputs, and the arrays that this function needs (what it
"keeps"). Backpropagation runs the tape backwards. Each pass through a unit of the model has its own tape. So the tape's
`nbytes` is what a unit holds for its backward, and it is freed when the tape has run.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple, Protocol

import numpy as np

Array = np.ndarray
Gradients = Array | tuple[Array | None, ...] | None


class Watcher(Protocol):
    """Sees what a forward does, as it does it (`minidist/ty/watch.py`)."""

    def reads(self, parameter: "Parameter") -> None: ...

    def operation(
        self,
        output: "Tensor",
        inputs: tuple["Tensor", ...],
        backward: Callable[..., Gradients],
        kept: tuple[Array, ...],
    ) -> None: ...

    def collective(self, name: str, comm: object) -> None: ...


watching: ContextVar[Watcher | None] = ContextVar("watching", default=None)  # each rank of a process has its own


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Inside, this rank's forward tells a watcher what it does."""
    token = watching.set(watcher)
    try:
        yield
    finally:
        watching.reset(token)


def begins(collective: str, comm: object) -> None:
    """A collective begins on this rank."""
    if (watcher := watching.get()) is not None:
        watcher.collective(collective, comm)


def generator(*seeds: int) -> np.random.Generator:
    """np.random.default_rng(seeds), which takes a fifth of the time to read numbers that are 32-bit words already."""
    return np.random.default_rng(np.array(seeds, np.uint32) if max(seeds) < 1 << 32 else seeds)


class Released(RuntimeError):
    """A parameter was used while its values are not here."""


class Parameter:
    """A named weight of the model. Values and gradient are views of buffers that the engine owns, binds and takes away.

    It can be declared without being allocated: `shape` is known at once, values are there between bind and release.
    """

    group = ""  # names the ranks that hold the same values: each group's parameters are stored and sent separately

    def __init__(self, name: str, shape: tuple[int, ...], std: float | None = None, fill: float = 0.0) -> None:
        self.name, self.shape = name, shape
        self.std, self.fill = std, fill  # drawn from N(0, std^2), or constant
        self.size = int(np.prod(shape, dtype=np.int64))
        self.decays = len(shape) > 1  # matrices decay, biases and norms do not (nanoGPT's habit)
        self.grad: Array | None = None
        self.has_grad = False
        self._data: Array | None = None

    def initial(self, seed: int) -> Array:
        """The starting values, float64 of `shape`: they depend on seed, name and full shape, on nothing else."""
        if self.std is None:
            return np.full(self.shape, self.fill)
        name = list(self.name.encode())
        return generator(seed, *self.shape, *name).standard_normal(self.shape) * self.std

    def part(self, whole: Array) -> Array:
        """This rank's part of an array that holds the whole parameter, as the model declares it. Here: all of it."""
        return whole

    def whole(self, part: Array) -> Array:
        """The inverse of `part`, from what every rank of the group holds. Here: that is all of it."""
        return part

    def spans(self) -> tuple[tuple[int, ...], int, tuple[tuple[int, int], ...]]:
        """The whole's shape, one of its axes, and the spans of that axis held here, (first, last + 1). Here: all."""
        return self.shape, 0, ((0, self.shape[0]),)

    @property
    def data(self) -> Array:
        """The values, of `shape`. Raises Released when they are not here."""
        if self._data is None:
            raise Released(f"parameter {self.name!r} is released: gather its unit before you use it")
        if (watcher := watching.get()) is not None:
            watcher.reads(self)
        return self._data

    def bind(self, data: Array, grad: Array | None = None) -> None:
        """Take `data` for the values and, for a backward, `grad`, which is zero, for the gradient."""
        self._data = data
        if grad is not None:
            self.bind_gradient(grad)

    def bind_gradient(self, grad: Array) -> None:
        """Take `grad`, which is zero, for the gradient alone: all that a matrix's own gradient needs."""
        self.grad, self.has_grad = grad, False

    def release(self) -> None:
        """Forget values and gradient; using them from here on raises Released."""
        self._data = self.grad = None

    def accumulate(self, write: Callable[[Array], object]) -> None:
        """Add a gradient, given as a function that writes it into the array of `shape` that it is handed."""
        if self.grad is None:
            raise Released(f"parameter {self.name!r} has no gradient buffer: bind one before the backward")
        if self.has_grad:
            another = np.empty_like(self.grad)
            write(another)
            self.grad += another
        else:
            write(self.grad)  # the first one needs neither zeros nor an addition
            self.has_grad = True


class Tensor:
    """An array, the tape on which it was made and its number there. Without a tape nothing is kept: no backward."""

    __slots__ = ("data", "number", "tape", "types")

    def __init__(self, data: Array, tape: "Tape | None" = None, number: int = 0) -> None:
        self.data, self.tape, self.number = data, tape, number
        self.types: dict[str, str] | None = None  # of distribution, on each axis of ranks: known under a watcher

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape


class Kept:
    """An array that is kept for a backward. `fetch` gives it back in the dtype that it had."""

    __slots__ = ("array", "dtype")

    def __init__(self, array: Array, dtype: np.dtype) -> None:
        self.array, self.dtype = array, dtype

    @property
    def nbytes(self) -> int:
        return self.array.nbytes

    def fetch(self) -> Array:
        return self.array.astype(self.dtype, copy=False)


class ArrayPool(Protocol):
    """Counts arrays, by kind, for as long as they live (`minidist/memory/pool.py`). `hold` returns the array."""

    def hold(self, kind: str, array: Array, rename: bool = True) -> Array: ...


class NullPool:
    """Counts nothing."""

    def hold(self, kind: str, array: Array, rename: bool = True) -> Array:
        return array


class Store:
    """Where tapes keep their arrays: unchanged or, with `narrow`, floating-point ones in that dtype: two bytes per
    element, as the papers count activations. A tape uses only a store's `keep`, and `fetch` and `nbytes` of what that
    returns. So another store may keep arrays partitioned, or elsewhere. The pool counts what is kept under `kind`."""

    def __init__(
        self, narrow: type[np.generic] | None = None, pool: ArrayPool | None = None, kind: str = "activations"
    ) -> None:
        self.narrow, self.pool, self.kind = narrow, pool or NullPool(), kind
        self.checkpoints: Store | None = None  # another store for the inputs of recomputed layers, if any

    def keep(self, array: Array, exact: bool = False) -> Kept:
        """exact: keep the dtype. Masks and integers always keep theirs."""
        narrow = None if exact or array.dtype.kind != "f" else self.narrow
        kept = array if narrow is None else array.astype(narrow)
        return Kept(self.pool.hold(self.kind, kept), array.dtype)

    def as_workspace(self, array: Array) -> Array:
        """Registers a temporary array as workspace, unless it is already registered under another kind."""
        return self.pool.hold("workspace", array, rename=False)


class TapeStep(NamedTuple):
    """One operation on the tape. Tensors are named by number, so that the tape does not keep their data alive.

    A step that will be recomputed has the function to run `again` instead of a backward.
    """

    output: int
    inputs: tuple[int, ...]
    backward: Callable[..., Gradients] | None
    weight_backward: Callable[..., None] | None
    kept: tuple[Kept, ...]
    again: Callable[[Tensor], Tensor] | None = None


class Tape:
    """The operations of one pass through a unit, in the order in which they ran. A tape that does not keep them only
    shows the store what passes, and has no backward."""

    def __init__(self, store: Store | None = None, keeps: bool = True) -> None:
        self.store, self.keeps = store or Store(), keeps
        self.steps: list[TapeStep] = []
        self.postponed: list[tuple[TapeStep, Kept]] = []
        self.losses: list[int] = []  # numbers of scalars that are added to the loss, besides the unit's output
        self._tensors = 0
        self._kept: dict[tuple[int, bool], tuple[weakref.ref, Kept]] = {}  # (id of an array, exact) -> it, what is kept

    def tensor(self, data: Array) -> Tensor:
        """A new tensor on this tape. The first one made is the unit's input."""
        self._tensors += 1
        return Tensor(self.store.as_workspace(data), self, self._tensors - 1)

    def add_loss(self, loss: Tensor) -> None:
        """Add a scalar to the loss, in addition to the unit's output."""
        self.losses.append(loss.number)

    def backward(self, dy: Array, postpone_weights: bool = False, dloss: Array | None = None) -> Array | None:
        """Run the tape backwards from the gradient of the last output; return the gradient of the unit's input.

        Parameters' gradients are accumulated on the way, or, with `postpone_weights`, those of the matrices later, when
        `weight_backward()` is called (a zero-bubble pipeline fills its gaps with them). Each entry is dropped with
        everything it kept as soon as it has run. A backward never writes into the gradient it is given: others hold it.

        dloss: the loss's gradient, which what is added to the loss gets; needed if a unit adds something.
        """
        gradients = {self.steps[-1].output: self.store.as_workspace(dy)}
        if self.losses:
            assert dloss is not None
            gradients |= dict.fromkeys(self.losses, dloss)
        self._kept.clear()  # nothing more is kept: from here on only the steps hold it
        while self.steps:
            self._step_back(gradients, postpone_weights)
        return gradients.get(0)

    def _step_back(self, gradients: dict[int, Array], postpone_weights: bool) -> None:
        """Run the last step's backward. gradients: by number, of tensors whose uses have all been processed."""
        step = self.steps.pop()
        dout = gradients.pop(step.output, None)
        if dout is None:
            return  # no operation used this output
        if step.again is not None:  # what it puts on the tape now comes next
            (x,), (number,), again = self._fetched(step), step.inputs, step.again
            del step  # frees what it kept, before that is kept once more
            gradients[again(Tensor(x, self, number)).number] = dout
            self._kept.clear()
            return
        assert step.backward is not None
        dxs = step.backward(dout, *self._fetched(step))
        for number, dx in zip(step.inputs, dxs if isinstance(dxs, tuple) else (dxs,), strict=True):
            if dx is None:
                continue
            if number in gradients:
                if dx is dout:  # passed through by an addition: not ours to write into
                    dx = gradients[number] + dx
                else:
                    dx += gradients[number]
            gradients[number] = self.store.as_workspace(dx)
        if step.weight_backward is None:
            return
        if postpone_weights:
            self.postponed.append((step, self.store.keep(dout)))  # it waits as activations do
        else:
            step.weight_backward(dout, *self._fetched(step))

    def weight_backward(self) -> None:
        """Run the postponed weight gradients, in the order of the backward; each then frees what it kept."""
        while self.postponed:
            step, dout = self.postponed.pop(0)
            assert step.weight_backward is not None
            step.weight_backward(self.store.as_workspace(dout.fetch()), *self._fetched(step))

    def _fetched(self, step: TapeStep) -> list[Array]:
        return [self.store.as_workspace(kept.fetch()) for kept in step.kept]

    @property
    def nbytes(self) -> int:
        """Bytes kept for the backward; an array that several operations keep is counted once."""
        steps = [*self.steps, *(step for step, _ in self.postponed)]
        kept = [*(kept for step in steps for kept in step.kept), *(dout for _, dout in self.postponed)]
        return sum({id(one): one.nbytes for one in kept}.values())

    def keep(self, array: Array, exact: bool = False) -> Kept:
        """What the store keeps of `array`, once for all operations that need it."""
        known = self._kept.get((id(array), exact))
        if known is None or known[0]() is not array:
            known = self._kept[id(array), exact] = (weakref.ref(array), self.store.keep(array, exact))
        return known[1]


def record(
    data: Array,
    inputs: tuple[Tensor, ...],
    backward: Callable[..., Gradients],
    keep: tuple[Array, ...] = (),
    keep_exact: tuple[Array, ...] = (),
    weight_backward: Callable[..., None] | None = None,
) -> Tensor:
    """The result of an operation, on the tape of its inputs.

    `backward(dy, *keep, *keep_exact)` returns one gradient for each input (None where there is none to pass on);
    `weight_backward`, with the same arguments, accumulates the gradients of matrices. Neither may hold on to any array
    of activations other than through `keep`, or the count of what is kept would lie.
    """
    tape, keeps = inputs[0].tape, inputs[0].tape is not None and inputs[0].tape.keeps
    kept: tuple[Kept, ...] = ()
    if tape is not None and keeps:
        kept = tuple(tape.keep(a) for a in keep) + tuple(tape.keep(a, exact=True) for a in keep_exact)
    output = Tensor(data) if tape is None else tape.tensor(data)
    if (watcher := watching.get()) is not None:
        watcher.operation(output, inputs, backward, keep + keep_exact)
    if tape is not None and keeps:
        tape.steps.append(TapeStep(output.number, tuple(t.number for t in inputs), backward, weight_backward, kept))
    return output


def recomputed(function: Callable[[Tensor], Tensor], x: Tensor, store: Store | None = None) -> Tensor:
    """function(x), keeping only x: the backward runs the function again (Chen et al. 2016, section 3).

    The function must give the same result twice, and hold on to no array of activations. store: for x, if it is not the
    tape's own.
    """
    if x.tape is None or not x.tape.keeps:
        return function(x)
    output = x.tape.tensor(function(Tensor(x.data)).data)  # without a tape nothing is kept
    kept = store.keep(x.data) if store else x.tape.keep(x.data)
    x.tape.steps.append(TapeStep(output.number, (x.number,), None, None, (kept,), function))
    return output

"""The pool against a list of what is alive, whatever comes, is renamed and goes, in whatever order."""

import gc
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from minidist import Stopped
from minidist.memory.pool import ALL, KINDS, NEEDED, OutOfMemory, Pool

Array = np.ndarray
JOINT = ("gathered", "bucket")
SOME = st.sampled_from(KINDS)


class Owner:
    """What a test knows of an array with memory of its own."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes, self.kind = nbytes, ""


class AnyOrder(RuleBasedStateMachine):
    """Arrays and views of them come, get names and go; the pool must say what this list of references says."""

    def __init__(self) -> None:
        super().__init__()
        gc.disable()
        self.pool = Pool("device", joint={"transient": JOINT})
        self.alive: list[tuple[Array, Owner]] = []
        self.peak: dict[str, int] = dict.fromkeys([*KINDS, "transient", NEEDED, ALL], 0)

    def teardown(self) -> None:
        gc.enable()

    def expected(self) -> dict[str, int]:
        owners = {id(owner): owner for _, owner in self.alive}.values()
        now = {kind: sum(owner.nbytes for owner in owners if owner.kind == kind) for kind in KINDS}
        needed = sum(nbytes for kind, nbytes in now.items() if kind != "workspace")
        return now | {"transient": sum(now[kind] for kind in JOINT), NEEDED: needed, ALL: sum(now.values())}

    def named(self) -> None:
        self.peak = {name: max(self.peak[name], nbytes) for name, nbytes in self.expected().items()}

    @rule(elements=st.integers(0, 40), dtype=st.sampled_from(["f2", "f4", "f8", "?"]), named=st.booleans(), kind=SOME)
    def make(self, elements: int, dtype: str, named: bool, kind: str) -> None:
        array, owner = np.zeros(elements, dtype), Owner(elements * np.dtype(dtype).itemsize)
        self.alive.append((array, owner))
        if named:
            assert self.pool.hold(kind, array) is array
            owner.kind = kind
            self.named()

    @rule(shape=st.sampled_from([(), (3,), (2, 5), (0, 4)]), kind=SOME, zeros=st.booleans())
    def make_here(self, shape: tuple[int, ...], kind: str, zeros: bool) -> None:
        array = (self.pool.zeros if zeros else self.pool.empty)(kind, shape, np.float32)
        assert array.shape == shape
        assert array.dtype == np.float32
        owner = Owner(array.nbytes)
        owner.kind = kind
        self.alive.append((array, owner))
        self.named()

    @rule(data=st.data())
    def view(self, data: st.DataObject) -> None:
        if not self.alive:
            return
        array, owner = self.alive[data.draw(st.integers(0, len(self.alive) - 1))]  # hypothesis keeps what it draws
        flat = array.reshape(-1) if array.flags.c_contiguous else array  # of a broadcast one it would be a copy
        views: list[Any] = [
            flat,
            array[...],
            array.T,
            array.astype(array.dtype, copy=False).view(np.ndarray),
            flat[1:3],
            np.broadcast_to(array, (2, *array.shape)),
            *np.array_split(flat, 2),
        ]
        self.alive.append((views[data.draw(st.integers(0, len(views) - 1))], owner))

    @rule(data=st.data(), kind=SOME, rename=st.booleans())
    def name(self, data: st.DataObject, kind: str, rename: bool) -> None:
        """The last name wins, by whichever view it is given; unless only what has none is to get one."""
        if not self.alive:
            return
        array, owner = self.alive[data.draw(st.integers(0, len(self.alive) - 1))]  # hypothesis keeps what it draws
        self.pool.hold(kind, array, rename)
        owner.kind = kind if rename or not owner.kind else owner.kind
        self.named()

    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        if self.alive:
            self.alive.pop(data.draw(st.integers(0, len(self.alive) - 1)))

    @rule()
    def drop_all(self) -> None:
        self.alive.clear()

    @invariant()
    def says_what_is_alive(self) -> None:
        assert self.pool.held == self.expected()
        assert self.pool.peak == self.peak


AnyOrder.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
test_any_order = AnyOrder.TestCase


def test_an_id_that_is_used_again() -> None:
    """NumPy and Python give the next array the place of one that has gone."""
    pool, ids = Pool("device"), set()
    for i in range(1000):
        array = pool.hold(KINDS[i % len(KINDS)], np.zeros(100, np.uint8))
        ids.add(id(array))
        assert pool.held[ALL] in (100, 200)  # the last one goes when the next has come
        assert pool.held[KINDS[i % len(KINDS)]] == 100
    assert len(ids) < 10  # else this has tested nothing
    assert pool.peak[ALL] <= 200


@pytest.mark.parametrize("make", [
    lambda folder: np.zeros((3, 4)).view(type("Own", (np.ndarray,), {})),
    lambda folder: np.memmap(folder / "file", np.uint8, "w+", shape=96),
    lambda folder: np.array(np.zeros(12)[2]) + np.zeros(12),
    lambda folder: np.frombuffer(bytearray(96), np.float32),
    lambda folder: np.zeros((3, 4), order="F").T,
])  # fmt: skip
def test_arrays_of_all_sorts(make: Any, tmp_path: Any) -> None:
    pool = Pool("device")
    array = pool.hold("messages", make(tmp_path))
    assert pool.held["messages"] == 96
    view = array.reshape(-1)[:1]
    del array
    assert pool.held["messages"] == 96
    del view
    assert pool.held["messages"] == 0


def test_threads_name_and_drop_at_the_same_time() -> None:
    pool, failed = Pool("host"), []
    start = threading.Barrier(4)

    def work(seed: int) -> None:
        try:
            draw, mine = np.random.default_rng(seed), []
            start.wait()
            for _ in range(3000):
                mine.append(pool.hold(KINDS[draw.integers(len(KINDS))], np.zeros(int(draw.integers(1, 9)), np.uint8)))
                pool.hold(KINDS[draw.integers(len(KINDS))], mine[int(draw.integers(len(mine)))])
                if len(mine) > 20:
                    del mine[int(draw.integers(len(mine)))]
                assert pool.held[ALL] >= sum(array.nbytes for array in mine)
            pool.hold("stash", mine[0])
            kept.append(mine[0])
        except BaseException as error:
            failed.append(error)

    kept: list[Array] = []
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert pool.held[ALL] == pool.held["stash"] == sum(array.nbytes for array in kept)
    kept.clear()
    assert pool.held[ALL] == 0


# ---- capacity --------------------------------------------------------------------------------------------------------


def test_what_does_not_fit_is_out_of_memory() -> None:
    pool = Pool("device", capacity=1000)
    params = pool.zeros("parameters", 150, np.float32)  # 600 bytes
    gathered = pool.hold("gathered", np.zeros(300, np.uint8))
    with pytest.raises(OutOfMemory) as raised:
        pool.zeros("bucket", (3, 9), np.float32)
    assert str(raised.value) == (
        "out of memory while the model is made: 108 bytes of bucket do not fit on the device, which has 1,000 and holds"
        " parameters 600, gathered 300"
    )
    assert isinstance(raised.value, Stopped)  # a line and status 1, and no trace
    assert pool.zeros("bucket", 25, np.float32).nbytes == 100  # which is all that is left
    del gathered
    assert pool.empty("bucket", 100, np.float32).nbytes == params.nbytes - 200


def test_it_is_said_before_anything_is_made() -> None:
    pool = Pool("device", capacity=1000)
    for make in (pool.zeros, pool.empty):
        with pytest.raises(OutOfMemory, match="4,000,000,000,000,000,000 bytes"):
            make("gathered", 10**18, np.float32)
    assert (pool.held[ALL], pool.peak[ALL]) == (0, 0)


def test_workspace_always_fits_until_it_is_named_otherwise() -> None:
    pool = Pool("device", capacity=1000)
    array = pool.zeros("workspace", 5000, np.uint8)
    assert pool.held[NEEDED] == 0
    with pytest.raises(OutOfMemory, match="5,000 bytes of activations do not fit on the device, which has 1,000 and"):
        pool.hold("activations", array)
    assert (pool.held["workspace"], pool.held["activations"]) == (5000, 0)
    small = pool.hold("stash", np.zeros(1000, np.uint8))
    pool.hold("activations", small)  # what is there already takes no more room under another name
    assert pool.held[NEEDED] == 1000


def test_what_does_not_fit_is_not_taken() -> None:
    pool = Pool("device", capacity=1000)
    array = np.zeros(1001, np.uint8)
    with pytest.raises(OutOfMemory, match="holds nothing"):
        pool.hold("messages", array)
    del array
    assert pool.hold("messages", np.zeros(1000, np.uint8)).size == 1000


# ---- watchers --------------------------------------------------------------------------------------------------------


def test_watchers_are_told_what_comes_and_what_is_passed() -> None:
    told: list[Any] = []

    class Told:
        def changed(self, pool: Pool) -> None:
            told.append(pool.held[ALL])

        def note_boundary(self, pool: Pool, what: str, name: str) -> None:
            told.append((what, name, pool.held[ALL]))

    pool = Pool("device")
    pool.watchers.append(Told())
    one = pool.zeros("gradients", 10, np.uint8)
    two = pool.zeros("gradients", 5, np.uint8)
    del one
    pool.mark("unit", "block0 forward")
    pool.hold("bucket", two)
    assert told == [10, 15, ("unit", "block0 forward", 5), 5]

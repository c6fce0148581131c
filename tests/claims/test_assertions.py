"""Traffic and memory as assertions, as somebody else's tests would use them."""

from pathlib import Path

import pytest

from minidist.claims.assertions import holding
from minidist.memory.pool import Pool
from programs import run_module

THEIRS = """
import numpy as np
from minidist.engine import Settings
from minidist.nn.gpt import GPTConfig, gpt
from minidist.zero3 import ZeRO3

x = np.zeros((4, 8), int)


def engine_on(comm):
    return ZeRO3(gpt(GPTConfig(vocabulary=8, context=8, layers=2, heads=1, width=8)), Settings(), comm)


def test_an_update_sends_the_norm_alone(comm, traffic):
    engine = engine_on(comm)
    loss = engine.forward(x, x)
    with traffic() as backward:
        engine.backward(loss)
    comm.ledger.reset()
    with traffic() as update:
        engine.step()
        comm.ledger.reset()
    engine.forward(x, x)
    assert update.bytes("all-gather") == update.bytes("reduce-scatter") == 0
    assert (update.bytes(), update.messages()) == (8 * (comm.size - 1), comm.size - 1)
    psi = sum(flat.padded for flat in engine.flats)
    share = (comm.size - 1) / comm.size
    assert backward.bytes("all-gather") == backward.bytes("reduce-scatter") == 2 * psi * share
    assert backward.bytes(to=(comm.rank + 1) % comm.size) == backward.bytes()
    assert backward.messages(to=comm.rank) == 0


def test_one_unit_is_gathered_at_a_time(comm, holding):
    engine = engine_on(comm)
    engine.train_batch(x, x)
    with holding(engine.device) as held:
        engine.evaluate(x, x)
    embedding, *others = (flat.padded for flat in engine.flats)
    assert held.before["gathered"] == 0
    assert held.peak("gathered") == 2 * (embedding + max(others))  # the tied head reads the embedding, which stays


def test_that_is_wrong(comm, traffic):
    with traffic() as sent:
        engine_on(comm).train_batch(x, x)
    assert sent.bytes() == 0
"""


def test_in_anybodys_pytest_on_ranks(tmp_path: Path) -> None:
    file = tmp_path / "test_theirs.py"
    file.write_text(THEIRS)
    line = f"pytest -q -p minidist.claims.fixtures -p no:cacheprovider {file}"
    done = run_module(line, 2, cwd=tmp_path)
    assert done.stdout.count("1 failed, 2 passed") == 2, done.stdout
    assert done.stdout.count("FAILED test_theirs.py::test_that_is_wrong") == 2


def test_holding_has_the_peak_inside_and_not_the_one_before() -> None:
    pool = Pool("device")
    large = pool.zeros("gathered", 1000, "float32")
    del large
    with holding(pool) as held:
        small = pool.zeros("gathered", 10, "float32")
        del small
    later = pool.zeros("gathered", 100, "float32")
    assert (held.before["gathered"], held.peak("gathered"), held.peak()) == (0, 40, 40)
    assert later.nbytes == pool.held["gathered"] == 400
    with pytest.raises(KeyError):
        held.peak("gathred")

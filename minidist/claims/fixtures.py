"""For pytest: the ranks' communicator, and traffic and memory as assertions.

    mpirun -n 4 python -m pytest -p minidist.claims.fixtures test_mine.py

    def test_an_update_sends_nothing(comm, traffic):
        with traffic() as sent:
            ...
        assert sent.bytes() == 0

With or without ranks, `assert_same_at_every_layout` compares your own program with itself at other layouts.

    from minidist.claims.fixtures import assert_same_at_every_layout

    def test_gradients_are_those_of_one_rank():
        assert_same_at_every_layout(gradients, [{"dp": 1}, {"dp": 4}, {"dp": 2, "tp": 2}])

Every rank runs the same tests. A test that fails on one rank must not leave the others waiting, so make assertions
about what all ranks know (`comm.all_gather_object`), or give pytest a time limit.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from minidist.claims import assertions
from minidist.claims.layouts import assert_same_at_every_layout
from minidist.memory.pool import Pool
from minidist.mpi import environment
from minidist.mpi.comm import Comm

__all__ = ["assert_same_at_every_layout", "comm", "holding", "pytest_configure", "traffic"]


@pytest.hookimpl(tryfirst=True)  # before pytest opens the file
def pytest_configure(config: pytest.Config) -> None:
    """All ranks run the same tests, so only rank 0 writes --junitxml."""
    if environment.rank():
        config.option.xmlpath = None


@pytest.fixture(scope="session")
def comm() -> Comm:
    """All ranks that mpirun started."""
    from minidist.mpi.over_mpi import world  # this import starts MPI

    return world()


@pytest.fixture
def traffic(comm: Comm) -> Callable[[], AbstractContextManager[assertions.Traffic]]:
    """`with traffic() as sent:`, see minidist/claims/assertions.py."""
    return lambda: assertions.traffic(comm)


@pytest.fixture
def holding() -> Callable[[Pool], AbstractContextManager[assertions.Holding]]:
    """`with holding(engine.device) as held:`, see minidist/claims/assertions.py."""
    return assertions.holding

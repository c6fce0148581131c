import tracemalloc
from collections.abc import Iterator

import pytest

import minidist  # noqa: F401  (before NumPy: it sets one BLAS thread, also for the serial runs of the tests)


@pytest.fixture(autouse=True)
def nothing_traces_on() -> Iterator[None]:
    """All that came after a test that leaves tracemalloc on would take several times as long."""
    yield
    assert not tracemalloc.is_tracing()

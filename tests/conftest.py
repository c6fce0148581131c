import compileall
import gc
import os
import signal
import tracemalloc
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

import minidist  # before NumPy: it sets one BLAS thread, also for the serial runs of the tests
from minidist.system import processes
from sampling import part_of_this_run

hypothesis.settings.register_profile("untimed", deadline=None)  # the machine may have other work
hypothesis.settings.load_profile("untimed")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Hypothesis draws the examples of this run's part: others at every commit, the same when a run is repeated."""
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(zlib.crc32(part_of_this_run().encode()))


def pytest_sessionstart(session: pytest.Session) -> None:
    """Python is started by the thousand, once for each rank: none of them has to compile what it imports, even where
    PYTHONDONTWRITEBYTECODE keeps it from leaving that to the next."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it, and so would ranks
    end_with_parent(session.config)
    gc.disable()  # until all tests are collected: nothing of them is garbage
    if hasattr(session.config, "workerinput"):  # of pytest-xdist, whose first process has done the rest
        return
    for folder in (Path(minidist.__file__).parent, Path(__file__).with_name("jobs")):
        compileall.compile_dir(folder, quiet=2)
    if reporter := session.config.pluginmanager.get_plugin("terminalreporter"):
        reporter.write_line(f"To repeat this run: MINIDIST_PART={part_of_this_run()}")  # -q prints no header


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Of pytest-xdist, for each worker, before it starts."""
    node.workerinput["parent"] = os.getpid()


def end_with_parent(config: pytest.Config) -> None:
    """A signal that ends the tests unwinds them: no test's rank, program or folder is left. A worker of pytest-xdist
    gets it when the first process has ended; that process, when `make test` has."""
    worker = getattr(config, "workerinput", {})
    parent = worker.get("parent") or (os.getppid() if "MAKELEVEL" in os.environ else None)
    if parent and processes.LINUX:
        processes.follow(parent)
    if worker or not config.getoption("numprocesses", None):
        processes.unwind_at_signals()


LONGEST = (  # files that take long: they begin first, so that none is left over when all others are done
    *("test_kills", "classroom/test_grades", "test_mapreduce", "classroom/test_notebook", "test_pipeline"),
    *("test_checkpoint", "nn/test_recompute", "test_chapters", "test_tensor_parallel", "claims/test_mutants"),
    *("test_precisions", "deepspeed/test_ranks", "mpi/test_stops", "classroom/test_tricks", "test_parallel3d"),
    *("classroom/test_classroom", "memory/test_witness", "cli/test_screens", "test_zero_r", "test_layouts"),
)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of pytest-xdist: with --no-loadscope-reorder files are given out in this order."""
    places = {Path(__file__).parent / f"{name}.py": place for place, name in enumerate(LONGEST)}
    assert all(file.is_file() for file in places)
    items.sort(key=lambda item: places.get(item.path, len(places)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: tests wait for ranks a third of their time."""
    return (os.cpu_count() or 1) + 1


def pytest_collection_finish() -> None:
    """Thousands of tests, and what they import, stay to the end: the garbage collector need not look at them whenever
    one of them calls it. Nor need it look as often as it does by itself: that took a twentieth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


@pytest.fixture(autouse=True)
def tests_leave_the_process_as_it_was() -> Iterator[None]:
    """All that came after a test that leaves tracemalloc on would take several times as long; after one that leaves the
    working folder, some would fail that are green alone."""
    before = os.getcwd()
    yield
    assert not tracemalloc.is_tracing()
    assert os.getcwd() == before

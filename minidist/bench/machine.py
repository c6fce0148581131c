"""The machine on which a benchmark ran, and its libraries."""

import os
import platform
import re
import subprocess
import sys
import textwrap
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from minidist.cli.doctor import SHOW_LIBRARY
from minidist.cli.mends import mpi_name

Machine = dict[str, Any]  # unknown values are None


def describe(malloc: dict[str, int]) -> Machine:
    """This machine and its libraries. malloc: the options that `minidist.memory.allocator` has set."""
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    mpi = subprocess.run([sys.executable, "-c", SHOW_LIBRARY], capture_output=True, text=True, check=False)
    return {
        "processor": processor(),
        "cores": cores(),
        "caches": caches(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "blas": f"{blas['name'].removeprefix('scipy-')} {blas['version']}",
        "threads": os.environ.get("OPENBLAS_NUM_THREADS"),  # minidist/__init__.py sets one; PyTorch is told to use one
        "mpi": mpi_name(mpi.stdout) if mpi.returncode == 0 else None,
        "others": {name: version(name) for name in ("torch", "duckdb", "polars")},
        "malloc": malloc,
    }


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def processor() -> str:
    """The processor's model, as it names itself, without trademarks and clock."""
    name = platform.processor() or platform.machine()
    with suppress(OSError):
        found = re.search(r"^model name\s*: (.*)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        name = found[1] if found else name  # ARM's has none
    if sys.platform == "darwin":
        said = subprocess.run(["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True).stdout
        name = said or name
    return " ".join(re.sub(r"\((R|TM)\)|@.*|\bCPU\b|\bProcessor\b|\d+-Core", "", name).split())


def caches(folder: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> dict[str, str] | None:
    """The caches of the first core: {"L2": "2 MiB", "L3": "480 MiB"}; None if the system does not say."""
    found = {}
    for index in sorted(folder.glob("index*")):
        with suppress(OSError):
            level, size = ((index / name).read_text().strip() for name in ("level", "size"))
            kib = int(size.removesuffix("K"))
            if level in ("2", "3"):
                found[f"L{level}"] = f"{kib // 1024} MiB" if kib % 1024 == 0 else f"{kib} KiB"
    return found or None


def version(package: str) -> str | None:
    """The version of a package; None if it is not installed."""
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return None


def name_of(machine: Machine) -> str:
    """The machine's name in a table: 2 cores of an Intel Xeon."""
    article = "an" if machine["processor"][0] in "AEIO" else "a"
    return f"{machine['cores']} cores of {article} {machine['processor']}"


def lines(machine: Machine) -> list[str]:
    """How the figures were measured, in lines of 80 columns."""
    sizes = ", ".join(f"{level} {size}" for level, size in (machine["caches"] or {}).items())
    others = {"torch": "PyTorch", "duckdb": "DuckDB", "polars": "Polars"}
    beside = [f"{others[name]} {number}" for name, number in machine["others"].items() if number]
    malloc = ", ".join(f"{option} {nbytes / 2**20:.0f} MiB" for option, nbytes in machine["malloc"].items())
    said = (
        name_of(machine) + (f", {sizes}" if sizes else "") + f"; {machine['system']}, Python {machine['python']}",
        f"NumPy {machine['numpy']}, {machine['blas']} in {machine['threads']} thread, {machine['mpi'] or 'no MPI'}",
        f"compared with: {', '.join(beside) or 'neither PyTorch nor DuckDB nor Polars'}; PyTorch's steps in 1 thread",
        f"malloc, PyTorch's steps included: {malloc or 'as it is'}",
    )
    return [line for part in said for line in textwrap.wrap(part, 80)]

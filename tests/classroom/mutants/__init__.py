"""What each lesson's skeleton demands, and in which part; each demand with a mistake: a patch of the right answer.

Mutant(name, demand, parts that it loses, [(text of the answer, text in its place), ...], what is said of it)
"""

from importlib import import_module
from pathlib import Path

from classroom.mutants.mutant import Mutant

MUTANTS: dict[str, list[Mutant]] = {
    file.stem.removeprefix("lesson"): import_module(f"classroom.mutants.{file.stem}").MUTANTS
    for file in sorted(Path(__file__).parent.glob("lesson*.py"))
}

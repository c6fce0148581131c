"""Mistakes in exercises, as data: mutants/LESSON.toml and submissions/LESSON.toml. Of each:

    name        that of its file
    loses       the parts that it loses; or `keeps`: those that it does not lose
    says        patterns of what is said of them
    patience    of the grader, in seconds, if it needs less than usual

A mutant is the right answer, [answer] (grading.py), with a few lines of it changed, as mutants of the package are
(minidist/claims/mutants/patch.py), and does not do what the skeleton demands:

    demand      "part: what it does not do"
    old, new    the change

A submission is a program as people write it, as far as it differs from another one:

    about       its first line
    of          the program from which it differs: the right answer if not given, "nothing", or a base by its name
    without     what it has not of that: definitions, assignments and imports, by name (overlay.py)
    program     what it has instead, and besides
    old, new    changes of the result, where the mistake is a few lines of a long function

A base, [[base]], is another right answer, in another style, written in the same way. Submissions may be of it.
"""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from classroom.grading import ANSWERS
from classroom.overlay import overlay
from minidist.claims.mutants.patch import Patch, read_document, read_patches

HERE = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class Mistake(Patch):
    lesson: str  # its number
    name: str
    says: tuple[str, ...] = ()
    loses: tuple[str, ...] = ()
    keeps: tuple[str, ...] = ()
    patience: float = 10
    demand: str = ""
    about: str = ""
    of: str = ""
    without: tuple[str, ...] = ()
    program: str = ""

    def text(self) -> str:
        """The program, as its author hands it in."""
        written = f'"""{self.about}"""\n\n{self.program}'
        if self.of == "nothing":
            return written
        base = BASES[self.lesson][self.of].text() if self.of else ANSWERS[self.lesson]
        whole = overlay(base, written, self.without) if self.about else base
        return self.apply(whole, f"the base of {self.name}, lesson {self.lesson}")

    def lost_of(self, parts: Collection[str]) -> set[str]:
        """Of all parts those that it loses."""
        assert set(self.loses + self.keeps) <= set(parts)
        return set(self.loses) or set(parts) - set(self.keeps)

    def write_to(self, folder: Path) -> Path:
        file = folder / f"{self.name}.py"
        file.write_text(self.text())
        return file


def mistakes_of(file: Path, kind: str) -> dict[str, Mistake]:
    """By name."""
    made = [Mistake(lesson=file.stem[:2], **keywords) for keywords in read_patches(read_document(file), kind)]
    assert len({mistake.name for mistake in made}) == len(made), f"{file.name}: a name stands there twice"
    return {mistake.name: mistake for mistake in made}


MUTANTS = {file.stem[:2]: mistakes_of(file, "mutant") for file in sorted((HERE / "mutants").glob("*.toml"))}
SUBMISSIONS = {file.stem[:2]: mistakes_of(file, "submission") for file in sorted((HERE / "submissions").glob("*.toml"))}
BASES = {file.stem[:2]: mistakes_of(file, "base") for file in sorted((HERE / "submissions").glob("*.toml"))}

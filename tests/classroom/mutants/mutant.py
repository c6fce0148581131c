"""A mistake: a patch of the right answer."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Mutant:
    name: str
    demand: str
    loses: tuple[str, ...]
    patch: list[tuple[str, str]]
    says: str  # a pattern

    def text(self, answer: Path) -> str:
        text = answer.read_text()
        for old, new in self.patch:
            assert text.count(old) == 1, f"{self.name}: {old!r} is in {answer.name} {text.count(old)} times"
            text = text.replace(old, new)
        return text

"""What the letters of formulas mean: below a table of claims stand exactly those that occur in it."""

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from minidist.cli.tables import number

Letters = Mapping[str, str]  # what each means
MEANINGS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
EVERYWHERE: Letters = MEANINGS["everywhere"]

# What formulas say in words. "a layer" is one; "as/ht" is a·s/(h·t).
WORDS = re.compile(
    r"one process's( ± [-e.\d]+)?|one a message|nothing else|the same|likewise(, SwiGLU)?|a layer|after B: less|"
    r"about the mean|edges between hosts|a block|from others|pairs of the maps|done or begun there|begun there|"
    r"max of \d|log₂|"
    r"\b(max|min|all|or|to|tokens|load|rows|layers|inputs|blocks|ranges|gaps|passed|files|gathered|summed|core|gone|peak|kept)\b"
)


def letters_in(*parts: str) -> Callable[[Any], Letters]:
    """A function that fills these parts of letters.toml in for a run. If several have a letter, the last one counts."""
    found = {name: text for part in parts for name, text in MEANINGS[part].items()}

    def letters(run: Any) -> Letters:
        psi, padded = run.model.parameters(), run.model.parameters(run.ranks)
        padding = f", {number(padded)} with each unit's padding" * (padded > psi)
        return {name: text.format(run=run, padding=padding) for name, text in found.items()}

    return letters


def legend(formulas: Iterable[str], letters: Letters) -> str:
    """The letters of these formulas, in the order of the chapter's own, then of those that mean the same everywhere.
    Those of one meaning stand together."""
    known = {**letters, **{name: meaning for name, meaning in EVERYWHERE.items() if name not in letters}}
    used, _ = split(formulas, known)
    by_meaning: dict[str, list[str]] = {}
    for name in (name for name in known if name in used):
        by_meaning.setdefault(known[name], []).append(name)
    return "; ".join(f"{', '.join(names)}: {meaning}" for meaning, names in by_meaning.items()) + "." * bool(by_meaning)


def split(formulas: Iterable[str], letters: Iterable[str]) -> tuple[set[str], set[str]]:
    """Which of the letters occur, the longest first ("ψ_emb" is no "ψ"); and which others do, that nothing explains."""
    left, used = WORDS.sub(" ", " ; ".join(formulas)), set()
    for name in sorted(letters, key=len, reverse=True):
        if name in left:
            used.add(name)
            left = left.replace(name, " ")
    return used, {each for each in left if each.isalpha()} - {"Σ"}

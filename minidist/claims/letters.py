"""What the letters of formulas mean: below a table of claims stand exactly those that occur in it."""

import re
from collections.abc import Iterable, Mapping

Letters = Mapping[str, str]  # {"p, K": "stages"}: what a letter means, or several that mean the same

# What formulas say in words. "a layer" is one; "as/ht" is a·s/(h·t).
WORDS = re.compile(
    r"one process's( ± [-e.\d]+)?|one a message|nothing else|the same|likewise(, SwiGLU)?|a layer|after B: less|"
    r"about the mean|from others|pairs of the maps|done or begun there|begun there|max of \d|log₂|"
    r"\b(max|min|all|or|to|tokens|load|rows|layers|inputs|blocks|ranges|gaps|passed|files|gathered|summed|core|gone|peak|kept)\b"
)

EVERYWHERE: Letters = {
    "layer(c)": "bytes that a layer keeps for c positions",
    "layer": "bytes that a layer keeps",
    "Ψ_again": "parameters gathered once more, for recomputation",
    "l": "layers",
    "b": "sequences of a micro-batch",
    "s": "positions of a sequence",
    "h": "width",
    "a": "heads",
    "r": "layers whose forward is recomputed, of a micro-batch",
    "R": "ranks that share a step's tokens",
}


def legend(formulas: Iterable[str], letters: Letters) -> str:
    """The letters of these formulas, in the order of the chapter's own, then of those that mean the same everywhere."""
    known = {**letters, **{name: meaning for name, meaning in EVERYWHERE.items() if name not in letters}}
    used, _ = split(formulas, known)
    found = []
    for names, meaning in known.items():
        if own := [name for name in names.split(", ") if name in used]:
            found.append(f"{', '.join(own)}: {meaning}")
    return f"{'; '.join(found)}." if found else ""


def split(formulas: Iterable[str], letters: Letters) -> tuple[set[str], set[str]]:
    """Which of the letters occur, the longest first ("ψ_emb" is no "ψ"); and which others do, that nothing explains."""
    left, used = WORDS.sub(" ", " ; ".join(formulas)), set()
    for name in sorted((name for names in letters for name in names.split(", ")), key=len, reverse=True):
        if name in left:
            used.add(name)
            left = left.replace(name, " ")
    return used, {each for each in left if each.isalpha()} - {"Σ"}

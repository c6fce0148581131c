"""What the report says around its numbers."""

import pytest

from minidist.claims.claim import Claim
from minidist.claims.letters import legend
from minidist.claims.screen import part_of, print_claims, times, verdict
from minidist.cli.tables import make_table, number, show
from programs import run_python
from tables import table


def claim(name, unit, counted=1):
    return Claim("a paper", name, "f(N)", 1, counted, unit)


def test_a_table_says_what_its_numbers_count(capsys):
    print_claims([claim("held", "bytes"), claim("calls", "calls"), claim("sent", "elements")], "", {"N": "ranks"})
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[5:-1] for line in printed if line[:2] == ["a", "paper"]] == [["1", "B"], ["1"], ["1", "el"]]
    assert " ".join(printed[-1]) == "B: bytes; el: elements of one micro-batch; N: ranks."


def test_letters_are_those_that_occur():
    """The longest first; words are no letters."""
    known = {"ψ": "of a unit", "ψ_emb": "of the embedding", "Ψ": "all", "M": "all", "out": "rows", "t": "ranks"}
    assert legend(["2(max of 2 ψ_emb)", "one process's", "tokens/R"], known) == (
        "ψ_emb: of the embedding; R: ranks that share a step's tokens."
    )
    assert legend(["2M + 2as/ht", "l·2·out"], known) == (
        "M: all; out: rows; t: ranks; l: layers; s: positions of a sequence; h: width; a: heads."
    )
    assert legend(["nothing else", "0"], known) == ""


def test_how_many_claims_hold():
    holds, fails = claim("held", "bytes"), claim("held", "bytes", 2)
    assert verdict([holds]) == "The claim holds."
    assert verdict([holds, holds]) == "All 2 claims hold."
    assert verdict([holds, fails, fails]) == "2 of 3 claims do not hold."
    assert verdict([holds, fails]) == "1 of 2 claims does not hold."


@pytest.mark.parametrize(("line", "words"), table(__file__, "what_a_rank_held_and_sent"))
def test_what_happened_in_a_line(line, words):
    """By the papers' formulas: 16Ψ/N and 3Ψ instead of 2Ψ; 4Ψ + 12Ψ/N; with gradients of 4 bytes, 18Ψ."""
    name, _, options = line.partition(" ")
    done = run_python("-m", *f"minidist.{name} --steps 1 --validate 0 --no-prove {options}".split())
    assert words in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("value", "words"),
    [(960, "all of 960"), (240, "a quarter of 960"), (321, "about a third of 960"), (500, "52.1 % of 960")],
)
def test_parts_in_words(value, words):
    assert part_of(value, 960) == words


def test_times_in_words():
    assert [times(n, 10) for n in (15, 10, 10.01, 4.15, 0)] == [
        *(f"{much} as data parallelism" for much in ("1.5 times as much", "as much", "as much", "0.415 times as much")),
        "nothing",
    ]


def test_thousands_are_apart():
    assert [number(n) for n in (7, 1234567, 2.5)] == ["7", "1,234,567", "2.500"]


def test_a_title_may_be_wider_than_its_table(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    table = make_table(left=("what",), right=("n",))
    table.add_row("a", "1")
    show("A title [of more words] than the table has room for", table)
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines == ["A title [of more words] than the table has room for", "", "what  n", "───────", "a     1", ""]


def test_claims_on_all_ranks_together_have_a_heading(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    together = Claim("a paper", "read too late", "0", 0, 2, "reads", "all ranks")
    print_claims([claim("held", "bytes"), together, claim("sent", "bytes")], "On each rank", {})
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    heading = lines.index("On all ranks together")
    each, below = "\n".join(lines[:heading]), "\n".join(lines[heading:])
    assert lines[0] == "On each rank"
    assert ("held" in each, "sent" in each, "read too late" in each) == (True, True, False)
    assert ("held" in below, "read too late" in below, "✗" in below) == (False, True, True)
    assert lines[-1] == "does not hold: a paper, read too late: 0 reads promised, 2 counted"
    print_claims([claim("held", "bytes")], "On each rank", {})
    assert "together" not in capsys.readouterr().out

"""What the report says around its numbers."""

import pytest

from minidist.claims.claim import Claim
from minidist.claims.screen import describe_units, print_claims
from minidist.cli.tables import make_table, number, show


def claim(name, unit):
    return Claim("a paper", name, "f(N)", 1, 1, unit)


@pytest.mark.parametrize(
    ("claims", "line"),
    [
        ([claim("held", "bytes"), claim("sent", "bytes")], "All in bytes."),
        ([claim("held", "bytes"), claim("calls", "calls")], "Volumes in bytes."),
        (
            [claim("held", "bytes"), claim("sent", "elements"), claim("calls", "calls"), claim("got", "elements")],
            "Volumes in bytes; in elements: sent, got.",
        ),
        (
            [claim("held", "bytes"), claim("share", "tokens")],
            "Volumes in bytes. R ranks share a step's tokens.",
        ),
        ([claim("idle", ""), claim("calls", "calls")], ""),
    ],
)
def test_a_table_says_what_its_numbers_count(claims, line):
    assert describe_units(claims) == line


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
    print_claims([claim("held", "bytes"), together, claim("sent", "bytes")], "On each rank")
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    heading = lines.index("On all ranks together")
    each, below = "\n".join(lines[:heading]), "\n".join(lines[heading:])
    assert lines[0] == "On each rank"
    assert ("held" in each, "sent" in each, "read too late" in each) == (True, True, False)
    assert ("held" in below, "read too late" in below, "✗" in below) == (False, True, True)
    assert lines[-1] == "does not hold: a paper, read too late: 0 reads promised, 2 counted"
    print_claims([claim("held", "bytes")], "On each rank")
    assert "together" not in capsys.readouterr().out

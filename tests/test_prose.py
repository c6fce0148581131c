"""Plain words: no file has more faults than it had, and each rule finds what it is for (prose.py)."""

import json

import pytest

from prose import KEPT, RULES, find_all_faults, find_faults, find_new_faults


def test_no_file_has_more_faults_than_kept() -> None:
    new = find_new_faults(find_all_faults(), json.loads(KEPT.read_text()))
    assert not new, "plain words, please (tests/prose.toml):\n" + "\n".join(map(str, new))


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_rule_finds_its_fault_in_every_kind_of_text(rule: dict[str, str]) -> None:
    cell = json.dumps({"cells": [{"cell_type": "markdown", "source": ["# A\n", rule["bad"]]}]}, indent=1)
    planted = {
        "a.md": f"# A\n\n```\n{rule['bad']}\n```\n\n- {rule['bad']}",
        "a.py": f"\n\n\n\ndef f():\n    '''A.\n\n    {rule['bad']}'''\n",
        "b.py": f'x = 1\nprint(f\'{{x}}: ""\', "{rule["bad"]}")',
        "c.py": f"x = 1  # {rule['bad']}",
        "a.toml": f'mistake = "{rule["bad"]}"',
        "a.ipynb": cell,
    }
    for file, source in planted.items():
        [fault] = find_faults(file, source)
        assert fault.rule == rule["name"]
        assert rule["better"] in str(fault)
        assert rule["bad"].split()[-1] in source.splitlines()[fault.line - 1]
        assert not [*find_faults(file, source.replace(rule["bad"], rule["good"]))]


def test_one_fault_more_is_new_and_one_less_is_not() -> None:
    faults = [*find_faults("a.md", f"{RULES['beside']['bad']}\n\n{RULES['his']['bad']}")]
    kept = {"a.md": {fault.rule: 1 for fault in faults}}
    assert not find_new_faults(faults, kept)
    assert not find_new_faults(faults[:1], kept)
    assert find_new_faults([*faults, faults[1]], kept) == [faults[1], faults[1]]

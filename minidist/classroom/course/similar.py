"""Hand-ins of two students that are alike. This is shown to the instructor, and costs no points.

Statements are compared in likeness.py's normal form. What is in the skeleton, and what many of the class have written,
says nothing: there are few ways to write a ring.
"""

import ast
from collections import Counter
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from minidist.classroom.grading.likeness import LONG, Forms, forms_in, weigh

ALIKE = 0.9  # the share of the smaller one's weight from which on two are alike: more may have been added to a copy
MANY = 0.2  # of the class, and at least this number of students:
FEW = 4


class Pair(NamedTuple):
    """Two students whose hand-ins for a lesson are alike."""

    one: str
    other: str
    shared: int  # statements that both have, and few others
    every: int  # statements of the smaller one that few others have


def similar(hand_ins: Mapping[str, Forms], skeleton: Path) -> list[Pair]:
    """The pairs that are alike. hand_ins: student -> the forms of the statements in the student's file."""
    given = forms_in(ast.parse(skeleton.read_bytes()))
    own = {student: forms - given for student, forms in hand_ins.items()}
    spread = Counter(form for forms in own.values() for form in forms)
    most = max(FEW, MANY * len(own))
    rare = {
        student: Forms({form: times for form, times in forms.items() if spread[form] <= most})
        for student, forms in own.items()
    }
    pairs = []
    for one, other in combinations([student for student, forms in rare.items() if forms.total() > LONG], 2):
        shared, smaller = rare[one] & rare[other], min(rare[one], rare[other], key=weigh)
        if shared.total() > LONG and weigh(shared) >= ALIKE * weigh(smaller):
            pairs.append(Pair(one, other, shared.total(), smaller.total()))
    return pairs

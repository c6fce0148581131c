"""The grader, graded: the skeleton earns nothing, the chapter everything, and each of the mistakes under
tests/submissions loses just the parts that it should, with the message that it should."""

import re
from pathlib import Path

import pytest

from minidist.classroom.grade import Grade, Part, grade

ROOT = Path(__file__).parent.parent
LESSONS = ROOT / "lessons"
SUBMISSIONS = Path(__file__).parent / "submissions"
RING = LESSONS / "04_ring_all_reduce"
MODEL_ANSWERS = {"04_ring_all_reduce": ROOT / "minidist" / "ring.py"}


def short(part: Part) -> str:
    """bytes, of .../test_exercise.py::test_bytes."""
    return part.name.rsplit("::test_", 1)[-1]


def lost(graded: Grade) -> list[str]:
    assert not graded.error, graded.error
    return [short(part) for part in graded.parts if part.earned < part.points]


def head(file: Path, name: str) -> list[str]:
    """The lines `# name: ...` of a submission."""
    return re.findall(rf"^# {name}: (.*)$", file.read_text(), re.MULTILINE)


@pytest.mark.parametrize("lesson", sorted(MODEL_ANSWERS))
def test_the_skeleton_earns_nothing_and_the_chapter_everything(lesson):
    skeleton, chapter = grade(LESSONS / lesson), grade(LESSONS / lesson, MODEL_ANSWERS[lesson])
    assert (skeleton.earned, skeleton.possible, skeleton.error) == (0, 20, "")
    assert all("is not written yet" in part.message for part in skeleton.parts)
    assert lost(chapter) == []
    assert chapter.earned == 20


@pytest.mark.parametrize(
    "file", sorted(SUBMISSIONS.glob("*/*.py")), ids=lambda file: f"{file.parent.name[:2]} {file.stem}"
)
def test_a_mistake_loses_just_its_points_with_a_helpful_message(file):
    patience = head(file, "patience")
    graded = grade(LESSONS / file.parent.name, file, patience=float(patience[0]) if patience else None)
    everything = {short(part) for part in graded.parts}
    keeps, loses = (set(", ".join(head(file, name)).split(", ")) - {"", "nothing"} for name in ("keeps", "loses"))
    assert keeps | loses <= everything
    assert set(lost(graded)) == (loses or everything - keeps)
    messages = "\n".join(part.message for part in graded.parts)
    for pattern in head(file, "says"):
        assert re.search(pattern, messages), f"{pattern}\n\n{messages}"
    # Nothing of the machinery is shown to a student.
    assert "minidist/classroom" not in messages
    assert "on_ranks.py" not in messages

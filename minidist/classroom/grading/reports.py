"""A grade for people, for Gradescope and as JUnit; and a class in figures."""

import re
import statistics
import textwrap
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

from minidist.classroom.grading.grade import Grade, Part

WIDTH = 80

# ---- for people ------------------------------------------------------------------------------------------------------


def table(grade: Grade) -> str:
    """Parts and points; below, for each part that was lost, what to look at next."""
    lines = [f"{grade.lesson}: {grade.submission}", ""]
    if grade.error:
        return "\n".join([*lines, grade.error])
    for position, part in enumerate(grade.parts, 1):
        title = part.title + (" (hidden)" if part.hidden else "")
        verdict = "✓" if part.earned == part.points else "✗"
        lines.append(f"{verdict} {position:2}  {title:65} {part.earned:g} of {part.points:g}")
    lines += [
        "",
        f"{grade.earned:g} of {grade.possible:g} points",
        f"graded in {grade.seconds:.1f} s{of_processors(grade)}",
    ]
    if grade.seed is not None:
        lines.append(f"(--seed {grade.seed} grades the same again)")
    lines += [wrapped(f"note: {note}") for note in grade.notes]
    reasons: dict[str, list[tuple[int, str]]] = {}
    for position, part in enumerate(grade.parts, 1):
        if part.earned < part.points:
            reasons.setdefault(reason(part.message), []).append((position, part.message))
    for lost in reasons.values():
        positions = ", ".join(str(position) for position, _ in lost)
        lines += ["", f"✗ {positions}", textwrap.indent(wrapped(lost[0][1]), " " * 4)]
    return "\n".join(lines)


def of_processors(grade: Grade) -> str:
    return f"; {grade.used:.1f} s of processor time, of at most {grade.limit:g} s" if grade.limit else ""


def reason(message: str) -> str:
    """A key that is the same for messages that differ only in ranks and sizes: the program's lines that they name, and
    their end, without its numbers. If they name no line, all their words count, above all the function's name."""
    places = re.findall(r"\b\w+\.py(?::|, line )\d+", message)
    last = message.splitlines()[-1].rpartition(": ")[-1] if places else message
    return " ".join([*sorted(set(places)), re.sub(r"\d+", "", last)])


def wrapped(message: str) -> str:
    """Wrap prose to lines that fit; indented lines, as in tracebacks, stay as they are."""
    return "\n".join(
        line if line.startswith(" ") else textwrap.fill(line, WIDTH - 4, break_long_words=False, break_on_hyphens=False)
        for line in message.splitlines()
    )


def class_table(grades: Sequence[Grade]) -> str:
    """For each lesson, how many students earned each part, and how the points are spread."""
    lines = []
    if not_graded := sum(grade.machine for grade in grades):
        lines += [f"{not_graded} not graded, for a fault of this machine: mend it and grade them again", ""]
    grades = [grade for grade in grades if not grade.machine]
    for lesson in sorted({grade.lesson for grade in grades}):
        of_lesson = [grade for grade in grades if grade.lesson == lesson]
        if not lesson:
            lines += [f"{len(of_lesson)} that belong to no lesson", ""]
            continue
        lines += [f"{lesson}: {len(of_lesson)} submissions", ""]
        by_title: dict[str, list[Part]] = {}
        for part in (part for grade in of_lesson for part in grade.parts):
            by_title.setdefault(part.title, []).append(part)
        for position, (title, parts) in enumerate(by_title.items(), 1):
            full = sum(part.earned == part.points for part in parts)
            lines.append(f"{position:4}  {title:60} {full:4} of {len(of_lesson)}")
        points = [grade.earned for grade in of_lesson]
        possible = max(grade.possible for grade in of_lesson)
        lines += [
            "",
            f"points of {possible:g}: mean {statistics.mean(points):.1f}, median {statistics.median(points):g},"
            f" lowest {min(points):g}, highest {max(points):g}",
            "",
        ]
    return "\n".join(lines).rstrip()


# ---- for machines ----------------------------------------------------------------------------------------------------


def gradescope(grade: Grade) -> dict[str, Any]:
    """results.json, as Gradescope's autograder specification asks. Hidden parts count, but students don't see them."""
    document: dict[str, Any] = {
        "score": grade.earned,
        "execution_time": round(sum(part.seconds for part in grade.parts), 3),
        "test_output_format": "text",
        "stdout_visibility": "hidden",
        "tests": [
            {
                "number": str(position),
                "name": part.title,
                "score": part.earned,
                "max_score": part.points,
                "status": "passed" if part.earned == part.points else "failed",
                "output": part.message,
                "visibility": "hidden" if part.hidden else "visible",
            }
            for position, part in enumerate(grade.parts, 1)
        ],
    }
    if grade.error:
        document["output"] = grade.error
    return document


def junit(grades: Sequence[Grade]) -> str:
    """One test suite for each lesson, one test case for each part, its points as a property."""
    suites = ElementTree.Element("testsuites")
    for grade in grades:
        lost = [part for part in grade.parts if part.earned < part.points]
        kind, failures = ("error", 0) if grade.machine else ("failure", len(lost))
        errors = len(lost) - failures or int(bool(grade.error))
        counts = {"tests": str(len(grade.parts)), "failures": str(failures), "errors": str(errors)}
        suite = ElementTree.SubElement(suites, "testsuite", {"name": grade.lesson, **counts})
        for part in grade.parts:
            case = ElementTree.SubElement(
                suite, "testcase", classname=grade.lesson, name=part.title, time=f"{part.seconds:.3f}"
            )
            properties = ElementTree.SubElement(case, "properties")
            for name, points in (("points", part.earned), ("points possible", part.points)):
                ElementTree.SubElement(properties, "property", name=name, value=f"{points:g}")
            if part in lost:
                first, *_ = part.message.splitlines() or [""]
                ElementTree.SubElement(case, kind, message=first).text = part.message
        if grade.error:
            ElementTree.SubElement(suite, "system-err").text = grade.error
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"

"""What tests/test_evaluations.py runs on ranks: an evaluation after two steps, with each chapter's engines."""

from contextlib import nullcontext
from typing import Any

from minidist import train
from minidist.cli.fields import fill
from minidist.cli.options import Parser
from minidist.command import Job
from minidist.mpi.comm import Comm
from minidist.programs.chapter import Chapter, find_all

SMALL = "--steps 2 --layers 4 --width 8 --heads 2 --context 4 --batch 4 --no-prove"


def lines_of(chapter: Chapter) -> list[str]:
    """Its cases, and every choice that an option of its own leaves."""
    made = Parser(chapter.name, "")
    fill(made, chapter.options)
    choices = [
        f"{action.option_strings[0]} {value}"
        for action in made._actions
        for value in action.choices or ()
        if action.option_strings[0] != "--draw"
    ]
    return [*dict.fromkeys(["", *choices, *(case.format(batch=4, axis=2) for case in chapter.cases.values())])]


CHAPTERS = {name: chapter for name, chapter in find_all().items() if isinstance(chapter, Chapter)}


def every_line() -> list[str]:
    return [f"{name} {SMALL} {line}".strip() for name, chapter in CHAPTERS.items() for line in lines_of(chapter)]


def held_around_an_evaluation(comm: Comm, lines: list[str]) -> dict[str, Any]:
    """By line: what this rank's device holds before an evaluation and after it, by kind."""
    found: dict[str, Any] = {}
    for line in lines:
        name, *options = line.split()
        job = CHAPTERS[name].prepared(options, comm)
        if isinstance(job, Job):
            found[line] = around_an_evaluation(CHAPTERS[name], comm, job)
    return found


def around_an_evaluation(chapter: Chapter, comm: Comm, job: Job) -> tuple[dict[str, int], dict[str, int]]:
    driver = chapter.driver(comm, job)
    with getattr(driver.engine, "folder", nullcontext()):
        for step in range(job.training.steps):  # a pipeline without flushes has messages under way before the last
            train.train_step(driver, job, step)
        driver.engine.settle()
        before = dict(driver.engine.device.held)
        train.validate(driver, job)
        after = dict(driver.engine.device.held)
        return before, after

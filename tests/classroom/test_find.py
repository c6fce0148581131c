"""Lesson 18's grade rests on systems that are drawn: a right answer finds each bug of each set, and never alarms
without one. Checks that look at one thing find what the counted table says that it shows."""

import itertools
import json
import re
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from classroom.grading import ANSWERS, LESSONS, Grader, grader, load
from classroom.mistakes import SUBMISSIONS
from classroom.test_own_work import functions_of, load_on_ranks, load_tests
from minidist import Stopped
from minidist.bugs import command, systems
from minidist.bugs.handle import MOST, Handle, RunFailed, why_not
from minidist.bugs.systems import KINDS, System, Systems, draw, read_bugs, system_of

COLUMNS = {  # ten naive checks, and the column of the counted table that says what each sees; "" is nothing
    "last_weeks_loss": "",
    "the_loss_falls": "",
    "adam_as_trained": "loss",
    "two_ranks_in_float64": "f64",
    "all_numbers_of_ranks": "N",
    "gradients_alone": "grad",
    "norms_alone": "norm",
    "micro_batches_alone": "m",
    "copies_alone": "copy",
    "resumes_alone": "load",
}
BY_TOLERANCE = "adam_as_trained"  # of 1e-3: what it sees depends on the seed
BUGS = {kind: [name for group in groups for name in group] for kind, groups in KINDS.items()}
OF_RECORD = [name for names in BUGS.values() for name in names if name in command.kept()]


@pytest.fixture(scope="module")
def lesson():
    with grader("18") as made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_the_model_answer_finds_all_bugs_of_a_set_without_a_false_alarm(lesson: Grader, seed: int) -> None:
    graded = lesson.grade(ANSWERS["18"], seed=seed)
    assert (graded.messages, graded.earned) == ({}, 20)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 7])
@pytest.mark.parametrize("name", sorted(COLUMNS.keys() - {BY_TOLERANCE}))
def test_a_naive_check_earns_what_the_table_predicts(lesson: Grader, tmp_path: Path, name: str, seed: int) -> None:
    drawn = draw(seed)
    broken = {kind: [system.name for system in drawn[kind] if system.broken] for kind in KINDS}
    of_record = {kind for kind in KINDS if set(broken[kind]) & {*OF_RECORD}}
    graded = lesson.grade(SUBMISSIONS["18"][name].write_to(tmp_path), seed=seed, only=of_record)
    found = of_record - graded.lost
    seen = {kind for kind in of_record if all(is_seen(name, bug) for bug in broken[kind] if bug in OF_RECORD)}
    assert found <= seen, graded.messages  # what our own bugs show is in no table
    assert found >= {kind for kind in seen if set(broken[kind]) <= {*OF_RECORD}}, graded.messages
    assert any("false alarm" in said for said in graded.messages.values()) == (name == "last_weeks_loss")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, column in COLUMNS.items() if column])
def test_a_naive_check_alarms_where_the_table_has_a_mark(performed: Systems, tmp_path: Path, name: str) -> None:
    """On each bug of record, with the table's seed and batch; on no healthy program."""
    check, bugs = load(SUBMISSIONS["18"][name].write_to(tmp_path)), read_bugs()
    vars(check)["odd"] = lambda run: run.batch
    for bug in OF_RECORD:
        if name == BY_TOLERANCE and bugs[bug].precision != "fp32":
            continue  # the table's tolerance for two bytes is wider
        for is_broken in (True, False):
            system = replace(system_of(bugs[bug], 0, is_broken), batch=9 if "--batch 9" in bugs[bug].options else 8)
            run = Handle(system.facts, partial(answer, performed, system))
            assert alarms(check.check_all, run) == (is_broken and is_seen(name, bug)), (bug, is_broken)


def answer(performed: Systems, system: System, asked: dict[str, Any]) -> dict[str, Any]:
    return performed.perform([(system, asked)])[0]


@pytest.fixture(scope="module")
def performed():
    made = Systems()
    yield made
    made.close()


def is_seen(name: str, bug: str) -> bool:
    """Whether the table says that this check notices the bug."""
    return COLUMNS[name] in command.kept()[bug]


def test_ten_sets_are_drawn_by_their_seed_from_all_bugs() -> None:
    assert draw(3) == draw(3)
    sets = [draw(seed) for seed in range(40)]
    changes = {bug.name: bug.change for bug in read_bugs().values()}
    for kind, names in BUGS.items():
        assert {system.name for drawn in sets for system in drawn[kind] if system.broken} == set(names)
        for drawn in sets:
            broken = [system for system in drawn[kind] if system.broken]
            twins = drawn[kind][len(broken) : -1]
            assert len(broken) >= 2
            assert [system.facts for system in broken] == [system.facts for system in twins]  # so facts tell nothing
            assert not {system.seed for system in broken} & {system.seed for system in twins}
            assert all(set(changes[system.name]) <= set(system.edits) for system in broken)
            given = [edit for system in drawn[kind] if not system.broken for edit in system.edits]
            assert not any(edit in given for change in changes.values() for edit in change)
    healthy_ones = [system for drawn in sets for of in drawn.values() for system in of if not system.broken]
    assert len({system.seed for system in healthy_ones}) > 200
    assert {system.batch % 2 for system in healthy_ones} == {0, 1}
    assert any(system.shards for system in healthy_ones)


def test_which_bugs_are_drawn_makes_no_difference_to_a_check_that_looks_at_one_thing() -> None:
    """Each column of the counted table sees all that may be drawn of a kind, or never all that is drawn. Of bugs of our
    own, which are in no table, none is left to chance."""
    for kind, groups in KINDS.items():
        for column in {column for name in BUGS[kind] for column in command.kept().get(name, ())}:
            found = {
                all(column in command.kept().get(bug, ()) for bug in drawn) for drawn in itertools.product(*groups)
            }
            assert len(found) == 1, (kind, column)
        assert all(len(group) == 1 or set(group) <= {*OF_RECORD} for group in groups)


COIN = """
met = []

def coin(run):
    {look}
    met.append(run.axes)
    run._asked.clear()
    assert {alarm}{words}
"""


@pytest.mark.parametrize(
    ("look", "alarm", "said"),
    [
        ("pass", "len(met) != 1 or run.shards == 2", "an alarm without a run"),
        ("run()", "len(met) != 1 or run.shards == 2", r"a false alarm .* It said 'assert len\(met\)"),
        ("run({run.axis: 2}, steps=20); run(steps=20)", "True", r"did not find .*; it cost 60\."),
    ],
)
def test_a_coin_earns_nothing_and_the_grader_counts_the_price(
    lesson: Grader, monkeypatch: pytest.MonkeyPatch, look: str, alarm: str, said: str
) -> None:
    """Runs are made up here: what counts is when a check alarms. What is kept from one system is not there on the
    next one, and what a program does to its own account of the price changes nothing."""
    counted: dict[str, Any] = {name: [] for name in ("losses", "norms", "bytes", "memory", "parameters", "scales")} | {
        "gradients": {}
    }
    systems_made = SimpleNamespace(perform=lambda wanted: [dict(counted) for _ in wanted])
    monkeypatch.setattr(lesson.tests, "systems", lambda: systems_made)
    text = COIN.format(look=look, alarm=alarm, words=", 'a coin'" if look == "pass" else "")
    text += "".join(f"\n\ndef check_{kind}(run):\n    coin(run)\n" for kind in KINDS)
    for seed in range(3):
        graded = lesson.grade(text, seed=seed)
        assert graded.earned == 0, graded.messages
        assert re.search(said, "\n".join(graded.messages.values()))


@pytest.mark.parametrize("name", [bug.name for bug in read_bugs().values() if bug.system == "minidist"])
def test_a_bug_of_our_own_can_be_rebuilt(name: str) -> None:
    for file, patch in read_bugs()[name].change:
        text = patch.apply((systems.OURS.parents[1] / file).read_text(), name)
        compile(text, file, "exec")


# ---- answers ---------------------------------------------------------------------------------------------------------


def simulated(kind: str, is_broken: bool) -> Handle:
    """A handle on numbers that are made up: w = (1, 2, 3) has the norm 3.74, and the loss falls by 0.1 in a step."""
    facts = {"axes": {"dp": [1, 2, 3]}, "batch": 8, "precision": "mixed", "zero": 2, "shards": 3, "clip": 1.0}

    def answer(asked):
        n, steps, resumed = asked["layout"]["dp"], asked["steps"], asked["resume_at"]
        wrong = is_broken * (n > (2 if kind == "sizes" else 1))
        bug = {name: wrong * (name == kind) for name in KINDS}
        falls = 0.1 * (1 - bug["precision"] * (asked["precision"] != "fp64"))
        late = bug["checkpoint"] * bool(resumed)
        states = {"optimizer": 1200 // n, "gradients": 1200 // (1 if bug["memory"] else n), "parameters": 1200}
        return {
            "losses": [5 - falls * step + late * 0.1 * (step > resumed) for step in range(steps)],
            "gradients": {"w": np.array([1.0, 2.0, 3.0]) * (1 + bug["gradients"] + bug["sizes"])},
            "norms": [14**0.5 * (1 + bug["norms"])] * n,
            "bytes": [{}] * n,
            "memory": [states] * n,
            "parameters": [{"w": np.ones(3)}] * n,
            "scales": [8.0] * n,
        }

    return Handle(facts, answer)


def alarms(check, run: Handle) -> bool:
    try:
        check(run)
    except AssertionError:
        return True
    return False


def test_a_loss_that_jumps_up_at_the_end_is_no_alarm(performed: Systems, tmp_path: Path) -> None:
    """In two healthy systems of this set SGD's step is so long that the last loss of eight is above the first."""
    (tmp_path / "exercise.py").write_text(ANSWERS["18"])
    runs = [Handle(of.facts, partial(answer, performed, of)) for of in draw(312167383)["precision"]]
    losses = runs[3]({"dp": 2}, optimizer="sgd", precision="mixed", steps=8).losses
    assert losses[-1] > losses[0] > min(losses) + 1
    for file in (tmp_path / "exercise.py", LESSONS["18"] / "answers.py"):
        check = load(file).check_precision
        assert [alarms(check, run) for run in runs] == [True, True, False, False, False]


@pytest.mark.parametrize("kind", KINDS)
def test_the_right_answer_finds_a_made_up_bug_and_no_released_function_does(kind: str, tmp_path: Path) -> None:
    asked = f"check_{kind}"
    (tmp_path / "exercise.py").write_text(ANSWERS["18"])
    for file in (tmp_path / "exercise.py", LESSONS["18"] / "answers.py"):
        check = getattr(load(file), asked)
        assert [alarms(check, simulated(kind, is_broken)) for is_broken in (True, False)] == [True, False]
    for name, function in {**functions_of(load_tests("18")), **functions_of(load_on_ranks("18"))}.items():
        found = False
        with suppress(Exception, pytest.fail.Exception):  # most take something else
            found = alarms(function, simulated(kind, True)) and not alarms(function, simulated(kind, False))
        assert not found, f"{name} of lesson 18's tests is {asked}"


# ---- the handle ------------------------------------------------------------------------------------------------------


def a_system() -> System:
    return system_of(read_bugs()["experts-times-ep"], 1, broken=False)


def test_a_handle_counts_each_different_run_once() -> None:
    asked = []

    def answer(request):
        asked.append(request)
        return {name: [] for name in ("losses", "gradients", "norms", "bytes", "memory", "parameters", "scales")}

    run = Handle(a_system().facts, answer)
    for _ in range(2):
        run({"ep": 2}, steps=3)
    run()
    assert run.cost == 2 * 3 + 1
    assert asked[0]["layout"] == {"ep": 2, "micro": 1}
    assert asked[0]["batch"] == run.batch == 8


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"layout": {"tp": 2}}, "no axis 'tp'"),
        ({"layout": {"ep": 3}}, "ep = 3: this system can have 1, 2"),
        ({"steps": MOST["steps"] + 1}, "steps = 21: from 1 to 20"),
        ({"steps": 0}, "steps = 0: from 1 to 20"),
        ({"precision": "bf16"}, "the precision one of"),
        ({"optimizer": "muon"}, "the optimizer is one of"),
        ({"layout": {"micro": 4}, "batch": 9}, "a batch of 9 cannot be divided into 4"),
        ({"resume_at": 2}, "resume_at = 2: a run of 1 steps"),
    ],
)
def test_a_run_that_cannot_be_is_refused_in_words(how, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Handle(a_system().facts, dict)(**how)


def test_a_run_that_fails_is_an_alarm() -> None:
    with pytest.raises(AssertionError, match="the run failed: Deadlock"):
        Handle(a_system().facts, lambda asked: {"error": "Deadlock"})()


def test_runs_are_those_of_the_system_and_known_the_second_time() -> None:
    """In a copy of the package with the bug: the factor that its thread tells of."""
    made = Systems()
    try:
        broken = system_of(read_bugs()["experts-times-ep"], 1)
        run = Handle(broken.facts, lambda asked: made.perform([(broken, asked)])[0])
        two, one = run({"ep": 2}), run()
        assert two.losses == pytest.approx(one.losses, rel=1e-12)
        for name, gradient in one.gradients.items():
            assert two.gradients[name] == pytest.approx((2 if "expert" in name else 1) * gradient, rel=1e-6, abs=1e-12)
        assert len(two.norms) == len(two.memory) == len(two.parameters) == 2
        assert json.dumps(two.bytes[0]) != json.dumps(one.bytes[0])
        processes = [*made.processes.values()]
        run({"ep": 2})
        assert [*made.processes.values()] == processes
        assert len(made.known) == 2
    finally:
        made.close()
    assert all(process.poll() is not None for process in processes)


def test_feedback_names_a_system_that_the_notebook_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that the grade has met, with its bug or without one."""
    given, tests = load(LESSONS["18"] / "given.py"), load_tests("18")
    for number, (kind, systems_of_kind) in zip((0, 1, 2, 4, 3, 4), draw(11).items(), strict=True):
        met = systems_of_kind[number]
        verdicts = [
            {"alarm": system.broken != (which == number), "said": "", "cost": 3}
            for which, system in enumerate(systems_of_kind)
        ]
        monkeypatch.setattr(tests, "find", lambda *_, verdicts=verdicts: verdicts)
        with pytest.raises(pytest.fail.Exception) as lost:
            tests.check_finds(SimpleNamespace(seed=11), kind)
        [call] = re.findall(r"run = given\.(drawn\(.*?\)) is this", str(lost.value))
        asked: list[System] = []
        performed = SimpleNamespace(perform=lambda wanted, asked=asked: asked.append(wanted[0][0]) or [{"error": "-"}])
        monkeypatch.setattr(given, "systems", lambda performed=performed: performed)
        run = eval(call, vars(given))
        with pytest.raises(RunFailed):
            run()
        assert asked == [met]
        assert run.batch == met.batch
    for wrong in (("norm", 11), ("norms", 11, 5)):
        with pytest.raises(ValueError, match="the kind is one of gradients, norms, sizes"):
            given.drawn(*wrong)


def test_a_healthy_run_that_skips_all_of_its_steps_is_no_failure(performed: Systems) -> None:
    """At the first loss scale the gradients of two bytes overflow."""
    healthy = system_of(read_bugs()["scale-on-one-stage"], 5, False)
    run = Handle(healthy.facts, lambda asked: performed.perform([(healthy, asked)])[0])
    skips = run({"pp": 2}, precision=run.precision)
    assert (skips.gradients, len(skips.losses)) == ({}, 1)
    assert np.isnan(skips.norms).tolist() == [True, True]
    trains = run({"pp": 2}, precision=run.precision, steps=8)
    assert trains.gradients
    assert np.isfinite(trains.norms).all()


def test_a_request_that_was_interrupted_does_not_answer_the_next_one() -> None:
    made, bug = Systems(), read_bugs()["experts-times-ep"]
    systems_asked = [system_of(bug, 1, is_broken) for is_broken in (False, True)]
    handles = [Handle(system.facts, partial(answer, made, system)) for system in systems_asked]
    asked = {"layout": {"ep": 1, "micro": 1}, "optimizer": "adamw", "precision": "fp64", "seed": 0, "steps": 1}
    asked |= {"batch": 8, "own_rows": False, "resume_at": 0}
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(systems, "told", interrupt)  # one has answered, the other one's answer is not read
            with pytest.raises(KeyboardInterrupt):
                made.perform([(system, asked) for system in systems_asked])
        assert [len(run(steps=2).losses) for run in handles] == [2, 2]
        for process in made.processes.values():
            process.kill()
            process.wait()
        with pytest.raises(Stopped, match="ended in the middle"):
            handles[0](steps=3)
        assert len(handles[0](steps=3).losses) == 3
    finally:
        made.close()


def interrupt(counted: Any) -> None:
    raise KeyboardInterrupt


def test_what_a_rank_asks_for_past_its_handle_is_refused() -> None:
    asked = {"layout": {"ep": 64, "micro": 1}, "optimizer": "adamw", "precision": "fp64", "seed": 0, "steps": 1}
    assert why_not(Handle(a_system().facts, dict), {**asked, "batch": 8, "own_rows": False, "resume_at": 0})

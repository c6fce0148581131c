"""The bugs of record: each can be rebuilt; the kept table is what is counted; no check alarms on a healthy program."""

import json
import math
import re
from pathlib import Path

import pytest

from minidist import Finished, UsageError
from minidist.__main__ import main
from minidist.bugs import checks, command, record
from minidist.bugs.checks import CHECKS, Check, Noticed
from minidist.bugs.record import Bug
from minidist.claims import mutants
from minidist.claims.mutants.patch import Patch
from minidist.cli.options import in_one_process
from sampling import shard_of_this_run

BUGS = record.read_all()
KEPT = command.kept()
HERE = shard_of_this_run(list(BUGS), len(BUGS))  # one of them in every run; all with -m slow


def noticing(row: command.Row) -> set[str]:
    return {name for name, verdict in row.items() if verdict.step}


def check_is_kept(name: str, row: command.Row) -> None:
    """The same marks; in float64, where rounding cannot move them, also the same steps and figures."""
    assert noticing(row) == noticing(KEPT[name])
    for check in CHECKS:
        if check.run in ("exact", "other", "micro", "resumed", "proved", "typed"):
            assert row[check.short] == KEPT[name].get(check.short, checks.NOTHING), check.title


def asks(check: Check, name: str) -> bool:
    """Masks of dropout, an expert's room and the balance loss depend on the micro-batch: of such bugs its number is not
    varied. Muon is no Adam."""
    by_micro_batch = "dropout" in name or name in ("router-hears-absent", "balance-loss-twice")
    return (check.short != "m" or not by_micro_batch) and (check.short != "sgd" or "muon" not in name)


# ---- the table -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HERE)
def test_a_row_is_counted_again_and_shown(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    row = checks.noticed(BUGS[name])
    check_is_kept(name, row)
    assert command.print_bug(BUGS[name]) == 0
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 80
    assert said.startswith(f"{name}: {BUGS[name].source}\n")
    assert all(check.title in said for check in CHECKS)
    first = min((row[check.short].step, i) for i, check in enumerate(CHECKS) if row[check.short].step)
    assert f"The first to see it is: {CHECKS[first[1]].title}" in " ".join(said.split())


def test_verdicts_fit_and_no_title_is_broken_into_two_lines(capsys: pytest.CaptureFixture[str]) -> None:
    for name, row in KEPT.items():
        command.print_verdicts(BUGS[name], {check.short: row.get(check.short, checks.NOTHING) for check in CHECKS})
        said = capsys.readouterr().out
        assert max(map(len, said.splitlines())) <= 80
        assert all(f"{check.title} " in said for check in CHECKS), said


@pytest.mark.slow
@pytest.mark.parametrize("name", BUGS)
def test_each_row_is_counted_again_and_no_check_alarms_without_the_bug(name: str) -> None:
    check_is_kept(name, checks.noticed(BUGS[name]))
    assert checks.false_alarms(BUGS[name]) == {}


def test_the_kept_table_has_every_bug_and_every_check_is_needed() -> None:
    assert KEPT.keys() == BUGS.keys()
    assert [bug.room for bug in BUGS.values()].count(1) == 20  # those of lesson 18
    assert len(BUGS) >= 34
    assert all(noticing(row) for row in KEPT.values())
    for check in CHECKS:
        assert 0 < sum(check.short in noticing(row) for row in KEPT.values()) < len(BUGS), check.title


def test_what_the_readme_says_of_the_table() -> None:
    """Which bugs losses in float64 cannot see, and that SGD shows a wrong scale that Adam hides."""
    unseen = {name for name, row in KEPT.items() if "f64" not in noticing(row)}
    two_bytes = {name for name in unseen if BUGS[name].precision != "fp32"}
    in_checkpoints = {name for name, row in KEPT.items() if noticing(row) == {"load"}}
    in_memory = {name for name, row in KEPT.items() if noticing(row) == {"mem"}}
    assert two_bytes == {"bf16-read-as-fp16", "scale-on-one-stage", "another-reduce-type"}
    assert in_checkpoints == {"moment-not-loaded", "moments-of-rank-0", "list-of-rank-0", "one-part-saved"}
    assert in_memory == {"zero2-is-zero1", "whole-model-bucket"}
    assert unseen - two_bytes - in_checkpoints - in_memory == {"bucket-never-flushed"}
    for name in ("experts-times-ep", "scale-on-one-stage", "accumulated-sum", "unscaled-on-one-rank"):
        assert {"loss", "sgd"} & noticing(KEPT[name]) == {"sgd"}
    by_check = {check.short: {name for name, row in KEPT.items() if check.short in noticing(row)} for check in CHECKS}
    most = max(by_check, key=lambda short: len(by_check[short]))
    assert (most, len(by_check["proof"]), len(by_check["types"]), len(KEPT)) == ("proof", 26, 5, 35)
    costs = command.kept_costs()
    assert costs.keys() == by_check.keys()
    assert costs["proof"].seconds < costs["loss"].seconds / 4
    assert all(re.search(r"\.py:\d+|, operation \d+", KEPT[name]["types"].found) for name in by_check["types"])


@pytest.mark.parametrize("bug", BUGS.values(), ids=BUGS)
def test_a_bug_can_be_rebuilt(bug: Bug) -> None:
    """Its old lines occur once, and the changed files are programs."""
    texts: dict[str, str] = {}
    for file, patch in (*bug.given, *bug.change):
        text = texts.get(file) or (mutants.PACKAGE / file).read_text()
        texts[file] = patch.apply(text, f"{bug.name}: {file}")
    for file, text in texts.items():
        compile(text, file, "exec")


def test_a_bug_without_a_number_says_where_it_was_read_or_that_it_is_our_own() -> None:
    without = {bug.name: bug for bug in BUGS.values() if not bug.thread}
    assert set(without) == {"one-receive-buffer", "order-of-readiness", "dropout-per-rank"}
    assert without["dropout-per-rank"].system == "minidist"
    assert all(bug.title and bug.says and bug.year >= 2020 for bug in BUGS.values())


def test_a_bug_says_where_to_read_it_and_lesson_18_names_no_other_place() -> None:
    links = {name: bug.link for name, bug in BUGS.items()}
    assert links.pop("dropout-per-rank") == ""
    assert links["half-reduced-muon"] == "https://github.com/deepspeedai/DeepSpeed/issues/7807"
    assert links["muon-per-micro-batch"] == "https://github.com/deepspeedai/DeepSpeed/pull/8600"
    assert links["order-of-readiness"] == "https://github.com/pytorch/pytorch"
    for name, link in links.items():
        assert re.fullmatch(r"https://github.com/[\w-]+/[\w-]+(/(issues|pull)/\d+)?", link), name
        assert bool(BUGS[name].thread) == link[-1].isdigit(), name
    lesson = (mutants.PACKAGE.parent / "lessons" / "18_find_it" / "lesson.ipynb").read_text()
    named = set(re.findall(r"https://github.com/[^)\s]+", lesson))
    assert named
    assert named <= set(links.values())


# ---- what the threads say of the effect ------------------------------------------------------------------------------


@pytest.mark.slow
def test_gathered_logits_add_the_logarithm_of_tp_to_the_loss() -> None:
    bug = BUGS["gathered-logits"]
    found, right = (of["exact"]["losses"][0] for of in (checks.broken(bug), checks.healthy(bug)))
    assert math.isclose(found - right, math.log(bug.ranks), rel_tol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["experts-times-ep", "unscaled-on-one-rank"])
def test_gradients_of_experts_are_ep_times_too_large_and_others_are_right(name: str) -> None:
    bug = BUGS[name]
    found, right = checks.broken(bug)["exact"]["gradients"], checks.healthy(bug)["serial exact"]["gradients"]
    for name in right:
        factor = 2 if ".experts." in name or "expert" in name else 1
        off = checks.distance(found[name], [factor * x for x in right[name]])
        assert off < 1e-9, (name, off)


@pytest.mark.slow
def test_a_backward_under_context_parallelism_is_wrong_after_a_right_forward() -> None:
    bug = BUGS["cp-wrong-backward"]
    found, right = checks.broken(bug)["exact"], checks.healthy(bug)["serial exact"]
    assert math.isclose(found["losses"][0], right["losses"][0], rel_tol=1e-12)
    wrong = {
        name
        for name in right["gradients"]
        if checks.distance(found["gradients"][name], right["gradients"][name]) > 1e-9
    }
    assert {name for name in right["gradients"] if ".qkv." in name} <= wrong


def first_step(name: str) -> tuple[checks.Counted, checks.Counted]:
    """What the broken program's run in float64 has counted, and what healthy serial training has."""
    return checks.broken(BUGS[name])["exact"], checks.healthy(BUGS[name])["serial exact"]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "loss", "norm"), [("loss-times-tp", 2, 2), ("accumulated-sum", 1, 4)])
def test_losses_and_norms_are_too_large_by_the_factor_that_the_thread_names(name: str, loss: int, norm: int) -> None:
    found, right = first_step(name)
    assert math.isclose(found["losses"][0], loss * right["losses"][0], rel_tol=1e-9)
    assert all(math.isclose(each, norm * right["norms"][0], rel_tol=1e-9) for each in found["norms"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["last-micro-batch-only", "wiped-micro-batches", "scaled-each-time"])
def test_micro_batches_are_lost_from_the_gradient_and_not_from_the_loss(name: str) -> None:
    """Of random directions, one of four has half the length of their sum, divided by four; so more than a third."""
    found, right = first_step(name)
    assert math.isclose(found["losses"][0], right["losses"][0], rel_tol=1e-9)
    assert found["norms"][0] < (0.8 if name == "scaled-each-time" else 0.5) * right["norms"][0]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["router-not-summed", "router-hears-absent"])
def test_a_router_gets_a_wrong_gradient_while_the_loss_is_right(name: str) -> None:
    found, right = first_step(name)
    assert math.isclose(found["losses"][0], right["losses"][0], rel_tol=1e-9)
    off = {of: checks.distance(found["gradients"][of], right["gradients"][of]) for of in right["gradients"]}
    assert all(off[of] > 1e-3 for of in off if ".router." in of)
    assert off["head.norm.weight"] < 1e-9  # its backward comes first


@pytest.mark.slow
def test_a_balance_loss_is_reported_twice_and_trained_once() -> None:
    found, right = first_step("balance-loss-twice")
    assert found["losses"][0] > right["losses"][0] + 0.1
    assert all(checks.distance(found["gradients"][of], right["gradients"][of]) < 1e-9 for of in right["gradients"])


def test_a_patch_is_shown_with_what_stays(capsys: pytest.CaptureFixture[str]) -> None:
    command.print_change("        one\n", "\n        one\n        two\n")
    command.print_change("    a = 1\n", "    a = 2  # " + 80 * "x")
    assert capsys.readouterr().out.splitlines() == ["  one", "+ two", "- a = 1", "+ a = 2  # " + 68 * "x" + "…"]


# ---- the command -----------------------------------------------------------------------------------------------------


def test_the_list_and_the_table_fit_the_screen(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["bugs"]) == 0
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 80
    for bug in BUGS.values():
        assert f"{bug.name}: {bug.source}; {bug.place}" in said
    rows = {words[0]: words[1:] for line in said.splitlines() if len(words := line.split()) == len(CHECKS) + 1}
    for name, row in KEPT.items():
        marks = rows[name + "*" * bool(BUGS[name].here)]
        assert marks == ["x" if check.short in noticing(row) else "." if asks(check, name) else "-" for check in CHECKS]


def test_a_count_is_written_and_a_bug_that_nothing_notices_is_told(tmp_path: Path, monkeypatch, capsys) -> None:
    """And so is a check that alarms on the healthy program."""
    one = {"zero2-is-zero1": BUGS["zero2-is-zero1"]}
    found: dict[str, Noticed] = {check.short: checks.NOTHING for check in CHECKS}
    cost = {check.short: checks.Cost(0.5, 1000) for check in CHECKS if check.short != "copy"}
    monkeypatch.setattr(checks, "costs", lambda bug: cost)
    alarms: dict[str, Noticed] = {}
    monkeypatch.setattr(record, "read_all", lambda: one)
    monkeypatch.setattr(checks, "noticed", lambda bug: found)
    monkeypatch.setattr(checks, "false_alarms", lambda bug: alarms)
    file = tmp_path / "counted.json"
    assert main(["bugs", "--count", "--json", str(file)]) == 1
    assert json.loads(file.read_text())["bugs"] == {"zero2-is-zero1": {}}
    assert json.loads(file.read_text())["costs"]["mem"] == {"seconds": 0.5, "bytes": 1000}
    assert "Noticed by none: zero2-is-zero1." in capsys.readouterr().out
    found["mem"] = Noticed(1, "too much")
    assert main(["bugs", "--count", "--json", str(file)]) == 0
    assert json.loads(file.read_text())["bugs"] == {"zero2-is-zero1": {"mem": {"step": 1, "found": "too much"}}}
    assert "Noticed by one check alone: zero2-is-zero1 (mem)." in capsys.readouterr().out
    alarms["grad"] = Noticed(1, "wrong")
    with pytest.raises(UsageError, match="the healthy program alarms grad"):
        main(["bugs", "--count"])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["no-such-bug"], "'no-such-bug' is no bug of record: take one of half-reduced-muon,"),
        (["zero2-is-zero1", "--count"], "--count counts all bugs: leave out the name"),
        (["--json", "x.json"], "--json needs --count"),
        (["--nothing"], "unrecognized arguments: --nothing"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert in_one_process(lambda: main(["bugs", *arguments])) == 2
    said = capsys.readouterr()
    assert said.out == ""
    [line] = said.err.splitlines()
    assert line.startswith(f"minidist: error: {says}")


def test_not_under_mpirun_and_help(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Finished, match="usage: python -m minidist bugs NAME"):
        main(["bugs", "--help"])
    monkeypatch.setenv("PMI_SIZE", "4")
    with pytest.raises(UsageError, match="run it without mpirun"):
        main(["bugs"])


def test_a_check_costs_what_its_runs_have_cost_as_far_as_it_needs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gradient costs one step, and its way to rank 0; a loss all steps, and those of serial training. A check that
    was not asked, or whose run failed, has no cost."""

    def run(first: float, last: float, nbytes: int) -> checks.Counted:
        return {"cost": {"a step": [first, nbytes], "all": [last, 20 * nbytes], "to collect": [0.0, 7]}}

    monkeypatch.setattr(checks, "healthy", lambda bug: {"serial exact": run(1, 20, 0)})
    monkeypatch.setattr(checks, "broken", lambda bug: {"exact": run(2, 30, 100), "other": {"error": "ValueError: no"}})
    found = checks.costs(BUGS["half-reduced-muon"])
    assert found == {
        "f64": (50, 2000), "grad": (3, 107), "norm": (3, 100), "sent": (2, 100), "mem": (2, 100)
    }  # fmt: skip
    assert checks.mean([found["f64"], found["mem"]]) == (26, 1050)


def test_a_run_that_fails_is_noticed_with_its_error() -> None:
    bug = BUGS["zero2-is-zero1"]
    verdicts = checks.judge(bug, {"as trained": {"error": "ValueError: no"}}, {})
    assert verdicts["loss"] == Noticed(1, "ValueError: no")
    assert verdicts["grad"] == checks.NOTHING  # it was not run
    half: dict[str, checks.Counted] = {"other": {"losses": [1.0]}, "exact": {"error": "ValueError: no"}}
    assert checks.judge(bug, half, {})["N"] == Noticed(1, "ValueError: no")


def test_a_copy_that_does_not_run_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    ends = Patch(changes=(("import json\n", "raise SystemExit(3)\n"),))
    runs = {"exact": checks.runs_of(BUGS["zero2-is-zero1"])["exact"]}
    assert in_one_process(lambda: len(checks.perform([("bugs/probe.py", ends)], runs))) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("minidist: error: runs in a copy of the package did not come to their end: ")

"""Types of distribution: rules against what ranks hold; every chapter's forward; wrong programs, with their lines."""

import itertools
import json
import re
import time
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from minidist import ring, spmd_types
from minidist.claims.audit import fill_line
from minidist.claims.mutants import changed_copy, python_in
from minidist.claims.mutants.patch import Patch
from minidist.exchange.one_process import run_ranks
from minidist.layout import Layout
from minidist.nn.tensor import Tensor, record, watched
from minidist.programs.chapter import Chapter, find, find_all
from minidist.spmd_types import (
    GRADIENT,
    LINEAR,
    MEGATRON,
    PRODUCTS,
    RULES,
    SUMS,
    I,
    Mismatch,
    P,
    R,
    V,
    count,
    derive,
    exchange,
    gather,
    join,
    part,
    reduce,
    same,
    scatter,
    through,
)
from minidist.ty import forward
from minidist.ty.report import gathered
from minidist.ty.watch import Watch
from programs import run_python
from tables import table

SIDES: dict[tuple[str, str], tuple[spmd_types.Side, spmd_types.Side]] = {
    ("", "all-reduce"): (same, reduce),
    ("all-reduce", ""): (reduce, same),
    ("all-reduce", "all-reduce"): (reduce, reduce),
    ("all-gather", "reduce-scatter"): (partial(gather, axis=0), partial(scatter, axis=0)),
    ("all-gather", ""): (partial(gather, axis=1), partial(part, axis=1)),
    ("reduce-scatter", "all-gather"): (partial(scatter, axis=1), partial(gather, axis=1)),
    ("", "all-gather"): (partial(part, axis=0), partial(gather, axis=0)),
    ("all-to-all", "all-to-all"): (exchange, exchange),
}

# ---- rules -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 3, 4])
def test_rules_are_what_ranks_hold(n: int) -> None:
    """Of each collective, and of Megatron's functions: so a rule that says something else falls."""
    assert SIDES.keys() == RULES.keys()

    def counted(comm: Any) -> list[Any]:
        return [(derive(comm, *sides), count(comm, *sides)) for sides in [*SIDES.values(), *MEGATRON.values()]]

    for (ahead, back, takes, makes), found in run_ranks(counted, n)[0]:
        assert found[0] == (takes, makes) == (RULES[ahead, back][0][0], RULES[ahead, back][1])
        others = {operand for operand, result in found if result == makes}
        assert others <= {*RULES[ahead, back][0], R}  # R is taken for V, which it joins


def test_a_wrong_pair_has_no_type() -> None:
    """A backward that forgets to send, or sends something else."""
    for ahead, back in itertools.product(("", "all-reduce", "all-gather", "reduce-scatter", "all-to-all"), repeat=2):
        if (ahead, back) not in RULES and (ahead, back) != ("", ""):
            with pytest.raises(Mismatch, match="no type has"):
                through(ahead, back, V)
    assert run_ranks(lambda comm: count(comm, reduce, exchange), 2)[0] == []


RESULTS = {  # of a sum, of a product, of what is not linear; None: a mismatch
    **{(a, b): (None, None, None) for a, b in itertools.product("RIVP", repeat=2)},
    (R, R): (R, R, R),
    (I, I): (I, I, I),
    (V, V): (V, V, V),
    (R, V): (V, V, V),
    (V, R): (V, V, V),
    (P, P): (P, None, None),
    (P, R): (None, P, None),
    (R, P): (None, P, None),
}


@pytest.mark.parametrize(("operands", "results"), RESULTS.items(), ids=map("".join, RESULTS))
def test_join(operands: tuple[str, str], results: tuple[str | None, ...]) -> None:
    for kind, result in zip((SUMS, PRODUCTS, ("gelu",)), results, strict=True):
        for operation in kind:
            if result is None:
                with pytest.raises(Mismatch):
                    join(operands, operation)
            else:
                assert join(operands, operation) == join([*operands, "="], operation) == result


def test_the_joined_types_are_those_of_gradients() -> None:
    """What `join` allows, ranks confirm: R times V is V, and R's gradient the sum of its parts."""

    def holds(comm: Any) -> bool:
        x, w = (spmd_types.draw(comm, kind, (4, 4), seed) for kind, seed in ((R, 1), (V, 2)))
        dy = spmd_types.draw(comm, GRADIENT[join((R, V), "linear")], (4, 4), 3)
        whole = ring.all_reduce(comm, (dy @ w).reshape(-1)).reshape(4, 4)  # R's gradient: P, the sum of its parts
        return bool(np.isclose(np.vdot(x, whole), sum(comm.all_gather_object(float(np.vdot(x @ w.T, dy))))))

    assert all(run_ranks(holds, 3))


def is_right(rules: Any) -> bool:
    """Whether rules say what the table above says, and what ranks hold of collectives."""

    def answer(rule: Any, *arguments: Any) -> str | None:
        try:
            return str(rule(*arguments))
        except rules.Mismatch:
            return None

    joined = all(
        answer(rules.join, [*operands, "="], operation) == result
        for operands, results in RESULTS.items()
        for names, result in zip((SUMS, PRODUCTS, ("gelu",)), results, strict=True)
        for operation in names
    )
    linear = all(answer(rules.join, [P], operation) == P for operation in LINEAR)
    collectives = all(
        answer(rules.through, *calls, kind) == dict(found).get(kind) if (kind, calls) not in COINCIDE else True
        for calls, found in counted_rules().items()
        for kind in "IVP"
    )
    return joined and linear and collectives and answer(rules.through, "all-to-all", "", V) is None


COINCIDE = {(I, ("all-reduce", "all-reduce"))}  # N times as much, with N times the gradient: true, and of no use


@cache
def counted_rules() -> dict[tuple[str, str], list[tuple[str, str]]]:
    return run_ranks(lambda comm: {calls: count(comm, *sides) for calls, sides in SIDES.items()}, 2)[0]


TEXT = Path(spmd_types.__file__).read_text(encoding="utf-8")
REFUSALS = [(line, line.replace("raise Mismatch(", "str(")) for line in re.findall(r"^ +raise Mismatch.*$", TEXT, re.M)]
ENDS = [
    (line, re.sub(r"[RIV]\),", lambda end: {"R": "I", "I": "V", "V": "R"}[end[0][0]] + "),", line))
    for line in re.findall(r'^    \(".*"\): \(.*\),', TEXT, re.M)
]
TAKEN = [(line, re.sub(r": \((P \+ V|I|V),", ": (R,", line)) for line, _ in ENDS]
KNOWN = [(f'"{name}"', '"nothing"') for name in (*PRODUCTS, *SUMS, *LINEAR)]


@pytest.mark.parametrize(("old", "new"), [*REFUSALS, *ENDS, *TAKEN, *KNOWN])
def test_a_mutant_of_each_rule_falls(old: str, new: str) -> None:
    assert is_right(spmd_types)
    assert old != new
    mutant = ModuleType("mutant")
    exec(compile(TEXT.replace(old, new, 1), "mutant", "exec"), mutant.__dict__)
    with suppress(UnboundLocalError, KeyError):  # a refusal that is left out may leave nothing to return
        assert not is_right(mutant)


@pytest.mark.parametrize("operation", LINEAR)
def test_linear_operations_take_sums(operation: str) -> None:
    assert join([P], operation) == P


# ---- every chapter ---------------------------------------------------------------------------------------------------


def alarms(line: str, n: int) -> list[str]:
    name, _, options = line.partition(" ")
    chapter = find(name)

    def look(comm: Any) -> list[str]:
        job = chapter.job([*options.split(), "--no-prove"], n)
        job.reserved = chapter.reserve(job, comm)
        watch = forward.look(chapter.make(job, comm), job, comm)
        assert watch.seen or job.layout.replicas
        return [str(alarm) for alarm in gathered(watch, comm)]

    return run_ranks(look, n)[0]


SMALL = "--layers 2 --width 16 --heads 4 --context 16 --batch 16 --steps 1"
TRAINING = {name: chapter for name, chapter in find_all().items() if isinstance(chapter, Chapter) and name != "train"}
CASES = [
    (name, f"{SMALL} {options}", n)
    for name, chapter in TRAINING.items()
    for options in dict.fromkeys(chapter.cases.values())
    for n in chapter.ranks or (4,)
]
GRIDS = [
    "--dp 1 --pp 2 --cp 2 --tp 2 --sequence-parallel --experts 4",
    "--dp 2 --pp 1 --cp 2 --tp 2 --experts 8 --ep 4 --zero 3 --model llama --kv-heads 2",
    "--dp 2 --pp 2 --cp 1 --tp 2 --sequence-parallel --dropout 0.1 --recompute full --zero 2",
    "--dp 8 --pp 1 --tp 1 --zero 3 --ranks-per-host 4 --experts 4 --ep 2",
    "--dp 2 --pp 1 --cp 4 --tp 1 --scheme all-gather --attention tiled --experts 4 --ep 2",
    "--dp 1 --pp 4 --cp 1 --tp 2 --schedule zb-v --layers 6 --untied --experts 2",
]


@pytest.mark.parametrize(("name", "options", "n"), CASES, ids=lambda value: str(value))
def test_no_alarm_without_a_bug(name: str, options: str, n: int) -> None:
    assert alarms(fill_line(name, options, n), n) == []


@pytest.mark.parametrize("options", GRIDS)
def test_no_alarm_on_grids(options: str) -> None:
    assert alarms(f"parallel3d {SMALL} {options}", 8) == []


def test_axes_of_experts() -> None:
    """Ranks that divide experts are an axis of their own where they fill a part of the data or context axis."""
    names = {
        (4, 1, 2): ["data", "expert"],
        (1, 4, 2): ["context", "expert"],
        (4, 2, 4): ["data", "expert", "context"],
        (2, 2, 4): ["data", "context"],
    }
    for (dp, cp, ep), axes in names.items():
        assert [*forward.axes_of(Layout(dp=dp, cp=cp, ep=ep))] == axes


# ---- a watch by hand -------------------------------------------------------------------------------------------------


def test_after_an_alarm_a_result_has_the_type_of_a_right_program() -> None:
    """A sum over ranks that all have the same: what follows it is right, and does not alarm."""

    def on_rank(comm: Any) -> tuple[Any, list[str]]:
        watch, x = Watch({"tensor": frozenset(comm.world_ranks)}), Tensor(np.ones((2, 2)))
        x.types = {"tensor": R}
        with watched(watch):
            y = record(reduce(comm, x.data), (x,), lambda dy: dy)
        return y.types, [alarm.what for alarm in watch.alarms]

    types, [alarm] = run_ranks(on_rank, 2)[0]
    assert types == {"tensor": I}
    assert alarm.startswith("R where P is due")


def test_a_collective_is_along_the_axes_that_it_covers() -> None:
    """Not along one of which it leaves out a rank."""
    watch = Watch({"data": frozenset({0, 1, 2, 3}), "context": frozenset({0, 2})})
    assert watch.along(SimpleNamespace(world_ranks=[0, 1, 2])) == ["context"]
    assert watch.along(SimpleNamespace(world_ranks=[3, 2, 1, 0])) == ["data", "context"]


def test_a_tensor_that_begins_a_unit_has_the_types_of_the_last_result_or_comes_from_outside() -> None:
    last, other = np.ones(2), np.ones(2)
    watch = Watch({"data": frozenset({0, 1})}, entering={"data": V}, result=(last, {"data": I}))
    assert [watch.types_of(Tensor(array))["data"] for array in (last, other)] == [I, V]


def test_one_function_has_a_type_along_each_of_two_axes() -> None:
    """What its backward calls is kept for each communicator."""

    def f(x: Tensor, comm: Any) -> Tensor:
        return record(x.data, (x,), lambda dy: reduce(comm, dy))

    def on_rank(comm: Any) -> list[Any]:
        groups = {"data": comm.split(comm.rank % 2), "tensor": comm.split(comm.rank // 2)}
        watch, x = Watch({axis: frozenset(of.world_ranks) for axis, of in groups.items()}), Tensor(np.ones(4))
        x.types = dict.fromkeys(groups, I)
        with watched(watch):
            return [f(x, of).types for of in groups.values()]

    assert run_ranks(on_rank, 4)[0] == [{"data": R, "tensor": I}, {"data": I, "tensor": R}]


def test_a_block_reads_each_parameter_in_one_operation() -> None:
    """Not in the next one, too: a backward, which is tried on zeros, reads its matrix again."""
    chapter = find("tensor_parallel")

    def on_rank(comm: Any) -> list[str]:
        job = chapter.job([*SMALL.split(), "--sequence-parallel", "--no-prove"], 2)
        seen = forward.look(chapter.make(job, comm), job, comm).seen
        return [name for each in seen if each.place == "block0" for name in each.parameters]

    names = run_ranks(on_rank, 2)[0]
    assert len(names) == len({*names}) == 12


# ---- wrong programs --------------------------------------------------------------------------------------------------


def types_of(entry: dict[str, str], ranks: int) -> Any:
    with changed_copy([(entry["file"], Patch(changes=((entry["old"], entry["new"]),)))]) as folder:
        words = f"-m minidist.{entry['line']} --ranks {ranks} --types {SMALL}".split()
        return run_python(*words, cwd=folder, env=python_in(folder))


@pytest.mark.parametrize("entry", table(__file__, "wrong"), ids=lambda entry: entry["name"])
def test_a_wrong_program_is_seen_with_its_line(entry: dict[str, str]) -> None:
    done = types_of(entry, 2)
    assert done.returncode == 1, done.stderr
    found = [
        line.removeprefix("type error").strip() for line in done.stdout.splitlines() if line.startswith("type err")
    ]
    assert any(entry["says"] in line and entry["at"] in line for line in found), found[:3]


@pytest.mark.parametrize("entry", table(__file__, "unseen"), ids=lambda entry: entry["name"])
def test_what_types_do_not_see(entry: dict[str, str]) -> None:
    done = types_of(entry, 2)
    assert done.returncode == 0, done.stdout + done.stderr


def test_there_are_twelve_of_a_kind() -> None:
    assert len([entry for entry in table(__file__, "wrong") if entry["source"] != "our own"]) >= 12


# ---- the command -----------------------------------------------------------------------------------------------------


def test_the_chapter_prints_functions_and_a_block() -> None:
    done = run_python("-m", "minidist.spmd_types", "--ranks", "2")
    assert done.returncode == 0
    assert "copy_to_tensor" in done.stdout
    assert "0 alarms" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_a_report_for_machines(tmp_path: Path) -> None:
    file = tmp_path / "types.json"
    words = "-m", "minidist.spmd_types", "--ranks", "2", "--sequence-parallel", "--json", str(file)
    assert run_python(*words).returncode == 0
    assert len(json.loads(file.read_text(encoding="utf-8"))["functions"]) == 11


def test_one_rank_has_no_types() -> None:
    done = run_python("-m", "minidist.spmd_types", "--ranks", "1")
    assert (done.returncode, "one rank" in done.stderr) == (2, True)


@pytest.mark.slow
def test_a_forward_with_types_costs_at_most_half_as_much_again() -> None:
    """Processor time, of the fastest of some."""
    chapter = find("tensor_parallel")
    line = "--layers 4 --width 128 --heads 4 --context 64 --batch 16 --precision fp32 --no-prove"

    def seconds(comm: Any) -> list[float]:
        job = chapter.job(line.split(), comm.size)
        engine = chapter.make(job, comm)
        x, y = job.batch(0)

        def plain() -> None:
            batch = engine.share_of(x, y, key=(0, 0, 0))
            engine.run(engine.segments, batch.tokens, batch, keep=False)

        def typed() -> None:
            forward.look(engine, job, comm)

        return [min(timed(work, comm) for _ in range(5)) for work in (plain, typed)]

    plain, typed = run_ranks(seconds, 2)[0]
    assert typed <= 1.5 * plain


def timed(work: Any, comm: Any) -> float:
    comm.barrier()
    before = time.process_time()
    work()
    comm.barrier()
    return time.process_time() - before

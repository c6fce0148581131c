"""The grade of lesson 01: `pytest lessons/01_mapreduce`, or `make grade` for a table.

Each part asks for one thing of one function, and loads exercise.py anew; the lesson's own code stands in for the
others. Texts are drawn afresh. What is right is worked out here, from what the parts give the functions. A part earns
its points or not; none needs a later one, and one mistake costs one part. What is asked of order, of regions or of
repeating a task is asked of the pairs that came back, right or wrong.
"""

import itertools
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any
from zlib import crc32

import numpy as np
import pytest

from minidist.classroom.grading.checks import gaps
from minidist.classroom.grading.meaning import check_meaning, check_timing
from minidist.classroom.grading.parts import alone, by_case, by_rank, describe, on, part
from minidist.classroom.grading.submission import STRICT, Case, Outcome, Submission, lose

ASKED = ("partition", "map_task", "shuffle", "merge", "reduce_task")
HIDDEN = ("answers", "given", "minidist.mapreduce", "minidist.mr.files")  # what ranks cannot import

WORDS = ["the", "cat", "dog", "a", "sees", "end", "of", "and", "bird", "tree", "house", "river", "stone", "wind"]
FOREIGN = ["straße", "été", "naïve", "猫", "犬", "год", "Wind"]
LENGTH = 8  # bytes of a length; a submission may need twice as many
Pairs = list[tuple[str, str]]
Tries = dict[str, tuple[Any, dict[str, Any]]]  # label: (input, arguments)


def run_alone(submission: Submission, target: str, asked: str, tries: Tries, **same: Any) -> list[Any]:
    """What a function of on_ranks.py brings back from one rank, for each try."""
    cases = [Case(1, label, [given], {**arguments, **same}) for label, (given, arguments) in tries.items()]
    return alone(submission, target, asked, cases)


# ---- partition -------------------------------------------------------------------------------------------------------


def check_partition(submission: Submission, function: str) -> None:
    """crc32 of a key, modulo the number of reducers."""
    words = [str(word) for word in submission.random.permutation(WORDS)]
    tries = {
        f"{function} of {what} into {reducers}": (keys, {"reducers": reducers})
        for what, keys in (("words", words), ("any texts", [*FOREIGN, "", "a b"]))
        for reducers in (4, 7, 1)
    }
    found_in = run_alone(submission, "call_partition", function, tries, function=function)
    for (keys, arguments), found in zip(tries.values(), found_in, strict=True):
        reducers = arguments["reducers"]
        for key, (r, _) in zip(keys, found, strict=True):
            expected = crc32(key.encode()) % reducers
            if r != expected:
                wrong = f"{function}({key!r}, {reducers}) is {describe(str(r))}; it should be {expected}"
                lose(f"{wrong}: the crc32 of its bytes, modulo {reducers}.{is_it_hash(found)}")


def is_it_hash(found: Sequence[Sequence[Any]]) -> str:
    """A remark on Python's own hash, if that is what all answers are."""
    if all(r == hashed for r, hashed in found):
        return " Is that hash()? Python's hash of a text is another number in every process."
    return ""


test_partition = part(2, "partition: the same reduce task for a key, everywhere", check_partition, "partition")


# ---- map_task --------------------------------------------------------------------------------------------------------


def draw_lines(submission: Submission) -> list[str]:
    """Lines of words; most words are there several times, one line is empty."""
    words = [str(word) for word in submission.random.choice([*WORDS[:9], *FOREIGN[:2]], 24)]
    return [" ".join(words[:5]), " ".join(words[5:14]), "", " ".join(words[14:])]


def emitted(lines: Sequence[str]) -> Pairs:
    """The pairs that the job's map emits for these lines, in order."""
    return [(word, f"a.txt:{i + 1}") for i, word in enumerate(" ".join(lines).split())]


COMBINES = {
    "": "no combine",
    "all": "a combine that returns all values",
    "joined": "a combine that returns one value",
    "in two": "a combine that returns two values",
}


def regions_of(submission: Submission, lines: list[str], *how: tuple[str, int]) -> list[list[Pairs]]:
    """For each combine and number of reduce tasks the regions that map_task returned, taken apart. Loses the part for
    what is no list of regions."""
    tries: Tries = {}
    for combine, reducers in how:
        label = f"map_task of {len(lines)} lines for {reducers} reduce tasks"
        label += f", with {COMBINES[combine]}"
        tries[label] = lines, {"combine": combine, "reducers": reducers}
    made = []
    for label, found in zip(tries, run_alone(submission, "call_map", "map_task", tries), strict=True):
        if isinstance(found, str):
            lose(f"On {label}: map_task returned {describe(found)}, not a list of texts.")
        regions = [pairs_in(region, f"On {label}: region {r}") for r, region in enumerate(found)]
        pairs = sum(map(len, regions))
        if pairs < len(set(" ".join(lines).split())) / 2:
            lose(f"On {label}: {pairs} pairs in all regions; that is not half as many as there are keys.")
        made.append(regions)
    return made


def pairs_in(text: str, where: str) -> Pairs:
    """The pairs that a text holds."""
    lines = text.split("\n")
    if lines.pop():
        what = f"is a {text[1:-1]}, not a text" if text[:1] + text[-1:] == "<>" else "does not end in a line feed"
        lose(f"{where} {what}: it is {text[-40:]!r}.")
    for line in lines:
        if line.count("\t") != 1:
            lose(f"{where} has the line {line!r}, which is not a key, a tab and a value.")
    return [(line.partition("\t")[0], line.partition("\t")[2]) for line in lines]


def number(value: str) -> int:
    """The place of the word that a value is of."""
    return int(value.rpartition(":")[2]) if value.rpartition(":")[2].isdigit() else -1


@pytest.mark.points(2, "map_task: all that map emits, for every line")
def test_map_task(submission: Submission) -> None:
    lines = draw_lines(submission)
    [regions] = regions_of(submission, lines, ("", 3))
    found, wanted = Counter(pair for region in regions for pair in region), Counter(emitted(lines))
    for what, difference in (("is missing", wanted - found), ("is not wanted, or is there too often", found - wanted)):
        for key, value in difference:
            lose(f"The pair ({key!r}, {value!r}) {what}. (Here map emits each word with its place in all lines.)")


@pytest.mark.points(1, "map_task: each pair in the region of its key")
def test_map_regions(submission: Submission) -> None:
    numbers = (3, 1, 40)
    made = regions_of(submission, draw_lines(submission), *(("all", reducers) for reducers in numbers))
    for reducers, regions in zip(numbers, made, strict=True):
        if len(regions) != reducers:
            lose(f"For {reducers} reduce tasks map_task returned {len(regions)} regions; each has one, empty or not.")
        for r, region in enumerate(regions):
            for key, _ in region:
                if (wanted := crc32(key.encode()) % reducers) != r:
                    lose(f"Of {reducers} regions, {key!r} is in region {r}; partition says {wanted}.")


@pytest.mark.points(1, "map_task: regions are sorted; values of a key stay in order")
def test_map_sorted(submission: Submission) -> None:
    [regions] = regions_of(submission, draw_lines(submission), ("all", 2))
    for region in regions:
        for (key, value), (following, later) in itertools.pairwise(region):
            if following < key:
                lose(f"In a region {following!r} comes after {key!r}. The reduce task merges: it needs sorted regions.")
            if following == key and number(later) < number(value):
                lose(
                    f"In a region the pair ({key!r}, {later!r}) comes after ({key!r}, {value!r}): map has emitted it"
                    " before. Sort by the key alone; Python's sort leaves what is equal in its order."
                )


@pytest.mark.points(2, "map_task: combine, once for each key, with all its values")
def test_map_combine(submission: Submission) -> None:
    lines = draw_lines(submission)
    plain, *combined_ones = map(values_of, regions_of(submission, lines, ("all", 3), ("joined", 3), ("in two", 3)))
    for most, found in enumerate(combined_ones, 1):  # values that combine returns for a key
        for key, values in plain.items():
            wanted, pairs = min(most, len(values)), found.get(key, [])
            if len(pairs) != wanted:
                lose(
                    f"map emits {len(values)} pairs with the key {key!r}; combine, called once with all these values,"
                    f" returns {wanted}, and {len(pairs)} are in the regions. When, and how often, is it called?"
                )
            combined = sorted("+".join(pairs).split("+"))
            if combined != sorted(values):
                lose(
                    f"For the key {key!r} map emits the values {sorted(values)}; what combine was given is {combined}."
                )


def values_of(regions: Sequence[Pairs]) -> dict[str, list[str]]:
    values: dict[str, list[str]] = {}
    for region in regions:
        for key, value in region:
            values.setdefault(key, []).append(value)
    return values


# ---- shuffle ---------------------------------------------------------------------------------------------------------


def shuffle_case(
    submission: Submission, n: int, empty: bool = False, foreign: bool = False, function: str = "shuffle"
) -> Case:
    """Every rank has a region for each rank. No two are equal, and a rank's own is its shortest: who sends another
    region than he should does not send more for that."""
    lengths = submission.random.permutation(n * n) + 20
    inputs = []
    for rank in range(n):
        regions = []
        for dest in range(n):
            words = sorted(str(word) for word in submission.random.choice(FOREIGN if foreign else WORDS, 4))
            nothing = empty and (rank + dest) % 3 == 0
            padding = "x" * (18 if dest == rank else int(lengths[rank * n + dest]))
            regions.append("" if nothing else "".join(f"{word}\t{rank}{dest}{padding}\n" for word in words))
        inputs.append(regions)
    kind = ", some regions empty" * empty + ", words of other alphabets" * foreign
    return Case(n, f"{n} rank{'s' * (n > 1)}{kind}", inputs, {"function": function})


def wanted_runs(case: Case, rank: int) -> list[str]:
    return [regions[rank] for regions in case.inputs]


def check_shape(case: Case, outcomes: Sequence[Outcome]) -> None:
    """Every rank has returned as many texts as there are ranks, and half the bytes that must travel were sent."""
    for rank, outcome in enumerate(outcomes):
        if isinstance(outcome.value, str):
            lose(f"{on(case, rank)} returned {describe(outcome.value)}, not a list of {case.n} texts.")
        if len(outcome.value) != case.n:
            lose(f"{on(case, rank)} returned {len(outcome.value)} runs; {case.n} are wanted, a run from each rank.")
    needed = sum(nbytes(case, source, dest) for source in range(case.n) for dest in range(case.n) if source != dest)
    total = sum(outcome.nbytes for outcome in outcomes)
    if total < needed / 2:
        lose(
            f"On {case.label}: {total:,} bytes were sent in all; the regions for other ranks are {needed:,}. Has"
            " something been sent in another way than over comm?"
        )


def nbytes(case: Case, source: int, dest: int) -> int:
    return len(case.inputs[source][dest].encode())


def runs_of(outcome: Outcome) -> list[str]:
    return [np.asarray(run, np.uint8).tobytes().decode(errors="replace") for run in outcome.value]


def check_runs(case: Case, outcomes: Sequence[Outcome]) -> None:
    """On every rank the region that each rank has for it."""
    check_shape(case, outcomes)
    for rank, outcome in enumerate(outcomes):
        for source, (found, expected) in enumerate(zip(runs_of(outcome), wanted_runs(case, rank), strict=True)):
            if found != expected:
                lose(
                    f"{on(case, rank)}'s run {source} is not what rank {source} has for it:"
                    f" {what_is(case, found, expected)}."
                )


def what_is(case: Case, found: str, expected: str) -> str:
    for source, regions in enumerate(case.inputs):
        for dest, region in enumerate(regions):
            if found == region and region:
                return f"it is the region that rank {source} has for rank {dest}"
    if expected.startswith(found):
        return f"it is {len(found)} characters of {len(expected)}"
    return f"it is {found[:30]!r}..., and not {expected[:30]!r}..."


def are_right(case: Case, outcomes: Sequence[Outcome]) -> bool:
    return all(runs_of(outcome) == wanted_runs(case, rank) for rank, outcome in enumerate(outcomes))


@pytest.mark.points(2, "shuffle: from each rank its region for this one, in order")
def test_shuffle(submission: Submission) -> None:
    cases = [shuffle_case(submission, n) for n in (4, 2)]
    for case, outcomes in by_case(submission, "call_shuffle", cases, ["shuffle"]):
        check_runs(case, outcomes)


@pytest.mark.points(1, "shuffle: empty regions, any text, any number of ranks")
def test_shuffle_any(submission: Submission) -> None:
    cases = [shuffle_case(submission, 4)]
    cases += [shuffle_case(submission, n, empty, foreign) for n, empty, foreign in OTHERS]
    plain, *runs = submission.run("call_shuffle", cases, ["shuffle"])
    check_shape(cases[0], plain)
    check = check_runs if are_right(cases[0], plain) else check_shape
    for case, outcomes in zip(cases[1:], runs, strict=True):
        check(case, outcomes)


# (N, whether some are empty, whether words are of other alphabets)
OTHERS = [(4, True, False), (4, False, True), (3, False, False), (5, True, True), (1, False, False)]


@pytest.mark.points(1, "shuffle: to each other rank the bytes of its region, once")
def test_shuffle_bytes(submission: Submission) -> None:
    cases = [shuffle_case(submission, n) for n in (4, 3)]
    for case, rank, outcome in by_rank(submission, "call_shuffle", cases, ["shuffle"], check_shape):
        check_bytes(case, rank, outcome)


def check_bytes(case: Case, rank: int, outcome: Outcome) -> None:
    """No more than a region and its length for each other rank, in two messages."""
    here, messages = on(case, rank), Counter[int]()
    for (_, peer, line), (_, number_of_messages) in outcome.sent.items():
        messages[peer] += number_of_messages
        if peer == rank:
            lose(f"{here} sends to itself at {line}. What is its own needs no message.")
        if messages[peer] > 2:
            lose(f"{here} sends {messages[peer]} messages to rank {peer}; a length and a region are two.")
    regions = sum(nbytes(case, rank, dest) for dest in range(case.n) if dest != rank)
    if outcome.nbytes > regions + 2 * LENGTH * (case.n - 1):
        lines = ", ".join(sorted({line for _, _, line in outcome.sent if line}))
        lose(
            f"{here} sends {outcome.nbytes:,} bytes, at {lines}. Its regions for other ranks are {regions:,} bytes in"
            f" UTF-8, and a length is {LENGTH}. What else is sent?"
        )


@pytest.mark.points(1, "shuffle: nothing depends on luck: sends that wait, order")
def test_timing(submission: Submission) -> None:
    cases = [shuffle_case(submission, 3)]
    if submission.wire.name == "mpi":  # which puts small messages aside
        large = shuffle_case(submission, 3)
        large.inputs = [[region * 5000 for region in regions] for regions in large.inputs]
        cases.append(large)
    check_timing(submission, "call_shuffle", {"shuffle": cases}, check_shape)


@pytest.mark.points(1, "shuffle: every message means something")
def test_meaning(submission: Submission) -> None:
    check_meaning(submission, "call_shuffle", {"shuffle": shuffle_case(submission, 2)}, check_shape)


# ---- merge -----------------------------------------------------------------------------------------------------------


def draw_runs(submission: Submission, number_of_runs: int = 4, largest: int = 9) -> list[Pairs]:
    """Sorted runs of which many keys are in several; the second is empty. Values say where they are from."""
    runs = []
    for run in range(number_of_runs):
        size = 0 if run == 1 else largest - run
        keys = sorted(str(key) for key in submission.random.choice(WORDS[:12], size))
        runs.append([(key, f"{run}.{i}") for i, key in enumerate(keys)])
    return runs


def keys_of(runs: Sequence[Pairs]) -> set[str]:
    return {key for run in runs for key, _ in run}


def all_values(runs: Sequence[Pairs], key: str) -> list[str]:
    """A key's values, in order of the runs."""
    return [value for run in runs for other, value in run if other == key]


def check_merge(submission: Submission, function: str) -> None:
    some: list[list[Pairs]] = [draw_runs(submission), draw_runs(submission, 1), [], [[]], draw_runs(submission, 7, 12)]
    tries: Tries = {
        f"{function} of {count_of(runs)}": ([[list(pair) for pair in run] for run in runs], {}) for runs in some
    }
    found_in = run_alone(submission, "call_merge", function, tries, function=function)
    for label, runs, found in zip(tries, some, found_in, strict=True):
        if isinstance(found, str):
            lose(f"On {label}: it returned {describe(found)}; keys with their values are wanted.")
        check_groups(found, runs, label)


def count_of(runs: Sequence[Pairs]) -> str:
    """ "2 runs of 9 pairs" """
    pairs = sum(map(len, runs))
    return f"{len(runs)} run{'s' * (len(runs) != 1)} of {pairs} pairs"


def check_groups(found: Sequence[Sequence[Any]], runs: Sequence[Pairs], label: str) -> None:
    keys = [key for key, _ in found]
    for key, following in itertools.pairwise(keys):
        if following == key:
            lose(f"On {label}: the key {key!r} comes twice. A key's values are to be together, from all runs.")
        if following < key:
            lose(f"On {label}: {following!r} comes after {key!r}; keys are to come in increasing order.")
    for key, values in found:
        if not (wanted := all_values(runs, key)):
            lose(f"On {label}: the key {key!r} is in no run.")
        if values != wanted:
            what = "in another order" if sorted(values) == sorted(wanted) else "wrong"
            lose(f"On {label}: the values of {key!r} are {what}: {values}, not {wanted} (run.place).")
    if missing := sorted(keys_of(runs) - set(keys)):
        lose(f"On {label}: the key {missing[0]!r} is missing.")


test_merge = part(2, "merge: each key once, in order, with all its values", check_merge, "merge")


@pytest.mark.points(1, "merge: reads no further than it must")
def test_merge_slowly(submission: Submission) -> None:
    runs = draw_runs(submission, 4, 30)
    given = [[list(pair) for pair in run] for run in runs]
    [found] = run_alone(submission, "call_merge_slowly", "merge", {f"merge of {count_of(runs)}": (given, {})})
    if isinstance(found, str):
        lose(f"merge returned {describe(found)}; keys with their values are wanted.")
    if not found:
        lose(f"merge of {count_of(runs)} yields nothing.")
    for key, read in found:
        for run, (pairs, so_far) in enumerate(zip(runs, read, strict=True)):
            needed = sum(other <= key for other, _ in pairs)
            if so_far > needed + 1:
                lose(
                    f"When merge yields the key {key!r}, it has read {so_far} pairs of run {run}; {needed} were needed"
                    " for it, and one more to see that the next key is another. What if the run does not fit into"
                    " memory?"
                )


# ---- reduce_task -----------------------------------------------------------------------------------------------------


def region_text(pairs: Pairs) -> str:
    return "".join(f"{key}\t{value}\n" for key, value in pairs)


def reduced(runs: Sequence[Pairs]) -> str:
    """The output of the job `Joining` of on_ranks.py."""
    lines = []
    for key in sorted(keys_of(runs)):
        values = all_values(runs, key)
        lines.append(f"{key}\t{'+'.join(values)}\n")
        lines += [f"{key}\t{len(values)} values\n"] * (len(values) > 2)
    return "".join(lines)


def is_whole(found: str | None, expected: str) -> str:
    """What is wrong with an output; "" if nothing is."""
    if found is None:
        return "there is no output, or more than one"
    if expected and found == expected + expected:
        return "everything is in it twice"
    lines, wanted = found.splitlines(), expected.splitlines()
    for line, right in zip(lines, wanted, strict=False):
        if line != right:
            return f"it has the line {line!r} where {right!r} belongs"
    if len(lines) != len(wanted):
        return f"it has {len(lines)} lines where {len(wanted)} belong"
    return "" if found == expected else "its last line has no line feed"


@pytest.mark.points(1, "reduce_task: a line for all that reduce returns")
def test_reduce_task(submission: Submission) -> None:
    some: list[list[Pairs]] = [draw_runs(submission), [[], []], [[(word, "1") for word in sorted(FOREIGN)]]]
    tries: Tries = {f"reduce_task of {count_of(runs)}": (list(map(region_text, runs)), {}) for runs in some}
    found_in = run_alone(submission, "call_reduce", "reduce_task", tries)
    for label, runs, found in zip(tries, some, found_in, strict=True):
        if wrong := is_whole(found, reduced(runs)):
            lose(f"On {label}: {wrong}.")


@pytest.mark.points(1, "reduce_task: the output appears when it is complete")
def test_commit(submission: Submission) -> None:
    runs = [region_text(run) for run in draw_runs(submission)]
    [seen] = run_alone(submission, "call_commit", "reduce_task", {"reduce_task of 4 runs": (runs, {})})
    check_commit(seen, "while job.reduce was still being called", "job.reduce had raised an exception")
    if seen["changed"]:
        lose(
            "There was an earlier output at `path`, and a reader had opened it: it changed while it was being read."
            " os.replace puts the new file in its place, and the reader keeps the old one."
        )


def check_commit(seen: dict[str, Any], meanwhile: str, failure: str) -> None:
    """Nothing is seen of an output that is not complete, and then it is."""
    if seen["too early"]:
        lose(f"There was a file at `path` {meanwhile}: who looks now reads half an output. Write elsewhere first.")
    if not seen["after"]:
        lose("There is no file at `path` in the end.")
    if seen["failed"]:
        lose(f"After {failure}, there is a file at `path`: half an output looks like a whole one.")


@pytest.mark.points(1, "reduce_task: done twice, counted once")
def test_twice(submission: Submission) -> None:
    runs = [region_text(run) for run in draw_runs(submission)]
    tries = {f"reduce_task done {how}": (runs, {"how": how}) for how in REPEATED}
    once, *repeated = run_alone(submission, "call_twice", "reduce_task", tries)
    if not once:
        lose("When reduce_task is done once, there is no output.")
    for how, found in zip(REPEATED[1:], repeated, strict=True):
        if wrong := is_whole(found, once):
            lose(f"When reduce_task is done {how}: {wrong}. Whose file has it written to?")


REPEATED = (
    "once",
    "by two workers, one after the other",
    "by the same worker again, after it has failed",
    "by two workers at the same time",
)


# ---- the notebook's gaps, which earn no points: check("region_of") runs these ----------------------------------------


def check_receive_text(submission: Submission) -> None:
    """The left neighbor's text, whatever its length."""
    cases = [Case(3, "3 ranks", texts) for texts in (["one", "two two", "three three three"], ["straße", "", "猫"])]
    for case, outcomes in by_case(submission, "call_receive", cases, ["receive_text"]):
        texts = case.inputs
        for rank, outcome in enumerate(outcomes):
            sent, found = texts[(rank - 1) % 3], outcome.value
            if found != sent:
                what = describe(found[1:-1]) if found[:1] == "<" else repr(found)
                lose(f"Rank {(rank - 1) % 3} sent {sent!r}, and receive_text on rank {rank} returned {what}.")


def check_in_turns(submission: Submission) -> None:
    """Where every send waits until its receiver is there."""
    cases = [shuffle_case(submission, n, function="in_turns") for n in (4, 2)]
    for case, outcomes in by_case(submission, "call_shuffle", cases, ["in_turns"], rules=STRICT):
        check_runs(case, outcomes)


def check_commit_gap(submission: Submission) -> None:
    lines = [f"{word}\t{i}\n" for i, word in enumerate(WORDS[:5])]
    [seen] = run_alone(submission, "call_commit_lines", "commit", {"commit of 5 lines": (lines, {})})
    check_commit(seen, "before the last line was there", "the lines had ended in an exception")
    for how, when in (("once", "once"), ("twice", "twice"), ("both", "by two workers at the same time")):
        if wrong := is_whole(seen[how], "".join(lines)):
            lose(f"When commit is called {when}: {wrong}.")


GAPS = gaps(globals(), "receive_text", "in_turns") | {
    "region_of": partial(check_partition, function="region_of"),
    "merge_runs": partial(check_merge, function="merge_runs"),
    "commit": check_commit_gap,
}

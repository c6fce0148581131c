"""How much a chapter validates is asked for; and what a rank reads of the text."""

import json
from functools import partial

import pytest

from cases import printed_by
from minidist import UsageError, data, train
from minidist.exchange.one_process import run_ranks
from minidist.programs.chapter import find, find_all
from sampling import shard_of_this_run

SMALL = "--steps 2 --layers 4 --width 16 --heads 4 --context 8 --batch 8 --warmup 1"


TRAIN = [name for name, chapter in find_all().items() if chapter.trains]
SOME = shard_of_this_run(TRAIN, 4)


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in SOME)) for name in TRAIN])
def test_every_chapter_trains_without_validation(name: str) -> None:
    """Its claims hold: what validation alone would hold and send is not promised either."""
    for case in find(name).cases.values():
        line = f"{SMALL} --validate 0 --json - {case.format(batch=8, axis=2)}"
        for n in (1,) if name == "train" else (8,) if "--dp" in case else (4,):
            try:
                report = json.loads(printed_by(f"{name} {line}", n))
            except UsageError:  # not on these ranks
                continue
            assert report["validation_loss"] is None
            assert len(report["claims"]) > 5 or name == "train"


def test_a_line_says_that_nothing_was_validated() -> None:
    for name in ("zero3", "parameter_server"):
        assert "\nvalidation loss not computed (--validate 0);" in printed_by(f"{name} {SMALL} --validate 0", 2)
        assert "not computed" not in printed_by(f"{name} {SMALL}", 2)
    with pytest.raises(UsageError, match="--against-dense compares validation losses: use it with --validate 1 or"):
        printed_by("expert_parallel --top 1 --against-dense 2 --validate 0", 2)


def test_as_many_batches_are_validated_as_asked_for() -> None:
    """8 by default; the same loss on any number of ranks, and as one batch of all of them."""
    line = f"{SMALL} --precision fp64 --json -"

    def loss(line: str, n: int, name: str = "zero2") -> float:
        found: float = json.loads(printed_by(f"{name} {line}", n))["validation_loss"]
        return found

    assert loss(line, 2) == loss(f"{line} --validate 8", 2)
    three = loss(f"{line} --validate 3", 4)
    assert three == pytest.approx(loss(f"{line} --validate 3", 1, "train"), rel=1e-12)
    assert three != pytest.approx(loss(line, 4), rel=1e-6)


def test_validation_is_the_mean_over_its_sequences() -> None:
    job = find("train").job(f"{SMALL} --precision fp64 --validate 3".split(), 1)
    engine = find("train").make(job, train.Alone())
    together = engine.evaluate(*job.corpus.validation_batch(3 * 8, 8))
    assert train.validate(engine, job.corpus, job.options) == pytest.approx(together, rel=1e-12)


def test_ranks_of_one_process_share_the_text() -> None:
    load = partial(data.load, None, 8)
    first, *others = run_ranks(lambda comm: load(), 3)
    assert all(corpus is first for corpus in others)

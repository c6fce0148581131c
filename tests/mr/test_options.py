"""MapReduce's command line: what cannot work is refused in one line, before anything is written."""

import re
from pathlib import Path

import pytest

from minidist import Finished, UsageError
from minidist.mr.options import prepare

WRONG = {
    "no such file": (["wordcount", "no such file"], "cannot read no such file"),
    "a folder": (["wordcount", "."], "cannot read ."),
    "no job": (["wordcound", __file__], "there is no job 'wordcound'"),
    "no file": (["wordcount"], "wordcount needs an input"),
    "no pattern": (["grep", __file__], "grep needs a --pattern"),
    "bad pattern": (["grep", __file__, "--pattern", "("], "is not a regular expression"),
    "no reducers": (["wordcount", __file__, "--reducers", "0"], "must be at least 1"),
    "no memory": (["wordcount", __file__, "--memory", "0"], "must be from 0.001"),
    "no module": (["--job", "nowhere:Job", __file__], "cannot load --job nowhere:Job"),
    "no class": (["--job", "json:Job", __file__], "cannot load --job json:Job"),
    "no map": (["--job", "json:JSONDecoder", __file__], "has no function map and no function reduce"),
    "unknown fault": (["wordcount", __file__, "--inject", "fire:1"], "cannot do --inject fire:1"),
    "the master": (["wordcount", __file__, "--inject", "stop:0:map:1"], "the workers are ranks 1 to 3"),
    "all stop": (
        ["wordcount", __file__, *(f"--inject=stop:{rank}:map:1" for rank in (1, 2, 3))],
        "one worker at least must go on answering",
    ),
    "json nowhere": (["wordcount", __file__, "--json", "/nowhere/at.all"], "there is no folder /nowhere"),
}


@pytest.mark.parametrize("name", WRONG)
def test_bad_input_is_refused_in_one_line_before_anything_is_written(name: str, tmp_path: Path) -> None:
    arguments, words = WRONG[name]
    with pytest.raises(UsageError, match=re.escape(words)) as refusal:
        prepare("", [*arguments, "--output", str(tmp_path / "output")], 0, 4)
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "output").exists()


def test_an_output_folder_must_be_empty_or_that_of_the_same_job(tmp_path: Path) -> None:
    output, line = tmp_path / "output", ["wordcount", __file__, "--output", str(tmp_path / "output")]
    plan, *_ = prepare("", [*line, "--resume"], 0, 4)  # there is nothing yet: it simply begins
    plan.begin()
    with pytest.raises(UsageError, match="is not empty; --resume finishes the job"):
        prepare("", line, 0, 4)
    prepare("", [*line, "--resume"], 0, 4)
    for change, what in ((["--reducers", "7"], "reducers"), (["--maps", "3"], "maps"), (["--no-combine"], "combine")):
        with pytest.raises(UsageError, match=f"differs in {what}"):
            prepare("", [*line, *change, "--resume"], 0, 4)
    with pytest.raises(UsageError, match="differs in job"):
        prepare("", ["sort", *line[1:], "--resume"], 0, 4)
    plan.end()
    (output / "notes").write_text("mine")
    with pytest.raises(UsageError, match="is not empty"):
        prepare("", line, 0, 4)
    with pytest.raises(UsageError, match="there is no unfinished job"):
        prepare("", [*line, "--resume"], 0, 4)
    for r in range(4):
        (output / f"part-{r:05}-of-00004").touch()
    with pytest.raises(Finished, match="holds all 4 parts already"):
        prepare("", [*line, "--resume"], 0, 4)

"""The command lines of pipelines and grids, without MPI: what is refused before the work, and in a moment."""

import pytest

from minidist import UsageError, train
from minidist.grid import options as grid_options
from minidist.pp import options as pipeline_options

CHAPTERS = {"pipeline": pipeline_options, "parallel3d": grid_options}


def refusal(chapter, line, ranks=4):
    """What a chapter says to a command line that cannot work."""
    made = train.parser("", chapter)
    CHAPTERS[chapter].add_options(made)
    with pytest.raises(UsageError) as error:
        CHAPTERS[chapter].prepare(made, line.split(), ranks)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_trace_overwrites_nothing_else(chapter, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("some text " * 1000)
    said = "--trace ./p would overwrite the file of --json: give it one of its own"
    assert refusal(chapter, "--json p --trace ./p") == said
    assert refusal(chapter, "--save ./p --trace p").startswith("--trace p would overwrite the file of --save")
    assert refusal(chapter, "--data text --trace text").startswith("--trace text would overwrite the file of --data")
    assert refusal(chapter, "--trace nowhere/p") == "--trace nowhere/p: there is no folder nowhere"

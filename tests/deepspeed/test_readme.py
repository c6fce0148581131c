"""The room's README shows the example that runs, and a configuration that is read."""

import re
from pathlib import Path

import minidist
from minidist.deepspeed import initialize

ROOM = Path(minidist.__file__).parent / "deepspeed"


def test_the_script_in_the_readme_is_the_one_that_runs() -> None:
    [shown] = re.findall(r"```python\n(.*?)```", (ROOM / "README.md").read_text(), re.DOTALL)
    assert shown == (ROOM / "example.py").read_text()


def test_initialize_has_two_names() -> None:
    assert minidist.initialize is initialize
    assert not hasattr(minidist, "initialise")

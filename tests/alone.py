"""Serial training as a command line runs it, in the process of the tests."""

import re

from minidist.cli.options import in_one_process
from minidist.programs.chapter import find, run_alone


def train_alone(*arguments: str) -> int:
    """`python -m minidist.train ARGUMENTS`; its exit status."""
    return in_one_process(lambda: run_alone(find("train"), arguments))


def known_alone(options: str) -> list[str]:
    """Of a chapter's options those that serial training has, too."""
    known = {name for action in find("train").parser()._actions for name in action.option_strings}
    pairs = re.findall(r"(--?[a-z][\w-]*)([ =](?!-)\S+)?", options)
    return " ".join(name + value for name, value in pairs if name in known).split()

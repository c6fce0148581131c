"""Serial training as a command line runs it, in the process of the tests."""

from minidist.cli.options import in_one_process
from minidist.programs.chapter import find, run_alone


def train_alone(*arguments: str) -> int:
    """`python -m minidist.train ARGUMENTS`; its exit status."""
    return in_one_process(lambda: run_alone(find("train"), arguments))

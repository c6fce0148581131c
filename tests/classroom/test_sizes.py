"""What is right for few elements must be right for many: a function that is right for a thousand elements at most (in
lesson 04, for 30,000) loses a part, in whichever lesson large arrays are graded somewhere."""

import pytest

from classroom.grading import ANSWERS
from classroom.quick import QuickGrader

ONLY_SMALL = '''

import copy
import dataclasses
import functools


def arrays_in(value):
    if isinstance(value, np.ndarray):
        return [value]
    if dataclasses.is_dataclass(value):
        value = list(vars(value).values())
    return [array for each in value for array in arrays_in(each)] if isinstance(value, (tuple, list)) else []


def spoiled(value):
    """Copies, with other numbers."""
    if isinstance(value, (tuple, list)):
        return type(value)(map(spoiled, value))
    if dataclasses.is_dataclass(value):
        value = copy.copy(value)
        vars(value).update({name: spoiled(each) for name, each in vars(value).items()})
    return value * 2 + 1 if isinstance(value, np.ndarray) else value


def only_small(function):
    @functools.wraps(function)
    def small(*arguments, **options):
        many = any(array.size > MOST for array in arrays_in(arguments))
        return function(*(spoiled(arguments) if many else arguments), **options)

    return small
'''
FUNCTIONS = {  # those whose arrays may have any size
    "02": ("linear_backward", "cross_entropy_backward", "layer_norm_backward", "values_backward", "softmax_backward"),
    "03": ("push", "pull", "take", "serve"),
    "04": ("reduce_scatter", "all_gather", "all_reduce"),
    "05": ("train_step",),
    "06": ("narrow", "widen", "update", "gradient_norm"),
    **dict.fromkeys(("07", "08", "09"), ("train_step",)),
    "10": ("run_forward", "cut", "whole"),
    "11": ("tiled_backward",),
    "12": (
        *("column_part", "column_forward", "column_backward", "row_forward", "row_backward"),
        *("loss_forward", "loss_backward", "scatter_sum", "gather_whole"),
    ),
    "14": ("shard_gradient", "sum_gradients"),
    "16": ("merge", "ring_forward", "ring_backward"),
    "17": ("copy_rows", "copy_rows_backward", "add_rows", "add_rows_backward", "dispatch", "combine"),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("number", "function"),
    [(number, function) for number, functions in FUNCTIONS.items() for function in functions],
)
def test_what_is_right_for_few_elements_alone_loses_a_part(number: str, function: str) -> None:
    made = QuickGrader(number)
    titles = {name: test.pytestmark[0].args[1] for name, test, _ in made.parts()}
    parts = [name for name, title in titles.items() if title.startswith(f"{function}: ") and "memory" not in name]
    most = {"all_gather": 7_500, "reduce_scatter": 30_000, "all_reduce": 30_000}.get(
        function, 1_000
    )  # of a chunk, or of x
    text = f"{ANSWERS[number]}{ONLY_SMALL}\n\nMOST = {most}\n{function} = only_small({function})\n"
    assert made.grade(text, only=set(parts)).lost, "all parts on it are earned"
    if function == FUNCTIONS[number][0]:  # that it is wrapped costs nothing
        of_any_size = text.replace(f"MOST = {most}", "MOST = 10**9")
        assert made.grade(of_any_size, only=set(parts)).earned > 0

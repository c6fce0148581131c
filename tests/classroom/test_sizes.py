"""What is right for few elements must be right for many: a function that is right for a thousand elements at most loses
a part, in whichever lesson large arrays are graded somewhere."""

import pytest

from classroom.grading import ANSWERS
from classroom.quick import QuickGrader

ONLY_SMALL = '''

import functools


def spoiled(value):
    """None of it as it is."""
    if isinstance(value, (tuple, list)):
        return type(value)(spoiled(each) for each in value)
    return value * 2 + 1 if isinstance(value, (np.ndarray, float)) else value


def only_small(function):
    @functools.wraps(function)
    def small(*arguments, **options):
        sizes = [each.size for each in arguments if isinstance(each, np.ndarray)]
        value = function(*arguments, **options)
        return spoiled(value) if max(sizes, default=0) > 1000 else value

    return small
'''
FUNCTIONS = {  # those whose arrays may have any size
    "02": ("linear_backward", "cross_entropy_backward", "layer_norm_backward", "values_backward", "softmax_backward"),
    "04": ("reduce_scatter", "all_gather", "all_reduce"),
    "12": (
        *("column_part", "column_forward", "column_backward", "row_forward", "row_backward"),
        *("loss_forward", "loss_backward", "scatter_sum", "gather_whole"),
    ),
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
    parts = [name for name, test, _ in made.parts() if test.pytestmark[0].args[1].startswith(f"{function}: ")]
    text = f"{ANSWERS[number]}{ONLY_SMALL}\n\n{function} = only_small({function})\n"
    graded = made.grade(text, only=set(parts))
    assert graded.lost, "all parts on it are earned"

"""A line is not finished."""
# keeps: nothing
# says: no_python.py is no Python: line \d+: .*

import numpy as np


def linear_backward(dy, x, w):
    dx = dy @ w
    dw = dy.reshape(-1, len(w)).T @ x.reshape(-1, w.shape[1]
    return dx, dw, dy.sum(0)

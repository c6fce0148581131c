"""Arrays of the right shapes, and nothing in them."""
# keeps: nothing
# says: dx is wrong first at \[0, 0\]: 0, where
# says: it does nothing

import numpy as np

Array = np.ndarray


def walk_back(steps, number, gradient):
    return {i: np.zeros((3, 3)) for step in steps for i in step.inputs}


def linear_backward(dy, x, w):
    return np.zeros_like(x), np.zeros_like(w), np.zeros(len(w))


def cross_entropy_backward(dloss, prob, targets):
    return np.zeros_like(prob)


def layer_norm_backward(dy, x, gain, eps=1e-5):
    return np.zeros_like(x), np.zeros_like(gain), np.zeros_like(gain)


def values_backward(dy, prob, v):
    return np.zeros_like(prob), np.zeros_like(v)


def softmax_backward(dprob, prob):
    return np.zeros_like(prob)


def adamw(p, g, m, v, *options, **others):
    return p, m, v

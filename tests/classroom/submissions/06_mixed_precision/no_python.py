"""A colon is missing."""
# keeps: nothing
# says: no_python.py

import numpy as np


def narrow(gradient, scale)
    return (gradient * np.float32(scale)).astype(np.float16)

"""Key caching (Li et al., OSDI 2014, section 4.2): a key list that the receiver has seen is sent as a signature."""

from dataclasses import replace
from hashlib import blake2b

import numpy as np

from minidist.ps.messages import Pull, Push, WorkerRequest

Array = np.ndarray


class KeyLists:
    """The lists that a sender has sent, or a receiver has seen."""

    def __init__(self, cache: bool) -> None:
        self.cache = cache
        self.told: set[tuple[int, int]] = set()  # by a sender: (receiver, signature)
        self.seen: dict[int, Array] = {}  # by a receiver: signature -> keys

    def shortened(self, message: WorkerRequest, receiver: int) -> WorkerRequest:
        """The message to send: shortened if possible."""
        if not self.cache or not isinstance(message, Push | Pull) or message.keys is None:
            return message
        signature = _signature(message.keys)
        if (receiver, signature) in self.told:
            return replace(message, keys=np.array([signature]), cached=True)
        self.told.add((receiver, signature))
        return message

    def restore_keys(self, message: WorkerRequest) -> WorkerRequest:
        """The message with its keys restored."""
        if not self.cache or not isinstance(message, Push | Pull) or message.keys is None:
            return message
        if message.cached:
            return replace(message, keys=self.seen[int(message.keys[0])], cached=False)
        self.seen[_signature(message.keys)] = message.keys
        return message


def _signature(keys: Array) -> int:
    return int.from_bytes(blake2b(keys.tobytes(), digest_size=8).digest(), "big", signed=True)


def dense(push: Push, lo: int, hi: int, dtype: type[np.generic]) -> Array:
    """The values of keys lo to hi-1, (hi - lo,); 0 for keys that the message does not list."""
    if push.keys is None and push.values is not None:
        return push.values
    whole = np.zeros(hi - lo, dtype)
    if push.keys is not None and push.values is not None:
        whole[push.keys - lo] = push.values
    return whole


def pick_weights(pull: Pull, weights: Array, lo: int) -> Array:
    """The weights of the keys that a pull lists, (n,), from those of a range that begins at key `lo`."""
    return weights if pull.keys is None else weights[pull.keys - lo]

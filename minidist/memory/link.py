"""A link moves arrays between two memories of a rank, and counts their bytes as a Comm counts messages.

    link = Link(device, host)                                       # a machine's PCIe; or of host and disk
    link.down("gradients", summed, out=flat.grad)                   # from the device's array into the host's
    link.up("parameters", updated, out=flat.param)                  # and from the host's into the device's

The caller makes the target array beforehand, in its pool. So if it does not fit there, OutOfMemory is raised
before anything moves. Bytes are counted by phase and direction. Each move names its phase, because threads may move at
the same time: over a link they use host and disk, never MPI.
"""

import threading

from minidist.memory.pool import Array, Pool


class LinkError(RuntimeError):
    """An array that is not in the pool that the caller named, or that does not fit into its place."""


class Link:
    """Between two pools of one rank: `upper`, the fast and small one, and `lower`, the slow and large one."""

    def __init__(self, upper: Pool, lower: Pool) -> None:
        self.upper, self.lower = upper, lower
        self._moved: dict[tuple[str, str], list[int]] = {}  # (direction, phase) -> [bytes, moves]
        self._lock = threading.Lock()

    def down(self, phase: str, array: Array, out: Array) -> Array:
        """Copy the upper pool's `array` into the lower pool's `out`, of the same dtype and shape; returns `out`.

        Raises LinkError unless both are in the right pools, and alike.
        """
        return self._move(phase, array, self.upper, out, self.lower)

    def up(self, phase: str, array: Array, out: Array) -> Array:
        """Copy the lower pool's `array` into the upper pool's `out`, likewise."""
        return self._move(phase, array, self.lower, out, self.upper)

    def by_phase(self) -> dict[str, dict[str, dict[str, int]]]:
        """{"device to host": {phase: {"bytes", "moves"}}}, and "host to device"; only if something moved."""
        total: dict[str, dict[str, dict[str, int]]] = {}
        with self._lock:
            for (direction, phase), (nbytes, moves) in self._moved.items():
                total.setdefault(direction, {})[phase] = {"bytes": nbytes, "moves": moves}
        return total

    def reset(self) -> None:
        """Start counting from zero."""
        with self._lock:
            self._moved.clear()

    def copy(self, array: Array, out: Array) -> None:
        """Copy the bytes. Here both are arrays in memory."""
        out[...] = array

    def _move(self, phase: str, array: Array, source: Pool, out: Array, target: Pool) -> Array:
        for pool, moved in ((source, array), (target, out)):
            if not pool.has(moved):
                raise LinkError(f"{phase}: an array of {moved.nbytes:,} bytes is not held on the {pool.name}")
        if (array.dtype, array.shape) != (out.dtype, out.shape):
            raise LinkError(
                f"{phase}: {array.dtype} {array.shape} on the {source.name} does not fit into"
                f" {out.dtype} {out.shape} on the {target.name}"
            )
        self.copy(array, out)
        with self._lock:
            entry = self._moved.setdefault((f"{source.name} to {target.name}", phase), [0, 0])
            entry[0] += array.nbytes
            entry[1] += 1
        return out

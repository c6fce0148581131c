"""The order in which a server takes its workers' messages."""

from collections import deque
from collections.abc import Collection

from minidist.ps.key_lists import KeyLists
from minidist.ps.messages import Flush, WorkerRequest
from minidist.ps.plan import RankPlan


class Inbox:
    """A server's messages from its workers, given out in the order of simulated time: the earliest first, but only when
    no worker can still send an earlier one. That is so when each of them

        has a message here,
        or has sent all of a moment's messages, and waits for the answer to a pull that is held back here,
        or has sent its last message.

    The first two need no look into the future: a worker's stamps only grow, and a message sent after an answer is later
    than the answer. All that a worker sends at one moment, to any server, carries one stamp. So all servers see the
    same order and hold the same pulls back, and no server ever waits for a worker that waits for another server.
    """

    def __init__(self, plan: RankPlan) -> None:
        workers = len(plan.workers)
        self.waiting: list[deque[WorkerRequest]] = [deque() for _ in range(workers)]
        self.more = [True] * workers  # whether the worker is in the middle of a moment's messages
        self.finished = [False] * workers
        self.key_lists = KeyLists(plan.options.keys == "cached")

    def add(self, message: WorkerRequest) -> None:
        self.waiting[message.worker].append(self.key_lists.restore_keys(message))

    def next(self, held_back: Collection[int]) -> WorkerRequest | None:
        """The earliest message, or None if it is too soon to tell. held_back: workers with a pull that is held back."""
        for worker, messages in enumerate(self.waiting):
            waits_for_us = worker in held_back and not self.more[worker]
            if not (messages or waits_for_us or self.finished[worker]):
                return None
        earliest = [(queue[0].stamp, worker) for worker, queue in enumerate(self.waiting) if queue]
        if not earliest:
            return None
        first = min(earliest)[1]
        message = self.waiting[first].popleft()
        self.more[first] = message.more
        self.finished[first] = isinstance(message, Flush)
        return message

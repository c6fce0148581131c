"""A worker's messages to the servers: where each goes, when in simulated time, and which are not answered yet."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from minidist.ps.key_lists import KeyLists
from minidist.ps.messages import Answer, Flush, Mailbox, Pull, WorkerRequest
from minidist.ps.outcome import WorkerLog
from minidist.ps.plan import RankPlan
from minidist.ps.simulated_time import Cable

Serve = Callable[[Callable[[], bool]], None]  # handles messages until a condition holds


class Requests:
    """The requests of one worker."""

    def __init__(self, worker: int, plan: RankPlan, mailbox: Mailbox, cable: Cable, log: WorkerLog) -> None:
        self.worker, self.plan, self.mailbox, self.cable, self.log = worker, plan, mailbox, cable, log
        self.key_lists = KeyLists(plan.options.keys == "cached")
        self.open: set[tuple[int, int]] = set()  # (shard, range) of requests not answered yet
        self.answers: list[Answer] = []  # of this moment
        self.kept: dict[int, list[WorkerRequest]] = {shard: [] for shard in range(len(plan.servers))}  # if servers stop

    def send(self, messages: Sequence[WorkerRequest]) -> None:
        """Send all messages of one moment."""
        last = {message.shard: message for message in messages}
        for message in messages:
            message.worker, message.stamp = self.worker, self.cable.now
            message.more = message is not last[message.shard]
            dest = self.plan.chain(message.shard, self.mailbox.closed)[0]
            short = self.key_lists.shortened(message, dest)
            self.mailbox.send(dest, short, self.cable)
            message.left = short.left
            self.kept[message.shard].append(message)
            if isinstance(message, Pull | Flush):
                self.open.add((message.shard, message.range))

    def note_answer(self, answer: Answer) -> None:
        """Note an answer that has come."""
        self.answers.append(answer)
        self.open.remove((answer.shard, answer.range))
        if not any(shard == answer.shard for shard, _ in self.open):  # what was pushed before is safe, too
            self.kept[answer.shard] = [message for message in self.kept[answer.shard] if isinstance(message, Flush)]

    def wait(self, serve: Serve) -> None:
        """Wait for all answers; then account for the simulated time: held back by servers, or on the wire."""
        serve(lambda: not self.open)
        asked = self.cable.now
        for answer in sorted(self.answers, key=lambda answer: (answer.shard, answer.range)):
            self.cable.receive(answer.left, answer.nbytes)
        held = max((answer.held for answer in self.answers), default=0.0)
        self.log.held += held
        self.log.wire += self.cable.now - asked - held
        self.answers.clear()

    def peer_stopped(self, moved: list[int]) -> None:
        """Shards have moved to the next in their chains: send unanswered messages again."""
        for shard in moved:
            unanswered = [
                message
                for message in self.kept[shard]
                if not isinstance(message, Pull | Flush) or (shard, message.range) in self.open
            ]
            dest = self.plan.chain(shard, self.mailbox.closed)[0]
            for i, message in enumerate(unanswered, start=1):
                self.mailbox.send(dest, replace(message, more=i < len(unanswered)), again=True)
            if not unanswered:  # the old server has heard of this worker's end, the new one has not
                flushes, self.kept[shard] = self.kept[shard], []
                self.send(flushes)

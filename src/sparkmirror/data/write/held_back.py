"""Holds back the partitions of a target broker that does not keep up, so that others continue.

The data that waits for acknowledgements is limited for a slot as a whole. If one broker is far
away, slow or unavailable, its data takes up all the room in the end, and every partition of the
slot would be as slow. So the sink watches for this: there was no room for a while, or again and
again, although other brokers have almost nothing to do. Then the source fetches no more of the slow
broker's partitions, until half of its data is acknowledged.

Data that is held back is copied out of the memory that source and sink share, whose frames are for
the partitions that continue. So a sink holds at most `UNACKNOWLEDGED_BYTES_MAX` twice: once for
partitions that are held back, once for the others.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping

from sparkmirror.data.rows.shared_frames import FRAMES, FrameReader
from sparkmirror.model import TopicPartition
from sparkmirror.wire.produce.producer import Producer

__all__ = ["UNACKNOWLEDGED_BYTES_MAX", "HeldBack"]

log = logging.getLogger(__name__)

UNACKNOWLEDGED_BYTES_MAX = 32 * 1024 * 1024
"""Limit of bytes in flight or queued; further rows stay in Spark and, behind it, in brokers."""
# One busy moment is not enough: brokers and partitions take turns. But a slow broker that
# acknowledges a little at a time makes room each time. So time without room adds up, and time with
# room is subtracted at half its length. And the same brokers have to be slow, whenever it is looked
# from half of the time on.
_NO_ROOM_S = 0.25
_ROOM_COUNTS = 0.5
_SUSPECT_S = 0.04
_LOOK_S = 0.1
_NEXT_TO_NOTHING_BYTES = 512 * 1024
# Of the data that waits for all brokers.
_SLOW_SHARE = 0.25
_REPORT_AGAIN_S = 60.0


class HeldBack:
    """Decides whether a sink has room, and for which partitions. One owner, no threads.

    Holds nothing back before `begin`. It is never called if partitions depend on one another: in
    transactions, and if records change their partition.
    """

    def __init__(self, producer: Producer, flow: str) -> None:
        self._producer, self._backlog = producer, producer.backlog
        self._flow = flow
        self._frames: FrameReader | None = None
        self._numbers: dict[TopicPartition, int] = {}
        self._count = 0
        self._goes_on_below: dict[int, float] = {}  # bytes, by held-back broker
        self._flagged: set[int] = set()
        self._bytes = 0
        self._full = False
        self._full_since = 0.0
        self._asked_at = time.monotonic()
        self._no_room_s = 0.0
        self._suspects: set[int] | None = None
        self._suspected_at = float("-inf")
        self._looked_at = float("-inf")
        self._reported_at = float("-inf")

    def begin(self, targets: Iterable[TopicPartition], frames: FrameReader) -> None:
        """Hold back partitions from now on; ``targets``: remote partitions, in number order."""
        self._frames = frames
        self.add(targets)

    def add(self, targets: Iterable[TopicPartition]) -> None:
        """Hold back further partitions, which have the next numbers; those without room never."""
        if self._frames is None:
            return
        for tp in targets:
            if self._count < self._frames.partitions:
                self._numbers[tp] = self._count
            self._count += 1

    def forget(self, tp: TopicPartition) -> None:
        """Count without a partition that the source fetches no more: its broker waits for nothing.

        Its number is not used again.
        """
        self._numbers.pop(tp, None)

    def full(self, frames_held: int) -> bool:
        """Whether no more rows can be taken. ``frames_held``: shared frames in use."""
        now = time.monotonic()
        self.check(now)
        full = self._backlog.bytes_waiting - self._bytes > UNACKNOWLEDGED_BYTES_MAX or (
            # Wait here until frames are free again: otherwise only the next row would free them.
            frames_held > FRAMES // 2 and not self._backlog.idle
        )
        passed_s, self._asked_at = now - self._asked_at, now
        if self._full:
            self._no_room_s += passed_s
        else:
            self._no_room_s = max(0.0, self._no_room_s - passed_s * _ROOM_COUNTS)
        if not (self._full and full):
            self._full_since = now
        self._full = full
        if self._no_room_s < _NO_ROOM_S / 2:
            self._suspects = None
        elif full and now - self._suspected_at >= _SUSPECT_S:
            self._suspect(now)
        return full

    def check(self, now: float) -> None:
        """Check whether brokers that are held back may continue. ``now``: monotonic seconds."""
        if not self._goes_on_below or now - self._looked_at < _LOOK_S:
            return
        waiting = self._backlog.waiting_by_broker()
        for node, below in list(self._goes_on_below.items()):
            if waiting.get(node, 0) <= below:
                del self._goes_on_below[node]
                log.info("flow %s: broker %d of the target keeps up again", self._flow, node)
        self._apply(waiting, now)

    def _suspect(self, now: float) -> None:
        """Look for slow brokers; hold back those that have been slow for long enough."""
        if self._frames is None:
            return
        self._suspected_at = now
        waiting = self._backlog.waiting_by_broker()
        led = {self._backlog.leader_of(tp) for tp in self._numbers}
        free = {node: waiting.get(node, 0) for node in led if node not in self._goes_on_below}
        if all(size > _NEXT_TO_NOTHING_BYTES for size in free.values()):
            return  # nobody waits for others
        total = sum(free.values())
        slow = {node for node, size in free.items() if size >= _SLOW_SHARE * total > 0}
        self._suspects = slow if self._suspects is None else self._suspects & slow
        if self._no_room_s < _NO_ROOM_S:
            return
        if now - self._full_since < _NO_ROOM_S:
            # A little in many frames, which it acknowledges again and again, is no slow broker.
            self._suspects = {n for n in self._suspects if waiting[n] > _NEXT_TO_NOTHING_BYTES}
        for node in self._suspects:
            self._goes_on_below[node] = waiting[node] / 2
            self._report(node, waiting[node], now)
        if self._suspects:
            self._apply(waiting, now)
        self._no_room_s, self._suspects = 0.0, None

    def _apply(self, waiting: Mapping[int, int], now: float) -> None:
        """Notify the source, and free the memory that is shared with it."""
        held, self._looked_at = self._goes_on_below.keys(), now
        self._bytes = sum(waiting.get(node, 0) for node in held)
        leader_of = self._backlog.leader_of
        flagged = {number for tp, number in self._numbers.items() if leader_of(tp) in held}
        for number in flagged ^ self._flagged:
            if self._frames is not None:
                self._frames.hold_back(number, number in flagged)
        self._flagged = flagged
        if held:
            self._producer.copy_waiting(held)

    def _report(self, node: int, size: int, now: float) -> None:
        if now - self._reported_at >= _REPORT_AGAIN_S:
            self._reported_at = now
            log.warning(
                "flow %s: broker %d of the target does not keep up (%.1f MB wait for it): its "
                "partitions are held back, the others continue",
                *(self._flow, node, size / 1e6),
            )

"""A broker of the target that does not keep up holds up its own partitions, and no others.

What waits for acknowledgements is bounded for a slot as a whole. Where one broker is far away, slow
or gone, what waits for it takes up all the room in the end, and every partition of the slot would
go at its pace. So when there has been no room for a while although other brokers have next to
nothing to do, the source is asked for no more of the slow one's partitions, until half of what
waits for it is there.

What is held back is copied out of the memory that source and sink share: its frames are for those
that go on. So a sink holds at most `UNACKNOWLEDGED_BYTES_MAX` twice: of partitions that are held
back, and of the others.
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
"""What may wait for acknowledgements; rows beyond it stay in Spark and, behind it, in brokers."""
# A busy moment is no reason: brokers and partitions take turns.
_NO_ROOM_S = 0.25
_LOOK_S = 0.1
_NEXT_TO_NOTHING_BYTES = 512 * 1024
# Of what waits for all brokers.
_SLOW_SHARE = 0.25
_TOLD_AGAIN_S = 60.0


class HeldBack:
    """Decides whether a sink has room, and for which partitions. One owner, no threads.

    Holds nothing back before `begin`, which is never called where partitions only get on together:
    in transactions, and where records change partitions.
    """

    def __init__(self, producer: Producer, flow: str) -> None:
        self._producer = producer
        self._flow = flow
        self._frames: FrameReader | None = None
        self._numbers: dict[TopicPartition, int] = {}
        self._goes_on_below: dict[int, float] = {}  # bytes, by held-back broker
        self._flagged: set[int] = set()
        self._bytes = 0
        self._no_room_since: float | None = None
        self._looked_at = float("-inf")
        self._told_at = float("-inf")

    def begin(self, targets: Iterable[TopicPartition], frames: FrameReader) -> None:
        """Hold back partitions from now on; ``targets``: remote partitions by their numbers."""
        self._numbers = {tp: number for number, tp in enumerate(targets)}
        self._frames = frames

    def full(self, frames_held: int) -> bool:
        """Whether no more rows can be taken. ``frames_held``: shared frames that are in use."""
        now = time.monotonic()
        self.look(now)
        full = self._producer.bytes_waiting - self._bytes > UNACKNOWLEDGED_BYTES_MAX or (
            # The source must find a free frame without a further row having to come here first.
            frames_held > FRAMES // 2 and not self._producer.idle
        )
        if not full:
            self._no_room_since = None
        elif self._no_room_since is None:
            self._no_room_since = now
        elif now - self._no_room_since >= _NO_ROOM_S:
            self._no_room_since = now
            self._hold_slow(now)
        return full

    def look(self, now: float) -> None:
        """See whether what is held back may go on. ``now``: monotonic seconds."""
        if not self._goes_on_below or now - self._looked_at < _LOOK_S:
            return
        waiting = self._producer.waiting_by_broker()
        for node, below in list(self._goes_on_below.items()):
            if waiting.get(node, 0) <= below:
                del self._goes_on_below[node]
                log.info("flow %s: broker %d of the target goes on", self._flow, node)
        self._apply(waiting, now)

    def _hold_slow(self, now: float) -> None:
        """Hold back brokers that much waits for, if others wait for more to do."""
        if self._frames is None:
            return
        waiting = self._producer.waiting_by_broker()
        led = {self._producer.leader_of(tp) for tp in self._numbers}
        free = {node: waiting.get(node, 0) for node in led if node not in self._goes_on_below}
        total = sum(free.values())
        slow = {node for node, size in free.items() if size >= _SLOW_SHARE * total > 0}
        if not any(free[node] <= _NEXT_TO_NOTHING_BYTES for node in free.keys() - slow):
            return
        for node in slow:
            self._goes_on_below[node] = free[node] / 2
            self._tell(node, free[node], now)
        self._apply(waiting, now)

    def _apply(self, waiting: Mapping[int, int], now: float) -> None:
        """Tell the source, and make room in the memory that is shared with it."""
        held, self._looked_at = self._goes_on_below.keys(), now
        self._bytes = sum(waiting.get(node, 0) for node in held)
        leader_of = self._producer.leader_of
        flagged = {number for tp, number in self._numbers.items() if leader_of(tp) in held}
        for number in flagged ^ self._flagged:
            if self._frames is not None:
                self._frames.hold_back(number, number in flagged)
        self._flagged = flagged
        if held:
            self._producer.copy_waiting(held)

    def _tell(self, node: int, size: int, now: float) -> None:
        if now - self._told_at >= _TOLD_AGAIN_S:
            self._told_at = now
            log.warning(
                "flow %s: broker %d of the target does not keep up (%.1f MB wait for it): less is "
                "read of its partitions, the others go on",
                *(self._flow, node, size / 1e6),
            )

"""The target partitions that an exactly-once sink routes records to.

Each slot may write to any of them, so no position can name the newest committed records there. This
task knows those of its own transactions. If an earlier one left a transaction open there, whether
it was committed is unknown (`data.coordination.hanging_transactions`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from sparkmirror.data.coordination.hanging_transactions import HangingTransactions
from sparkmirror.data.rows.rows import Chunk
from sparkmirror.data.write.partition_state import Lane, targets
from sparkmirror.model import TopicPartition
from sparkmirror.wire.produce.hanging_transactions import CommittedRecords
from sparkmirror.wire.produce.producer import Producer

__all__ = ["RoutedPartitions", "own_places"]

Senders = dict[TopicPartition, set[Lane]]
"""The lanes that send records to a partition."""


class RoutedPartitions:
    """What one task knows about them.

    ``open``: those with records in the open transaction. ``checked``: nothing that earlier tasks
    wrote is open there.
    """

    def __init__(self) -> None:
        self.open: set[TopicPartition] = set()
        self.checked: set[TopicPartition] = set()
        self._written: dict[TopicPartition, CommittedRecords] = {}

    def committed(self, producer: Producer) -> None:
        """Note that the transaction of ``producer`` is committed."""
        for tp in self.open:
            identity, records = producer.identity_of(tp), producer.backlog.records_of(tp)
            if identity is not None and records:
                self._written[tp] = CommittedRecords(*identity, records)
        self.open.clear()

    def unsure(
        self, chunks: Iterable[tuple[Lane, Chunk]], open_ends: HangingTransactions
    ) -> Senders:
        """The partitions of ``chunks`` that must be checked before they are written.

        Those with records in the open transaction were checked before the first one.
        """
        found: Senders = {}
        for lane, chunk in chunks:
            if lane.routed and lane.halt is None:
                for tp in {TopicPartition(*one) for one in chunk.targets or ()}:
                    if tp not in self.open and open_ends.unsure(tp):
                        found.setdefault(tp, set()).add(lane)
        return found

    def again(self, lanes: Iterable[Lane]) -> Senders:
        """The partitions that are written again after an abort."""
        self.open.clear()
        found: Senders = {}
        for lane in lanes:
            for pending in lane.queue if lane.routed else ():
                for tp in targets(pending, pending.targets or ()):
                    found.setdefault(tp, set()).add(lane)
        return found

    def written_before(
        self, partitions: Iterable[TopicPartition], lanes: Iterable[Lane]
    ) -> dict[TopicPartition, CommittedRecords | None]:
        """The newest committed records of each partition: this task's, else those of a position."""
        positions = {lane.target: lane.written for lane in lanes}
        return {tp: self._written.get(tp, positions.get(tp)) for tp in partitions}

    def undecided(
        self,
        before: Mapping[TopicPartition, CommittedRecords | None],
        routed: Collection[TopicPartition],
    ) -> set[TopicPartition]:
        """Those of ``routed`` where an earlier task may have committed something."""
        return {tp for tp in routed if before[tp] is None and tp not in self.checked}


def own_places(lanes: Iterable[Lane]) -> list[Lane]:
    """The lanes whose remote partitions are checked before the first chunk.

    Where routed records go is only known with each chunk.
    """
    return [lane for lane in lanes if not lane.routed or lane.written is not None]

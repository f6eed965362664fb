"""The target partitions that an exactly-once sink routes records to.

Each slot may write to any of them, so no position can name the newest committed records there. This
task knows those of its own transactions. If an earlier one left a transaction open there, whether
it was committed is unknown (`data.coordination.hanging_transactions`).
"""

from __future__ import annotations

from sparkmirror.model import TopicPartition
from sparkmirror.wire.produce.hanging_transactions import CommittedRecords
from sparkmirror.wire.produce.producer import Producer

__all__ = ["RoutedPartitions"]


class RoutedPartitions:
    """What one task knows about them.

    ``open``: those with records in the open transaction. ``written``: the newest records that this
    task has committed. ``checked``: nothing that earlier tasks wrote is open there.
    """

    def __init__(self) -> None:
        self.open: set[TopicPartition] = set()
        self.written: dict[TopicPartition, CommittedRecords] = {}
        self.checked: set[TopicPartition] = set()

    def committed(self, producer: Producer) -> None:
        """Note that the transaction of ``producer`` is committed."""
        for tp in self.open:
            identity, records = producer.identity_of(tp), producer.records_of(tp)
            if identity is not None and records:
                self.written[tp] = CommittedRecords(*identity, records)
        self.open.clear()

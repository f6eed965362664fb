"""The positions that a transaction commits: of which lanes, and what they say about the target."""

from __future__ import annotations

from sparkmirror.data.write.partition_state import Lane
from sparkmirror.data.write.sink_task import SinkTask
from sparkmirror.internal_topics.position_metadata import Mark, PositionMetadata, encode_metadata
from sparkmirror.wire.produce.hanging_transactions import CommittedRecords
from sparkmirror.wire.produce.transactions import Transactions


class TransactionPositions:
    """Adds the positions of one sink's lanes to its transactions."""

    def __init__(self, task: SinkTask) -> None:
        self._task = task
        self._sent: dict[Lane, tuple[CommittedRecords | None, int]] = {}

    def add(self, transactions: Transactions, *, expected: bool = True) -> None:
        """Add the positions that are due; ``expected``: see `Lane.ahead`. Raises `ClusterError`."""
        due = self._due()
        self._sent = {
            lane: (self._written(lane), lane.ahead(expected=expected)[1]) for lane, _, _ in due
        }
        if due:
            transactions.add_offsets(
                self._task.flow.position_group,
                {
                    lane.target: (offset, self._metadata_of(lane, mark, expected=expected))
                    for lane, offset, mark in due
                },
            )

    def _at_target(self, lane: Lane) -> tuple[CommittedRecords | None, int]:
        """What a position says about the target once everything is acknowledged."""
        return self._written(lane), lane.ahead(expected=False)[1]

    def _written(self, lane: Lane) -> CommittedRecords | None:
        """The newest committed records before the lane's position after the commit.

        Of routed records a position cannot say it: they are in any number of partitions, which
        other lanes write, too.
        """
        if lane.routed:
            return None
        records = self._task.producer.backlog.records_of(lane.target)
        identity = self._task.producer.identity_of(lane.target)
        return (
            CommittedRecords(*identity, records)
            if records and identity is not None
            else lane.written
        )

    def _metadata_of(self, lane: Lane, mark: Mark, *, expected: bool) -> str:
        """A position's metadata; ``expected`` as in `Lane.ahead`."""
        log, end = lane.ahead(expected=expected)
        written = self._written(lane) or ()
        return encode_metadata(PositionMetadata(mark, log, end, *written))

    def _due(self) -> list[tuple[Lane, int, Mark]]:
        due = []
        for lane in self._task.lanes.values():
            position = lane.queue[-1].next_offset if lane.queue else lane.position
            mark = lane.mark
            for pending in lane.queue:
                mark = pending.mark_after(mark)
            told = (lane.committed, lane.marked, lane.logged)
            if position >= 0 and (position, mark, lane.ahead(expected=False)[0]) != told:
                due.append((lane, position, mark))
        return due

    def outdated(self) -> bool:
        """Whether the target is not as the positions that were added say."""
        return any(self._at_target(lane) != told for lane, told in self._sent.items())

    def note_committed(self) -> None:
        """Note that the transaction with these positions is committed."""
        for lane, (written, _) in self._sent.items():
            if not lane.routed:
                lane.written = written

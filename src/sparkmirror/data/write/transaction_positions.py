"""What a transaction commits beside records: positions with their metadata, and offset syncs."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from sparkmirror.data.write.chunk_offsets import ChunkOffsets
from sparkmirror.data.write.offset_sync_writer import NO_SYNCS, SlotSyncs, TakenSyncs
from sparkmirror.data.write.partition_state import Lane
from sparkmirror.data.write.sink_task import SinkTask
from sparkmirror.internal_topics.position_metadata import Mark, PositionMetadata, encode_metadata
from sparkmirror.model import TopicPartition
from sparkmirror.progress import Halt
from sparkmirror.wire.cluster.error_codes import UNKNOWN_TOPIC_OR_PARTITION, error_name
from sparkmirror.wire.produce.hanging_transactions import CommittedRecords
from sparkmirror.wire.produce.transactions import Transactions

log = logging.getLogger(__name__)


class TransactionPositions:
    """Adds the positions of one sink's lanes to its transactions."""

    def __init__(self, task: SinkTask) -> None:
        self._task = task
        self._sent: dict[Lane, tuple[CommittedRecords | None, int]] = {}
        self._gone: set[TopicPartition] = set()

    def add(self, transactions: Transactions, *, expected: bool = True) -> None:
        """Add the positions that are due; ``expected``: see `Lane.ahead`. Raises `ClusterError`.

        Where the target has no such topic, there is no position. Then records are given up, too.
        """
        due = self._due()
        self._sent = {
            lane: (self._written(lane), lane.ahead(expected=expected)[1]) for lane, _, _ in due
        }
        if not due:
            return
        offsets = {
            lane.target: (offset, self._metadata_of(lane, mark, expected=expected))
            for lane, offset, mark in due
        }
        gone = transactions.add_offsets(self._task.flow.position_group, offsets, self._gone)
        if new := gone - self._gone:
            log.warning(
                "flow %s: no positions of %s are committed: the target has no such topic",
                *(self._task.flow.name, ", ".join(map(str, sorted(new)))),
            )
        self._gone = (self._gone - offsets.keys()) | gone
        for lane, _, _ in due:
            if lane.target in gone and lane.queue:
                self._give_up(lane)

    def _give_up(self, lane: Lane) -> None:
        """Halt a lane whose records would be committed without their position."""
        code = UNKNOWN_TOPIC_OR_PARTITION
        text = f"the target has no topic for the position of {lane.source} ({error_name(code)})"
        halt = Halt(error_name(code), text, retriable=True)
        self._task.producer.backlog.give_up(lane.target, halt)
        if lane.routed:  # its records do not wait for the partition of its position
            lane.queue[0].beside = {*(lane.queue[0].beside or ()), lane.target}

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
        if lane.source_end < 0 and not any(pending.records for pending in lane.queue):
            return lane.written  # another slot may have written since this one did
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


_Settled = tuple[TopicPartition, ChunkOffsets, str, str, str]


def _settle(syncs: SlotSyncs, settled: Iterable[_Settled]) -> None:
    for source, offsets, topic_id, target_id, remote in settled:
        syncs.settled(source, offsets, topic_id, target_id, remote=remote)


class TransactionSyncs:
    """When the offset syncs of a sink are written: no more often than its transactions' interval.

    Early commits (`data.write.transaction_size.EarlyCommits`) may be many more, and each would add
    the newest record of each partition. Those that wait are of committed records.
    """

    def __init__(self, task: SinkTask) -> None:
        self._task = task
        self._interval_s = task.flow.transaction_interval_ms / 1000
        self._began_at = self._written_at = float("-inf")
        self._due = True
        self._left = False
        self._waiting: list[_Settled] = []
        # Of committed transactions, beyond what one commit takes; and of the one that ends now.
        self._kept: list[_Settled] = []
        self._ending: list[_Settled] = []

    def overdue(self, now: float) -> bool:
        """Whether syncs that early commits have left wait for long enough. ``now``: seconds."""
        return self._left and now - self._written_at >= self._interval_s

    def begin(self, now: float, *, early: bool) -> None:
        """Note that a commit begins; an ``early`` one may leave the syncs to a later one."""
        self._began_at = now
        self._due = not early or now - self._written_at >= self._interval_s

    def take(self) -> TakenSyncs:
        """The syncs that belong into the transaction, once all of it is acknowledged."""
        syncs = self._task.syncs
        if syncs is None:
            return NO_SYNCS
        settled: list[_Settled] = []
        for lane in self._task.lanes.values():
            mark, log_id = lane.mark, lane.ahead(expected=False)[0].topic_id
            for pending in lane.queue:
                mark = pending.mark_after(mark)
                remote = self._task.mapped(lane)
                settled.append((lane.source, pending.offsets, mark.topic_id, log_id, remote))
        if not self._due:
            self._waiting += settled
            self._left = bool(self._waiting)
            return NO_SYNCS
        self._ending = [*self._waiting, *settled]
        _settle(syncs, self._ending)
        return syncs.take()

    def written(self) -> None:
        """Note that what `take` returned is acknowledged."""
        syncs = self._task.syncs
        if self._due and syncs is not None:
            self._waiting.clear()
            self._kept += self._ending
            self._ending = []
            self._forget_taken(syncs)
            self._left = False
            self._written_at = self._began_at

    def leave_out(self) -> None:
        """Note that what `take` returned is aborted: syncs of earlier transactions are kept."""
        self._task.syncs = syncs = self._task.new_syncs()
        # Where another slot goes on, these would lead readers back.
        left = {lane.source for lane, (_, until) in self._task.leaving.items() if until is not None}
        self._kept = [
            one
            for one in (*self._kept, *self._waiting)
            if one[0] in self._task.lanes and one[0] not in left
        ]
        _settle(syncs, self._kept)
        self._waiting.clear()
        self._ending = []

    def _forget_taken(self, syncs: SlotSyncs) -> None:
        waits = syncs.sources()
        self._kept = [one for one in self._kept if one[0] in waits]

    def publish(self) -> None:
        """After a commit: write what is due, as syncs that follow it."""
        if self._task.syncs is None:
            return
        self._left = not self._due
        if self._due:
            # No sync may name records that may be aborted.
            self._task.syncs.publish()
            self._forget_taken(self._task.syncs)
            self._written_at = self._began_at

"""What the driver knows of where source offsets went, read from two topics.

The exact runs (`wire.runs`) come from sparkmirror's own slots; the offset syncs also from a Java
MirrorMaker 2 that mirrored before. Where the runs know a place it is exact; elsewhere the syncs
count as far as the runs allow (`offset_map.OffsetMap.bounds`).

`plan_pruning` keeps the topic of runs small: every epoch adds rows that only go on where others
end.
"""

from __future__ import annotations

from collections.abc import Mapping

from sparkmirror.control.compacted import TopicFollower
from sparkmirror.errors import TopicError
from sparkmirror.model import TopicPartition
from sparkmirror.offset_map import OffsetMap, Run
from sparkmirror.offset_syncs import OffsetSyncStore
from sparkmirror.wire.mirror_records import decode_offset_sync
from sparkmirror.wire.runs import RunRow, decode_run, encode_forgotten_run, encode_run

__all__ = ["PartitionRuns", "Translation", "plan_pruning"]

Row = tuple[int, bytes, bytes | None]

_SPARE_ROWS = 16


class PartitionRuns:
    """The rows of one source partition in the topic of runs, and what they say together."""

    def __init__(self) -> None:
        self.rows: dict[int, Run] = {}
        self.map = OffsetMap()
        self.newest = -1

    def take(self, row: RunRow) -> None:
        """The next row. A forgotten one says nothing against what others have taught."""
        if row.run is None:
            self.rows.pop(row.start, None)
            return
        self.rows[row.start] = row.run
        if row.merged:
            self.map.add_older(row.run)
        else:
            self.newest = row.start
            self.map.add(row.run)


def plan_pruning(source: TopicPartition, known: PartitionRuns) -> list[Row]:
    """Rows to write when far more are there than runs: one per run, the others forgotten. Pure.

    The newest row is left alone: its slot may be making it longer. What is written says the same
    as what is forgotten, whenever another row comes in between; only a row that is written anew
    in that moment, under the very key that is forgotten, is lost, and its records are repeated.
    """
    if len(known.rows) <= 2 * len(known.map.runs) + _SPARE_ROWS:
        return []
    kept: dict[int, Run] = {}
    for run in known.map.runs:
        if run.source < known.newest:
            kept[run.source] = run.head(min(run.length, known.newest - run.source))
    writes: list[Row] = [
        (0, *encode_run(source, run, merged=True)) for _, run in sorted(kept.items())
    ]
    gone = sorted(known.rows.keys() - kept.keys() - {known.newest})
    return writes + [(0, *encode_forgotten_run(source, start)) for start in gone]


class Translation:
    """Source offsets to target offsets for all partitions of one flow; one owner thread.

    ``must_read_to_end``: as in `OffsetSyncStore`.
    """

    def __init__(
        self, syncs: TopicFollower, runs: TopicFollower, *, must_read_to_end: bool
    ) -> None:
        self._syncs = syncs
        self._runs = runs
        self._store = OffsetSyncStore(must_read_to_end=must_read_to_end)
        self._known: dict[TopicPartition, PartitionRuns] = {}
        self.skipped = 0
        """Records of both topics that could not be read."""

    def catch_up(self) -> None:
        """Take in what both topics hold now; one of them may be missing.

        Raises `MirrorError`; the next call goes on.
        """
        missing: list[TopicError] = []
        for topic, take in ((self._runs, self.take_run), (self._syncs, self.take_sync)):
            try:
                for key, value in topic.read():
                    take(key, value)
            except TopicError as error:
                missing.append(error)
        if len(missing) > 1:
            raise missing[0]
        self._store.finish_reading()

    def take_run(self, key: bytes | None, value: bytes | None) -> None:
        """One record of the topic of runs."""
        row = decode_run(key, value)
        if row is None:
            self.skipped += 1
            return
        known = self._known.get(row.source)
        if known is None:
            known = self._known[row.source] = PartitionRuns()
        known.take(row)

    def take_sync(self, key: bytes | None, value: bytes | None) -> None:
        """One record of the offset-syncs topic."""
        sync = decode_offset_sync(key, value)
        if sync is None:
            self.skipped += 1
        else:
            self._store.add(*sync)

    def translate(self, source: TopicPartition, upstream: int) -> int | None:
        """Where a consumer goes on that has read all before ``upstream``; None when unknown."""
        guess = self._store.translate(source, upstream)
        guess = None if guess is None or guess < 0 else guess
        known = self._known.get(source)
        return guess if known is None else known.map.translate(upstream, guess)

    def pruning(self) -> list[Row]:
        """Rows that keep the topic of runs small; see `plan_pruning`."""
        plans = (plan_pruning(source, known) for source, known in self._known.items())
        return [row for plan in plans for row in plan]

    def runs(self) -> Mapping[TopicPartition, OffsetMap]:
        """The exact runs by source partition."""
        return {source: known.map for source, known in self._known.items()}

    def close(self) -> None:
        """Close the connections. Raises `MirrorError` when one does not close in peace."""
        self._syncs.close()
        self._runs.close()

"""Translates source offsets to target offsets, from the topics of runs and of offset syncs.

sparkmirror's slots write exact runs (`internal_topics.runs`). Offset syncs may also come from a
Java MirrorMaker 2 that mirrored before. An offset within a run is translated exactly. For any other
offset, the syncs are used within the bounds that the runs give (`run_map.OffsetMap.translate`).
Syncs do not name the remote topic. So if a map names a topic, only its runs under that name are
used. They do not tell either that the target lost records. So after a loss they do not count
behind a run.

`plan_pruning` keeps the topic of runs small: every epoch adds rows that only continue other rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from sparkmirror.control.topics.compacted import TopicFollower
from sparkmirror.errors import TopicError
from sparkmirror.internal_topics.mm2_records import decode_offset_sync
from sparkmirror.internal_topics.offset_syncs import OffsetSyncStore
from sparkmirror.internal_topics.run_map import OffsetMap, Run
from sparkmirror.internal_topics.runs import RunRow, decode_run, encode_forgotten_run, encode_run
from sparkmirror.model import TopicPartition

Row = tuple[int, bytes, bytes | None]

RowKey = tuple[str, int]
"""Topic id and first source offset of a row: the key without the partition."""

_SPARE_ROWS = 16


class PartitionRuns:
    """The rows of one source partition in the topic of runs, and the map that they form.

    ``topic_id``: id of the source topic; a recreated topic has another id. ``cuts``: for each time
    that the target lost the records of older rows, the target offset from which. ``remote``: the
    name that a map gave the topic; empty if the policy named it.
    """

    def __init__(self, topic_id: str = "", remote: str = "") -> None:
        self.topic_id = topic_id
        self.remote = remote
        self.rows: dict[RowKey, Run] = {}
        self.map = OffsetMap()
        self.newest: RowKey = ("", -1)
        self.cuts: list[int] = []
        self._target_id = ""

    def take(self, row: RunRow) -> None:
        """Add the next row. A row that is forgotten does not change the map."""
        key = (row.topic_id, row.start)
        if row.run is None:
            self.rows.pop(key, None)
            return
        before = self.rows.get(key)
        self.rows[key] = row.run
        if row.merged:
            self.map.add_older(row.run)
        else:
            self.newest = key
            self._see_loss(row.target_id, row.run, before)
            self.map.add(row.run)

    def _see_loss(self, target_id: str, run: Run, before: Run | None) -> None:
        """Note whether the log that holds ``run`` lost its end. ``before``: the row's old value.

        A growing run is written again with the same mapping. Any other run below the known target
        end holds records that were mirrored again after a loss, at the same offsets or at others.
        Until all of them are there, older rows lead past the end of the log.
        """
        another = "" not in (target_id, self._target_id) and target_id != self._target_id
        self._target_id = target_id or self._target_id
        grown = before is not None and before.target == run.target and before.length <= run.length
        if another:
            self.cuts.append(0)
        elif run.target < self.map.target_end and not grown:
            self.cuts.append(run.target)

    def translate(self, upstream: int, guess: int | None = None) -> int | None:
        """Target offset for source offset ``upstream``; ``guess``: its translation by the syncs.

        After a loss at the target, a guess does not count behind a run: the sync may be older than
        the loss.
        """
        if self.cuts and self.map.bounds(upstream)[0] is not None:
            guess = None
        return self.map.translate(upstream, guess)

    def forgotten(self, source: TopicPartition) -> list[Row]:
        """Tombstones for all rows: for a topic that was deleted."""
        return _forget(source, self.rows, self.remote)


class _Logs:
    """The runs of one source partition under one remote name, by topic id.

    Topic ids: of the current source topic and of earlier ones.
    """

    def __init__(self, remote: str) -> None:
        self._remote = remote
        self.by_id: dict[str, PartitionRuns] = {}
        self._newest = ""

    def take(self, row: RunRow) -> None:
        """Add the next row; a row without topic id belongs to the topic of the rows before it."""
        topic_id = row.topic_id or self._newest
        known = self.by_id.get(topic_id)
        if known is None:
            if row.run is None:
                return
            known = self.by_id.pop("", None) or PartitionRuns(remote=self._remote)
            known.topic_id = topic_id
            self.by_id[topic_id] = known
        known.take(row)
        if not self._newest or not (row.merged or row.run is None):
            self._newest = topic_id

    def current(self, topic_id: str) -> PartitionRuns | None:
        """The runs of topic ``topic_id``; empty: of the topic that was mirrored last.

        None if there are none.
        """
        if "" in self.by_id or not topic_id:
            return self.by_id.get(self._newest)
        return self.by_id.get(topic_id)

    def gone(self, topic_id: str) -> list[PartitionRuns]:
        """Remove and return the runs of earlier topics, if ``topic_id`` was mirrored last.

        Otherwise nothing is removed: a broker that does not know a recreated topic yet may give
        the id of the old one.
        """
        if topic_id != self._newest:
            return []
        return [self.by_id.pop(one) for one in list(self.by_id) if one != topic_id]


def plan_pruning(source: TopicPartition, known: PartitionRuns) -> list[Row]:
    """Rows that replace many rows by one merged row per run, and tombstones for the others. Pure.

    Empty unless there are far more rows than runs. The newest row is kept, because its slot may
    still extend it. The merged rows say the same as the deleted ones, so a slot may write other
    rows at the same time. Only a row that a slot writes at that moment under a deleted key is lost;
    a consumer then reads its records again.
    """
    if len(known.rows) <= 2 * len(known.map.runs) + _SPARE_ROWS:
        return []
    topic_id, newest = known.topic_id, known.newest[1]
    kept: dict[RowKey, Run] = {}
    for run in known.map.runs:
        if run.source < newest:
            kept[topic_id, run.source] = run.head(min(run.length, newest - run.source))
    writes: list[Row] = [
        (0, *encode_run(source, run, merged=True, topic_id=topic_id, remote=known.remote))
        for _, run in sorted(kept.items())
    ]
    forgotten = known.rows.keys() - kept.keys() - {known.newest}
    return writes + _forget(source, forgotten, known.remote)


def _forget(source: TopicPartition, keys: Iterable[RowKey], remote: str) -> list[Row]:
    return [
        (0, *encode_forgotten_run(source, start, topic_id=topic_id, remote=remote))
        for topic_id, start in sorted(keys)
    ]


def _by_policy(_topic: str) -> str | None:
    return None


class Translation:
    """Translates source offsets to target offsets for all partitions of one flow. For one thread.

    ``must_read_to_end``: see `OffsetSyncStore`. ``mapped``: returns the name that a map gives a
    topic now; None if the policy names it.
    """

    def __init__(
        self,
        syncs: TopicFollower,
        runs: TopicFollower,
        *,
        must_read_to_end: bool,
        mapped: Callable[[str], str | None] = _by_policy,
    ) -> None:
        self._syncs = syncs
        self._runs = runs
        self._store = OffsetSyncStore(must_read_to_end=must_read_to_end)
        self._mapped = mapped
        self._known: dict[tuple[TopicPartition, str], _Logs] = {}
        self._read_to_end: set[TopicFollower] = set()
        self.skipped = 0
        """Number of records of both topics that could not be decoded."""
        self.topic_ids: Mapping[str, str] = {}
        """Ids of the source's topics now. Without an id, the topic mirrored last is used."""

    def catch_up(self) -> int:
        """Read both topics to their current ends; returns the number of new records.

        One of the two topics may be missing. One that is there must be read to its end once before
        anything counts: a part of it would lead further than all of it. Raises `MirrorError`; the
        next call continues.
        """
        count = 0
        missing: list[TopicError] = []
        for topic, take in ((self._runs, self.take_run), (self._syncs, self.take_sync)):
            try:
                for key, value in topic.read():
                    take(key, value)
                    count += 1
                self._read_to_end.add(topic)
            except TopicError as error:
                if topic.begun and topic not in self._read_to_end:
                    raise
                missing.append(error)
        if len(missing) > 1:
            raise missing[0]
        if self._syncs in self._read_to_end:
            self._store.finish_reading()
        return count

    def take_run(self, key: bytes | None, value: bytes | None) -> None:
        """Add one record of the topic of runs."""
        row = decode_run(key, value)
        if row is None:
            self.skipped += 1
            return
        named = row.source, row.remote
        known = self._known.get(named)
        if known is None:
            known = self._known[named] = _Logs(row.remote)
        known.take(row)

    def take_sync(self, key: bytes | None, value: bytes | None) -> None:
        """Add one record of the offset-syncs topic."""
        sync = decode_offset_sync(key, value)
        if sync is None:
            self.skipped += 1
        else:
            self._store.add(*sync)

    def translate(self, source: TopicPartition, upstream: int) -> int | None:
        """Target offset for a consumer whose committed source offset is ``upstream``.

        None if it is unknown. A recreated topic has no translation until some of it has been
        mirrored, because the known rows are about deleted records.
        """
        logs, known = self._present(source)
        if logs is not None and known is None:
            return None
        if self._mapped(source.topic) is not None:
            return None if known is None else known.translate(upstream)
        guess = self._store.translate(source, upstream)
        guess = None if guess is None or guess < 0 else guess
        return guess if known is None else known.translate(upstream, guess)

    def cuts(self, source: TopicPartition) -> Sequence[int]:
        """Target offsets from which the target has lost records, one for each loss so far.

        The records of earlier checkpoints beyond it were lost, or have other offsets now.
        """
        _, known = self._present(source)
        return () if known is None else known.cuts

    def _present(self, source: TopicPartition) -> tuple[_Logs | None, PartitionRuns | None]:
        """All runs of a partition under its present name, and those of the present topic."""
        logs = self._known.get((source, self._mapped(source.topic) or ""))
        known = None if logs is None else logs.current(self.topic_ids.get(source.topic, ""))
        return logs, known

    def pruning(self) -> list[Row]:
        """Rows that keep the topic of runs small; see `plan_pruning`."""
        rows: list[Row] = []
        for (source, _), logs in self._known.items():
            for runs in logs.gone(self.topic_ids.get(source.topic, "")):
                rows += runs.forgotten(source)
            for runs in logs.by_id.values():
                rows += plan_pruning(source, runs)
        return rows

    def close(self) -> None:
        """Close the connections. Raises `MirrorError` if that fails."""
        self._syncs.close()
        self._runs.close()

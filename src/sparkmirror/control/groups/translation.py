"""What the driver knows of where source offsets went, read from two topics.

The exact runs (`internal_topics.runs`) come from sparkmirror's own slots; the offset syncs also
from a Java MirrorMaker 2 that mirrored before. Where the runs know a place it is exact; elsewhere
the syncs count as far as the runs allow (`run_map.OffsetMap.bounds`). Syncs do not say under which
name a copy is, so for a topic that a map has named only runs under that name count.

`plan_pruning` keeps the topic of runs small: every epoch adds rows that only go on where others
end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from sparkmirror.control.topics.compacted import TopicFollower
from sparkmirror.errors import TopicError
from sparkmirror.internal_topics.mm2_records import decode_offset_sync
from sparkmirror.internal_topics.offset_syncs import OffsetSyncStore
from sparkmirror.internal_topics.run_map import OffsetMap, Run
from sparkmirror.internal_topics.runs import RunRow, decode_run, encode_forgotten_run, encode_run
from sparkmirror.model import TopicPartition

Row = tuple[int, bytes, bytes | None]

RowKey = tuple[str, int]
"""Topic id and first source offset of a row: what its key holds beside the partition."""

_SPARE_ROWS = 16


class PartitionRuns:
    """The rows of one source partition in the topic of runs, and what they say together.

    ``topic_id``: of the source topic; a topic of that name that was made anew has others. ``cut``:
    the target offset from which on the target has lost what older rows say, -1 for nowhere.
    ``remote``: the name that a map gave the topic, empty where the policy named it.
    """

    def __init__(self, topic_id: str = "", remote: str = "") -> None:
        self.topic_id = topic_id
        self.remote = remote
        self.rows: dict[RowKey, Run] = {}
        self.map = OffsetMap()
        self.newest: RowKey = ("", -1)
        self.cut = -1

    def take(self, row: RunRow) -> None:
        """The next row. A forgotten one says nothing against what others have taught."""
        key = (row.topic_id, row.start)
        if row.run is None:
            self.rows.pop(key, None)
            return
        self.rows[key] = row.run
        if row.merged:
            self.map.add_older(row.run)
        else:
            self.newest = key
            # A run that grows is written again; one that says otherwise, below what is known of the
            # target, is from a log that lost its end.
            if row.run.target < self.map.target_end:
                place = self.map.bounds(row.run.source)
                if place != (row.run.target, row.run.target):
                    self.cut = row.run.target
            self.map.add(row.run)

    def forgotten(self, source: TopicPartition) -> list[Row]:
        """Rows that forget all there are: those of a topic that is gone."""
        return _forget(source, self.rows, self.remote)


class _Logs:
    """The runs of one source partition, under one name at the target, by topic id: of the topic
    there is, and of earlier ones.
    """

    def __init__(self, remote: str) -> None:
        self._remote = remote
        self.by_id: dict[str, PartitionRuns] = {}
        self._newest = ""

    def take(self, row: RunRow) -> None:
        """The next row; one without a topic id is about the topic of the rows before it."""
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
        """What is known of the topic ``topic_id`` (empty: of the one that was mirrored last)."""
        if "" in self.by_id or not topic_id:
            return self.by_id.get(self._newest)
        return self.by_id.get(topic_id)

    def gone(self, topic_id: str) -> list[PartitionRuns]:
        """Those of earlier topics, taken out, once ``topic_id`` is the one that is mirrored.

        A broker that does not know the new topic yet could tell the id of the old one.
        """
        if topic_id != self._newest:
            return []
        return [self.by_id.pop(one) for one in list(self.by_id) if one != topic_id]


def plan_pruning(source: TopicPartition, known: PartitionRuns) -> list[Row]:
    """Rows to write when far more are there than runs: one per run, the others forgotten. Pure.

    The newest row is left alone: its slot may be making it longer. What is written says the same
    as what is forgotten, whenever another row comes in between; only a row that is written anew
    in that moment, under the very key that is forgotten, is lost, and its records are repeated.
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
    """Source offsets to target offsets for all partitions of one flow; one owner thread.

    ``must_read_to_end``: as in `OffsetSyncStore`. ``mapped``: the name that a map gives a topic
    now, None where the policy names it.
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
        self.skipped = 0
        """Records of both topics that could not be read."""
        self.topic_ids: Mapping[str, str] = {}
        """The source's topics as they are now: without an id, the one mirrored last counts."""

    def catch_up(self) -> int:
        """Take in what both topics hold now; one of them may be missing. How many records came.

        Raises `MirrorError`; the next call goes on.
        """
        count = 0
        missing: list[TopicError] = []
        for topic, take in ((self._runs, self.take_run), (self._syncs, self.take_sync)):
            try:
                for key, value in topic.read():
                    take(key, value)
                    count += 1
            except TopicError as error:
                missing.append(error)
        if len(missing) > 1:
            raise missing[0]
        self._store.finish_reading()
        return count

    def take_run(self, key: bytes | None, value: bytes | None) -> None:
        """One record of the topic of runs."""
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
        """One record of the offset-syncs topic."""
        sync = decode_offset_sync(key, value)
        if sync is None:
            self.skipped += 1
        else:
            self._store.add(*sync)

    def translate(self, source: TopicPartition, upstream: int) -> int | None:
        """Where a consumer goes on that has read all before ``upstream``; None when unknown.

        Of a topic that was made anew nothing is known until some of it was mirrored: what is
        there is about records that are gone.
        """
        logs, known = self._present(source)
        if logs is not None and known is None:
            return None
        if self._mapped(source.topic) is not None:
            return None if known is None else known.map.translate(upstream)
        guess = self._store.translate(source, upstream)
        guess = None if guess is None or guess < 0 else guess
        return guess if known is None else known.map.translate(upstream, guess)

    def cut(self, source: TopicPartition) -> int:
        """From which target offset on the target has lost what it had, -1 for nowhere.

        Checkpoints beyond it are about records that are gone, or stand elsewhere now.
        """
        _, known = self._present(source)
        return -1 if known is None else known.cut

    def _present(self, source: TopicPartition) -> tuple[_Logs | None, PartitionRuns | None]:
        """The runs of a partition under its present name, and those of the topic that it is now."""
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
        """Close the connections. Raises `MirrorError` when one does not close in peace."""
        self._syncs.close()
        self._runs.close()

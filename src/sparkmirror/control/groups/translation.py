"""What the driver knows of where source offsets went, read from two topics.

The exact runs (`internal_topics.runs`) come from sparkmirror's own slots; the offset syncs also
from a Java MirrorMaker 2 that mirrored before. Where the runs know a place it is exact; elsewhere
the syncs count as far as the runs allow (`run_map.OffsetMap.bounds`).

`plan_pruning` keeps the topic of runs small: every epoch adds rows that only go on where others
end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

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
    """

    def __init__(self, topic_id: str = "") -> None:
        self.topic_id = topic_id
        self.rows: dict[RowKey, Run] = {}
        self.map = OffsetMap()
        self.newest: RowKey = ("", -1)
        self.cut = -1
        self._target_id = ""

    def take(self, row: RunRow) -> None:
        """The next row. A forgotten one says nothing against what others have taught."""
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
        """Whether the log that ``run`` is in has lost its end. ``before``: its row until now.

        A run that grows is written again. Any other one below what is known of the target repeats
        what was lost there, at the same offsets or at others; until all of that is there again,
        what older rows say leads past the log's end.
        """
        another = "" not in (target_id, self._target_id) and target_id != self._target_id
        self._target_id = target_id or self._target_id
        grown = before is not None and before.target == run.target and before.length <= run.length
        if another:
            self.cut = 0
        elif run.target < self.map.target_end and not grown:
            self.cut = run.target

    def forgotten(self, source: TopicPartition) -> list[Row]:
        """Rows that forget all there are: those of a topic that is gone."""
        return _forget(source, self.rows)


class _Logs:
    """The runs of one source partition by topic id: of the topic there is, and of earlier ones."""

    def __init__(self) -> None:
        self.by_id: dict[str, PartitionRuns] = {}
        self._newest = ""

    def take(self, row: RunRow) -> None:
        """The next row; one without a topic id is about the topic of the rows before it."""
        topic_id = row.topic_id or self._newest
        known = self.by_id.get(topic_id)
        if known is None:
            if row.run is None:
                return
            known = self.by_id.pop("", None) or PartitionRuns()
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
        (0, *encode_run(source, run, merged=True, topic_id=topic_id))
        for _, run in sorted(kept.items())
    ]
    return writes + _forget(source, known.rows.keys() - kept.keys() - {known.newest})


def _forget(source: TopicPartition, keys: Iterable[RowKey]) -> list[Row]:
    return [
        (0, *encode_forgotten_run(source, start, topic_id=topic_id))
        for topic_id, start in sorted(keys)
    ]


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
        self._known: dict[TopicPartition, _Logs] = {}
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
        known = self._known.get(row.source)
        if known is None:
            known = self._known[row.source] = _Logs()
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
        logs = self._known.get(source)
        known = None if logs is None else logs.current(self.topic_ids.get(source.topic, ""))
        if logs is not None and known is None:
            return None
        guess = self._store.translate(source, upstream)
        guess = None if guess is None or guess < 0 else guess
        return guess if known is None else known.map.translate(upstream, guess)

    def cut(self, source: TopicPartition) -> int:
        """From which target offset on the target has lost what it had, -1 for nowhere.

        Checkpoints beyond it are about records that are gone, or stand elsewhere now.
        """
        logs = self._known.get(source)
        known = None if logs is None else logs.current(self.topic_ids.get(source.topic, ""))
        return -1 if known is None else known.cut

    def pruning(self) -> list[Row]:
        """Rows that keep the topic of runs small; see `plan_pruning`."""
        rows: list[Row] = []
        for source, logs in self._known.items():
            for runs in logs.gone(self.topic_ids.get(source.topic, "")):
                rows += runs.forgotten(source)
            for runs in logs.by_id.values():
                rows += plan_pruning(source, runs)
        return rows

    def close(self) -> None:
        """Close the connections. Raises `MirrorError` when one does not close in peace."""
        self._syncs.close()
        self._runs.close()

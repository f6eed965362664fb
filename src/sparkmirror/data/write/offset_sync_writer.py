"""Offset syncs and exact runs of one slot, derived from acknowledgements.

The sink reports where the records of each chunk went (`ChunkOffsets`) once everything before them
is acknowledged. `SlotSyncs.publish` is called when the positions that cover them are committed. So
a sync never names a record that the target may not have. Which syncs are due follows
MirrorMaker 2's rule (`internal_topics.offset_syncs.PartitionState`). Each commit of positions also
adds the newest record, as each of Connect's offset commits does.

`SyncSender` writes on a thread of its own: offset syncs usually go to the source cluster, and the
sink must not wait for that cluster.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Protocol

from sparkmirror.data.write.chunk_offsets import ChunkOffsets
from sparkmirror.errors import MirrorError
from sparkmirror.internal_topics.mm2_records import encode_offset_sync, offset_syncs_topic
from sparkmirror.internal_topics.offset_syncs import PartitionState
from sparkmirror.internal_topics.run_map import Run, extend_run
from sparkmirror.internal_topics.runs import encode_run, runs_topic
from sparkmirror.model import TopicPartition
from sparkmirror.progress import Halt
from sparkmirror.records.codecs import NONE
from sparkmirror.records.records import Record, encode_batch
from sparkmirror.settings import ClusterClient, FlowSettings, ProduceSettings
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.net.connection import ConnectionLost
from sparkmirror.wire.produce.producer import Producer

__all__ = ["NO_SYNCS", "SlotSyncs", "SyncSender", "TakenSyncs", "batches_of"]

log = logging.getLogger(__name__)

# Per partition and commit: if more syncs are due, or there are more runs, some are left out.
_SYNCS_MAX = 10
_RUNS_MAX = 64
# Per slot and commit: the rest waits for the next commit.
_SYNCS_PER_SLOT_MAX = 2_000
# Backlog while the cluster is unavailable. The oldest is dropped first; translation gets coarser.
_BACKLOG_MAX = 50_000
_BATCH_RECORDS_MAX = 2_000
_PUMP_S = 0.05
_FAILING_S = 2.0
_PAUSE_S = 1.0
_FLUSH_S = 2.0

KeyValue = tuple[bytes, bytes | None]
TakenSyncs = tuple[list[KeyValue], list[KeyValue]]
"""Offset syncs, and the runs that belong to them."""
NO_SYNCS: TakenSyncs = ([], [])


@dataclass(slots=True, eq=False)
class _Partition:
    state: PartitionState
    topic_id: str = ""
    target_id: str = ""
    remote: str = ""
    fresh: list[Run] = field(default_factory=list)
    due: list[tuple[int, int]] = field(default_factory=list)
    newest: tuple[int, int] | None = None


class SyncOutput(Protocol):
    """Takes records for the two topics; outside of tests it is a `SyncSender`."""

    def put(self, syncs: Iterable[KeyValue], runs: Iterable[KeyValue]) -> None:
        """Queue records to write; does not wait."""

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything is written; returns whether it is."""


class SlotSyncs:
    """Offset syncs and runs of one task."""

    def __init__(self, lag_max: int, outlet: SyncOutput) -> None:
        self._lag_max = lag_max
        self._outlet = outlet
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._touched: dict[tuple[TopicPartition, str], _Partition] = {}

    def settled(
        self,
        source: TopicPartition,
        offsets: ChunkOffsets,
        topic_id: str = "",
        target_id: str = "",
        *,
        remote: str = "",
    ) -> None:
        """Note that all records of ``source`` up to and including these are acknowledged.

        ``topic_id``: of the source topic, ``target_id``: of the remote topic; empty if unknown.
        ``remote``: the name that a map gave the topic. Then only runs are written: an offset sync
        does not name the remote topic.
        """
        runs = offsets.runs()
        if not runs:
            return
        part = self._partitions.get(source)
        if part is None or (part.topic_id, part.target_id) != (topic_id, target_id):
            part = _Partition(PartitionState(self._lag_max), topic_id, target_id, remote)
            self._partitions[source] = part
        for run in runs:
            for due in part.state.advance(run.source, run.target, run.length):
                # Older ones would be left out anyway.
                newest = due[-_newest_first(len(due)) :] if len(due) > _SYNCS_MAX else due
                part.due += [(run.source + i, run.target + i) for i in newest]
            extend_run(part.fresh, run)
        last = part.fresh[-1]
        part.newest = (last.source_end - 1, last.target_end - 1)
        part.due = _thinned(part.due)
        if len(part.fresh) > 2 * _RUNS_MAX:
            del part.fresh[:-_RUNS_MAX]
        self._touched[source, topic_id] = part

    def publish(self, taken: TakenSyncs | None = None) -> None:
        """Hand ``taken``, by default what `take` returns, to the sender.

        The positions that cover it must be committed.
        """
        syncs, runs = self.take() if taken is None else taken
        if syncs or runs:
            self._outlet.put(syncs, runs)

    def take(self) -> TakenSyncs:
        """Return offset syncs and runs of what was settled, and forget them.

        If there are too many, the rest stays for the next call.
        """
        syncs: list[KeyValue] = []
        runs: list[KeyValue] = []
        points_taken = 0
        while self._touched and points_taken < _SYNCS_PER_SLOT_MAX:
            points_taken += self._take_one(*next(iter(self._touched)), syncs, runs)
        return syncs, runs

    def sources(self) -> set[TopicPartition]:
        """The source partitions of which something waits for the next `take`."""
        return {source for source, _ in self._touched}

    def _take_one(
        self, source: TopicPartition, topic_id: str, syncs: list[KeyValue], runs: list[KeyValue]
    ) -> int:
        """Add what is due of one partition to ``syncs`` and ``runs``; returns how many points."""
        part = self._touched.pop((source, topic_id))
        points = part.due
        if part.newest is not None and (not points or points[-1] != part.newest):
            points = [*points, part.newest]
        if not part.remote:
            syncs += [encode_offset_sync(source, *point) for point in points]
        runs += [
            encode_run(
                *(source, run),
                topic_id=topic_id,
                target_id=part.target_id,
                remote=part.remote,
            )
            for run in part.fresh[-_RUNS_MAX:]
        ]
        part.due, part.newest = [], None
        # The last run may grow; then it is written again as a whole, under the same key.
        del part.fresh[:-1]
        return len(points)

    def leave(self, source: TopicPartition) -> None:
        """Publish all that is due of ``source``, whose positions are committed, and forget it.

        Another slot continues: what this one wrote later would lead readers back.
        """
        syncs: list[KeyValue] = []
        runs: list[KeyValue] = []
        for key in [key for key in self._touched if key[0] == source]:
            self._take_one(*key, syncs, runs)
        self._partitions.pop(source, None)
        if syncs or runs:
            self._outlet.put(syncs, runs)

    @property
    def written(self) -> bool:
        """Whether everything that was published is written."""
        return self._outlet.flush(0.0)

    def finish(self) -> None:
        """`publish` everything, and wait a moment until it is written."""
        while self._touched:
            self.publish()
        if not self._outlet.flush(_FLUSH_S):
            log.warning("some offset syncs are not written yet")


def _newest_first(count: int) -> int:
    """How many of ``count`` points `_thinned` needs, counted from the newest."""
    return min(count, 1 << (_SYNCS_MAX - 1))


def _thinned(points: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The newest of ``points`` and those 1, 2, 4, … before it, oldest first, at most ten."""
    if len(points) <= _SYNCS_MAX:
        return points
    backward = [0, *(1 << power for power in range(_SYNCS_MAX - 1))]
    return [points[-1 - back] for back in reversed(backward) if back < len(points)]


def batches_of(records: Sequence[KeyValue]) -> Iterator[memoryview]:
    """Record batches of ``records``, whose timestamps are the current time."""
    time_ms = int(time.time() * 1000)
    for start in range(0, len(records), _BATCH_RECORDS_MAX):
        part = records[start : start + _BATCH_RECORDS_MAX]
        rows = [Record(index, time_ms, key, value, ()) for index, (key, value) in enumerate(part)]
        yield memoryview(encode_batch(rows, codec=NONE))


class SyncSender:
    """Writes both topics of one flow from one process; created on first use, kept between tasks."""

    _kept: dict[str, SyncSender] = {}  # noqa: RUF012 (one per process and flow)

    @classmethod
    def of(cls, flow: FlowSettings) -> SyncSender:
        """The sender of this process for ``flow``."""
        key = f"{flow.name}|{flow.offset_syncs.location}|{','.join(flow.target.bootstrap_servers)}"
        if key not in cls._kept:
            cls._kept[key] = cls(flow)
        return cls._kept[key]

    @classmethod
    def close_all(cls) -> None:
        """`close` all senders of this process, which continues without its slots."""
        while cls._kept:
            cls._kept.popitem()[1].close()

    def __init__(self, flow: FlowSettings) -> None:
        syncs = flow.offset_syncs
        client = syncs.client or (flow.source if syncs.location == "source" else flow.target)
        self._syncs = _Topic(offset_syncs_topic(flow), client, syncs.produce)
        self._runs = _Topic(runs_topic(flow), flow.target, flow.produce)
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closing = False

    def put(self, syncs: Iterable[KeyValue], runs: Iterable[KeyValue]) -> None:
        """Queue records to write; does not wait."""
        with self._changed:
            self._syncs.backlog.extend(syncs)
            self._runs.backlog.extend(runs)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="syncs", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything is written, unless the cluster rejects it now; returns whether."""
        with self._changed:
            self._changed.wait_for(self._settled_or_failing, timeout_s)
            return self._settled()

    def close(self, timeout_s: float = 10.0) -> None:
        """End the thread and close the connections; what is not written by then is dropped.

        Waits until the request in progress has ended, for at most ``timeout_s``.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is None:
            self._close_topics()
        else:
            self._thread.join(timeout_s)

    def _close_topics(self) -> None:
        for topic in (self._syncs, self._runs):
            topic.close()

    def _settled(self) -> bool:
        return self._syncs.idle and self._runs.idle

    def _settled_or_failing(self) -> bool:
        return all(topic.idle or topic.failing for topic in (self._syncs, self._runs))

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._closing or not self._settled())
            if self._closing:
                self._close_topics()  # this thread owns their connections
                return
            for topic in (self._syncs, self._runs):
                topic.step(self._changed)


class _Topic:
    """One of the topics, with its producer. Only the sender's thread may call `step`."""

    def __init__(self, name: str, client: ClusterClient, produce: ProduceSettings) -> None:
        self.backlog: deque[KeyValue] = deque(maxlen=_BACKLOG_MAX)
        self.failing = False
        self._tp = TopicPartition(name, 0)
        # Duplicates do no harm here, so no producer id is requested.
        settings = replace(produce, enable_idempotence=False)
        self._client = client
        self._producer = Producer(ClusterConnections(client), settings)
        # What cannot be written for long comes back here, where newer records displace it.
        self._producer.backlog.impatient = True
        self._taken: list[KeyValue] = []  # what the producer has
        self._sent_at = 0.0
        self._not_before = 0.0

    def close(self) -> None:
        """Close the connections."""
        self._producer.close()

    @property
    def idle(self) -> bool:
        """Whether nothing waits to be written or acknowledged."""
        return not self.backlog and not self._taken

    def step(self, changed: threading.Condition) -> None:
        """Send a batch, or process its acknowledgement; waits a moment at most."""
        now = time.monotonic()
        if self.idle:
            return
        if now < self._not_before:
            time.sleep(_PUMP_S)
            return
        try:
            if not self._taken:
                self._send(changed)
            self._producer.pump(_PUMP_S)
            halt = self._producer.backlog.halts.get(self._tp)
        except (MirrorError, ConnectionLost) as error:
            self._fail(str(error), changed)
            return
        if halt is not None:
            self._producer.backlog.forget_halts()
            self._fail(halt.reason, changed, halt)
        elif self._producer.backlog.idle:
            with changed:
                self._taken, self.failing = [], False
        elif time.monotonic() - self._sent_at > _FAILING_S:
            codes = ", ".join(sorted(self._producer.backlog.errors)) or "no leader, or no response"
            self._fail(codes, changed)

    def _send(self, changed: threading.Condition) -> None:
        with changed:
            count = min(len(self.backlog), _BATCH_RECORDS_MAX)
            self._taken = [self.backlog.popleft() for _ in range(count)]
        self._producer.connections.add_topics([self._tp.topic])
        for batch in batches_of(self._taken):
            self._producer.backlog.append(self._tp, batch)
        self._sent_at = time.monotonic()

    def _fail(self, reason: str, changed: threading.Condition, halt: Halt | None = None) -> None:
        """Note a failure and pause before the retry. It is logged once until a write succeeds.

        ``halt``: why the producer has dropped what it had; it is sent again unless it is refused.
        Without the pause, looking for a topic that does not exist takes a quarter of a sink's time.
        """
        self._not_before = time.monotonic() + _PAUSE_S
        if not self.failing:
            log.warning(
                "%s on cluster %s accepts no records now (%s): until it does, consumer groups are "
                "translated less exactly",
                *(self._tp.topic, self._client.alias, reason),
            )
        with changed:
            self.failing = True
            if halt is not None:
                if halt.retriable:  # nobody derives these records again
                    room = _BACKLOG_MAX - len(self.backlog)
                    self.backlog.extendleft(islice(reversed(self._taken), room))
                self._taken = []
            changed.notify_all()

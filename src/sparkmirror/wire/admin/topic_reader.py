"""Reads and writes the small internal topics: control topic, Connect's offsets.

Explicit partitions, no group, bounded waits. Not for mirrored data, which takes the hot path.
Existing records are read over the connections of the cluster's `Requester`: a start reads a dozen
such topics, and over a long link a separate consumer takes a second to connect. Only a reader that
waits for new records has its own consumer, because a waiting Fetch blocks all requests behind it.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

from kafka.consumer.fetcher import Fetcher
from kafka.record.memory_records import MemoryRecords
from kafka.structs import TopicPartition as KafkaPartition

import kafka
from sparkmirror.errors import BatchError, ClusterError, MirrorError, TopicError, Unreachable
from sparkmirror.model import TopicPartition
from sparkmirror.wire.admin.error_translation import quiet_kafka_logs, translate, translated
from sparkmirror.wire.admin.leaders import EARLIEST, MOVED, Leaders
from sparkmirror.wire.admin.messages import fetch_request, produce_request, record_batch
from sparkmirror.wire.admin.requester import Requester, client_options, error_for
from sparkmirror.wire.cluster.acl_advice import Right
from sparkmirror.wire.net.kafka_python_limits import UNREADABLE, passing_over

__all__ = ["TopicTail", "TopicWriter"]

log = logging.getLogger(__name__)

_POLL_MS = 250
_CLOSE_TIMEOUT_S = 1.0
_BATCH_BYTES_MAX = 512 * 1024
_RECORD_OVERHEAD_BYTES = 32
_TOO_LARGE = frozenset({10, 18})
_OFFSET_OUT_OF_RANGE, _UNKNOWN_TOPIC, _NO_LEADER = 1, 3, 5
_READ_COMMITTED = 1
# Other requests wait behind a response, so its size has a limit even if internal topics are large.
_FETCH_BYTES_MAX = 4 << 20
# A lost leader, missing in-sync replicas, a timeout or a quota: a retry may cure them.
_TRY_AGAIN = MOVED | {7, 19, 20, 89}

Record = tuple[int, bytes | None, bytes | None]


class TopicTail:
    """Follows partitions of one topic from given offsets; a context manager.

    ``ranges``: (start offset, present end offset, exclusive) per partition. If the log begins later
    by now, reading starts there. Only committed data is read: Connect writes its offsets in
    transactions when exactly-once is on. One owner thread. ``passes``: batches that cannot be read
    are skipped with a warning in the log, instead of an error.
    """

    def __init__(
        self,
        requester: Requester,
        leaders: Leaders,
        ranges: Mapping[TopicPartition, tuple[int, int]],
        *,
        passes: bool = False,
    ) -> None:
        quiet_kafka_logs()
        self._requester = requester
        self._client = requester.client
        self._leaders = leaders
        self._ends = {tp: end for tp, (_, end) in ranges.items()}
        self._positions = {tp: start for tp, (start, _) in ranges.items()}
        self._topic = next(iter(ranges)).topic if ranges else ""
        self._doing = f"reading topic {self._topic}"
        self._needs = Right("Read", "Topic", self._topic)
        self._passes = passes
        self._consumer: Any = None

    def __enter__(self) -> TopicTail:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def poll(self, timeout_ms: int = _POLL_MS) -> list[Record]:
        """New records since the last call; waits up to ``timeout_ms`` for the first one."""
        with self._reading():
            consumer = self._open()
            batches = consumer.poll(timeout_ms=timeout_ms)
            for tp in self._positions:
                self._positions[tp] = int(consumer.position(_kafka(tp)))
        return [row for records in batches.values() for row in _rows(records)]

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            passing = passing_over() if self._passes else nullcontext()
            with passing, translated(self._client, self._doing, needs=self._needs):
                yield
        except (BatchError, *UNREADABLE) as error:
            raise TopicError(
                f"records of topic {self._topic} cannot be read ({error}).",
                where=f"cluster {self._client.alias}",
                do="Inspect them with kafka-dump-log.sh. Only the mirror should write there.",
            ) from error

    def read_to_end(self, *, within_s: float = math.inf) -> Iterator[Record]:
        """Every record up to the end offsets in ``ranges``.

        Stops after ``within_s`` with a warning in the log. Raises `TopicError` when reading makes
        no progress for a request timeout.
        """
        yield from self._read(self._ends, within_s)

    def read_to(self, ends: Mapping[TopicPartition, int]) -> Iterator[Record]:
        """Every record from the present position up to ``ends``; raises as `read_to_end`."""
        yield from self._read(ends)

    def _read(
        self, ends: Mapping[TopicPartition, int], within_s: float = math.inf
    ) -> Iterator[Record]:
        self._close_consumer()  # its own position would be wrong after this
        closes = self._requester.closes
        deadline = time.monotonic() + within_s
        stalled_at = time.monotonic() + self._client.request_timeout_ms / 1000
        fresh = False
        while waiting := [tp for tp, end in ends.items() if self._positions[tp] < end]:
            before = [self._positions[tp] for tp in waiting]
            yield from self._fetch(waiting, closes, fresh=fresh)
            fresh = before == [self._positions[tp] for tp in waiting]
            if not fresh:
                stalled_at = time.monotonic() + self._client.request_timeout_ms / 1000
            if time.monotonic() > deadline:
                if any(self._positions[tp] < ends[tp] for tp in waiting):
                    log.warning("%s ended early, after %g s", self._doing, within_s)
                return
            if fresh and time.monotonic() > stalled_at:
                stuck = ", ".join(map(str, sorted(waiting)))
                raise TopicError(
                    f"reading {stuck} makes no progress.",
                    where=f"cluster {self._client.alias}",
                    do="Check that the brokers of this cluster are healthy.",
                )
            if fresh:
                time.sleep(self._client.retry_backoff_ms / 1000)

    def _fetch(self, wanted: Sequence[TopicPartition], closes: int, *, fresh: bool) -> list[Record]:
        """The records in one response of each leader of ``wanted``; advances the positions.

        ``closes``: the value of `Requester.closes` at the start. If the connection is closed
        meanwhile, this raises instead of waiting for another leader.
        """
        found: list[Record] = []
        led, _ = self._leaders.by_leader(wanted, fresh=fresh)
        for node, partitions in led.items():
            positions = {tp: self._positions[tp] for tp in partitions}
            with self._reading():
                try:
                    response = self._requester.request(
                        partial(fetch_request, positions, _FETCH_BYTES_MAX, read_committed=True),
                        self._doing,
                        node=node,
                        needs=self._needs,
                    )
                except Unreachable:
                    if self._requester.closes != closes:
                        raise
                    continue  # the next round looks up the leader again
                for topic in response.responses:
                    for part in topic.partitions:
                        found += self._taken(
                            TopicPartition(topic.topic, part.partition_index), part
                        )
        return found

    def _taken(self, tp: TopicPartition, part: Any) -> Iterable[Record]:
        """The records of one partition in a response. Raises kafka-python's errors."""
        if part.error_code == _OFFSET_OUT_OF_RANGE:
            # The log begins after the position: because of retention or DeleteRecords.
            self._positions.update(self._leaders.list_offsets([tp], EARLIEST, 0))
            return ()
        if part.error_code:
            if part.error_code in MOVED:
                return ()
            raise error_for(part.error_code)
        rows = Fetcher.PartitionRecords(
            self._positions[tp],
            _kafka(tp),
            MemoryRecords(part.records or b""),
            isolation_level=_READ_COMMITTED,
            aborted_transactions=part.aborted_transactions,
        )
        records = rows.take(None)
        self._positions[tp] = rows.next_fetch_offset
        return _rows(records)

    def _open(self) -> Any:
        if self._consumer is None:
            options = client_options(self._client)
            consumer = kafka.KafkaConsumer(
                **options,
                group_id=None,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                isolation_level="read_committed",
                allow_auto_create_topics=False,
                max_poll_records=10_000,
                metrics_enabled=False,
                bootstrap_timeout_ms=self._client.request_timeout_ms,
            )
            consumer.assign([_kafka(tp) for tp in self._positions])
            for tp, position in self._positions.items():
                consumer.seek(_kafka(tp), position)
            self._consumer = consumer
        return self._consumer

    def close(self) -> None:
        """Close the consumer, if there is one; nothing is committed."""
        self._close_consumer()

    def _close_consumer(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            with translated(self._client, self._doing):
                consumer.close(timeout_ms=_CLOSE_TIMEOUT_S * 1000)


def _kafka(tp: TopicPartition) -> KafkaPartition:
    return KafkaPartition(tp.topic, tp.partition)


def _rows(records: Iterable[Any]) -> Iterator[Record]:
    return ((record.partition, record.key, record.value) for record in records)


class TopicWriter:
    """Writes keyed records to given partitions and waits for the acknowledgements. Thread-safe.

    Batches are sent one after the other, so a later record never overtakes an earlier one. A batch
    whose acknowledgement is lost is written again, which does no harm in a compacted topic.
    """

    def __init__(self, requester: Requester, leaders: Leaders) -> None:
        self._requester = requester
        self._leaders = leaders
        self._lock = threading.Lock()

    def write(
        self,
        topic: str,
        records: Iterable[tuple[int, bytes, bytes | None]],
        timestamp_ms: int | None = None,
    ) -> int:
        """Write ``(partition, key, value)`` in order; returns the count once all are acknowledged.

        ``timestamp_ms``: of all records, default now.

        Raises `MirrorError` when a record is refused, or unacknowledged after the request timeout;
        the batches before it have been written.
        """
        count = 0
        with self._lock:  # so that the records of two callers do not mix
            deadline = time.monotonic() + self._requester.client.request_timeout_ms / 1000
            closes = self._requester.closes
            for partition, batch in _batches(records):
                tp = TopicPartition(topic, partition)
                time_ms = int(time.time() * 1000) if timestamp_ms is None else timestamp_ms
                data = record_batch(batch, time_ms)
                self._write_batch(tp, data, deadline, closes)
                count += len(batch)
        return count

    def _write_batch(self, tp: TopicPartition, batch: bytes, deadline: float, closes: int) -> None:
        fresh = False
        backoff_s = self._requester.client.retry_backoff_ms / 1000
        while True:
            error: MirrorError
            try:
                code = self._try(tp, batch, deadline, fresh=fresh)
            except Unreachable as unreachable:
                error = unreachable
            else:
                if code == 0:
                    return
                error = self._error(tp, code, len(batch))
                if code not in _TRY_AGAIN:
                    raise error
            if time.monotonic() + backoff_s > deadline or self._requester.closes != closes:
                raise error
            time.sleep(backoff_s)
            fresh = True

    def _error(self, tp: TopicPartition, code: int, size: int) -> MirrorError:
        client, doing = self._requester.client, f"writing to {tp}"
        if code in _TOO_LARGE:
            return ClusterError(
                f"{doing} failed: a batch of {size} bytes is larger than the topic allows.",
                where=f"cluster {client.alias}",
                do=f"Raise max.message.bytes of {tp.topic}.",
            )
        return translate(error_for(code), client, doing, needs=Right("Write", "Topic", tp.topic))

    def _try(self, tp: TopicPartition, batch: bytes, deadline: float, *, fresh: bool) -> int:
        """Error code of one attempt; LEADER_NOT_AVAILABLE when the partition has no leader."""
        led, gone = self._leaders.by_leader([tp], fresh=fresh)
        if tp in gone:
            return _UNKNOWN_TOPIC
        if not led:
            return _NO_LEADER
        (node,) = led
        left_ms = max(50, int((deadline - time.monotonic()) * 1000))
        response = self._requester.request(
            partial(produce_request, tp, batch, left_ms),
            f"writing to {tp}",
            node=node,
            timeout_ms=left_ms,
            needs=Right("Write", "Topic", tp.topic),
        )
        return int(response.responses[0].partition_responses[0].error_code)


def _batches(
    records: Iterable[tuple[int, bytes, bytes | None]],
) -> Iterator[tuple[int, list[tuple[bytes, bytes | None]]]]:
    """(partition, consecutive records for it), at most `_BATCH_BYTES_MAX` unless it is one record.

    The order across partitions is that of the input, too.
    """
    run: list[tuple[bytes, bytes | None]] = []
    at, size = -1, 0
    for partition, key, value in records:
        weight = len(key) + len(value or b"") + _RECORD_OVERHEAD_BYTES
        if run and (partition != at or size + weight > _BATCH_BYTES_MAX):
            yield at, run
            run, size = [], 0
        at = partition
        run.append((key, value))
        size += weight
    if run:
        yield at, run

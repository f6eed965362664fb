"""Reading and writing the small internal topics: control topic, Connect's offsets.

Explicit partitions, no group, bounded waits. Not for mirrored data, which takes the hot path.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

from kafka.structs import TopicPartition as KafkaPartition

import kafka
from sparkmirror.errors import BatchError, ClusterError, MirrorError, TopicError, Unreachable
from sparkmirror.model import ClusterClient, TopicPartition
from sparkmirror.wire.faults import quiet_kafka_logs, translate, translated
from sparkmirror.wire.grants import Right
from sparkmirror.wire.guard import UNREADABLE, passing_over
from sparkmirror.wire.leaders import MOVED, Leaders
from sparkmirror.wire.link import Link, client_options, error_for
from sparkmirror.wire.requests import produce_request, record_batch

__all__ = ["TopicTail", "TopicWriter"]

log = logging.getLogger(__name__)

_POLL_MS = 250
_CLOSE_TIMEOUT_S = 1.0
_BATCH_BYTES_MAX = 512 * 1024
_RECORD_OVERHEAD_BYTES = 32
_TOO_LARGE = frozenset({10, 18})
_UNKNOWN_TOPIC, _NO_LEADER = 3, 5
# A lost leader, a broker that lacks in-sync replicas or time: it may be over in a moment.
_TRY_AGAIN = MOVED | {7, 19, 20, 89}

Record = tuple[int, bytes | None, bytes | None]


class TopicTail:
    """Follows partitions of one topic from given offsets; a context manager.

    ``ranges``: start offset and present end offset (exclusive) per partition. Only committed data
    is read: Connect writes its offsets in transactions when exactly-once is on. One owner thread.
    ``passes``: batches that cannot be read are passed over, with a warning in the log, instead of
    being an error.
    """

    def __init__(
        self,
        client: ClusterClient,
        ranges: Mapping[TopicPartition, tuple[int, int]],
        *,
        passes: bool = False,
    ) -> None:
        quiet_kafka_logs()
        self._client = client
        self._ranges = dict(ranges)
        self._topic = next(iter(ranges)).topic if ranges else ""
        self._doing = f"reading topic {self._topic}"
        self._passes = passes
        self._consumer: Any = None

    def __enter__(self) -> TopicTail:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def poll(self, timeout_ms: int = _POLL_MS) -> list[Record]:
        """What has come since the last call; waits up to ``timeout_ms`` for the first record."""
        try:
            needs = Right("Read", "Topic", self._topic)
            passing = passing_over() if self._passes else nullcontext()
            with passing, translated(self._client, self._doing, needs=needs):
                batches = self._open().poll(timeout_ms=timeout_ms)
        except (BatchError, *UNREADABLE) as error:
            raise TopicError(
                f"records of topic {self._topic} cannot be read ({error}).",
                where=f"cluster {self._client.alias}",
                do="Look at them with kafka-dump-log.sh; only the mirror should write there.",
            ) from error
        return [
            (partition.partition, record.key, record.value)
            for partition, records in batches.items()
            for record in records
        ]

    def read_to_end(self, *, within_s: float = math.inf) -> Iterator[Record]:
        """Every record up to the end that was seen when this reader was made.

        After ``within_s`` the rest is left, with a warning in the log. Raises `TopicError` when no
        progress is made for a request timeout.
        """
        waiting = {tp: end for tp, (start, end) in self._ranges.items() if start < end}
        yield from self._read(waiting, within_s)

    def read_to(self, ends: Mapping[TopicPartition, int]) -> Iterator[Record]:
        """Every record from the present place up to ``ends``; raises as `read_to_end`."""
        yield from self._read({tp: end for tp, end in ends.items() if self._position(tp) < end})

    def _read(
        self, waiting: dict[TopicPartition, int], within_s: float = math.inf
    ) -> Iterator[Record]:
        deadline = time.monotonic() + within_s
        stalled_at = time.monotonic() + self._client.request_timeout_ms / 1000
        while waiting:
            before = {tp: self._position(tp) for tp in waiting}
            yield from self.poll()
            for tp in list(waiting):
                position = self._position(tp)
                if position != before[tp]:
                    stalled_at = time.monotonic() + self._client.request_timeout_ms / 1000
                if position >= waiting[tp]:
                    del waiting[tp]
            if waiting and time.monotonic() > deadline:
                log.warning("%s ended early, after %g s", self._doing, within_s)
                return
            if waiting and time.monotonic() > stalled_at:
                stuck = ", ".join(map(str, sorted(waiting)))
                raise TopicError(
                    f"reading {stuck} makes no progress.",
                    where=f"cluster {self._client.alias}",
                    do="Check that the brokers of this cluster are healthy.",
                )

    def _position(self, tp: TopicPartition) -> int:
        with translated(self._client, self._doing):
            return int(self._open().position(KafkaPartition(tp.topic, tp.partition)))

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
            consumer.assign([KafkaPartition(tp.topic, tp.partition) for tp in self._ranges])
            for tp, (start, _) in self._ranges.items():
                consumer.seek(KafkaPartition(tp.topic, tp.partition), start)
            self._consumer = consumer
        return self._consumer

    def close(self) -> None:
        """Close the connection; nothing is committed anywhere."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            with translated(self._client, self._doing):
                consumer.close(timeout_ms=_CLOSE_TIMEOUT_S * 1000)


class TopicWriter:
    """Writes keyed records to given partitions and waits for the acknowledgements. Thread-safe.

    Batches go one after the other, so a later record never overtakes an earlier one. A batch whose
    acknowledgement got lost is written again, which does no harm in a compacted topic.
    """

    def __init__(self, link: Link, leaders: Leaders) -> None:
        self._link = link
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

        Raises `MirrorError` when one is refused or unacknowledged after the request timeout; those
        before it have been written.
        """
        count = 0
        with self._lock:  # so that the records of two callers do not mix
            deadline = time.monotonic() + self._link.client.request_timeout_ms / 1000
            closes = self._link.closes
            for partition, batch in _batches(records):
                tp = TopicPartition(topic, partition)
                time_ms = int(time.time() * 1000) if timestamp_ms is None else timestamp_ms
                data = record_batch(batch, time_ms)
                self._write_batch(tp, data, deadline, closes)
                count += len(batch)
        return count

    def _write_batch(self, tp: TopicPartition, batch: bytes, deadline: float, closes: int) -> None:
        fresh = False
        backoff_s = self._link.client.retry_backoff_ms / 1000
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
            if time.monotonic() + backoff_s > deadline or self._link.closes != closes:
                raise error
            time.sleep(backoff_s)
            fresh = True

    def _error(self, tp: TopicPartition, code: int, size: int) -> MirrorError:
        client, doing = self._link.client, f"writing to {tp}"
        if code in _TOO_LARGE:
            return ClusterError(
                f"{doing} failed: a batch of {size} bytes is larger than the topic allows.",
                where=f"cluster {client.alias}",
                do=f"Raise max.message.bytes of {tp.topic}.",
            )
        return translate(error_for(code), client, doing, needs=Right("Write", "Topic", tp.topic))

    def _try(self, tp: TopicPartition, batch: bytes, deadline: float, *, fresh: bool) -> int:
        """Error code of one attempt; "leader not available" when nobody leads the partition."""
        led, gone = self._leaders.by_leader([tp], fresh=fresh)
        if tp in gone:
            return _UNKNOWN_TOPIC
        if not led:
            return _NO_LEADER
        (node,) = led
        left_ms = max(50, int((deadline - time.monotonic()) * 1000))
        response = self._link.request(
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
    """Runs of records for one partition, each at most `_BATCH_BYTES_MAX` unless it is one record.

    The order across partitions is that of the input as well.
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

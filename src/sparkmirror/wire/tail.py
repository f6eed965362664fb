"""Reading and writing the small internal topics: control topic, Connect's offsets.

kafka-python's consumer and producer, with explicit partitions, no group and bounded waits. Not for
mirrored data, which goes through the hot path.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import kafka.errors as kafka_errors
from kafka.structs import TopicPartition as KafkaPartition

import kafka
from sparkmirror.errors import ClusterError, TopicError
from sparkmirror.model import ClusterClient, TopicPartition
from sparkmirror.wire.faults import quiet_kafka_logs, translated
from sparkmirror.wire.link import client_options

__all__ = ["TopicTail", "TopicWriter"]

_POLL_MS = 250
_REQUEST_BYTES_MAX = 16 * 1024 * 1024

Record = tuple[int, bytes | None, bytes | None]


class TopicTail:
    """Follows partitions of one topic from given offsets; a context manager.

    ``ranges``: start offset and present end offset (exclusive) per partition. Only committed data
    is read: Connect writes its offsets in transactions when exactly-once is on. One owner thread.
    """

    def __init__(
        self, client: ClusterClient, ranges: Mapping[TopicPartition, tuple[int, int]]
    ) -> None:
        quiet_kafka_logs()
        self._client = client
        self._ranges = dict(ranges)
        self._topic = next(iter(ranges)).topic if ranges else ""
        self._doing = f"reading topic {self._topic}"
        self._consumer: Any = None

    def __enter__(self) -> TopicTail:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def poll(self, timeout_ms: int = _POLL_MS) -> list[Record]:
        """What has come since the last call; waits up to ``timeout_ms`` for the first record."""
        with translated(self._client.alias, self._doing, needs=f"Read on Topic {self._topic}"):
            batches = self._open().poll(timeout_ms=timeout_ms)
        return [
            (partition.partition, record.key, record.value)
            for partition, records in batches.items()
            for record in records
        ]

    def read_to_end(self) -> Iterator[Record]:
        """Every record up to the end that was seen when this reader was made.

        Raises `TopicError` when no progress is made for a request timeout.
        """
        waiting = {tp: end for tp, (start, end) in self._ranges.items() if start < end}
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
            if waiting and time.monotonic() > stalled_at:
                stuck = ", ".join(map(str, sorted(waiting)))
                raise TopicError(
                    f"reading {stuck} makes no progress.",
                    where=f"cluster {self._client.alias}",
                    do="Check that the brokers of this cluster are healthy.",
                )

    def _position(self, tp: TopicPartition) -> int:
        with translated(self._client.alias, self._doing):
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
            with translated(self._client.alias, self._doing):
                consumer.close()


class TopicWriter:
    """Writes keyed records to given partitions and waits for all of them. Thread-safe."""

    def __init__(self, client: ClusterClient) -> None:
        quiet_kafka_logs()
        self._client = client
        self._lock = threading.Lock()
        self._producer: Any = None

    def write(self, topic: str, records: Iterable[tuple[int, bytes, bytes | None]]) -> int:
        """Write ``(partition, key, value)`` in order; returns the count once all are acknowledged.

        Raises `MirrorError` when one is refused or unacknowledged after the request timeout; those
        before it may have been written.
        """
        alias, timeout_s = self._client.alias, self._client.request_timeout_ms / 1000
        doing = f"writing to topic {topic}"
        with self._lock, translated(alias, doing, needs=f"Write on Topic {topic}"):
            producer = self._open()
            futures = [
                producer.send(topic, key=key, value=value, partition=partition)
                for partition, key, value in records
            ]
            producer.flush(timeout=timeout_s)
            for future in futures:
                try:
                    future.get(timeout=timeout_s)
                except kafka_errors.MessageSizeTooLargeError as error:
                    raise ClusterError(
                        f"{doing} failed: a record is larger than the topic allows ({error}).",
                        where=f"cluster {alias}",
                        do=f"Raise max.message.bytes of {topic}.",
                    ) from error
        return len(futures)

    def _open(self) -> Any:
        if self._producer is None:
            timeout_ms = self._client.request_timeout_ms
            self._producer = kafka.KafkaProducer(
                **client_options(self._client),
                acks="all",
                enable_idempotence=False,  # a repeated record does no harm in a compacted topic
                max_in_flight_requests_per_connection=1,  # but an overtaken one would
                max_block_ms=timeout_ms,
                delivery_timeout_ms=timeout_ms + 1_000,
                max_request_size=_REQUEST_BYTES_MAX,
                allow_auto_create_topics=False,
                metrics_enabled=False,
                bootstrap_timeout_ms=timeout_ms,
            )
        return self._producer

    def close(self) -> None:
        """Close the producer; what was written is already acknowledged."""
        with self._lock:
            producer, self._producer = self._producer, None
        if producer is not None:
            with translated(self._client.alias, "closing a producer"):
                producer.close(timeout=2)

"""Reads and writes the small internal topics: control topic, Connect's offsets.

Explicit partitions, no group, bounded waits. Not for mirrored data, which takes the hot path.
Existing records are read over the connections of the cluster's `Requester`: a start reads a dozen
such topics, and over a long link more connections take a second. Only a reader that waits for new
records has connections of its own (`long_polls`).
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from sparkmirror.errors import BatchError, ClusterError, MirrorError, TopicError, Unreachable
from sparkmirror.model import TopicPartition
from sparkmirror.offset_reset import EARLIEST
from sparkmirror.records.header import base_offset, split
from sparkmirror.records.records import decode_records
from sparkmirror.records.selection import AbortedTransaction, SelectRules, select
from sparkmirror.records.walk import behind_first
from sparkmirror.wire.admin.error_translation import translate, translated
from sparkmirror.wire.admin.leaders import MOVED, Leaders
from sparkmirror.wire.admin.long_polls import LongPolls
from sparkmirror.wire.admin.messages import fetch_request, produce_request, record_batch
from sparkmirror.wire.admin.requester import Requester, error_for
from sparkmirror.wire.cluster.acl_advice import Right
from sparkmirror.wire.net.kafka_python_limits import UNREADABLE

__all__ = ["TopicTail", "TopicWriter"]

log = logging.getLogger(__name__)

_POLL_MS = 250
_BATCH_BYTES_MAX = 512 * 1024
_RECORD_OVERHEAD_BYTES = 32
_TOO_LARGE = frozenset({10, 18})
_OFFSET_OUT_OF_RANGE, _UNKNOWN_TOPIC, _NO_LEADER = 1, 3, 5
# Other requests wait behind a response, so its size has a limit even if internal topics are large.
_FETCH_BYTES_MAX = 4 << 20
# Internal topics hold small records; Java's producer fills a batch with a megabyte at most.
_UNPACKED_BYTES_MAX = 32 << 20
_RULES = SelectRules(join_below_bytes=0, decompressed_bytes_max=_UNPACKED_BYTES_MAX)
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
        self._requester = requester
        self._client = requester.client
        self._leaders = leaders
        self._ends = {tp: end for tp, (_, end) in ranges.items()}
        self._positions = {tp: start for tp, (start, _) in ranges.items()}
        self._topic = next(iter(ranges)).topic if ranges else ""
        self._doing = f"reading topic {self._topic}"
        self._needs = Right("Read", "Topic", self._topic)
        self._passes = passes
        self._polls: LongPolls | None = None

    def __enter__(self) -> TopicTail:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def poll(self, timeout_ms: int = _POLL_MS) -> list[Record]:
        """New records since the last call; waits up to ``timeout_ms`` for the first one."""
        deadline = time.monotonic() + timeout_ms / 1000
        if self._polls is None:
            self._polls = LongPolls(self._client, _FETCH_BYTES_MAX)
        found: list[Record] = []
        while True:
            left_ms = max(0, int((deadline - time.monotonic()) * 1000))
            with self._reading():
                for response in self._polls.responses(self._positions, left_ms):
                    found += self._records_of(response)
                    if _failed(response):
                        self._polls.look_again()
            if found or not left_ms:
                return found

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            with translated(self._client, self._doing, needs=self._needs):
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
        """Every record from the present position up to ``ends``; raises as `read_to_end`.

        If the log was cut off before the position, that is from its beginning.
        """
        beyond = [tp for tp, end in ends.items() if self._positions[tp] > end]
        if beyond:  # or the leader is a new one, and does not know all of its log yet
            yield from self._fetch(beyond, self._requester.closes, fresh=False)
        yield from self._read(ends)

    def _read(
        self, ends: Mapping[TopicPartition, int], within_s: float = math.inf
    ) -> Iterator[Record]:
        self.close()  # requests in flight have positions that are wrong after this
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
                found += self._records_of(response)
        return found

    def _records_of(self, response: Any) -> Iterator[Record]:
        """The records in a Fetch response; advances the positions."""
        for topic in response.responses:
            for part in topic.partitions:
                yield from self._taken(TopicPartition(topic.topic, part.partition_index), part)

    def _taken(self, tp: TopicPartition, part: Any) -> Iterable[Record]:
        """The records of one partition in a response. Raises `BrokerError`."""
        if part.error_code == _OFFSET_OUT_OF_RANGE:
            # The log begins after the position: because of retention or DeleteRecords.
            self._positions.update(self._leaders.list_offsets([tp], EARLIEST, 0))
            return ()
        if part.error_code:
            if part.error_code in MOVED:
                return ()
            raise error_for(part.error_code)
        position, records = self._positions[tp], memoryview(part.records or b"")
        aborted = [
            AbortedTransaction(one.producer_id, one.first_offset)
            for one in part.aborted_transactions or ()
        ]
        try:
            chosen = select(records, position, aborted, _RULES)
        except BatchError as error:
            self._skip(position, error)
            self._positions[tp] = behind_first(records, position, part.high_watermark)
            return ()
        found = [row for piece in chosen.pieces for row in self._decoded(tp, memoryview(piece))]
        self._positions[tp] = chosen.next_offset
        return found

    def _decoded(self, tp: TopicPartition, batches: memoryview) -> Iterator[Record]:
        for start, end in split(batches):
            batch = batches[start:end]
            try:
                for record in decode_records(batch, _UNPACKED_BYTES_MAX):
                    yield tp.partition, record.key, record.value
            except BatchError as error:
                self._skip(base_offset(batch), error)

    def _skip(self, offset: int, error: BatchError) -> None:
        """Log a batch that cannot be read, or raise ``error`` if none may be skipped."""
        if not self._passes:
            raise error
        log.warning("records at offset %d cannot be read, skipped: %s", offset, error)

    def close(self) -> None:
        """Close the connections of `poll`; nothing is committed."""
        polls, self._polls = self._polls, None
        if polls is not None:
            polls.close()


def _failed(response: Any) -> bool:
    """Whether a Fetch response has an error of its own, or one of a partition."""
    parts = (part for topic in response.responses for part in topic.partitions)
    return bool(getattr(response, "error_code", 0)) or any(part.error_code for part in parts)


class TopicWriter:
    """Writes keyed records to given partitions and waits for the acknowledgements. Thread-safe.

    Batches are sent one after the other, so a later record never overtakes an earlier one. A batch
    whose acknowledgement is lost is written again, which does no harm in a compacted topic.
    """

    def __init__(self, requester: Requester, leaders: Leaders) -> None:
        self._requester = requester
        self._leaders = leaders
        self._locks: dict[str, threading.Lock] = {}
        self._guard = threading.Lock()

    def _lock_of(self, topic: str) -> threading.Lock:
        # One for each: a topic that takes nothing must not hold up the control topic, without
        # whose reports another process would take over the flow.
        with self._guard:
            return self._locks.setdefault(topic, threading.Lock())

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
        with self._lock_of(topic):  # so that the records of two callers do not mix
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

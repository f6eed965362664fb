"""Layout of Fetch requests and responses, versions 4 to 11 (non-flexible), without any I/O.

Source: ``FetchRequest.json`` and ``FetchResponse.json`` in Apache Kafka's
``clients/src/main/resources/common/message``. Records are views into the frame, not copies.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from sparkmirror.model import TopicPartition
from sparkmirror.records.selection import AbortedTransaction
from sparkmirror.settings import FetchSettings
from sparkmirror.wire.fetch.sessions import NO_SESSION
from sparkmirror.wire.net.integers import I16, I32

__all__ = [
    "FETCH_HIGHEST",
    "FETCH_KEY",
    "FETCH_LOWEST",
    "FETCH_SESSIONS_FROM",
    "FetchPartition",
    "FetchResponse",
    "PartitionData",
    "parse_response",
    "request_body",
]

FETCH_KEY = 1
FETCH_LOWEST, FETCH_HIGHEST = 4, 11
FETCH_SESSIONS_FROM = 7

_ABORTED = struct.Struct(">qq")


@dataclass(frozen=True, slots=True)
class FetchPartition:
    """One partition of a request. ``leader_epoch`` -1: unknown. ``bytes_max``: its limit."""

    tp: TopicPartition
    offset: int
    leader_epoch: int
    bytes_max: int


@dataclass(slots=True)
class PartitionData:
    """One partition of a response: error ``code``, and offsets, -1 where there is none.

    ``replica``: the preferred read replica (KIP-392), -1 for the leader.
    """

    tp: TopicPartition
    code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: list[AbortedTransaction]
    replica: int
    records: memoryview


@dataclass(slots=True)
class FetchResponse:
    """A whole response. ``code``: its top-level error code; partitions have their own.

    ``session_id``: of the fetch session, 0 without one.
    """

    throttle_ms: int
    code: int
    partitions: list[PartitionData]
    session_id: int = 0


def request_body(
    version: int,
    settings: FetchSettings,
    wanted: Sequence[FetchPartition],
    bytes_max: int,
    rack: bytes,
    *,
    session: tuple[int, int] = NO_SESSION,
    forgotten: Sequence[TopicPartition] = (),
) -> bytes:
    """The body of a request for ``wanted``, in this order: a topic may be in it several times.

    ``bytes_max``: limit of the response, which one batch may exceed. ``session``: (id, epoch) of
    the fetch session (KIP-227). ``forgotten``: partitions to remove from the session. Both are
    left out before version 7.
    """
    isolation = 1 if settings.isolation_level == "read_committed" else 0
    out = [
        struct.pack(
            ">iiiib",
            -1,
            settings.fetch_max_wait_ms,
            settings.fetch_min_bytes,
            bytes_max,
            isolation,
        )
    ]
    if version >= FETCH_SESSIONS_FROM:
        out.append(struct.pack(">ii", *session))
    # Brokers fill a response in this order, so a topic's partitions must not be put together.
    topics = [(topic, list(members)) for topic, members in groupby(wanted, _topic)]
    out.append(I32.pack(len(topics)))
    for topic, members in topics:
        name = topic.encode()
        out.append(struct.pack(f">h{len(name)}si", len(name), name, len(members)))
        for want in members:
            out.append(I32.pack(want.tp.partition))
            if version >= 9:
                out.append(I32.pack(want.leader_epoch))
            out.append(struct.pack(">q", want.offset))
            if version >= 5:
                out.append(struct.pack(">q", -1))
            out.append(I32.pack(want.bytes_max))
    if version >= FETCH_SESSIONS_FROM:
        out.append(_forgotten(forgotten))
    if version >= 11:
        out.append(struct.pack(f">h{len(rack)}s", len(rack), rack))
    return b"".join(out)


def _topic(want: FetchPartition) -> str:
    return want.tp.topic


def _forgotten(partitions: Sequence[TopicPartition]) -> bytes:
    topics: dict[str, list[int]] = {}
    for tp in partitions:
        topics.setdefault(tp.topic, []).append(tp.partition)
    out = [I32.pack(len(topics))]
    for topic, numbers in topics.items():
        name = topic.encode()
        count = len(numbers)
        out.append(struct.pack(f">h{len(name)}si{count}i", len(name), name, count, *numbers))
    return b"".join(out)


def parse_response(frame: memoryview, version: int) -> FetchResponse:
    """Parse ``frame``, which begins with the correlation id.

    Raises `struct.error`, `ValueError` or `UnicodeDecodeError` for a truncated or malformed one.
    """
    throttle_ms = I32.unpack_from(frame, 4)[0]
    position, code, session_id = 8, 0, 0
    if version >= FETCH_SESSIONS_FROM:
        code = I16.unpack_from(frame, 8)[0]
        session_id = I32.unpack_from(frame, 10)[0]
        position = 14
    count = I32.unpack_from(frame, position)[0]
    position += 4
    response = FetchResponse(throttle_ms, code, [], session_id)
    for _ in range(count):
        size = I16.unpack_from(frame, position)[0]
        position += 2
        if not 0 <= size <= len(frame) - position:
            # A negative size would move the position back: up to billions of rounds of this loop.
            raise ValueError(f"a Fetch response with a topic name of {size} bytes")
        topic = bytes(frame[position : position + size]).decode()
        position += size
        parts = I32.unpack_from(frame, position)[0]
        position += 4
        for _ in range(parts):
            position, part = _parse_partition(frame, position, topic, version)
            response.partitions.append(part)
    return response


def _parse_partition(
    frame: memoryview, position: int, topic: str, version: int
) -> tuple[int, PartitionData]:
    index, code, high, stable = struct.unpack_from(">ihqq", frame, position)
    position += 22
    log_start = -1
    if version >= 5:
        log_start = struct.unpack_from(">q", frame, position)[0]
        position += 8
    aborted_count = I32.unpack_from(frame, position)[0]
    position += 4
    aborted: list[AbortedTransaction] = []
    for _ in range(max(0, aborted_count)):
        aborted.append(AbortedTransaction(*_ABORTED.unpack_from(frame, position)))
        position += 16
    replica = -1
    if version >= 11:
        replica = I32.unpack_from(frame, position)[0]
        position += 4
    size = max(0, I32.unpack_from(frame, position)[0])
    position += 4
    if position + size > len(frame):
        raise ValueError("a truncated Fetch response")
    records = frame[position : position + size]
    tp = TopicPartition(topic, index)
    return position + size, PartitionData(
        tp, code, high, stable, log_start, aborted, replica, records
    )

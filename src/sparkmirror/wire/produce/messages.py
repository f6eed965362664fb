"""Layout of Produce requests and responses, versions 3 to 8 (non-flexible), without any I/O.

Source: ``ProduceRequest.json`` and ``ProduceResponse.json`` in Apache Kafka's
``clients/src/main/resources/common/message``.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sparkmirror.wire.net.integers import I16, I32

__all__ = [
    "PRODUCE_HIGHEST",
    "PRODUCE_KEY",
    "PRODUCE_LOWEST",
    "PartitionProduceResponse",
    "StampedBatch",
    "parse_response",
    "request_parts",
    "response_correlation",
]

PRODUCE_KEY = 0
PRODUCE_LOWEST, PRODUCE_HIGHEST = 3, 8

_HEAD = struct.Struct(">hii")
_PARTITION = struct.Struct(">ii")
_ACK = struct.Struct(">ihq8x")
_ACK_5 = struct.Struct(">ihq16x")
# Version 8 (KIP-467): then the number of record errors and the size of the message (-1: none).
_ACK_8 = struct.Struct(">ihq16xih")
_REASONS_BYTES_MIN = _ACK_8.size - _ACK_5.size

StampedBatch = tuple[int, bytes, memoryview]
"""(partition, header to send, whole batch): the header replaces the batch's own."""


@dataclass(slots=True)
class PartitionProduceResponse:
    """The response for one partition's batch.

    ``code``: Kafka's error code. ``offset``: of the first record on the target, -1 if unknown.
    ``reason``: the messages for the batch and its first three bad records. ``bad_records``:
    indexes of all bad records in the batch, None before version 8 (KIP-467).
    """

    code: int
    offset: int
    reason: str = ""
    bad_records: tuple[int, ...] | None = None


def request_parts(
    head: bytes,
    topics: Mapping[str, Sequence[StampedBatch]],
    *,
    acks: int,
    timeout_ms: int,
    transactional_id: bytes | None = None,
) -> list[bytes | memoryview]:
    """The buffers of a request, without its length field; record bytes are not copied.

    ``head``: the request header. Each partition has one batch, as brokers require.
    """
    writer = I16.pack(-1)
    if transactional_id is not None:
        writer = I16.pack(len(transactional_id)) + transactional_id
    parts: list[bytes | memoryview] = [head + writer + _HEAD.pack(acks, timeout_ms, len(topics))]
    for topic, batches in topics.items():
        name = topic.encode()
        frame = I16.pack(len(name)) + name + I32.pack(len(batches))
        for partition, header, batch in batches:
            frame += _PARTITION.pack(partition, len(batch)) + header
            parts += (frame, batch[len(header) :])
            frame = b""
    return parts


def response_correlation(frame: memoryview) -> int:
    """The correlation id of ``frame``. Raises struct.error when it is too short."""
    correlation: int = I32.unpack_from(frame)[0]
    return correlation


def parse_response(
    frame: memoryview, version: int
) -> tuple[dict[tuple[str, int], PartitionProduceResponse], int]:
    """({(topic, partition): answer}, throttle ms) of a Produce response.

    ``frame`` begins with the correlation id. Raises struct.error or UnicodeDecodeError for a
    truncated or malformed one.
    """
    responses: dict[tuple[str, int], PartitionProduceResponse] = {}
    topics = I32.unpack_from(frame, 4)[0]
    position = 8
    for _ in range(topics):
        size = I16.unpack_from(frame, position)[0]
        if not 0 <= size <= len(frame) - position:
            # A negative size would move the position back: up to billions of rounds of this loop.
            raise struct.error(f"a Produce response with a topic name of {size} bytes")
        topic = str(frame[position + 2 : position + 2 + size], "utf-8")
        position += 2 + size
        parts = I32.unpack_from(frame, position)[0]
        position += 4
        for _ in range(parts):
            reason = ""
            bad: tuple[int, ...] | None = () if version >= 8 else None
            if version >= 8:
                index, code, offset, errors, message = _ACK_8.unpack_from(frame, position)
                position += _ACK_8.size
                if errors or message >= 0:
                    position, reason, bad = _parse_reasons(frame, position - _REASONS_BYTES_MIN)
            else:
                layout = _ACK if version < 5 else _ACK_5
                index, code, offset = layout.unpack_from(frame, position)
                position += layout.size
            responses[topic, index] = PartitionProduceResponse(code, offset, reason, bad)
    throttle_ms: int = I32.unpack_from(frame, position)[0]
    return responses, throttle_ms


def _parse_reasons(frame: memoryview, position: int) -> tuple[int, str, tuple[int, ...]]:
    count = I32.unpack_from(frame, position)[0]
    position += 4
    reasons: list[str] = []
    bad: list[int] = []
    for _ in range(count):
        index = I32.unpack_from(frame, position)[0]
        position, text = _nullable(frame, position + 4)
        bad.append(index)
        reasons.append(f"record {index}: {text}" if text else f"record {index}")
    position, text = _nullable(frame, position)
    return position, "; ".join(filter(None, [text, *reasons[:3]])), tuple(bad)


def _nullable(frame: memoryview, position: int) -> tuple[int, str]:
    size = I16.unpack_from(frame, position)[0]
    position += 2
    if size < 0:
        return position, ""
    return position + size, bytes(frame[position : position + size]).decode()

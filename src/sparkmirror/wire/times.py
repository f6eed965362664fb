"""When the record at an offset was written: one small Fetch per partition, headers only."""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping
from functools import partial

from sparkmirror.errors import Denied, Unreachable
from sparkmirror.model import TopicPartition
from sparkmirror.wire.batch import (
    ATTRIBUTES_AT,
    CONTROL_BIT,
    HEADER,
    HEADER_BYTES,
    LENGTH_AT,
    LOG_APPEND_TIME_BIT,
    LOG_OVERHEAD_BYTES,
    MAGIC_AT,
)
from sparkmirror.wire.grants import Right
from sparkmirror.wire.leaders import Leaders
from sparkmirror.wire.link import Link
from sparkmirror.wire.requests import fetch_request

__all__ = ["first_time_ms", "record_times_ms"]

# A broker returns the first batch whole, however little is asked for.
_FETCH_BYTES = 1
_MAGIC_1_TIME_AT = 18


def record_times_ms(
    link: Link, leaders: Leaders, positions: Mapping[TopicPartition, int], timeout_s: float
) -> dict[TopicPartition, int]:
    """Timestamp of the record at each position, or of the first one of the batch it is in.

    Partitions are missing that have no record there (any more), no timestamp, no reachable leader,
    or that the client may not read; and those not asked within ``timeout_s``.
    """
    found: dict[TopicPartition, int] = {}
    deadline = time.monotonic() + timeout_s
    led, _ = leaders.by_leader(positions, fresh=False)
    for node, partitions in led.items():
        for tp in partitions:
            left_ms = int((deadline - time.monotonic()) * 1000)
            if left_ms <= 0:
                return found
            try:
                response = link.request(
                    partial(fetch_request, tp, positions[tp], _FETCH_BYTES),
                    f"reading {tp}",
                    node=node,
                    timeout_ms=left_ms,
                    needs=Right("Read", "Topic", tp.topic),
                )
            except (Unreachable, Denied):
                break  # this broker, or this whole client: the lag in records is told anyway
            row = response.responses[0].partitions[0] if response.responses else None
            if row is not None and not row.error_code and row.records:
                time_ms = first_time_ms(bytes(row.records), positions[tp])
                if time_ms >= 0:
                    found[tp] = time_ms
    return found


def first_time_ms(records: bytes, position: int) -> int:
    """Timestamp of the first batch in ``records`` that reaches ``position``; -1 if none has one.

    Control batches hold no records and are passed over. Of a batch with log append times it is
    the time of the whole batch, else that of its first record. Pure.
    """
    at = 0
    while at + MAGIC_AT < len(records):
        (length,) = struct.unpack_from(">i", records, at + LENGTH_AT)
        end = at + LOG_OVERHEAD_BYTES + length
        magic = records[at + MAGIC_AT]
        if magic < 2:
            if magic == 0 or at + _MAGIC_1_TIME_AT + 8 > len(records):
                return -1
            return int(struct.unpack_from(">q", records, at + _MAGIC_1_TIME_AT)[0])
        if at + HEADER_BYTES > len(records):
            return -1
        base, _, _, _, _, _, last_delta, first_ms, max_ms, *_ = HEADER.unpack_from(records, at)
        (attributes,) = struct.unpack_from(">h", records, at + ATTRIBUTES_AT)
        if base + last_delta >= position and not attributes & CONTROL_BIT:
            return int(max_ms if attributes & LOG_APPEND_TIME_BIT else first_ms)
        at = end
    return -1

"""Timestamp and size of the record at an offset: one small Fetch per partition, headers only."""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from sparkmirror.errors import Denied, Unreachable
from sparkmirror.model import TopicPartition
from sparkmirror.records.header import (
    ATTRIBUTES_AT,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    HEADER,
    HEADER_BYTES,
    LENGTH_AT,
    LOG_APPEND_TIME_BIT,
    LOG_OVERHEAD_BYTES,
    MAGIC_AT,
)
from sparkmirror.wire.admin.leaders import Leaders
from sparkmirror.wire.admin.messages import fetch_request
from sparkmirror.wire.admin.requester import Requester
from sparkmirror.wire.cluster.acl_advice import Right

__all__ = ["RecordAt", "first_record", "records_at"]

# A broker returns the whole first batch, however small the limit is (KIP-74).
_FETCH_BYTES = 1
# That may be a marker: a group's offset is often behind the last record of a transaction.
_BATCHES_MAX = 4
_MAGIC_1_TIME_AT = 18


class RecordAt(NamedTuple):
    """The record at an offset, as far as the header of its batch tells.

    ``time_ms``: timestamp of the first record of its batch, or of the whole batch with log append
    time. ``mean_bytes``: bytes per record of its batch, compressed; None for old formats.
    """

    time_ms: int
    mean_bytes: float | None


def records_at(
    requester: Requester,
    leaders: Leaders,
    positions: Mapping[TopicPartition, int],
    timeout_s: float,
) -> dict[TopicPartition, RecordAt]:
    """The record at each position.

    A partition is missing if it has no record there (any more), no timestamp or no reachable
    leader, if the client may not read it, or if ``timeout_s`` is over before its turn.
    """
    found: dict[TopicPartition, RecordAt] = {}
    deadline = time.monotonic() + timeout_s
    led, _ = leaders.by_leader(positions, fresh=False)
    for node, partitions in led.items():
        for tp in partitions:
            if time.monotonic() >= deadline:
                return found
            try:
                record = _record_at(requester, node, tp, positions[tp], deadline)
            except (Unreachable, Denied):
                break  # skip this broker: the lag in records is reported without these times
            if record is not None:
                found[tp] = record
    return found


def _record_at(
    requester: Requester, node: int, tp: TopicPartition, position: int, deadline: float
) -> RecordAt | None:
    for _ in range(_BATCHES_MAX):
        left_ms = int((deadline - time.monotonic()) * 1000)
        if left_ms <= 0:
            return None
        response = requester.request(
            partial(fetch_request, {tp: position}, _FETCH_BYTES),
            f"reading {tp}",
            node=node,
            timeout_ms=left_ms,
            needs=Right("Read", "Topic", tp.topic),
        )
        row = response.responses[0].partitions[0] if response.responses else None
        if row is None or row.error_code or not row.records:
            return None
        records = bytes(row.records)
        record, behind = first_record(records, position), _behind_marker(records)
        if record is not None or behind <= position:
            return record
        position = behind
    return None


def _behind_marker(records: bytes) -> int:
    """The offset behind the control batch that ``records`` begin with; -1 if it is another one."""
    if len(records) < HEADER_BYTES or records[MAGIC_AT] < 2:
        return -1
    base, _, _, _, _, attributes, last_delta, *_ = HEADER.unpack_from(records)
    return int(base + last_delta + 1) if attributes & CONTROL_BIT else -1


def first_record(records: bytes, position: int) -> RecordAt | None:
    """The first record in ``records`` from ``position`` on; None when it has no timestamp.

    Control batches are skipped: they have no records of producers. Pure.
    """
    at = 0
    while at + MAGIC_AT < len(records):
        (length,) = struct.unpack_from(">i", records, at + LENGTH_AT)
        end = at + LOG_OVERHEAD_BYTES + length
        magic = records[at + MAGIC_AT]
        if magic < 2:
            if magic == 0 or at + _MAGIC_1_TIME_AT + 8 > len(records):
                return None
            return _timed(struct.unpack_from(">q", records, at + _MAGIC_1_TIME_AT)[0], None)
        if at + HEADER_BYTES > len(records):
            return None
        base, _, _, _, _, _, last_delta, first_ms, max_ms, *_, count = HEADER.unpack_from(
            records, at
        )
        (attributes,) = struct.unpack_from(">h", records, at + ATTRIBUTES_AT)
        if base + last_delta >= position and not attributes & CONTROL_BIT:
            size = (end - at) / count if count > 0 else None
            other = attributes & (LOG_APPEND_TIME_BIT | DELETE_HORIZON_BIT)
            return _timed(max_ms if other else first_ms, size)
        at = end
    return None


def _timed(time_ms: int, mean_bytes: float | None) -> RecordAt | None:
    return RecordAt(time_ms, mean_bytes) if time_ms >= 0 else None

"""Cuts the records of a Fetch response into batches by their length field alone."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from sparkmirror.errors import CorruptBatch
from sparkmirror.records.header import (
    ATTRIBUTES_AT,
    BATCH_BYTES_MAX,
    CONTROL_BIT,
    HEADER_BYTES,
    LENGTH_AT,
    LOG_APPEND_TIME_BIT,
    LOG_OVERHEAD_BYTES,
    MAGIC_AT,
    base_offset,
    last_offset_delta,
)
from sparkmirror.records.message_v0_v1 import LEGACY_LENGTH_MIN

__all__ = ["BatchStarts", "append_time_runs", "behind_first", "fault_at", "unread", "walk_batches"]

_DAMAGED = "The log or the network path is damaged; check the source broker's log and disks."
_STRIDE_TRIES = 16
_ATTRIBUTES_AT_V1 = 17
_LENGTH = struct.Struct(">8xi")


@dataclass(slots=True)
class BatchStarts:
    """Where batches start: ``starts`` has the end of the last whole one as its last entry.

    ``cut_bytes``: size of the batch that the end of the response cuts, 0 for none; if its length
    field is cut, the size of a header. ``fault``: a length that cannot be right follows.
    """

    starts: list[int]
    cut_bytes: int = 0
    fault: CorruptBatch | None = None


def walk_batches(buffer: memoryview) -> BatchStarts:
    """Cut by the length field, which is at the same place in all three formats."""
    size = len(buffer)
    head_last = size - LOG_OVERHEAD_BYTES
    unpack = _LENGTH.unpack_from
    starts: list[int] = []
    append = starts.append
    at = 0
    length = LEGACY_LENGTH_MIN
    while at <= head_last:
        # All tiny batches pass this loop, so it has as few bytecodes as possible.
        for _ in range(_STRIDE_TRIES):
            append(at)
            (length,) = unpack(buffer, at)
            if not LEGACY_LENGTH_MIN <= length <= BATCH_BYTES_MAX:
                return BatchStarts(starts, 0, fault_at(buffer, at, f"has length {length}"))
            at += length + LOG_OVERHEAD_BYTES
            if at > head_last:
                break
        else:
            stride = length + LOG_OVERHEAD_BYTES
            if starts[-1] - starts[-3] == 2 * stride:
                skipped = _regular(buffer, at, stride)
                starts.extend(range(at, at + skipped * stride, stride))
                at += skipped * stride
    if at > size:
        return BatchStarts(starts, at - starts[-1])
    starts.append(at)
    return BatchStarts(starts, HEADER_BYTES if at < size else 0)


def _regular(buffer: memoryview, at: int, stride: int) -> int:
    """How many frames of ``stride`` bytes follow one another from ``at`` on."""
    fits = (len(buffer) - at) // stride
    if fits < _STRIDE_TRIES:
        return 0
    lengths: npt.NDArray[Any] = np.ndarray((fits,), ">i4", buffer, at + LENGTH_AT, (stride,))
    other = lengths != stride - LOG_OVERHEAD_BYTES
    first = int(other.argmax())
    return first if other[first] else fits


def fault_at(buffer: memoryview, start: int, what: str) -> CorruptBatch:
    """The error for the frame at ``start``; ``what`` completes "The batch at offset N"."""
    offset = int.from_bytes(buffer[start : start + LENGTH_AT], "big", signed=True)
    return CorruptBatch(f"The batch at offset {offset} {what}.", do=_DAMAGED)


def append_time_runs(records: memoryview) -> list[tuple[int, int]]:
    """The source offsets of records whose timestamp is the broker's, as (first, end).

    ``records``: those of a response, of whole batches. Mirrored batches do not show it any more:
    brokers refuse batches of producers that have such a timestamp.
    """
    starts = walk_batches(records).starts
    if len(starts) < 2:
        return []
    flat = np.frombuffer(records, np.uint8)
    at = np.array(starts[:-1], np.int64)
    magic = flat[at + MAGIC_AT]
    bits = flat[at + np.where(magic < 2, _ATTRIBUTES_AT_V1, ATTRIBUTES_AT + 1)]
    appended = ((bits & LOG_APPEND_TIME_BIT) != 0) & (magic > 0)
    runs: list[tuple[int, int]] = []
    for frame in np.flatnonzero(appended).tolist():
        first = 0
        if magic[frame] > 1:
            first = base_offset(records[starts[frame] :])
        elif frame:  # the offset of a message of messages is that of the last one
            first = _last_offset(records[starts[frame - 1] : starts[frame]]) + 1
        end = _last_offset(records[starts[frame] : starts[frame + 1]]) + 1
        if frame and appended[frame - 1]:  # between two batches there are no records
            runs[-1] = (runs[-1][0], end)
        else:
            runs.append((first, end))
    return runs


def _last_offset(batch: memoryview) -> int:
    whole = batch[MAGIC_AT] > 1 and len(batch) >= HEADER_BYTES  # damage may follow valid batches
    return base_offset(batch) + (last_offset_delta(batch) if whole else 0)


def unread(records: memoryview, offset: int) -> tuple[int, list[int]] | None:
    """Where the batches begin that end at ``offset`` or later, and the sizes of those with records.

    The end of ``records`` if there are none. None if what they say of themselves cannot be right:
    no checksum covers where a batch begins.
    """
    walked = walk_batches(records)
    starts, first, before = walked.starts, -1, -1
    sizes: list[int] = []
    if walked.fault is not None:
        return None
    for start, end in pairwise(starts):
        batch = records[start:end]
        last = _last_offset(batch)
        if base_offset(batch) <= before or last < base_offset(batch):
            return None
        before = last
        if last < offset:
            continue
        first = start if first < 0 else first
        if batch[MAGIC_AT] < 2 or not batch[ATTRIBUTES_AT + 1] & CONTROL_BIT:
            sizes.append(end - start)
    return (len(records) if first < 0 else first), sizes


def behind_first(records: memoryview, fetch_offset: int, high_watermark: int) -> int:
    """The offset after the first, damaged batch of a response; always above ``fetch_offset``."""
    starts = walk_batches(records).starts
    if len(starts) > 2:
        found = base_offset(records[starts[1] :])
    elif len(starts) == 2 and starts[1] - starts[0] >= HEADER_BYTES:
        found = base_offset(records) + last_offset_delta(records) + 1
    else:
        found = high_watermark  # even its length makes no sense
    end = max(high_watermark, fetch_offset + 1)
    return min(max(found, fetch_offset + 1), end)

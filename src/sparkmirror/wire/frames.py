"""A Fetch response's records cut into batches by their length field alone."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sparkmirror.errors import CorruptBatch
from sparkmirror.wire.batch import (
    BATCH_BYTES_MAX,
    HEADER_BYTES,
    LENGTH_AT,
    LOG_OVERHEAD_BYTES,
)
from sparkmirror.wire.legacy import LEGACY_LENGTH_MIN

__all__ = ["Frames", "fault_at", "walk_frames"]

_DAMAGED = "The log or the way from it is damaged; check the source broker's log and disks."
_STRIDE_TRIES = 8
_INT32 = struct.Struct(">i")


@dataclass(slots=True)
class Frames:
    """Where batches start: ``starts`` has the end of the last whole one as its last entry.

    ``cut_bytes``: size of the batch that the end of the response cuts, 0 when none is.
    """

    starts: list[int]
    cut_bytes: int = 0
    fault: CorruptBatch | None = None


def walk_frames(buffer: memoryview) -> Frames:
    """Cut by the length field, which all three formats have at the same place."""
    size = len(buffer)
    unpack = _INT32.unpack_from
    starts: list[int] = []
    at = 0
    previous = same = 0
    while at <= size - LOG_OVERHEAD_BYTES:
        length: int = unpack(buffer, at + LENGTH_AT)[0]
        end = at + LOG_OVERHEAD_BYTES + length
        if not LEGACY_LENGTH_MIN <= length <= BATCH_BYTES_MAX:
            starts.append(at)
            fault = fault_at(buffer, at, f"has length {length}")
            return Frames(starts, 0, fault)
        if end > size:
            starts.append(at)
            return Frames(starts, end - at)
        starts.append(at)
        at = end
        if length != previous:
            previous, same = length, 0
            continue
        same += 1
        if same == _STRIDE_TRIES:
            same = 0
            stride = LOG_OVERHEAD_BYTES + length
            skipped = _regular(buffer, at, stride)
            starts.extend(range(at, at + skipped * stride, stride))
            at += skipped * stride
    starts.append(at)
    return Frames(starts, HEADER_BYTES if at < size else 0)


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
    """The error for the frame at ``start``, which ``what`` completes to a sentence."""
    offset = int.from_bytes(buffer[start : start + LENGTH_AT], "big", signed=True)
    return CorruptBatch(f"The batch at offset {offset} {what}.", do=_DAMAGED)

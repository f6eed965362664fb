"""All records of a run of batches as numpy columns: keys found, values left alone.

A record says where the next one begins, so the starts are found one after the other, by the
shortest loop there is; all else is computed for all records at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparkmirror.errors import CorruptBatch
from sparkmirror.wire.batch import CODEC_MASK, HEADER_BYTES, LOG_APPEND_TIME_BIT, split
from sparkmirror.wire.codecs import DECOMPRESSED_BYTES_MAX, decompress
from sparkmirror.wire.columns import Columns, OddError, read_varints
from sparkmirror.wire.heads import Int64s, gather_heads
from sparkmirror.wire.records import RECORD_BYTES_MIN

__all__ = ["Scan", "scan"]

# Records of one size in a row, after which it pays to look for more of them.
_ALIKE = 4


@dataclass(slots=True)
class Scan:
    """The records of some batches, in order.

    ``columns``: as written by `rewrite.encode_columns`; ``key_at``, ``key_bytes``: where each key
    stands in ``columns.flat``, -1 bytes for none; ``codec``: the first batch's.
    """

    columns: Columns
    key_at: Int64s
    key_bytes: Int64s
    codec: int


def scan(buffer: memoryview) -> Scan:
    """Read ``buffer``: whole magic 2 batches, at least one. Raises `BatchError` for damage."""
    cuts = split(buffer)
    starts = np.array([start for start, _ in cuts], np.int64)
    heads = gather_heads(buffer, starts)
    bits = heads["attributes"].astype(np.int64)
    counts = heads["count"].astype(np.int64)
    if not (bits & CODEC_MASK).any():
        flat = np.frombuffer(buffer, np.uint8)
        bodies = [(start + HEADER_BYTES, end) for start, end in cuts]
    else:
        flat, bodies = _decompressed(buffer, cuts, bits.tolist())
    at: list[int] = []
    for (begin, end), count, base in zip(
        bodies, counts.tolist(), heads["base_offset"].tolist(), strict=True
    ):
        if not 0 <= count <= (end - begin) // RECORD_BYTES_MIN:
            raise _corrupt(base)
        try:
            stopped = _walk(flat, begin, count, at)
        except IndexError:
            stopped = -1
        if stopped != end:
            raise _corrupt(base)
    try:
        return _columns(flat, np.array(at, np.int64), heads, counts, bits)
    except OddError:
        raise _corrupt(int(heads["base_offset"][0])) from None


def _decompressed(
    buffer: memoryview, cuts: list[tuple[int, int]], bits: list[int]
) -> tuple[npt.NDArray[np.uint8], list[tuple[int, int]]]:
    parts, bodies, size = [], [], 0
    for (start, end), bit in zip(cuts, bits, strict=True):
        body = decompress(
            bit & CODEC_MASK, buffer[start + HEADER_BYTES : end], DECOMPRESSED_BYTES_MAX
        )
        parts.append(body)
        bodies.append((size, size + len(body)))
        size += len(body)
    return np.frombuffer(b"".join(parts), np.uint8), bodies


def _walk(flat: npt.NDArray[np.uint8], at: int, count: int, starts: list[int]) -> int:
    """Append where each of ``count`` records starts; where the last one ends.

    Records of one size stand at equal distances, and a run of them is found by one comparison: a
    record that begins with the same length as the one before it has the same size. A length may be
    nonsense: the columns are checked afterwards, all at once.
    """
    data = flat.data
    append = starts.append
    before, alike = -1, 0
    left = count
    while left:
        append(at)
        left -= 1
        byte = data[at]
        size, after = byte, at + 1
        if byte >= 0x80:
            size, shift = byte & 0x7F, 7
            while byte >= 0x80 and shift < 35:
                byte = data[after]
                size |= (byte & 0x7F) << shift
                shift += 7
                after += 1
        step = after - at + (size >> 1)
        at += step
        alike = alike + 1 if step == before else 0
        before = step
        if alike == _ALIKE and left > _ALIKE:
            more = min(_run(flat, at, step, after - at + step, left), left)
            starts.extend(range(at, at + more * step, step))
            at += more * step
            left -= more
            alike = 0
    return at


def _run(flat: npt.NDArray[np.uint8], at: int, step: int, prefix: int, most: int) -> int:
    """How many records from ``at`` on have the length of the one before, ``prefix`` bytes long."""
    alike = most
    for byte in range(prefix):
        column = flat[at + byte : at + most * step : step]
        other = np.flatnonzero(column != flat[at + byte - step])
        alike = min(alike, int(other[0]) if len(other) else len(column))
    return alike


def _columns(
    flat: npt.NDArray[np.uint8],
    at: Int64s,
    heads: npt.NDArray[np.void],
    counts: Int64s,
    bits: Int64s,
) -> Scan:
    length, content = read_varints(flat, at)
    end = content + length
    timestamp_delta, offset_at = read_varints(flat, content + 1)
    offset_delta, rest_at = read_varints(flat, offset_at)
    key_bytes, key_at = read_varints(flat, rest_at)
    if bool(
        (
            (length < RECORD_BYTES_MIN - 1)
            | (end > len(flat))
            | (key_bytes < -1)
            | (key_at + np.maximum(key_bytes, 0) >= end)
        ).any()
    ):
        raise OddError
    batch = np.repeat(np.arange(len(counts)), counts)
    timestamp = heads["base_timestamp"].astype(np.int64)[batch] + timestamp_delta
    appended = (bits & LOG_APPEND_TIME_BIT) != 0
    if appended.any():
        latest = heads["max_timestamp"].astype(np.int64)
        timestamp = np.where(appended[batch], latest[batch], timestamp)
    columns = Columns(
        flat,
        np.zeros(len(at), np.int64),
        heads["base_offset"].astype(np.int64)[batch] + offset_delta,
        timestamp,
        flat[content],
        rest_at,
        end - rest_at,
    )
    return Scan(columns, key_at, key_bytes, int(bits[0]) & CODEC_MASK)


def _corrupt(base_offset: int) -> CorruptBatch:
    return CorruptBatch(
        f"The records of the batch at offset {base_offset} cannot be read.",
        do="The batch is damaged, or its producer wrote it so; it cannot be mirrored.",
    )

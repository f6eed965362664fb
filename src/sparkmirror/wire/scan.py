"""All records of a run of batches as numpy columns: keys found, values left alone.

Where records start is found by walking (``starts``); all else is computed for all of them at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparkmirror.errors import CorruptBatch
from sparkmirror.wire.batch import CODEC_MASK, HEADER_BYTES, LOG_APPEND_TIME_BIT, split
from sparkmirror.wire.codecs import DECOMPRESSED_BYTES_MAX, decompress
from sparkmirror.wire.columns import Columns, read_fields
from sparkmirror.wire.heads import Int64s, gather_heads
from sparkmirror.wire.records import RECORD_BYTES_MIN
from sparkmirror.wire.starts import OddError, read_varints, record_starts

__all__ = ["Scan", "scan"]


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
    begins = np.array([begin for begin, _ in bodies], np.int64)
    ends = np.array([end for _, end in bodies], np.int64)
    bases = heads["base_offset"].tolist()
    for begin, end, count, base in zip(
        begins.tolist(), ends.tolist(), counts.tolist(), bases, strict=True
    ):
        if not 0 <= count <= (end - begin) // RECORD_BYTES_MIN or (not count and begin != end):
            raise _corrupt(base)
    full = np.flatnonzero(counts)
    try:
        at = record_starts(flat, begins[full], ends[full], counts[full])
        return _columns(flat, at, heads, counts, bits)
    except OddError:
        for batch in full.tolist():  # the first one that cannot be read by itself
            one = slice(batch, batch + 1)
            try:
                record_starts(flat, begins[one], ends[one], counts[one])
            except OddError:
                raise _corrupt(bases[batch]) from None
        raise _corrupt(bases[0]) from None


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


def _columns(
    flat: npt.NDArray[np.uint8],
    at: Int64s,
    heads: npt.NDArray[np.void],
    counts: Int64s,
    bits: Int64s,
) -> Scan:
    fields = read_fields(flat, at)
    key_bytes, key_at = read_varints(flat, fields.rest_at)
    if bool(
        (
            (fields.end - at < RECORD_BYTES_MIN)
            | (fields.end > len(flat))
            | (key_bytes < -1)
            | (key_at + np.maximum(key_bytes, 0) >= fields.end)
        ).any()
    ):
        raise OddError
    batch = np.repeat(np.arange(len(counts)), counts)
    timestamp = heads["base_timestamp"].astype(np.int64)[batch] + fields.timestamp_delta
    appended = (bits & LOG_APPEND_TIME_BIT) != 0
    if appended.any():
        latest = heads["max_timestamp"].astype(np.int64)
        timestamp = np.where(appended[batch], latest[batch], timestamp)
    columns = Columns(
        flat,
        np.zeros(len(at), np.int64),
        heads["base_offset"].astype(np.int64)[batch] + fields.offset_delta,
        timestamp,
        fields.attributes,
        fields.rest_at,
        fields.end - fields.rest_at,
    )
    return Scan(columns, key_at, key_bytes, int(bits[0]) & CODEC_MASK)


def _corrupt(base_offset: int) -> CorruptBatch:
    return CorruptBatch(
        f"The records of the batch at offset {base_offset} cannot be read.",
        do="The batch is damaged, or its producer wrote it so; it cannot be mirrored.",
    )

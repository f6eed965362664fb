"""Re-encodes batches: joins neighbours, closes holes, writes log append time into records.

A group of batches becomes one batch. There are two engines with the same result: ``_write_group``
goes record by record and finds every fault; ``_write_columns`` handles the records of many groups
as columns, and leaves everything unusual to the first one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sparkmirror.errors import BatchError, CorruptBatch
from sparkmirror.records.columns import TooMuchError, read_columns
from sparkmirror.records.encode_columns import EncodedBatch, encode_columns
from sparkmirror.records.header import HEADER_BYTES, MAGIC_AT, record_count
from sparkmirror.records.header_columns import Int64s, gather_heads
from sparkmirror.records.message_v0_v1 import carry_legacy
from sparkmirror.records.record_offsets import IrregularRecordError
from sparkmirror.records.records import (
    RECORD_COST_BYTES,
    Carried,
    Limits,
    carry,
    write_carried,
)

__all__ = [
    "BatchGroup",
    "BatchGroupError",
    "EncodedBatch",
    "join_batches",
    "one_batch",
    "write_groups",
]

_COLUMNS_RECORDS_MIN = 64
"""With fewer records, going record by record is faster than setting up columns."""


@dataclass(slots=True)
class BatchGroup:
    """Source batches that become one: frame index ranges ``[i, j)``, all of one codec.

    ``size``: their bytes. ``forced``: even a single batch must be re-encoded.
    """

    codec: int
    ranges: list[tuple[int, int]]
    size: int = 0
    forced: bool = False

    def frames(self) -> Iterator[int]:
        """Frame indices in order."""
        for first, end in self.ranges:
            yield from range(first, end)

    @property
    def frame_count(self) -> int:
        """Number of source batches."""
        return sum(end - first for first, end in self.ranges)


class BatchGroupError(Exception):
    """Internal: frame ``frame`` of a group cannot be read because of ``error``."""

    def __init__(self, frame: int, error: BatchError) -> None:
        super().__init__(frame, error)
        self.frame = frame
        self.error = error


def write_groups(
    buffer: memoryview, starts: Sequence[int], groups: Sequence[BatchGroup], limits: Limits
) -> list[EncodedBatch]:
    """One new batch for each group, in order.

    ``starts``: first byte of each frame in ``buffer``, then the end of the last one. Raises
    GroupError for the first frame that cannot be read.
    """
    written: list[EncodedBatch | None] = [None] * len(groups)
    if _many(buffer, starts, groups):
        positions = np.fromiter(starts, np.int64, len(starts))
        for packed in (False, True):
            chosen = [n for n, group in enumerate(groups) if (group.codec != 0) == packed]
            if chosen:
                _write_columns(
                    buffer, positions, groups=groups, chosen=chosen, limits=limits, written=written
                )
    unpacked_bytes = 0
    results: list[EncodedBatch] = []
    for group, done in zip(groups, written, strict=True):
        if done is None:
            if unpacked_bytes > limits.together_bytes_max:
                raise _too_much(group.ranges[0][0], unpacked_bytes)
            done, more = _write_group(buffer, starts, group, limits)  # noqa: PLW2901
            unpacked_bytes += more
        results.append(done)
    return results


def _many(buffer: memoryview, starts: Sequence[int], groups: Sequence[BatchGroup]) -> bool:
    """Whether there are enough records for columns, by the counts that batches state."""
    records = 0
    for group in groups:
        for frame in group.frames():
            start = starts[frame]
            if starts[frame + 1] - start >= HEADER_BYTES:
                records += max(1, record_count(buffer[start : start + HEADER_BYTES]))
            if records >= _COLUMNS_RECORDS_MIN:
                return True
    return False


def _too_much(frame: int, unpacked_bytes: int) -> BatchGroupError:
    """The error that postpones ``frame`` and what follows, because batches decompress to too much.

    The batches before ``frame`` are mirrored now, the others with the next response. So memory and
    the time until the slot reports again are bounded, whatever a producer packs into a batch.
    """
    return BatchGroupError(
        frame, CorruptBatch(f"{unpacked_bytes} bytes are too many to unpack at once.")
    )


# One group, record by record -----------------------------------------------------------------


def _write_group(
    buffer: memoryview, starts: Sequence[int], group: BatchGroup, limits: Limits
) -> tuple[EncodedBatch, int]:
    """The new batch, and the `Carried.unpacked_bytes` of it."""
    carried = Carried()
    frame = first = group.ranges[0][0]
    try:
        for frame in group.frames():
            batch = buffer[starts[frame] : starts[frame + 1]]
            if batch[MAGIC_AT] < 2:
                carry_legacy(batch, carried, limits)
            else:
                carry(batch, carried, limits)
            if carried.unpacked_bytes > limits.joined_bytes_max and frame != first:
                raise _too_much(frame, carried.unpacked_bytes)
    except BatchError as error:
        raise BatchGroupError(frame, error) from error
    if not carried.offsets:
        return EncodedBatch(b"", [], 0, -1), carried.unpacked_bytes
    return one_batch(carried, group.codec), carried.unpacked_bytes


def one_batch(carried: Carried, codec: int) -> EncodedBatch:
    """All records of ``carried`` (at least one) as one batch."""
    data = write_carried(carried, codec)
    return EncodedBatch(data, _runs(carried.offsets), len(carried.offsets), max(carried.timestamps))


def _runs(offsets: Sequence[int]) -> list[tuple[int, int]]:
    if offsets[-1] - offsets[0] == len(offsets) - 1:
        return [(offsets[0], len(offsets))]
    runs: list[tuple[int, int]] = []
    first = expected = offsets[0]
    for offset in offsets:
        if offset != expected:
            runs.append((first, expected - first))
            first = offset
        expected = offset + 1
    runs.append((first, expected - first))
    return runs


# Whole batches that follow one another --------------------------------------------------------


def join_batches(batches: Sequence[memoryview], codec: int, limits: Limits) -> EncodedBatch | None:
    """All records of ``batches``, in order, as one batch of ``codec``.

    ``batches``: magic 2, each of any codec. None if they exceed ``limits`` together, or are
    not as producers write them. Their owner then sends them unchanged.
    """
    buffer = memoryview(b"".join(batches))
    ends = np.cumsum(np.fromiter(map(len, batches), np.int64, len(batches)))
    first_bytes = np.concatenate((np.zeros(1, np.int64), ends[:-1]))
    if bool((np.frombuffer(buffer, np.uint8)[first_bytes + MAGIC_AT] != 2).any()):
        return None
    heads = gather_heads(buffer, first_bytes)
    members = np.array([len(batches)])
    try:
        columns = read_columns(buffer, first_bytes, heads, members, limits)
    except (IrregularRecordError, BatchError, TooMuchError):
        return None
    joined = encode_columns(columns, [codec])[0]
    joined.unpacked_bytes = len(columns.flat) + RECORD_COST_BYTES * joined.record_count
    return joined


# Many groups, as columns ---------------------------------------------------------------------


def _write_columns(
    buffer: memoryview,
    positions: Int64s,
    *,
    groups: Sequence[BatchGroup],
    chosen: Sequence[int],
    limits: Limits,
    written: list[EncodedBatch | None],
) -> None:
    """Fill ``written`` for the chosen groups, unless something is unusual. Raises GroupError."""
    frames = [
        np.concatenate([np.arange(first, end) for first, end in groups[n].ranges]) for n in chosen
    ]
    first_bytes = positions[np.concatenate(frames)]
    if bool((np.frombuffer(buffer, np.uint8)[first_bytes + MAGIC_AT] != 2).any()):
        return
    heads = gather_heads(buffer, first_bytes)
    members = np.array([len(part) for part in frames])
    try:
        columns = read_columns(buffer, first_bytes, heads, members, limits)
    except (IrregularRecordError, BatchError):
        return  # the record-by-record engine reports the frame and the fault
    except TooMuchError as error:
        frame = groups[chosen[error.group]].ranges[0][0]
        raise _too_much(frame, limits.together_bytes_max) from error
    codecs = [groups[n].codec for n in chosen]
    for n, result in zip(chosen, encode_columns(columns, codecs), strict=True):
        written[n] = result

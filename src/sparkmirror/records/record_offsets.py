"""Finds where the records of batches start; only a record's length says where the next begins.

There are three ways with the same result. With many batches, the k-th records of all of them are
found together, by a few ``numpy`` calls per step. In one of many records, the starts are guessed
and then proved: each record must end where the next one begins. Otherwise a short loop goes through
the batch; a run of records of one size costs it only a comparison. This module checks only what it
needs to find the starts; `columns` checks all fields at once.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from sparkmirror.errors import CorruptBatch
from sparkmirror.records.header_columns import Int64s
from sparkmirror.records.records import RECORD_BYTES_MIN
from sparkmirror.records.varint import read_varint

__all__ = ["IrregularRecordError", "read_varints", "record_starts"]

_1, _LOW7 = np.uint64(1), np.uint64(0x7F)
# A step over all batches costs about as much as this many records one by one.
_STEP_RECORDS = 24
# After this many records of one size in a row, it pays to look for more of them, if there usually
# are so many.
_ALIKE = 4
_RUN_RECORDS = 64
# After so many steps through a batch, it pays to guess where the rest of its records are, if there
# are so many.
_STEPS = 16
_GUESSED_RECORDS = 32
# Guessing reads every byte, and a step through the batch takes as long as so many of them.
_GUESSED_RECORD_BYTES = 400
# With more candidates for a start than this for each record, it does not.
_CANDIDATES = 8


class IrregularRecordError(Exception):
    """Internal: something unusual, which must be read record by record."""


def record_starts(flat: npt.NDArray[np.uint8], at: Int64s, end: Int64s, counts: Int64s) -> Int64s:
    """The first bytes of all records, batch by batch.

    ``at``, ``end``: where the records of each batch begin and must end in ``flat``. ``counts``:
    records of each batch, at least one. Raises IrregularRecordError if they do not end there.
    """
    if not len(counts):
        return np.zeros(0, np.int64)
    try:
        if int(counts.sum()) >= _STEP_RECORDS * int(counts.max()):
            return _together(flat, at, end, counts)
        return _singly(flat, at.tolist(), end.tolist(), counts.tolist())
    except IndexError:
        raise IrregularRecordError from None


@cache
def _sizes() -> npt.NDArray[np.int32]:
    """Size in bytes of a whole record, by the two bytes with which it begins (little-endian).

    0 if these are not enough: the length has three or more bytes, or is impossible.
    """
    word = np.arange(1 << 16, dtype=np.int32)
    two = (word >> 7) & 1
    zigzag = (word & 0x7F) | (((word >> 1) & 0x3F80) * two)
    known = ((word & 0x8080) != 0x8080) & (zigzag & 1 == 0)
    length = zigzag >> 1
    return np.where(known & (length >= RECORD_BYTES_MIN - 1), length + 1 + two, 0).astype(np.int32)


def _together(flat: npt.NDArray[np.uint8], at: Int64s, end: Int64s, counts: Int64s) -> Int64s:
    # Batches with the most records first: those that have a k-th record are always in front.
    order = np.argsort(-counts, kind="stable")
    row = (np.cumsum(counts) - counts)[order]
    falling = -counts[order]
    widths = np.searchsorted(falling, -np.arange(-int(falling[0])), "left").tolist()
    try:
        return _step(flat, at[order], end[order], row=row.copy(), widths=widths, all_known=True)
    except (IrregularRecordError, IndexError):
        return _step(flat, at[order], end[order], row=row, widths=widths, all_known=False)


def _step(
    flat: npt.NDArray[np.uint8],
    at: Int64s,
    end: Int64s,
    *,
    row: Int64s,
    widths: list[int],
    all_known: bool,
) -> Int64s:
    """Find the k-th records of all batches, step by step. Raises IrregularRecordError.

    ``widths``: how many batches have a k-th record. ``row``: the row of each batch's first record.
    ``all_known``: rely on `_sizes` alone. Then a batch with a record whose size it does not know
    ends before its ``end``, which is an IrregularRecordError.
    """
    sizes = _sizes()
    words = np.ndarray((max(len(flat) - 1, 0),), "<u2", flat.data, strides=(1,))
    starts = np.empty(int(sum(widths)), np.int64)
    stops = np.empty(len(at), np.int64)
    rows = row
    for width in widths:
        if width < len(at):
            stops[width : len(at)] = at[width:]
            at, row = at[:width], row[:width]
        starts[row] = at
        row += 1  # in ``rows``
        size = sizes.take(words[at])
        if not all_known and not size.all():
            length, head = read_varints(flat, at)
            size = head - at + length
            if int(size.min()) < RECORD_BYTES_MIN:
                raise IrregularRecordError
        at = at + size
    stops[: len(at)] = at
    # A record of size 0 would begin where its batch ends.
    if not np.array_equal(stops, end) or bool((starts[rows - 1] >= end).any()):
        raise IrregularRecordError
    return starts


def _singly(
    flat: npt.NDArray[np.uint8], begins: list[int], ends: list[int], counts: list[int]
) -> Int64s:
    data, sizes = flat.data, _sizes().data
    starts: list[int] = []
    append = starts.append
    for at, end, count in zip(begins, ends, counts, strict=True):
        before, alike, left, enough = -1, 0, count, _ALIKE
        steps = 0
        guess = count >= _GUESSED_RECORDS and end - at <= _GUESSED_RECORD_BYTES * count
        while left:
            if guess and steps == _STEPS and left >= _GUESSED_RECORDS:
                proved = _guessed(flat[at:end], left)
                if proved is not None:
                    starts.extend((proved + at).tolist())
                    at = end  # noqa: PLW2901
                    break
            steps += 1
            append(at)
            left -= 1
            size = sizes[data[at] | data[at + 1] << 8] or _long_size(data, at)
            at += size  # noqa: PLW2901
            alike = alike + 1 if size == before else 0
            before = size
            if alike == enough and left > enough:
                # A record with the same length field as the one before has the same size.
                more = min(_run(flat, at, size, left), left)
                starts.extend(range(at, at + more * size, size))
                at += more * size  # noqa: PLW2901
                left -= more
                alike = 0
                if more < _RUN_RECORDS:  # looking for them took longer than so many steps
                    enough *= 4
        if at != end:
            raise IrregularRecordError
    return np.array(starts, np.int64)


def _guessed(body: npt.NDArray[np.uint8], count: int) -> Int64s | None:
    """Where the ``count`` records of a batch begin in ``body``; None if that was not found.

    Behind its length, each record has a byte of attributes, which is 0, and there are few zeros
    elsewhere in most records. So a start is where such a zero has a length in front of it, as long
    a one as the first record's, that leads to another start or to the end.
    """
    head = body[:3] > 0x7F
    if head.all():
        return None
    width = int(head.argmin()) + 1
    zeros = body[width:] == 0
    # Counted first: the positions take eight times the memory of the batch.
    if not count <= np.count_nonzero(zeros) <= _CANDIDATES * count:
        return None
    starts = np.flatnonzero(zeros)
    zigzag = body[starts + (width - 1)].astype(np.int64)
    right = zigzag < 0x80
    zigzag <<= 7 * (width - 1)
    for index in range(width - 1):
        byte = body[starts + index]
        right &= byte > 0x7F
        zigzag |= (byte & 0x7F).astype(np.int64) << (7 * index)
    length = zigzag >> 1
    after = starts + width + length
    right &= (zigzag & 1 == 0) & (length >= RECORD_BYTES_MIN - 1) & (after <= len(body))
    starts, after = starts[right], after[right]
    if len(starts) > count:
        known = np.zeros(len(body) + 1, np.bool_)
        known[starts] = known[-1] = True
        right = known[after]
        starts, after = starts[right], after[right]
    # One chain from the first byte to the last: there can be no other.
    chained = (
        len(starts) == count
        and int(starts[0]) == 0
        and int(after[-1]) == len(body)
        and np.array_equal(after[:-1], starts[1:])
    )
    return starts if chained else None


def _long_size(data: memoryview, at: int) -> int:
    """Size in bytes of the whole record at ``at``, if `_sizes` does not know it."""
    try:
        length, head = read_varint(data, at)
    except CorruptBatch:
        raise IrregularRecordError from None
    if length < RECORD_BYTES_MIN - 1:
        raise IrregularRecordError
    return head - at + length


def _run(flat: npt.NDArray[np.uint8], at: int, size: int, most: int) -> int:
    """How many records from ``at`` on begin with the same length field as the one before."""
    alike = most
    byte, more = 0, True
    while more:
        own = int(flat[at + byte - size])
        column = flat[at + byte : at + most * size : size]
        other = np.flatnonzero(column != own)
        alike = min(alike, int(other[0]) if len(other) else len(column))
        more = own > 0x7F
        byte += 1
    return alike


def read_varints(flat: npt.NDArray[np.uint8], at: Int64s) -> tuple[Int64s, Int64s]:
    """Decode the zigzag varints at ``at``: their values, and the positions after them.

    Positions past the end read the last byte instead. Raises IrregularRecordError for more than ten
    bytes.
    """
    byte = flat.take(at, mode="clip")
    zigzag = (byte & 0x7F).astype(np.uint64)
    after = at + 1
    longer = np.flatnonzero(byte > 0x7F)
    shift = 7
    while len(longer):
        if shift > 63:
            raise IrregularRecordError
        byte = flat.take(after[longer], mode="clip")
        zigzag[longer] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        after[longer] += 1
        longer = longer[byte > 0x7F]
        shift += 7
    value = (zigzag >> _1) ^ (~(zigzag & _1) + _1)
    return value.view(np.int64), after

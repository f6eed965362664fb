"""Keys, values and headers of many records as columns, and records with other ones.

`key_columns.scan` finds the records. This module reads their fields into one buffer per column
(`Varbin`) and writes records whose fields were replaced. What is not replaced is copied as bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sparkmirror.errors import CorruptBatch
from sparkmirror.records.columns import Columns
from sparkmirror.records.encode_columns import copy_items, varint_sizes, write_varints, zigzag
from sparkmirror.records.header_columns import Int64s
from sparkmirror.records.key_columns import Scan
from sparkmirror.records.record_offsets import IrregularRecordError, read_varints
from sparkmirror.records.records import decode_rest

__all__ = [
    "Fields",
    "HeaderColumns",
    "Headers",
    "Varbin",
    "chosen",
    "gather",
    "header_columns",
    "read_headers",
    "record_fields",
    "taken",
    "with_fields",
]

Headers = Sequence[tuple[bytes, bytes | None]]
"""The headers of one record."""

_HEADERS_MAX = 64
"""Records with more of them are rare; `header_columns` has a step for each."""


@dataclass(slots=True)
class Varbin:
    """A column of byte strings: ``sizes`` in bytes, -1 for null; their bytes follow one another.

    This is Arrow's layout, apart from its offsets.
    """

    sizes: Int64s
    data: npt.NDArray[np.uint8]


@dataclass(slots=True)
class Fields:
    """Where the fields of each record are in ``Scan.columns.flat``.

    ``value_at``, ``value_bytes``: as ``Scan.key_at``. ``headers_at``: where the number of headers
    is; they end with the record.
    """

    value_at: Int64s
    value_bytes: Int64s
    headers_at: Int64s


@dataclass(slots=True)
class HeaderColumns:
    """The headers of many records, one after the other. ``counts``: how many each record has."""

    counts: Int64s
    names: Varbin
    values: Varbin


def record_fields(found: Scan) -> Fields:
    """The places of the values and headers. Raises CorruptBatch if they are outside the record."""
    columns = found.columns
    end = columns.rest_at + columns.rest_bytes
    try:
        after_key = found.key_at + np.maximum(found.key_bytes, 0)
        value_bytes, value_at = read_varints(columns.flat, after_key)
    except IrregularRecordError:
        raise _corrupt(found, 0) from None
    full = np.maximum(value_bytes, 0)
    # A size may be as large as an int64: nothing is added to it before it is known to fit.
    wrong = (value_bytes < -1) | (full >= end - value_at)
    if wrong.any():
        raise _corrupt(found, int(np.flatnonzero(wrong)[0]))
    return Fields(value_at, value_bytes, value_at + full)


def gather(flat: npt.NDArray[np.uint8], at: Int64s, sizes: Int64s) -> Varbin:
    """The strings at ``at`` in ``flat``, copied into one buffer. ``sizes``: -1 for null."""
    full = np.maximum(sizes, 0)
    ends = np.cumsum(full)
    data = np.empty(int(ends[-1]) if len(ends) else 0, np.uint8)
    rows = np.flatnonzero(full)
    if len(rows):
        copy_items(flat, at[rows], data, (ends - full)[rows], full[rows])
    return Varbin(sizes, data)


def read_headers(found: Scan, fields: Fields, first: int, end: int) -> list[Headers | None]:
    """The headers of the records ``first`` to ``end``; None for headers that cannot be read.

    A raw batch passes with such headers, so they must not stop a record here.
    """
    columns = found.columns
    none = columns.flat[fields.headers_at[first:end]] == 0
    headers: list[Headers | None] = [()] * (end - first)
    flat = columns.flat.data
    for row in np.flatnonzero(~none).tolist():
        number = first + row
        start = int(columns.rest_at[number])
        rest = flat[start : start + int(columns.rest_bytes[number])]
        try:
            headers[row] = decode_rest(int(columns.offset[number]), 0, rest).headers
        except CorruptBatch:
            headers[row] = None
    return headers


def header_columns(found: Scan, fields: Fields, first: int, end: int) -> HeaderColumns | None:
    """The headers of the records ``first`` to ``end``.

    None: there is a record with headers that cannot be read, or with very many of them; then
    `read_headers` reads one record after the other.
    """
    columns = found.columns
    flat, rest_end = columns.flat, (columns.rest_at + columns.rest_bytes)[first:end]
    try:
        counts, at = read_varints(flat, fields.headers_at[first:end])
        if not len(counts) or int(counts.min()) < 0 or int(counts.max()) > _HEADERS_MAX:
            return None
        places = np.cumsum(counts) - counts  # of each record's first header
        name_at, name_bytes, value_at, value_bytes = np.empty((4, int(counts.sum())), np.int64)
        rows = np.arange(len(counts))
        for number in range(int(counts.max())):
            rows = rows[counts[rows] > number]
            place = places[rows] + number
            name_bytes[place], name_at[place] = read_varints(flat, at[rows])
            # Before sizes are added: a hostile one is as large as an int64.
            if not _within(name_bytes[place], 0, len(flat)):
                return None
            after_name = name_at[place] + name_bytes[place]
            value_bytes[place], value_at[place] = read_varints(flat, after_name)
            if not _within(value_bytes[place], -1, len(flat)):
                return None
            at[rows] = value_at[place] + np.maximum(value_bytes[place], 0)
            if bool((at[rows] > rest_end[rows]).any()):
                return None
    except IrregularRecordError:
        return None
    if not np.array_equal(at, rest_end):
        return None
    names, values = gather(flat, name_at, name_bytes), gather(flat, value_at, value_bytes)
    return HeaderColumns(counts, names, values)


def _within(sizes: Int64s, least: int, most: int) -> bool:
    return int(sizes.min()) >= least and int(sizes.max()) <= most


def chosen(found: Scan, rows: npt.NDArray[np.bool_]) -> Scan:
    """The records for which ``rows`` is true."""
    if rows.all():
        return found
    columns = found.columns
    kept = Columns(
        columns.flat,
        columns.group[rows],
        columns.offset[rows],
        columns.timestamp[rows],
        columns.attributes[rows],
        columns.rest_at[rows],
        columns.rest_bytes[rows],
    )
    key_at, key_bytes = found.key_at[rows], found.key_bytes[rows]
    return replace(found, columns=kept, key_at=key_at, key_bytes=key_bytes, origin=None)


def taken(found: Scan, rows: npt.NDArray[np.bool_]) -> Scan:
    """As `chosen`, but without the positions of keys: the records can only be written."""
    if rows.all():
        return found
    numbers, columns = np.flatnonzero(rows), found.columns
    names = ("group", "offset", "timestamp", "attributes", "rest_at", "rest_bytes")
    kept = {name: getattr(columns, name).take(numbers) for name in names}
    return replace(found, columns=replace(columns, **kept), origin=None)


def with_fields(
    found: Scan,
    *,
    key: Varbin | None = None,
    value: Varbin | None = None,
    headers: Sequence[bytes] | None = None,
    timestamp: Int64s | None = None,
) -> Scan:
    """The records with other fields; None keeps the field. ``headers``: encoded, with their number.

    The result has no positions of keys: it can be written, but not partitioned by key. Raises
    CorruptBatch.
    """
    columns = found.columns
    if timestamp is not None:
        columns = replace(columns, timestamp=timestamp)
        found = replace(found, origin=None)
    if key is None and value is None and headers is None:
        return replace(found, columns=columns)
    fields, flat = record_fields(found), columns.flat
    value_from = found.key_at + np.maximum(found.key_bytes, 0)
    parts = [
        *(
            [_Part(flat, columns.rest_at, value_from - columns.rest_at)]
            if key is None
            else _parts(key)
        ),
        *(
            [_Part(flat, value_from, fields.headers_at - value_from)]
            if value is None
            else _parts(value)
        ),
    ]
    if headers is None:
        end = columns.rest_at + columns.rest_bytes
        parts.append(_Part(flat, fields.headers_at, end - fields.headers_at))
    else:
        sizes = np.fromiter(map(len, headers), np.int64, len(headers))
        joined = np.frombuffer(b"".join(headers), np.uint8)
        parts.append(_Part(joined, np.cumsum(sizes) - sizes, sizes))
    rest_bytes = sum((part.sizes for part in parts), np.zeros(len(columns.offset), np.int64))
    ends = np.cumsum(rest_bytes)
    out = np.empty(int(ends[-1]) if len(ends) else 0, np.uint8)
    at = rest_at = ends - rest_bytes
    for part in parts:
        rows = np.flatnonzero(part.sizes)
        if len(rows):
            copy_items(part.data, part.at[rows], out, at[rows], part.sizes[rows])
        at = at + part.sizes
    written = replace(columns, flat=out, rest_at=rest_at, rest_bytes=rest_bytes)
    return replace(found, columns=written, origin=None)


@dataclass(slots=True)
class _Part:
    """One part of every record: ``sizes`` bytes at ``at`` in ``data``."""

    data: npt.NDArray[np.uint8]
    at: Int64s
    sizes: Int64s


def _parts(column: Varbin) -> tuple[_Part, _Part]:
    """The varints of the lengths, and the strings."""
    lengths = zigzag(column.sizes)
    sizes = varint_sizes(lengths) if len(lengths) else column.sizes
    ends = np.cumsum(sizes)
    data = np.empty(int(ends[-1]) if len(ends) else 0, np.uint8)
    if len(lengths):
        write_varints(data, ends - sizes, lengths, sizes)
    full = np.maximum(column.sizes, 0)
    return _Part(data, ends - sizes, sizes), _Part(column.data, np.cumsum(full) - full, full)


def _corrupt(found: Scan, row: int) -> CorruptBatch:
    return CorruptBatch(
        f"The record at offset {int(found.columns.offset[row])} cannot be read.",
        do="The batch is damaged, or its producer wrote it wrongly; it cannot be transformed.",
    )

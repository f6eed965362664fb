"""What Spark, or a handler, gives for records, and the records that it makes of them.

A result is a struct with a ``record``: null if the record is left out, else its new fields. The
struct itself is null for a record on which the SQL or the handler failed (`data.transform.plan`).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparkmirror.data.transform.columns import MEASURED_EVERY
from sparkmirror.records.header_columns import Int64s
from sparkmirror.records.key_columns import Scan
from sparkmirror.records.record_fields import (
    Varbin,
    chosen,
    read_headers,
    record_fields,
    with_fields,
)
from sparkmirror.records.records import Record, encode_headers

__all__ = [
    "HEADERS",
    "ROUTING",
    "encoded_headers",
    "field_of",
    "is_valid",
    "records_of",
    "replaces",
    "sql_seconds",
    "varbin_of",
    "written",
]

ROUTING = ("topic", "partition")
"""Fields of a ``record`` that say where it goes."""

HEADERS = pa.list_(pa.struct([("key", pa.binary()), ("value", pa.binary())]))
"""Headers whose names may be any bytes, as in Kafka."""


def field_of(results: pa.StructArray, name: str) -> pa.Array:
    """The field ``name`` of each result, null for records on which the SQL failed."""
    return results.flatten()[results.type.get_field_index(name)]


def sql_seconds(results: pa.StructArray) -> float:
    """Seconds in which Spark evaluated ``results``, from the records of which it is known."""
    if 0 < len(results) <= MEASURED_EVERY:  # of so few only the first one's time is known
        first = results[0]
        began_ns, ended_ns = first["began"].as_py(), first["ended"].as_py()
        known = began_ns is not None and ended_ns is not None
        return (ended_ns - began_ns) * len(results) / 1e9 if known else 0.0
    began, ended = field_of(results, "began"), field_of(results, "ended")
    took_ns = ended.drop_null().to_numpy() - began.drop_null().to_numpy()
    return float(took_ns.mean()) * len(results) / 1e9 if len(took_ns) else 0.0


def replaces(record: pa.StructType) -> bool:
    """Whether a ``record`` of this type has new fields, and not only a place."""
    return bool({field.name for field in record} - {"kept", *ROUTING})


def written(found: Scan, kept: npt.NDArray[np.bool_], record: pa.Array) -> Scan:
    """The kept records, with the fields that the results replace."""
    old = chosen(found, kept)
    if not replaces(record.type) or not len(old.columns.offset):
        return old
    names = [field.name for field in record.type]
    fields = dict(zip(names, record.filter(pa.array(kept)).flatten(), strict=True))
    timestamp: Int64s | None = None
    if "timestamp" in fields:
        times = fields["timestamp"].view(pa.int64()).fill_null(-1)
        per_ms = 1 if fields["timestamp"].type.unit == "ms" else 1000  # else microseconds
        timestamp = times.to_numpy(zero_copy_only=False) // per_ms
    return with_fields(
        old,
        key=varbin_of(fields["key"]) if "key" in fields else None,
        value=varbin_of(fields["value"]) if "value" in fields else None,
        headers=encoded_headers(fields["headers"]) if "headers" in fields else None,
        timestamp=timestamp,
    )


def encoded_headers(column: pa.Array) -> list[bytes]:
    """The headers of each record."""
    return [
        encode_headers(
            (one["key"], one["value"])
            for one in headers or ()
            if one is not None and one["key"] is not None  # Kafka has no header without a key
        )
        for headers in column.cast(HEADERS).to_pylist()
    ]


def varbin_of(column: pa.Array) -> Varbin:
    """A column of strings as `Varbin`."""
    column = column.cast(pa.binary())  # offsets of 32 bits
    count = len(column)
    _, offsets_buffer, data_buffer = column.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32, count + 1, column.offset * 4).astype(np.int64)
    sizes = np.diff(offsets)
    valid = is_valid(column)
    if column.null_count and bool(sizes[~valid].any()):
        return varbin_of(pa.array(column.to_pylist(), pa.binary()))  # bytes behind a null
    data = np.zeros(0, np.uint8) if data_buffer is None else np.frombuffer(data_buffer, np.uint8)
    return Varbin(np.where(valid, sizes, -1), data[int(offsets[0]) : int(offsets[-1])])


def records_of(found: Scan) -> tuple[Record, ...]:
    """The records as they are at the source."""
    columns, fields = found.columns, record_fields(found)
    data = columns.flat.data
    headers = read_headers(found, fields, 0, len(columns.offset))
    return tuple(
        map(
            Record,
            columns.offset.tolist(),
            columns.timestamp.tolist(),
            _values(data, found.key_at, found.key_bytes),
            _values(data, fields.value_at, fields.value_bytes),
            (tuple(one) if one else () for one in headers),
        )
    )


def _values(data: memoryview, at: Int64s, sizes: Int64s) -> Iterator[bytes | None]:
    for start, size in zip(at.tolist(), sizes.tolist(), strict=True):
        yield None if size < 0 else bytes(data[start : start + size])


def is_valid(column: pa.Array) -> npt.NDArray[np.bool_]:
    """Which values of ``column`` are not null."""
    valid: npt.NDArray[np.bool_] = column.is_valid().to_numpy(zero_copy_only=False)
    return valid

"""The records inside a magic 2 batch: decoded and encoded, fully or only as far as needed.

A record is ``length varint | attributes i8 | timestamp delta varint | offset delta varint | rest``,
where ``rest`` is key, value and headers. Re-encoding a batch (compaction holes, joining, log append
time) changes the fields before ``rest`` and copies ``rest`` as bytes: see ``Carried``. Only
``decode_fields`` decodes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from sparkmirror.errors import CorruptBatch
from sparkmirror.records.codecs import DECOMPRESSED_BYTES_MAX, LEVELS, compress, decompress_batch
from sparkmirror.records.header import (
    CODEC_MASK,
    COVERED,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_TIME_BIT,
    Buffer,
    seal,
)
from sparkmirror.records.varint import read_varint, varint

__all__ = [
    "INT64_MAX",
    "RECORDS_MAX",
    "RECORD_BYTES_MIN",
    "RECORD_COST_BYTES",
    "REST_BYTES_MIN",
    "Carried",
    "Limits",
    "Record",
    "carry",
    "check_count",
    "decode_fields",
    "decode_records",
    "decode_rest",
    "encode_batch",
    "encode_headers",
    "encode_rest",
    "write_carried",
]

INT64_MAX = (1 << 63) - 1
RECORD_BYTES_MIN = 7
REST_BYTES_MIN = 3  # of a record: key, value and the number of headers
"""One byte each: length, attributes, two deltas, key length, value length, header count."""
RECORD_COST_BYTES = 64
"""Memory that a record takes besides its bytes; limits on decompressed data count it."""
RECORDS_MAX = 1 << 21
"""Limit on the records of one compressed batch: tiny ones take many times their size in memory."""
_UINT64 = 1 << 64
_SMALL = tuple(varint(value) for value in range(8192))
_NO_HEADERS = b"\0"
_DAMAGED = "The batch is damaged, or its producer wrote it wrongly; it cannot be mirrored."


@dataclass(frozen=True, slots=True)
class Record:
    """One record. ``timestamp``: epoch ms, -1 for none. Header keys are UTF-8 bytes as stored."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...] = ()


@dataclass(slots=True)
class Carried:
    """Records on their way from one batch to another: parallel lists, rests not decoded.

    ``unpacked_bytes``: decompressed size of the compressed batches among the sources, plus
    `RECORD_COST_BYTES` for each of their records.
    """

    offsets: list[int] = field(default_factory=list)
    timestamps: list[int] = field(default_factory=list)
    attributes: list[int] = field(default_factory=list)
    rests: list[Buffer] = field(default_factory=list)
    unpacked_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """Which records to keep (``first_offset <= offset < end_offset``), and limits on memory.

    ``check_crcs``: verify magic 0 and 1 checksums while reading (those of magic 2 were verified
    before). Limits on decompressed bytes: ``decompressed_bytes_max`` for one batch,
    ``joined_bytes_max`` for the batches of one group unless it has only one,
    ``together_bytes_max`` for all groups of one response unless there is only one.
    """

    first_offset: int = 0
    end_offset: int = INT64_MAX
    check_crcs: bool = True
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX
    joined_bytes_max: int = 32 << 20
    together_bytes_max: int = 128 << 20


_ALL = Limits()


def carry(batch: memoryview, into: Carried, limits: Limits = _ALL) -> None:
    """Append those records of one whole batch that are within ``limits``.

    Log append time becomes the timestamp of each record. Raises CorruptBatch or UnknownCodec.
    """
    (base_offset, _, _, _, _, bits, last_delta, base_timestamp, max_timestamp, _, _, _, count) = (
        HEADER.unpack_from(batch)
    )
    if bits & CODEC_MASK:
        check_count(base_offset, count)
    body = decompress_batch(bits & CODEC_MASK, batch[HEADER_BYTES:], limits.decompressed_bytes_max)
    if bits & CODEC_MASK:
        into.unpacked_bytes += len(body) + RECORD_COST_BYTES * max(count, 0)
    if not 0 <= count <= len(body) // RECORD_BYTES_MIN:
        raise _corrupt(base_offset, f"states {count} records in {len(body)} bytes")
    first_offset, end_offset = limits.first_offset, limits.end_offset
    appended = bool(bits & LOG_APPEND_TIME_BIT)
    offsets, timestamps = into.offsets, into.timestamps
    attributes, rests = into.attributes, into.rests
    body = memoryview(body)
    size = len(body)
    at = 0
    previous = -1
    for _ in range(count):
        length, at = read_varint(body, at)
        end = at + length
        if length < RECORD_BYTES_MIN - 1 or end > size:
            raise _corrupt(base_offset, f"has a record of {length} bytes at byte {at} of {size}")
        attribute = body[at]
        # A timestamp delta usually has one byte.
        zigzag = body[at + 1]
        if zigzag < 0x80:
            timestamp_delta, at = (zigzag >> 1) ^ -(zigzag & 1), at + 2
        else:
            timestamp_delta, at = read_varint(body, at + 1)
        delta, at = read_varint(body, at)
        if not previous < delta <= last_delta or at + REST_BYTES_MIN > end:
            raise _corrupt(base_offset, f"has offset delta {delta} after {previous}")
        previous = delta
        offset = base_offset + delta
        if first_offset <= offset < end_offset:
            offsets.append(offset)
            timestamps.append(max_timestamp if appended else base_timestamp + timestamp_delta)
            attributes.append(attribute)
            rests.append(body[at:end])
        at = end
    if at != size:
        raise _corrupt(base_offset, f"has {size - at} bytes left after its {count} records")


def check_count(base_offset: int, count: int) -> None:
    """Raise CorruptBatch if a compressed batch states more than `RECORDS_MAX` records."""
    if count > RECORDS_MAX:
        raise CorruptBatch(
            f"The batch at offset {base_offset} states {count} records; a compressed batch may "
            f"have at most {RECORDS_MAX:,}.",
            do="Let its producer write smaller batches (batch.size), or exclude the topic.",
        )


def write_carried(
    carried: Carried,
    codec: int,
    start: int = 0,
    end: int | None = None,
    *,
    levels: Sequence[int] = LEVELS,
) -> bytes:
    """One batch of the carried records ``start`` to ``end`` (at least one), renumbered.

    The base offset and the base timestamp are the first record's. Offset deltas are consecutive.
    Producer fields are empty: the sink sets them. ``levels``: compression level by codec.
    """
    timestamps = carried.timestamps[start:end]
    base_timestamp = timestamps[0]
    parts: list[Buffer] = []
    for delta, (timestamp, attribute, rest) in enumerate(
        zip(timestamps, carried.attributes[start:end], carried.rests[start:end], strict=True)
    ):
        late = timestamp - base_timestamp
        times = _SMALL[late] if 0 <= late < 8192 else varint(_wrap(late))
        places = _SMALL[delta] if delta < 8192 else varint(delta)
        length = 1 + len(times) + len(places) + len(rest)
        size = _SMALL[length] if length < 8192 else varint(length)
        parts.append(size + attribute.to_bytes(1, "big") + times + places)
        parts.append(rest)
    body = b"".join(parts)
    if codec:
        body = compress(codec, body, levels)
    covered = COVERED.pack(
        codec,
        len(timestamps) - 1,
        _wrap(base_timestamp),
        _wrap(max(timestamps)),
        -1,
        -1,
        -1,
        len(timestamps),
    )
    return seal(covered, body, carried.offsets[start]) + body


def decode_records(
    batch: memoryview, decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX
) -> Iterator[Record]:
    """The decoded records of one whole batch; log append time becomes the timestamp of each.

    Raises CorruptBatch or UnknownCodec. The checksum is not verified.
    """
    carried = Carried()
    carry(batch, carried, Limits(decompressed_bytes_max=decompressed_bytes_max))
    for offset, timestamp, rest in zip(
        carried.offsets, carried.timestamps, carried.rests, strict=True
    ):
        yield decode_rest(offset, timestamp, memoryview(rest))


def encode_batch(
    records: Sequence[Record],
    *,
    codec: int = 0,
    levels: Sequence[int] = LEVELS,
    base_offset: int | None = None,
    base_timestamp: int | None = None,
    max_timestamp: int | None = None,
    attributes: int = 0,
    leader_epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    last_offset_delta: int | None = None,
) -> bytes:
    """One batch of ``records``, with their offsets and timestamps.

    ``levels``: compression level by codec. ``attributes``: further attribute bits (log append time,
    transactional, control, …). Base values default to the first record's, ``max_timestamp`` and
    ``last_offset_delta`` to those of ``records``. Without records, the caller must give the base
    offset and the delta.
    """
    if base_offset is None:
        base_offset = records[0].offset
    if base_timestamp is None:
        base_timestamp = records[0].timestamp if records else -1
    if max_timestamp is None:
        max_timestamp = max((record.timestamp for record in records), default=-1)
    if last_offset_delta is None:
        last_offset_delta = records[-1].offset - base_offset
    parts: list[bytes] = []
    for record in records:
        rest = encode_rest(record.key, record.value, record.headers)
        times = varint(_wrap(record.timestamp - base_timestamp))
        places = varint(record.offset - base_offset)
        length = varint(1 + len(times) + len(places) + len(rest))
        parts.append(length + b"\0" + times + places + rest)
    body = compress(codec, b"".join(parts), levels)
    covered = COVERED.pack(
        codec | attributes,
        last_offset_delta,
        _wrap(base_timestamp),
        _wrap(max_timestamp),
        producer_id,
        producer_epoch,
        base_sequence,
        len(records),
    )
    return seal(covered, body, base_offset, leader_epoch) + body


def encode_rest(
    key: Buffer | None,
    value: Buffer | None,
    headers: Iterable[tuple[bytes, bytes | None]] = (),
) -> bytes:
    """Key, value and headers in the form in which they follow a record's deltas."""
    return b"".join((_sized(key), _sized(value), encode_headers(headers)))


def encode_headers(headers: Iterable[tuple[bytes, bytes | None]]) -> bytes:
    """Headers as they end a record, with their number in front."""
    encoded = [_sized(name) + _sized(content) for name, content in headers]
    if not encoded:
        return _NO_HEADERS
    return b"".join((varint(len(encoded)), *encoded))


def _sized(data: Buffer | None) -> bytes:
    if data is None:
        return b"\x01"
    size = len(data)
    return b"".join((_SMALL[size] if size < 8192 else varint(size), data))


def decode_rest(offset: int, timestamp: int, rest: memoryview) -> Record:
    """Decode a record from what `Carried` holds of it. Raises CorruptBatch."""
    return Record(offset, timestamp, *decode_fields(offset, rest))


def decode_fields(
    offset: int, rest: Buffer
) -> tuple[bytes | None, bytes | None, tuple[tuple[bytes, bytes | None], ...]]:
    """Key, value and headers of what `Carried` holds of a record. Raises CorruptBatch."""
    key, at = _read_sized(rest, 0, offset)
    value, at = _read_sized(rest, at, offset)
    count, at = read_varint(rest, at)
    if not count and at == len(rest):
        return key, value, ()
    if not 0 <= count <= (len(rest) - at) // 2:
        raise _corrupt(offset, f"states {count} headers in {len(rest) - at} bytes")
    headers: list[tuple[bytes, bytes | None]] = []
    for _ in range(count):
        name, at = _read_sized(rest, at, offset)
        content, at = _read_sized(rest, at, offset)
        if name is None:
            raise _corrupt(offset, "has a header without a key")
        headers.append((name, content))
    if at != len(rest):
        raise _corrupt(offset, f"has {len(rest) - at} bytes left after a record's headers")
    return key, value, tuple(headers)


def _read_sized(rest: Buffer, at: int, offset: int) -> tuple[bytes | None, int]:
    size, at = read_varint(rest, at)
    if size == -1:
        return None, at
    if size < 0 or at + size > len(rest):
        raise _corrupt(offset, f"has a field of {size} bytes with {len(rest) - at} left")
    return bytes(rest[at : at + size]), at + size


def _wrap(value: int) -> int:
    """``value`` wrapped to int64, as Java does it; hostile deltas overflow."""
    if -INT64_MAX - 1 <= value <= INT64_MAX:
        return value
    return (value + INT64_MAX + 1) % _UINT64 - INT64_MAX - 1


def _corrupt(offset: int, what: str) -> CorruptBatch:
    return CorruptBatch(f"The batch at offset {offset} {what}.", do=_DAMAGED)

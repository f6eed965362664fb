"""Valid inputs to begin with, and what a hostile peer makes of them. All from one `Random`."""

from __future__ import annotations

import struct
import zlib
from functools import cache
from random import Random

from crc32c import crc32c

from sparkmirror.records.codecs import compress
from sparkmirror.records.header import (
    ATTRIBUTES_AT,
    CRC_AT,
    HEADER_BYTES,
    LENGTH_AT,
    LOG_OVERHEAD_BYTES,
)
from sparkmirror.records.records import Record, encode_batch
from sparkmirror.records.varint import varint

__all__ = ["batch", "batches", "bomb", "legacy", "mutated", "resealed"]

_EXTREMES = (
    *(-(2**63), -(2**31), -(2**31) + 1, -(2**15), -0x1000, -62, -61, -14, -13, -12, -6, -3, -2, -1),
    *(0, 1, 2, 3, 5, 7, 8, 12, 13, 14, 60, 61, 62, 127, 128, 255, 256, 0x1000, 2**15 - 1, 2**15),
    *(2**16, 2**20, 2**24, 2**28, 2**30, 2**31 - 1, 2**32 - 1, 2**62, 2**63 - 1),
)
_SIZES = (1, 2, 4, 4, 4, 8)


def mutated(data: bytes, rng: Random) -> bytes:
    """``data`` after one to six changes; now and then as it was."""
    out = bytearray(data)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 2, 3, 6))):
        _CHANGES[rng.randrange(len(_CHANGES))](out, rng)
    return bytes(out)


def _at(out: bytearray, rng: Random) -> int:
    # Heads and counts stand in front: half of the changes are made there.
    return rng.randrange(min(len(out), 80) if rng.random() < 0.5 else len(out))


def _flip(out: bytearray, rng: Random) -> None:
    if out:
        out[_at(out, rng)] ^= 1 << rng.randrange(8)


def _byte(out: bytearray, rng: Random) -> None:
    if out:
        out[_at(out, rng)] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))


def _number(out: bytearray, rng: Random) -> None:
    """A field of some size becomes an extreme value, or one near the length of it all."""
    if not out:
        return
    size, at = rng.choice(_SIZES), _at(out, rng)
    near = len(out) - at + rng.randrange(-20, 20)
    value = rng.choice(_EXTREMES) if rng.random() < 0.7 else near
    out[at : at + size] = (value & ((1 << 8 * size) - 1)).to_bytes(size, "big")


def _truncate(out: bytearray, rng: Random) -> None:
    del out[rng.randrange(len(out) + 1) :]


def _extend(out: bytearray, rng: Random) -> None:
    out += rng.choice((b"\0", b"\xff", rng.randbytes(8))) * rng.randrange(1, 40)


def _delete(out: bytearray, rng: Random) -> None:
    if out:
        at = _at(out, rng)
        del out[at : at + rng.randrange(1, 24)]


def _repeat(out: bytearray, rng: Random) -> None:
    if out:
        at = _at(out, rng)
        out[at:at] = out[at : at + rng.randrange(1, 100)] * rng.randrange(1, 4)


_CHANGES = (_flip, _byte, _number, _number, _number, _truncate, _extend, _delete, _repeat)


# --- batches ------------------------------------------------------------------------------------


def _bytes(rng: Random) -> bytes | None:
    kind = rng.randrange(5)
    if not kind:
        return None
    return rng.randbytes(rng.choice((0, 1, 5, 30, 130))) if kind < 4 else b"a" * rng.randrange(5000)


def batch(rng: Random, base: int) -> bytes:
    """One magic 2 batch from offset ``base`` on, of any codec and kind."""
    records, offset = [], base
    for _ in range(rng.choice((0, 1, 1, 1, 2, 5, 40))):
        headers = tuple((b"h", _bytes(rng)) for _ in range(rng.choice((0, 0, 1, 3))))
        time = rng.choice((-1, 0, 1_700_000_000_000, 2**62))
        records.append(Record(offset, time, _bytes(rng), _bytes(rng), headers))
        offset += rng.choice((1, 1, 1, 1, 3))
    last = records[-1].offset if records else base
    return encode_batch(
        records,
        codec=rng.choice((0, 0, 1, 2, 3, 4)),
        base_offset=base,
        last_offset_delta=last - base + rng.choice((0, 0, 0, 2)),
        attributes=rng.choice((0, 0, 0, 0x08, 0x10, 0x20, 0x30, 0x40)),
        producer_id=rng.choice((-1, 5)),
    )


def legacy(rng: Random, offset: int) -> bytes:
    """One message of magic 0 or 1, or a wrapper of some."""
    magic = rng.randrange(2)
    if rng.random() < 0.5:
        return _message(rng, offset, magic, 0, _bytes(rng))
    inner = [_message(rng, index, magic, 0, _bytes(rng)) for index in range(rng.randrange(1, 5))]
    codec = rng.choice((1, 2, 3))
    return _message(rng, offset + len(inner), magic, codec, compress(codec, b"".join(inner)))


def _message(rng: Random, offset: int, magic: int, codec: int, value: bytes | None) -> bytes:
    body = bytes((magic, codec | rng.choice((0, 0, 8))))
    body += struct.pack(">q", 1_700_000_000_000) if magic else b""
    for field in (_bytes(rng), value):
        body += struct.pack(">i", -1) if field is None else struct.pack(">i", len(field)) + field
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


def batches(rng: Random) -> bytes:
    """The records field of a Fetch answer: batches of all formats, some of them hostile."""
    parts: list[bytes] = []
    base = rng.choice((0, 7, 2**40, 2**63 - 5000))
    for _ in range(rng.choice((0, 1, 1, 2, 5, 30))):
        part = legacy(rng, base) if rng.random() < 0.15 else batch(rng, base)
        if rng.random() < 0.3:
            part = mutated(part, rng)
        copies = rng.choice((1, 1, 1, 1, 40))
        for _ in range(copies):
            if rng.random() < 0.8:
                part = resealed(base.to_bytes(8, "big", signed=True) + part[8:])
            parts.append(part)
            base = min(base + 50, 2**63 - 1_000)
    whole = b"".join(parts)
    return mutated(whole, rng) if rng.random() < 0.3 else whole


def resealed(part: bytes) -> bytes:
    """With the length and checksum that belong to it: what a hostile broker would send."""
    if len(part) < HEADER_BYTES:
        return part
    out = bytearray(part)
    out[LENGTH_AT : LENGTH_AT + 4] = (len(out) - LOG_OVERHEAD_BYTES).to_bytes(4, "big")
    if out[16] == 2:
        out[CRC_AT : CRC_AT + 4] = crc32c(out[ATTRIBUTES_AT:]).to_bytes(4, "big")
    else:
        out[12:16] = zlib.crc32(out[16:]).to_bytes(4, "big")
    return bytes(out)


# --- bombs --------------------------------------------------------------------------------------


def bomb(rng: Random) -> bytes:
    """Small batches that unpack to as much as their codec can, many in one answer."""
    codec, size = _BOMBS[rng.randrange(len(_BOMBS))]
    one = bytearray(_bomb(codec, size))
    # Log append time has to be made real: even a large batch is unpacked then.
    one[ATTRIBUTES_AT + 1] |= rng.choice((0, 8))
    if rng.random() < 0.2:
        one[HEADER_BYTES:] = _zstd_runs(rng.choice((8, 900, 3_000, 40_000)))
    parts = [
        resealed(index.to_bytes(8, "big") + bytes(one[8:]))
        for index in range(rng.choice((1, 20, 60)))
    ]
    return b"".join(parts)


# Codec and size of the value; a batch below 4 KiB is joined with its neighbours.
_BOMBS = ((1, 3 << 20), (1, 64 << 20), (2, 1 << 16), (2, 1 << 22), (3, 1 << 19), (3, 1 << 24),
          (4, 30 << 20), (4, 40 << 20), (4, 250 << 20), (4, 300 << 20))  # fmt: skip

_RUN_BYTES = 128 * 1024


@cache
def _bomb(codec: int, size: int) -> bytes:
    if codec != 4:
        return encode_batch([Record(0, 1, None, bytes(size))], codec=codec)
    # Written by hand, so that making it takes no memory: a block as it is, runs, a block as it is.
    head = b"\0\0\0\1" + varint(size)
    record = varint(len(head) + size + 1) + head
    out = b"\x28\xb5\x2f\xfd\0\x58" + (len(record) << 3).to_bytes(3, "little") + record
    for start in range(0, size, _RUN_BYTES):
        run = min(_RUN_BYTES, size - start)
        out += (run << 3 | 2).to_bytes(3, "little") + b"\0"
    out += (1 << 3 | 1).to_bytes(3, "little") + b"\0"
    return encode_batch([Record(0, 1, None, b"")], codec=codec)[:HEADER_BYTES] + out


def _zstd_runs(blocks: int) -> bytes:
    """A frame of ``blocks`` runs of 128 KiB each, four bytes a run."""

    def run(last: int) -> bytes:
        return (_RUN_BYTES << 3 | 2 | last).to_bytes(3, "little") + b"\0"

    head = b"\x28\xb5\x2f\xfd\0\x58"  # no content size, window 2 MiB
    return head + run(0) * (blocks - 1) + run(1)

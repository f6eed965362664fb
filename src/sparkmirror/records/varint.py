"""Zigzag varints, as the records inside a batch use them (int32 and int64)."""

from __future__ import annotations

from sparkmirror.errors import CorruptBatch
from sparkmirror.records.header import Buffer

__all__ = ["read_varint", "varint"]

_ONE_BYTE = tuple(bytes((zigzag,)) for zigzag in range(128))
_VARINT_BYTES_MAX = 10


def varint(value: int) -> bytes:
    """Encode a signed integer of at most 64 bits: zigzag, 7 bits per byte, lowest first."""
    zigzag = (value << 1) if value >= 0 else (~value << 1) | 1
    if zigzag < 0x80:
        return _ONE_BYTE[zigzag]
    if zigzag < 0x4000:
        return bytes((zigzag & 0x7F | 0x80, zigzag >> 7))
    encoded = bytearray()
    while zigzag > 0x7F:
        encoded.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    encoded.append(zigzag)
    return bytes(encoded)


def read_varint(buffer: Buffer, at: int) -> tuple[int, int]:
    """Decode the varint at ``at``: ``(value, position after it)``; the value fits 64 bits.

    Raises CorruptBatch if the buffer ends inside it, or it has more than ten bytes.
    """
    try:
        byte = buffer[at]
        if byte < 0x80:
            return (byte >> 1) ^ -(byte & 1), at + 1
        zigzag = byte & 0x7F
        shift = 7
        while byte > 0x7F:
            at += 1
            byte = buffer[at]
            zigzag |= (byte & 0x7F) << shift
            shift += 7
            if shift > 7 * _VARINT_BYTES_MAX:
                raise CorruptBatch(f"The varint ending at byte {at} has more than ten bytes.")
    except IndexError as error:
        raise CorruptBatch(f"The records end inside a varint at byte {at}.") from error
    zigzag &= 0xFFFF_FFFF_FFFF_FFFF
    return (zigzag >> 1) ^ -(zigzag & 1), at + 1

"""The five compression codecs of Kafka, with a limit on the decompressed size of a batch.

A decompressor computes an upper bound of its output from the framing before it allocates memory
(zstd and lz4 block headers, snappy's stated length), or it stops at the limit (gzip). So a few
kilobytes that claim to hold a terabyte cost nothing. Snappy, and lz4 with few exceptions, bypass
the frame libraries, whose set-up costs ten times the work on a small input.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Any

import cramjam
import numpy as np

from sparkmirror.errors import CorruptBatch, UnknownCodec
from sparkmirror.records.header import Buffer

__all__ = [
    "DECOMPRESSED_BYTES_MAX",
    "GZIP",
    "LEVELS",
    "LZ4",
    "NAMES",
    "NONE",
    "SNAPPY",
    "ZSTD",
    "compress",
    "decompress",
    "decompress_batch",
]

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
DECOMPRESSED_BYTES_MAX = 256 << 20
_RATIO_ALLOWED = 16

LEVELS = (0, 6, 0, 9, 3)
"""Default level of each codec, as in Java's clients; snappy has none."""
_GZIP_WBITS = 31
_GZIP_MEMBERS_MAX = 1024
_ZSTD_BLOCK_BYTES_MAX = 128 * 1024
_ZSTD_MAGIC = 0xFD2FB528
_SNAPPY_BLOCK_BYTES = 32 * 1024
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_LZ4_MAGIC = 0x184D2204
_LZ4_BLOCK_BYTES = {4: 1 << 16, 5: 1 << 18, 6: 1 << 20, 7: 1 << 22}
_LZ4_RATIO_MAX = 255
# Version 1, independent blocks of 64 KiB, no sizes or checksums, as Java clients write it. The
# last byte is the header checksum: the second byte of xxh32(b"\x60\x40").
_LZ4_HEADER = b"\x04\x22\x4d\x18\x60\x40\x82"
_LITTLE = struct.Struct("<I")
_BIG = struct.Struct(">i")
_AGAIN = "The batch is damaged, or its producer wrote it wrongly; it cannot be mirrored."


def compress(codec: int, data: Buffer, levels: Sequence[int] = LEVELS) -> bytes:
    """``data`` in the framing that Java clients write for ``codec``; codec 0 copies.

    ``levels``: compression level by codec. Raises UnknownCodec.
    """
    if codec == NONE:
        return bytes(data)
    if codec == GZIP:
        return zlib.compress(data, levels[GZIP], _GZIP_WBITS)
    if codec == SNAPPY:
        return _snappy_compress(memoryview(data))
    if codec == LZ4:
        return _lz4_compress(memoryview(data), levels[LZ4])
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(data, levels[ZSTD]))
    raise _unknown(codec)


def decompress(codec: int, data: memoryview, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> Buffer:
    """``data`` decompressed, at most ``bytes_max`` bytes; codec 0 returns ``data`` itself.

    Raises UnknownCodec for codecs 5..7, CorruptBatch if the data is broken or decompresses to more.
    """
    if codec == NONE:
        return data
    if codec == GZIP:
        return _gzip_decompress(data, bytes_max)
    if codec == SNAPPY:
        return _snappy_decompress(data, bytes_max)
    if codec == LZ4:
        return _lz4_decompress(data, bytes_max)
    if codec == ZSTD:
        return _into(cramjam.zstd, data, _zstd_bound(data), bytes_max, "zstd")
    raise _unknown(codec)


def decompress_batch(codec: int, data: memoryview, bytes_max: int) -> Buffer:
    """As `decompress`, for the body of a batch, whose size proves that it is no bomb.

    It may decompress to 16 times its own size, even if that is more than ``bytes_max``.
    """
    return decompress(codec, data, max(bytes_max, _RATIO_ALLOWED * len(data)))


def _unknown(codec: int) -> UnknownCodec:
    return UnknownCodec(
        f"Compression codec {codec} is none of Kafka's (0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd).",
        do="Use a release that knows it, or exclude the topic.",
    )


def _too_big(name: str, bytes_max: int) -> CorruptBatch:
    return CorruptBatch(f"The {name} data unpacks to more than {bytes_max} bytes.", do=_AGAIN)


def _broken(name: str, why: object) -> CorruptBatch:
    return CorruptBatch(f"The {name} data cannot be unpacked ({why}).", do=_AGAIN)


def _into(library: Any, data: Buffer, bound: int, bytes_max: int, name: str) -> memoryview:
    """Decompress into new memory of ``bound`` bytes at most; unused pages cost nothing."""
    output = np.empty(min(bound, bytes_max), np.uint8)
    try:
        size: int = library.decompress_into(data, output.data)
    except cramjam.DecompressionError as error:
        if bound > bytes_max:
            raise _too_big(name, bytes_max) from error
        raise _broken(name, error) from error
    return output.data[:size]


def _gzip_decompress(data: memoryview, bytes_max: int) -> bytes:
    parts: list[bytes] = []
    room = bytes_max
    rest: Buffer = data
    for _ in range(_GZIP_MEMBERS_MAX):
        stream = zlib.decompressobj(_GZIP_WBITS)
        try:
            # One byte more than the room reveals output that is too big; 0 would mean no limit.
            part = stream.decompress(rest, room + 1)
        except zlib.error as error:
            raise _broken("gzip", error) from error
        room -= len(part)
        if room < 0:
            raise _too_big("gzip", bytes_max)
        if not stream.eof:
            raise _broken("gzip", "it ends too early")
        parts.append(part)
        rest = stream.unused_data
        if not rest:
            return parts[0] if len(parts) == 1 else b"".join(parts)
    raise _broken("gzip", f"it has more than {_GZIP_MEMBERS_MAX} members")


def _snappy_blocks(data: memoryview) -> list[memoryview]:
    """The raw blocks inside xerial's framing, or the data itself (librdkafka writes no framing)."""
    if len(data) < len(_XERIAL_HEADER) or data[:8] != _XERIAL_MAGIC:
        return [data]
    blocks: list[memoryview] = []
    at = len(_XERIAL_HEADER)
    while at < len(data):
        # A second header inside is valid: somebody appended to the stream.
        if data[at : at + 8] == _XERIAL_MAGIC:
            at += len(_XERIAL_HEADER)
            continue
        size = _BIG.unpack_from(data, at)[0] if at + 4 <= len(data) else -1
        at += 4
        if size < 0 or at + size > len(data):
            raise _broken("snappy", f"block of {size} bytes at byte {at}")
        blocks.append(data[at : at + size])
        at += size
    return blocks


def _snappy_decompress(data: memoryview, bytes_max: int) -> Buffer:
    blocks = _snappy_blocks(data)
    try:
        sizes = [int(cramjam.snappy.decompress_raw_len(block)) for block in blocks]
        if sum(sizes) > bytes_max:
            raise _too_big("snappy", bytes_max)
        for block, size in zip(blocks, sizes, strict=True):
            # Three bytes can copy up to 64 bytes. A bigger claim is false: do not allocate it.
            if size > 64 * len(block) + 64:
                raise _broken("snappy", f"{len(block)} bytes claim to hold {size}")
        return b"".join([bytes(cramjam.snappy.decompress_raw(block)) for block in blocks])
    except cramjam.DecompressionError as error:
        raise _broken("snappy", error) from error


def _snappy_compress(data: memoryview) -> bytes:
    parts: list[bytes] = [_XERIAL_HEADER]
    for start in range(0, len(data), _SNAPPY_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _SNAPPY_BLOCK_BYTES]))
        parts += (_BIG.pack(len(block)), block)
    return b"".join(parts)


def _lz4_compress(data: memoryview, level: int) -> bytes:
    # In Java's clients, the default level selects the fast compressor.
    if level != LEVELS[LZ4]:
        return _lz4_compress_hard(data, level)
    parts: list[bytes] = [_LZ4_HEADER]
    for start in range(0, len(data), 1 << 16):
        chunk = data[start : start + (1 << 16)]
        block = bytes(cramjam.lz4.compress_block(chunk, store_size=False))
        if len(block) < len(chunk):
            parts += (_LITTLE.pack(len(block)), block)
        else:
            parts += (_LITTLE.pack(len(chunk) | 0x8000_0000), bytes(chunk))
    parts.append(b"\0\0\0\0")
    return b"".join(parts)


def _lz4_compress_hard(data: memoryview, level: int) -> bytes:
    stream = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
    stream.compress(bytes(data))
    # The library adds a checksum to each block. Java's clients write none: the batch has its own.
    frame = memoryview(bytes(stream.finish()))
    parts: list[Buffer] = [_LZ4_HEADER]
    for start, end, stored in _lz4_layout(frame)[2]:
        parts += (_LITTLE.pack(end - start | (stored << 31)), frame[start:end])
    parts.append(b"\0\0\0\0")
    return b"".join(parts)


def _lz4_layout(data: memoryview) -> tuple[int, int, list[tuple[int, int, bool]]]:
    """``(flags, block limit, [(start, end, stored)])`` of an lz4 frame. Raises CorruptBatch.

    Checksums are skipped, because the batch has its own. So the wrong header checksum that Java
    clients wrote into magic 0 messages needs no special case.
    """
    if len(data) < 7 or _LITTLE.unpack_from(data)[0] != _LZ4_MAGIC:
        raise _broken("lz4", "no frame magic")
    flags = data[4]
    limit = _LZ4_BLOCK_BYTES.get(data[5] >> 4 & 0x07)
    if flags >> 6 != 1 or flags & 0x01 or limit is None:
        raise _broken("lz4", f"frame descriptor {bytes(data[4:6]).hex()}")
    at = 7 + (8 if flags & 0x08 else 0)
    trailer = 4 if flags & 0x10 else 0
    blocks: list[tuple[int, int, bool]] = []
    while at + 4 <= len(data):
        word: int = _LITTLE.unpack_from(data, at)[0]
        at += 4
        if word == 0:
            return flags, limit, blocks
        end = at + (word & 0x7FFF_FFFF)
        if end + trailer > len(data):
            break
        blocks.append((at, end, word > 0x7FFF_FFFF))
        at = end + trailer
    raise _broken("lz4", "it ends too early")


def _lz4_decompress(data: memoryview, bytes_max: int) -> Buffer:
    flags, limit, blocks = _lz4_layout(data)
    if len(blocks) > 1 and not flags & 0x20:
        return _lz4_linked(data, limit, blocks, bytes_max)
    # A block that is not compressed may be larger than the frame says; it costs what it has.
    sizes = [
        end - start if stored else min(limit, _LZ4_RATIO_MAX * (end - start))
        for start, end, stored in blocks
    ]
    # All blocks in one buffer: unused pages cost nothing.
    output = np.empty(min(sum(sizes), bytes_max + max(sizes, default=0)), np.uint8)
    at = 0
    for (start, end, stored), bound in zip(blocks, sizes, strict=True):
        room = output[at : at + bound]
        if stored:
            room[:] = np.frombuffer(data[start:end], np.uint8)
            at += bound
        else:
            try:
                at += cramjam.lz4.decompress_block_into(
                    data[start:end], room.data, output_len=room.size
                )
            except cramjam.DecompressionError as error:
                raise _broken("lz4", error) from error
        if at > bytes_max:
            raise _too_big("lz4", bytes_max)
    return output.data[:at]


def _lz4_linked(
    data: memoryview, limit: int, blocks: list[tuple[int, int, bool]], bytes_max: int
) -> memoryview:
    """Decompress blocks that refer to earlier ones: by the frame library, with a new header."""
    bound = sum(min(limit, _LZ4_RATIO_MAX * (end - start)) for start, end, _ in blocks)
    # The new header states no content size and no checksums: only this module's checks count.
    descriptor = bytes((0x40, data[5] & 0x70))
    parts: list[Buffer] = [_LITTLE.pack(_LZ4_MAGIC), descriptor, _lz4_header_check(descriptor)]
    for start, end, stored in blocks:
        parts += (_LITTLE.pack(end - start | (stored << 31)), data[start:end])
    parts.append(b"\0\0\0\0")
    return _into(cramjam.lz4, b"".join(parts), bound, bytes_max, "lz4")


def _lz4_header_check(descriptor: bytes) -> bytes:
    """Second byte of xxh32 (seed 0) of a two-byte frame descriptor."""
    prime1, prime2, prime3 = 2654435761, 2246822519, 3266489917
    prime5, mask = 374761393, 0xFFFF_FFFF
    value = prime5 + len(descriptor)
    for byte in descriptor:
        value = (value + byte * prime5) & mask
        value = ((value << 11 | value >> 21) * prime1) & mask
    value = ((value ^ value >> 15) * prime2) & mask
    value = ((value ^ value >> 13) * prime3) & mask
    value ^= value >> 16
    return bytes((value >> 8 & 0xFF,))


def _zstd_bound(data: memoryview) -> int:
    """Upper bound of the decompressed size of zstd frames, from their block headers alone."""
    at = 0
    bound = 0
    while at < len(data):
        magic = int.from_bytes(data[at : at + 4], "little")
        if magic & 0xFFFF_FFF0 == 0x184D_2A50:  # a skippable frame
            at += 8 + int.from_bytes(data[at + 4 : at + 8], "little")
            continue
        if magic != _ZSTD_MAGIC or at + 5 > len(data):
            raise _broken("zstd", "no frame magic")
        at, blocks_bound = _zstd_frame(data, at + 4)
        bound += blocks_bound
    return bound


def _zstd_frame(data: memoryview, at: int) -> tuple[int, int]:
    """Position after the frame whose descriptor is at ``at``, and the bound of its blocks."""
    flags = data[at]
    single = flags >> 5 & 1
    content_size_bytes = (single, 2, 4, 8)[flags >> 6]
    at += 1 + (1 - single) + (0, 1, 2, 4)[flags & 3] + content_size_bytes
    bound = 0
    last = False
    while not last:
        if at + 3 > len(data):
            raise _broken("zstd", "it ends too early")
        word = int.from_bytes(data[at : at + 3], "little")
        last, kind, size = bool(word & 1), word >> 1 & 3, word >> 3
        # A compressed block yields at most 128 KiB, however small it is. Others state their size.
        bound += min(size, _ZSTD_BLOCK_BYTES_MAX) if kind < 2 else _ZSTD_BLOCK_BYTES_MAX
        at += 3 + (1 if kind == 1 else size)
    return at + (4 if flags & 4 else 0), bound

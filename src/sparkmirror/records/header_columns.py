"""Many batch headers at once: gathered into columns, with all checksums in one pass.

Batches of one record arrive at hundreds of thousands per second. A struct unpack and a checksum
call in Python for each of them would take all the processor time. So one numpy ``take`` over
overlapping items gathers the headers, and a single CRC-32C call verifies all checksums.
"""

from __future__ import annotations

import threading
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from sparkmirror.records.header import CRC_AT, HEADER_BYTES

__all__ = [
    "Int64s",
    "Uint64s",
    "chain_holds",
    "gather_heads",
    "items_at",
    "merge_runs",
    "scratch",
    "words_at",
]

Int64s: TypeAlias = npt.NDArray[np.int64]
Uint64s: TypeAlias = npt.NDArray[np.uint64]

HEAD = np.dtype(
    [
        ("base_offset", ">i8"),
        ("length", ">i4"),
        ("leader_epoch", ">i4"),
        ("magic", "i1"),
        ("crc", ">u4"),
        ("attributes", ">i2"),
        ("last_offset_delta", ">i4"),
        ("base_timestamp", ">i8"),
        ("max_timestamp", ">i8"),
        ("producer", "V14"),
        ("count", ">i4"),
    ]
)
_GAP_BYTES = 21
_CRC_POLYNOMIAL = 0x82F63B78
_FRESH = 0xFFFF_FFFF


_SCRATCH_BYTES_MAX = 16 << 20
_local = threading.local()


def _state_before_zeros(state: int, zeros: int) -> int:
    """The CRC register that ``zeros`` zero bytes turn into ``state``."""
    for _ in range(8 * zeros):
        if state >> 31:
            state = ((state ^ _CRC_POLYNOMIAL) << 1 | 1) & 0xFFFF_FFFF
        else:
            state <<= 1
    return state


# 21 bytes, of which the first four are b and the others zero, reset a register r if r ^ b is this
# state. With crc = ~r that makes b = crc ^ _RESET.
_RESET = np.uint32(_state_before_zeros(_FRESH, _GAP_BYTES) ^ 0xFFFF_FFFF)


def items_at(buffer: Any, item_bytes: int) -> npt.NDArray[np.void]:
    """``buffer`` as overlapping items, one starting at every byte; index it with positions."""
    size = len(buffer) - item_bytes + 1
    return np.ndarray((max(size, 0),), np.dtype((np.void, item_bytes)), buffer, strides=(1,))


def words_at(data: npt.NDArray[np.uint8]) -> Uint64s:
    """``data`` as overlapping little-endian words of eight bytes, one starting at every byte."""
    return np.ndarray((max(len(data) - 7, 0),), "<u8", data.data, strides=(1,))


def gather_heads(buffer: memoryview, starts: Int64s) -> npt.NDArray[Any]:
    """The headers of the batches at ``starts``, as a structured array of ``HEAD``."""
    return items_at(buffer, HEADER_BYTES)[starts].view(HEAD)


def chain_holds(buffer: memoryview, starts: Int64s, end: int, crcs: npt.NDArray[np.uint32]) -> bool:
    """Whether all contiguous batches match their checksums: one CRC call over all of them.

    ``starts``: first bytes of the batches, in order. ``end``: where the last one ends. ``crcs``:
    the stored checksums. No checksum covers the 21 bytes before each covered range. In a copy,
    they are overwritten so that they lead from the checksum that the previous batch should have to
    the state in which a checksum starts. A damaged batch leaves another state, and that difference
    survives to the end, because each step is a bijection.
    """
    first = int(starts[0])
    chain = scratch(end - first)
    chain[:] = np.frombuffer(buffer, np.uint8, end - first, first)
    gaps = np.zeros((len(starts) - 1, _GAP_BYTES), np.uint8)
    gaps[:, :4] = (crcs[:-1] ^ _RESET).astype("<u4").view(np.uint8).reshape(-1, 4)
    items_at(chain, _GAP_BYTES)[starts[1:] - first] = gaps.view(np.dtype((np.void, _GAP_BYTES)))[
        :, 0
    ]
    return bool(crc32c(chain[CRC_AT + 4 :].data) == crcs[-1])


def scratch(size: int) -> npt.NDArray[np.uint8]:
    """Memory of this thread, valid until the next call: new pages would cost more than the work."""
    room: npt.NDArray[np.uint8] | None = getattr(_local, "room", None)
    if room is None or len(room) < size:
        room = np.empty(size + size // 4, np.uint8)
        if size <= _SCRATCH_BYTES_MAX:
            _local.room = room
    return room[:size]


def merge_runs(firsts: Int64s, counts: Int64s) -> list[tuple[int, int]]:
    """``(first, count)`` pairs in order; neighbours without a gap are merged."""
    if not len(firsts):
        return []
    breaks = np.flatnonzero(firsts[1:] != firsts[:-1] + counts[:-1]) + 1
    begin = np.concatenate(([0], breaks))
    return list(zip(firsts[begin].tolist(), np.add.reduceat(counts, begin).tolist(), strict=True))

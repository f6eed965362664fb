"""Memory that a slot's two Python workers share, so that record bytes need not cross the JVM.

Source and sink of one Spark task are two processes on one host. Spark runs them in one stage, so a
row never leaves that host. If a row carried a megabyte of records, Python, Arrow, the JVM (several
times), Arrow and Python would copy it. That would cost more CPU time than the rest of the mirror.
So the source receives large responses into **frames** of a memory file, and the row says which
frame holds its records. The sink sends the records from there and then frees the frame.

::

    0 token 16 bytes | 16 mapped u8 | 64 states u8 x frames | 4096 held back u8 x partitions
    next multiple of 4096: message, 64 KiB: full u8 | 4 size u32 | 8 CRC-32 of it u32 | 12 bytes
    then: frame 0 | frame 1 | ...

Rules that make this safe without a lock:

* Each task creates a new file. So nothing that a killed or replaced task left behind can read what
  a later one writes. The file has no name, so a killed process leaves nothing behind.
* The sink sets ``mapped`` once it has found the file and its token. Until then, and always if it
  cannot find them (another host, another user), records travel in the rows themselves.
* A state byte has one writer at a time. The source takes a free frame (0 to 1). The sink frees a
  used one (1 to 0) when nothing refers to its bytes any more, that is after all acknowledgements.
* Only the sink writes which partitions it holds back (`data.write.held_back`). The source does not
  fetch these.
* The sink writes a message (`data.rows.notes.encode_halted`) while none is there, and sets ``full``
  last (0 to 1). The source takes it (1 to 0). The checksum proves that it sees all of it. So what a
  sink tells its source needs no topic, and no other attempt can say anything in its place.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import secrets
import struct
import zlib
from collections.abc import Iterable
from typing import NamedTuple

import pyarrow as pa

__all__ = [
    "MESSAGE_BYTES_MAX",
    "TOKEN_BYTES",
    "FrameReader",
    "Frames",
    "Reference",
    "SharedMemory",
    "map_frames",
    "map_memory",
    "room_for",
]

log = logging.getLogger(__name__)

FRAMES = 16
TOKEN_BYTES = 16
"""Shared memory begins with so many random bytes, by which the sink knows it."""
_MAPPED_AT = 16
_STATES_AT = 64
_HELD_BACK_AT = 4096
_PAGE = 4096
_MESSAGE_AREA_BYTES = 64 * 1024
_MESSAGE = struct.Struct("=B3xII")
MESSAGE_BYTES_MAX = _MESSAGE_AREA_BYTES - _MESSAGE.size
"""Size of one message of the sink."""
# Room in a frame besides the requested records, for the response's own fields.
_HEADROOM = 64 * 1024
_FRAME_BYTES_MAX = 8 * 1024 * 1024
# Smaller responses are cheaper inside the row than the bookkeeping of a frame.
_SHARED_FROM_BYTES = 32 * 1024

Reference = list[int]
"""Where a row's records are: [frame number, first byte in it, size]."""


class SharedMemory(NamedTuple):
    """What the sink needs to find the memory of ``process`` (a process id)."""

    process: int
    descriptor: int
    token: str
    frame_bytes: int
    partitions: int


def _message_at(partitions: int) -> int:
    return _HELD_BACK_AT + -(-partitions // _PAGE) * _PAGE


def _first_frame_at(partitions: int) -> int:
    return _message_at(partitions) + _MESSAGE_AREA_BYTES


def room_for(partitions: int) -> int:
    """How many partitions the sink may hold back if a slot begins with ``partitions``.

    More may be added; their room is there anyway, since memory has pages.
    """
    return (partitions // _PAGE + 1) * _PAGE


class Frames:
    """The source's side: receive buffers for `wire.fetch.fetcher.Fetcher`, shared if possible.

    Has the ``view`` of a `ReceiveBuffer`. The caller holds at most one frame. `hand_over` passes it
    to the sink; otherwise `view` uses it for the next response. ``partitions``: how many the sink
    may hold back.
    """

    def __init__(self, fetch_bytes_max: int, partitions: int = 0) -> None:
        self._partitions = partitions
        self._message_at = _message_at(partitions)
        self._first_at = _first_frame_at(partitions)
        self.frame_bytes = -(-min(fetch_bytes_max + _HEADROOM, _FRAME_BYTES_MAX) // 4096) * 4096
        self._private = bytearray(1 << 16)
        self._fd = -1
        self._map: mmap.mmap | None = None
        self._view = memoryview(b"")
        self._current = -1
        self._token = secrets.token_bytes(TOKEN_BYTES)
        self._open()

    def _open(self) -> None:
        if not hasattr(os, "memfd_create"):
            return
        size = self._first_at + FRAMES * self.frame_bytes
        try:
            self._fd = os.memfd_create("sparkmirror-frames", os.MFD_CLOEXEC)
            os.ftruncate(self._fd, size)
            self._map = mmap.mmap(self._fd, size)
        except OSError as error:
            log.warning(
                "no memory can be shared between source and sink (%s): rows carry the records",
                error,
            )
            self.close()
            return
        self._view = memoryview(self._map)
        self._view[:TOKEN_BYTES] = self._token

    def note(self) -> SharedMemory | None:
        """What the sink needs to find the memory; None if none can be shared."""
        if self._map is None:
            return None
        token = self._token.hex()
        return SharedMemory(os.getpid(), self._fd, token, self.frame_bytes, self._partitions)

    @property
    def mappable(self) -> bool:
        """Whether there is memory that the sink could map."""
        return self._map is not None

    @property
    def shared(self) -> bool:
        """Whether the sink has mapped the memory."""
        return bool(self._view) and self._view[_MAPPED_AT] == 1

    @property
    def starved(self) -> bool:
        """Whether the sink has all frames: a response that arrives now must be copied."""
        return self.shared and self._current < 0 and self._free() < 0

    def held_back(self) -> list[int]:
        """The numbers of the partitions that the sink holds back now."""
        found: list[int] = []
        if self._map is None:
            return found
        at, end = _HELD_BACK_AT, _HELD_BACK_AT + self._partitions
        while (at := self._map.find(b"\1", at, end)) >= 0:
            found.append(at - _HELD_BACK_AT)
            at += 1
        return found

    def take_message(self) -> bytes:
        """What the sink says to the source, once; empty if it says nothing new."""
        if self._map is None or not self._map[self._message_at]:
            return b""
        _, size, crc = _MESSAGE.unpack_from(self._map, self._message_at)
        at = self._message_at + _MESSAGE.size
        message = self._map[at : at + min(size, MESSAGE_BYTES_MAX)]
        if zlib.crc32(message) != crc:
            return b""  # not all of it is visible yet: the next call sees it
        self._map[self._message_at] = 0
        return message

    def _free(self, first: int = 0) -> int:
        """The lowest free frame from ``first`` on, -1 if there is none.

        The lowest was used last, so it is still in the processor's cache.
        """
        if self._map is None:
            return -1
        at = self._map.find(b"\0", _STATES_AT + first, _STATES_AT + FRAMES)
        return at - _STATES_AT if at >= 0 else -1

    def view(self, size: int) -> memoryview:
        """A writable view of ``size`` bytes: of a frame, or of this process's own memory."""
        if _SHARED_FROM_BYTES <= size <= self.frame_bytes and self.shared:
            if self._current < 0:
                self._current = self._free()
            if self._current >= 0:
                start = self._first_at + self._current * self.frame_bytes
                return self._view[start : start + size]
        if size > len(self._private):
            self._private = bytearray(max(size, 2 * len(self._private)))
        return memoryview(self._private)[:size]

    def holds(self, frame: memoryview) -> bool:
        """Whether ``frame``, the newest view, is a shared one."""
        return self._current >= 0 and frame.obj is self._map

    def store(self, pieces: Iterable[memoryview | bytes], size: int) -> Reference | None:
        """Copy ``pieces`` (``size`` bytes in all) into a frame of their own and hand it over.

        None if no frame is free or large enough; the newest view does not change.
        """
        if not _SHARED_FROM_BYTES <= size <= self.frame_bytes or not self.shared:
            return None
        number = self._free(self._current + 1)
        if number < 0:
            return None
        position = self._first_at + number * self.frame_bytes
        for piece in pieces:
            self._view[position : position + len(piece)] = piece
            position += len(piece)
        self._view[_STATES_AT + number] = 1
        return [number, 0, size]

    def hand_over(self, start: int, size: int) -> Reference:
        """Pass the newest view's frame to the sink: ``size`` bytes of it, from ``start`` on."""
        number, self._current = self._current, -1
        self._view[_STATES_AT + number] = 1
        return [number, start, size]

    def peek(self, reference: Reference) -> memoryview:
        """The bytes that were handed over, before the next view is taken."""
        number, start, size = reference
        position = self._first_at + number * self.frame_bytes + start
        return self._view[position : position + size]

    def close(self) -> None:
        """Release the memory; the sink keeps what it still needs."""
        self._view.release()
        self._view = memoryview(b"")
        if self._map is not None:
            with contextlib.suppress(BufferError):  # a view of the last response still exists
                self._map.close()
            self._map = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class _Lease:
    """One frame that the sink uses, for as long as any view of its bytes exists."""

    __slots__ = ("_number", "_reader")

    def __init__(self, reader: FrameReader, number: int) -> None:
        self._reader = reader
        self._number = number
        reader.leases += 1

    def __del__(self) -> None:
        self._reader.free(self._number)


def map_memory(process: int, descriptor: int, size: int, token: str) -> mmap.mmap:
    """Map ``size`` bytes of memory of ``process`` that begin with ``token`` (hex digits).

    Raises OSError or ValueError if they are not there.
    """
    fd = os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
    try:
        if os.fstat(fd).st_size != size:
            raise ValueError("another file is there")
        mapped = mmap.mmap(fd, size)
    finally:
        os.close(fd)
    if mapped[:TOKEN_BYTES].hex() != token:
        mapped.close()
        raise ValueError("another memory is there")
    return mapped


class FrameReader:
    """The sink's side. ``leases``: frames that are not freed yet.

    ``partitions``: how many it may hold back.
    """

    def __init__(self, note: SharedMemory) -> None:
        """Map what `Frames.note` describes. Raises OSError or ValueError if that fails."""
        process, descriptor, token, self._frame_bytes, partitions = note
        self.leases = 0
        self._message_at = _message_at(partitions)
        self.partitions = partitions
        self._first_at = _first_frame_at(partitions)
        size = self._first_at + FRAMES * self._frame_bytes
        self._map = map_memory(process, descriptor, size, token)
        self._buffer = pa.py_buffer(self._map)
        self._map[_MAPPED_AT] = 1

    def records(self, reference: Reference) -> memoryview:
        """The bytes of a row; when the last view of them is gone, the frame is free again."""
        number, start, size = reference
        address = self._buffer.address + self._first_at + number * self._frame_bytes + start
        leased = pa.foreign_buffer(address, size, base=_Lease(self, number))
        return memoryview(leased).cast("B")  # Arrow's views are of signed bytes

    def hold_back(self, partition: int, held: bool) -> None:
        """Make the source stop fetching ``partition`` (its number), or continue with it."""
        self._map[_HELD_BACK_AT + partition] = held

    @property
    def may_send(self) -> bool:
        """Whether the source has taken the message before: there is room for the next one."""
        return not self._map[self._message_at]

    def send(self, message: bytes) -> None:
        """Leave ``message`` to the source. Requires `may_send`; at most `MESSAGE_BYTES_MAX`."""
        at = self._message_at + _MESSAGE.size
        self._map[at : at + len(message)] = message
        _MESSAGE.pack_into(self._map, self._message_at, 0, len(message), zlib.crc32(message))
        self._map[self._message_at] = 1

    def free(self, number: int) -> None:
        """Return a frame to the source."""
        self.leases -= 1
        self._map[_STATES_AT + number] = 0


def map_frames(note: SharedMemory | None) -> FrameReader | None:
    """Map the memory that the source shares; None if it is out of reach."""
    if note is None:
        return None
    try:
        return FrameReader(note)
    except (OSError, ValueError) as error:
        log.info("no memory is shared with the source (%s): rows carry the records", error)
        return None

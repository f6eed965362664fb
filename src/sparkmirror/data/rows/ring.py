"""A ring in memory, through which small rows reach the sink without Spark's JVM.

The source worker creates the memory and a pipe, and tells the sink about both in the first row.
The memory has a header and one area that is written round and round:

=============  =================================================================================
at byte        what
=============  =================================================================================
0              token of 16 bytes
64             u64, 1: the sink has mapped the memory and listens to the pipe
128            u64, bytes that the source has ever written
192            u64, bytes that the sink has ever taken
4096           the area. An entry: number of the row (u64), checksum, size of the head, size of the
               records (u32 each), then both
=============  =================================================================================

After each entry the source writes a byte into the pipe, the doorbell: unlike a futex, a pipe can be
polled together with sockets, and unlike an eventfd it can be opened by another process.

Rules that make this safe without a lock:

* Each attempt of a task has a ring of its own, so a zombie's rows never reach another sink.
* ``written`` has one writer, ``taken`` the other. Neither passes the other one: the source writes
  only into bytes that the sink has taken, and the sink copies an entry before it takes it.
* The checksum proves that the sink sees the whole entry. Until then it is not there; the byte in
  the pipe comes later, and with it everything that was written before.
* Rows are numbered, also those that Spark carries (`data.rows.outlet`). The sink takes an entry
  only when it has all rows before it.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import secrets
import stat
import struct
import zlib
from typing import NamedTuple

from sparkmirror.data.rows.shared_frames import TOKEN_BYTES, map_memory

__all__ = ["ENTRY_BYTES_MAX", "RingReader", "RingWriter", "SharedRing", "map_ring", "new_ring"]

log = logging.getLogger(__name__)

ENTRY_BYTES_MAX = 64 * 1024
"""Size of the largest entry, head and records together; larger rows go through Spark."""
_AREA_BYTES = 512 * 1024
_AREA_AT = 4096
_SIZE = _AREA_AT + _AREA_BYTES
# Numbers of words of eight bytes.
_LISTENS, _WRITTEN, _TAKEN = 8, 16, 24
_ENTRY = struct.Struct("<QIII")
_BELL_BYTES = 4096


class SharedRing(NamedTuple):
    """What the sink needs to find the ring of ``process``: two of its descriptors, and a token.

    ``pipe``: the number of the pipe's inode. The descriptor of a bell that was closed meanwhile may
    be that of the next task's bell.
    """

    process: int
    memory: int
    bell: int
    token: str
    pipe: int


class _Area:
    """The memory of one ring, as both sides see it."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._map = memory
        self._header = memoryview(memory)[:_AREA_AT].cast("Q")  # stored in one piece, unlike struct

    def __getitem__(self, word: int) -> int:
        return self._header[word]

    def __setitem__(self, word: int, value: int) -> None:
        self._header[word] = value

    def put(self, at: int, data: bytes | memoryview) -> int:
        """Write ``data`` where byte number ``at`` of all is; returns the number after it."""
        start, size = at % _AREA_BYTES, len(data)
        first = min(size, _AREA_BYTES - start)
        self._map[_AREA_AT + start : _AREA_AT + start + first] = data[:first]
        if first < size:
            self._map[_AREA_AT : _AREA_AT + size - first] = data[first:]
        return at + size

    def get(self, at: int, size: int) -> bytes:
        """A copy of ``size`` bytes from byte number ``at`` on."""
        start = at % _AREA_BYTES
        first = min(size, _AREA_BYTES - start)
        data = self._map[_AREA_AT + start : _AREA_AT + start + first]
        return data if first == size else data + self._map[_AREA_AT : _AREA_AT + size - first]

    def close(self) -> None:
        self._header.release()
        self._map.close()


class RingWriter:
    """The source's side. One owner thread."""

    def __init__(self) -> None:
        """Create the memory and the pipe. Raises OSError."""
        self._token = secrets.token_bytes(TOKEN_BYTES)
        with contextlib.ExitStack() as undo:
            self._fd = os.memfd_create("sparkmirror-ring", os.MFD_CLOEXEC)
            undo.callback(os.close, self._fd)
            os.ftruncate(self._fd, _SIZE)
            self._heard, self._bell = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            undo.callback(os.close, self._heard)
            undo.callback(os.close, self._bell)
            memory = mmap.mmap(self._fd, _SIZE)
            memory[:TOKEN_BYTES] = self._token
            self._area = _Area(memory)
            undo.pop_all()

    def note(self) -> SharedRing:
        """What the sink needs to find the ring."""
        pipe = os.fstat(self._heard).st_ino
        return SharedRing(os.getpid(), self._fd, self._heard, self._token.hex(), pipe)

    def put(self, number: int, head: bytes, records: memoryview) -> bool:
        """Hand over row ``number``; False if nobody listens, or there is no room for it now."""
        size = _ENTRY.size + len(head) + len(records)
        area = self._area
        written = area[_WRITTEN]
        if area[_LISTENS] != 1 or size > ENTRY_BYTES_MAX:
            return False
        if written + size - area[_TAKEN] > _AREA_BYTES:
            return False
        entry = _ENTRY.pack(number, _checksum(number, head, records), len(head), len(records))
        area[_WRITTEN] = area.put(area.put(area.put(written, entry), head), records)
        with contextlib.suppress(BlockingIOError):  # a full pipe is readable anyway
            os.write(self._bell, b"\0")
        return True

    def close(self) -> None:
        """Release the memory and the pipe; the sink keeps what it has mapped."""
        self._area.close()
        for descriptor in (self._fd, self._heard, self._bell):
            os.close(descriptor)


class RingReader:
    """The sink's side. One owner thread.

    ``bell``: the descriptor that is readable after an entry was written, until `silence`.
    """

    def __init__(self, note: SharedRing) -> None:
        """Map what `RingWriter.note` describes. Raises OSError or ValueError if that fails."""
        process, memory, bell, token, pipe = note
        with contextlib.ExitStack() as undo:
            mapped = map_memory(process, memory, _SIZE, token)
            undo.callback(mapped.close)
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
            self.bell = os.open(f"/proc/{process}/fd/{bell}", flags)
            undo.callback(os.close, self.bell)
            found = os.fstat(self.bell)
            if not stat.S_ISFIFO(found.st_mode) or found.st_ino != pipe:
                raise ValueError("another bell is there")
            undo.pop_all()
        self._area = _Area(mapped)

    def listen(self) -> None:
        """Let the source use the ring from now on."""
        self._area[_LISTENS] = 1

    def silence(self) -> bool:
        """Make the bell unreadable until the next entry; False if nobody can ring it any more."""
        try:
            return bool(os.read(self.bell, _BELL_BYTES))
        except BlockingIOError:
            return True

    def take(self, number: int) -> tuple[bytes, memoryview] | None:
        """Head and records of row ``number``; None if it is not there, or not wholly visible."""
        area = self._area
        taken = area[_TAKEN]
        size = area[_WRITTEN] - taken
        if size < _ENTRY.size:
            return None
        first, crc, head_bytes, record_bytes = _ENTRY.unpack(area.get(taken, _ENTRY.size))
        if first != number or _ENTRY.size + head_bytes + record_bytes > size:
            return None
        content = area.get(taken + _ENTRY.size, head_bytes + record_bytes)
        head, records = content[:head_bytes], memoryview(content)[head_bytes:]
        if _checksum(number, head, records) != crc:
            return None
        area[_TAKEN] = taken + _ENTRY.size + len(content)
        return head, records

    def close(self) -> None:
        """Release the memory and the pipe."""
        self._area.close()
        os.close(self.bell)


def _checksum(number: int, head: bytes, records: memoryview) -> int:
    return zlib.crc32(records, zlib.crc32(head, number & 0xFFFFFFFF))


def new_ring() -> RingWriter | None:
    """A ring for a source worker; None if this machine has no such memory."""
    try:
        return RingWriter()
    except (OSError, AttributeError) as error:  # no memfd_create: not Linux
        log.warning("no ring can be shared with the sink (%s): Spark carries all rows", error)
        return None


def map_ring(note: SharedRing | None) -> RingReader | None:
    """The ring of the source worker; None if there is none, or it is out of reach."""
    if note is None:
        return None
    try:
        return RingReader(note)
    except (OSError, ValueError) as error:
        log.warning("the source worker's ring is out of reach (%s): Spark carries all rows", error)
        return None

"""Large responses to the driver's requests, kept as bytes and read by our own decoders.

kafka-python makes an object of every element, which takes most of the time of a round over
thousands of topics. An `undecoded` request returns the bytes of its response; `ResponseReader`
reads them. Every step moves forward and none past the end, so a hostile response costs no more than
its size. Malformed data raises an error of `kafka_python_limits.UNREADABLE`. `DecodeCache` does not
read a response again that equals a recent one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Generic, TypeVar

__all__ = ["DecodeCache", "RawResponse", "ResponseReader", "undecoded"]

T = TypeVar("T")

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_VARINT_BYTES_MAX = 5
_REMEMBERED_BYTES_MAX = 8 << 20


class RawResponse:
    """A response without its header. ``version``: that of the request and its response.

    ``throttle_time_ms``: the connection pauses this long before its next request. It is
    in the first four bytes, from version ``throttles_from`` on.
    """

    __slots__ = ("data", "throttle_time_ms", "version")

    def __init__(self, version: int, data: bytes, *, throttles_from: int = 0) -> None:
        self.version = version
        self.data = data
        throttles = version >= throttles_from
        self.throttle_time_ms = int(_INT32.unpack_from(data)[0]) if throttles else 0


def undecoded(request: type, *, throttles_from: int = 0) -> Any:
    """A subclass of kafka-python's ``request`` whose response is a `RawResponse`."""

    class Undecoded(request, init=False):  # type: ignore[misc, call-arg]
        """The same request, with an undecoded response."""

        def raw_response(self, version: int, data: bytes) -> RawResponse:
            """What `SharedConnection.request` returns; ``data``: behind the response's header."""
            return RawResponse(version, data, throttles_from=throttles_from)

    return Undecoded


class DecodeCache(Generic[T]):
    """Reads responses with ``read``. Equal bytes as in a recent response yield the same object.

    So no caller may change the result. Safe to share between threads.
    """

    def __init__(self, read: Callable[[RawResponse], T], *, responses_max: int = 64) -> None:
        self._read = read
        self._responses_max = responses_max
        self._known: tuple[tuple[int, bytes, T], ...] = ()

    def read(self, raw: RawResponse) -> T:
        """The content of ``raw``; raises what ``read`` raises."""
        known = self._known
        for version, data, found in known:
            if version == raw.version and data == raw.data:
                return found
        found = self._read(raw)
        room = _REMEMBERED_BYTES_MAX
        kept = []
        for one in ((raw.version, raw.data, found), *known[: self._responses_max - 1]):
            room -= len(one[1])
            if room >= 0:
                kept.append(one)
        self._known = tuple(kept)
        return found


class ResponseReader:
    """Reads a response from the position ``at`` on. ``flexible``: a flexible version (KIP-482).

    Raises `ValueError`, `IndexError` or `struct.error`.
    """

    __slots__ = ("at", "data", "flexible")

    def __init__(self, data: bytes, at: int, *, flexible: bool) -> None:
        self.data = data
        self.at = at
        self.flexible = flexible

    def int8(self) -> int:
        """A signed byte."""
        value = self.data[self.at]
        self.at += 1
        return value - 256 if value > 127 else value

    def boolean(self) -> bool:
        """A byte: 0 is false."""
        return self.int8() != 0

    def int16(self) -> int:
        """Two bytes, big-endian, signed."""
        (value,) = _INT16.unpack_from(self.data, self.at)
        self.at += 2
        return int(value)

    def int32(self) -> int:
        """Four bytes, big-endian, signed."""
        (value,) = _INT32.unpack_from(self.data, self.at)
        self.at += 4
        return int(value)

    def varint(self) -> int:
        """An unsigned number of at most five bytes."""
        value = 0
        for index in range(_VARINT_BYTES_MAX):
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << 7 * index
            if byte < 0x80:
                return value
        raise ValueError("a number takes more than five bytes")

    def text(self) -> str | None:
        """A string, None for null."""
        size = self.varint() - 1 if self.flexible else self.int16()
        if size < 0:
            return None
        return self._bytes(size).decode()

    def name(self) -> str:
        """A string that may not be null."""
        value = self.text()
        if value is None:
            raise ValueError("a name is null")
        return value

    def count(self) -> int:
        """The number of elements of the array that follows; each takes at least one byte."""
        count = self.varint() - 1 if self.flexible else self.int32()
        if count > len(self.data) - self.at:
            raise ValueError("an array has more elements than the response has bytes")
        return max(0, count)

    def skip_tags(self) -> None:
        """Skip the tags at the end of a structure, if the version is flexible."""
        if not self.flexible:
            return
        for _ in range(self.varint()):
            self.varint()
            self._bytes(self.varint())

    def _bytes(self, size: int) -> bytes:
        end = self.at + size
        if end > len(self.data):
            raise ValueError("a field is longer than the response")
        found = self.data[self.at : end]
        self.at = end
        return found

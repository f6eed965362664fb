"""Length-prefixed frames on one socket, sent and received without copies.

Every failure of the connection raises `ConnectionLost`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import ssl
import struct
import termios
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Protocol

from sparkmirror.records.header import BATCH_BYTES_MAX
from sparkmirror.wire.net.kafka_python_limits import FRAME_BYTES_MAX
from sparkmirror.wire.net.poller import Poller, readable
from sparkmirror.wire.protocol_errors import RequestError

__all__ = ["ConnectionLost", "FrameBuffer", "FramedSocket", "ReceiveBuffer"]

_SIZE = struct.Struct(">i")
_COUNT = struct.Struct("i")
# Linux refuses more than 1,024 pieces in one sendmsg call.
_IOV_MAX = 1024
# A Fetch response exceeds the requested size by one batch at most, and larger batches are refused
# anyway. All other responses are small. A larger frame is not Kafka's protocol.
FETCH_FRAME_BYTES_MAX = BATCH_BYTES_MAX + (64 << 20)
RESPONSE_FRAME_BYTES_MAX = FRAME_BYTES_MAX
# TLS copies what it sends in any case. Small parts are joined, so that they share a TLS record.
_TLS_JOIN_BYTES = 256 * 1024
# How much one call reads of the responses that have arrived: some 50 bytes per partition each.
_AHEAD_BYTES = 16 * 1024
# How long a response that has begun may pause, and how long it may take in total, before others are
# served meanwhile. The whole response of a near broker arrives in this time.
_PAUSE_S = 0.002
_WHOLE_S = 0.02

Buffer = bytes | bytearray | memoryview


class ConnectionLost(RequestError):
    """The connection broke or timed out; requests in flight on it have an unknown outcome."""

    retriable = True


class FrameBuffer(Protocol):
    """Provides the memory for a response."""

    def view(self, size: int) -> memoryview:
        """A writable view of exactly ``size`` bytes."""


class ReceiveBuffer:
    """One growing buffer that is reused for all responses.

    A new buffer would be zeroed and paged in for every response. The caller must be done with a
    frame, or have copied it, before it receives the next one.
    """

    def __init__(self, size: int = 1 << 20) -> None:
        self._data = bytearray(size)
        self._view = memoryview(self._data)

    def view(self, size: int) -> memoryview:
        """A writable view of exactly ``size`` bytes."""
        if size > len(self._data):
            self._data = bytearray(max(size, 2 * len(self._data)))
            self._view = memoryview(self._data)
        return self._view[:size]


class NewBuffer:
    """Memory of its own for each response, for those that come now and then."""

    def view(self, size: int) -> memoryview:
        """A writable view of exactly ``size`` bytes."""
        return memoryview(bytearray(size))


# A connection that was used more recently is not checked before a send: brokers close idle ones
# only after minutes.
_IDLE_S = 1.0


class FramedSocket:
    """Frames on the socket to ``host:port``, plaintext or TLS. One owner, no threads."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self.last_used = time.monotonic()
        self._tls = False
        self._pollers: list[Poller[Any]] = []
        self._size_buffer = memoryview(bytearray(4))
        self._ahead = b""  # read by `receive_ahead`, not returned yet
        self._unsent: deque[Buffer] = deque()
        self._begun_bytes = 0  # of all frames, in the socket or not
        self._reported_unsent = False
        self._size = -1  # of the frame that `receive_available` has begun
        self._arrived = 0  # how many bytes of it, or of its size, have arrived
        self._parked = memoryview(b"")  # these bytes; the memory is reused

    def _use(self, connected: socket.socket) -> None:
        self.socket: socket.socket = connected
        self._tls = isinstance(connected, ssl.SSLSocket)

    # -- sending ---------------------------------------------------------------------------

    def send_frame(self, parts: Sequence[Buffer], size: int) -> None:
        """Send one frame: the 4-byte ``size``, then ``parts`` without copying them."""
        self.last_used = time.monotonic()
        try:
            self._send_parts([_SIZE.pack(size), *parts], _SIZE.size + size)
        except OSError as error:
            raise self._broken(error) from error

    def begin_frame(self, parts: Sequence[Buffer], size: int) -> None:
        """`send_frame`, as far as the socket accepts it at once. So a slow broker blocks nobody.

        While a rest is `unsent`, nothing else may be sent. A poller that watches the socket reports
        when it is writable: then call `go_on_sending`.
        """
        self.last_used = time.monotonic()
        whole = [_SIZE.pack(size), *parts]
        self._begun_bytes += _SIZE.size + size
        self._unsent.extend(_joined(whole) if self._tls else whole)
        self.go_on_sending()

    def delivery(self) -> tuple[int, int]:
        """(bytes of begun frames that the other host has acknowledged, bytes that are under way).

        Of TLS, records and not frames are under way, which are a little larger. (0, 0) where the
        system does not say it.
        """
        try:
            queued = fcntl.ioctl(self.socket.fileno(), termios.TIOCOUTQ, bytes(_COUNT.size))
        except (OSError, ValueError):  # it is closed
            return 0, 0
        left = _COUNT.unpack(queued)[0] + sum(map(len, self._unsent))
        return self._begun_bytes - left, left

    @property
    def unsent(self) -> bool:
        """Whether a part of a frame has not been sent yet."""
        return bool(self._unsent)

    def go_on_sending(self) -> bool:
        """Send the `unsent` rest, as far as the socket accepts it at once; whether that was all."""
        try:
            while self._unsent:
                sent = self._send_some()
                while self._unsent and sent >= len(self._unsent[0]):
                    sent -= len(self._unsent.popleft())
                if sent:
                    self._unsent[0] = memoryview(self._unsent[0])[sent:]
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            pass  # the socket is full
        except OSError as error:
            raise self._broken(error) from error
        if self.unsent != self._reported_unsent:
            self._reported_unsent = self.unsent
            for poller in self._pollers:
                poller.also_writable(self, self.unsent)
        return not self._unsent

    def copy_unsent(self) -> None:
        """Copy the `unsent` rest, to free the memory that it was in."""
        self._unsent = deque(bytes(part) for part in self._unsent)

    def _send_some(self) -> int:
        if not self._tls:
            # A socket with a timeout waits before it sends; its descriptor does not.
            return os.writev(self.socket.fileno(), list(islice(self._unsent, _IOV_MAX)))
        timeout_s = self.socket.gettimeout()
        self.socket.settimeout(0.0)
        try:
            return self.socket.send(self._unsent[0])
        finally:
            self.socket.settimeout(timeout_s)

    def _send_parts(self, parts: list[Buffer], left: int) -> None:
        if self._tls:
            self._send_joined(parts)
            return
        index = 0
        while index < len(parts):
            window = parts[index : index + _IOV_MAX]
            sent = self.socket.sendmsg(window)
            left -= sent
            if not left:
                return
            for part in window:
                size = len(part)
                if sent < size:
                    parts[index] = memoryview(part)[sent:]
                    break
                sent -= size
                index += 1

    def _send_joined(self, parts: list[Buffer]) -> None:
        for part in _joined(parts):
            self.socket.sendall(part)

    # -- receiving -------------------------------------------------------------------------

    def _receive_into(self, view: memoryview) -> None:
        position, size = 0, len(view)
        if self._ahead:
            position = min(size, len(self._ahead))
            view[:position] = self._ahead[:position]
            self._ahead = self._ahead[position:]
        while position < size:
            try:
                count = self.socket.recv_into(view[position:])
            except OSError as error:
                raise self._broken(error) from error
            if count == 0:
                raise self._closed()
            position += count

    def _broken(self, error: OSError) -> ConnectionLost:
        return ConnectionLost(f"{self.host}:{self.port}: {error or 'timed out'}")

    def _closed(self) -> ConnectionLost:
        return ConnectionLost(f"{self.host}:{self.port}: the broker closed the connection")

    def _receive_size(self) -> int:
        self._receive_into(self._size_buffer)
        size: int = _SIZE.unpack_from(self._size_buffer)[0]
        return size

    def receive_frame(self) -> memoryview:
        """Wait for one whole small frame; returns it without its size.

        The first four bytes are the correlation id.
        """
        size = self._receive_size()
        self._check(size, RESPONSE_FRAME_BYTES_MAX)
        view = memoryview(bytearray(size))
        self._receive_into(view)
        self.last_used = time.monotonic()
        return view

    def _check(self, size: int, size_max: int) -> None:
        if not 4 <= size <= size_max:
            raise ConnectionLost(f"{self.host}:{self.port}: invalid frame size ({size} bytes)")

    def receive_available(
        self, buffer: FrameBuffer, size_max: int = FETCH_FRAME_BYTES_MAX
    ) -> memoryview | None:
        """A response in ``buffer``, by default one to Fetch; None while it is incomplete.

        A broker that stops in the middle of a response delays the caller by `_WHOLE_S` at most.
        The part that has arrived is then copied, so that ``buffer`` is free for other responses.
        Later calls add to it without waiting.
        """
        self.last_used = time.monotonic()
        if self._size < 0:
            self._arrived += self._receive_now(self._size_buffer[self._arrived :])
            if self._arrived < _SIZE.size:
                return None
            size: int = _SIZE.unpack_from(self._size_buffer)[0]
            self._check(size, size_max)
            self._size, self._arrived = size, 0
        if not self._arrived:
            view = buffer.view(self._size)
            self._arrived = self._receive_together(view)
            if self._arrived < self._size:
                if self._size > len(self._parked):
                    self._parked = memoryview(bytearray(self._size))
                self._parked[: self._arrived] = view[: self._arrived]
                return None
        else:
            self._arrived += self._receive_now(self._parked[self._arrived : self._size])
            if self._arrived < self._size:
                return None
            view = buffer.view(self._size)
            view[:] = self._parked[: self._size]
        self._size, self._arrived = -1, 0
        return view

    def _receive_together(self, view: memoryview) -> int:
        """Receive until there is a pause, or `_WHOLE_S` is over; returns the number of bytes."""
        ends = time.monotonic() + _WHOLE_S
        arrived = self._receive_now(view)
        while arrived < len(view) and time.monotonic() < ends:
            if not readable([self.socket.fileno()], _PAUSE_S):
                break
            arrived += self._receive_now(view[arrived:])
        return arrived

    def _receive_now(self, view: memoryview) -> int:
        """Fill ``view`` with what has arrived; returns the number of bytes."""
        arrived = min(len(view), len(self._ahead))
        if arrived:
            view[:arrived] = self._ahead[:arrived]
            self._ahead = self._ahead[arrived:]
        timeout_s = self.socket.gettimeout()
        try:
            if self._tls:
                self.socket.settimeout(0.0)
            while arrived < len(view):
                # A socket with a timeout waits before it receives; its descriptor does not.
                count = (
                    self.socket.recv_into(view[arrived:])
                    if self._tls
                    else os.readv(self.socket.fileno(), [view[arrived:]])
                )
                if count == 0:
                    raise self._closed()
                arrived += count
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass  # nothing more has arrived
        except OSError as error:
            raise self._broken(error) from error
        finally:
            if self._tls:
                self.socket.settimeout(timeout_s)
        return arrived

    def receive_ahead(self) -> memoryview | None:
        """One of several small responses that arrive in quick succession; None while incomplete.

        One call reads all that have arrived; `has_ahead` tells whether the next one is among them.
        It does not wait: a broker that stops in the middle of a response delays nobody.
        """
        ahead, end = self._ahead, _SIZE.size
        while True:
            if len(ahead) >= _SIZE.size:
                size: int = _SIZE.unpack_from(ahead)[0]
                self._check(size, RESPONSE_FRAME_BYTES_MAX)
                end = _SIZE.size + size
                if end <= len(ahead):
                    break
            data = self._read_now(max(_AHEAD_BYTES, end - len(ahead)))
            if not data:
                self._ahead = ahead
                return None
            ahead += data
        view = memoryview(ahead)[_SIZE.size : end]
        self._ahead = ahead[end:]
        self.last_used = time.monotonic()
        return view

    def _read_now(self, size: int) -> bytes:
        """Up to ``size`` bytes of what has arrived; empty if nothing has."""
        try:
            if not self._tls:
                # A socket with a timeout waits before it receives; its descriptor does not.
                data = os.read(self.socket.fileno(), size)
            else:
                timeout_s = self.socket.gettimeout()
                self.socket.settimeout(0.0)
                try:
                    data = self.socket.recv(size)
                finally:
                    self.socket.settimeout(timeout_s)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return b""
        except OSError as error:
            raise self._broken(error) from error
        if not data:
            raise self._closed()
        return data

    def has_ahead(self) -> bool:
        """Whether `receive_ahead` has a whole response, or TLS has decrypted more data."""
        ahead = self._ahead
        if len(ahead) >= _SIZE.size and len(ahead) >= _SIZE.size + _SIZE.unpack_from(ahead)[0]:
            return True
        return isinstance(self.socket, ssl.SSLSocket) and self.socket.pending() > 0

    def readable(self, timeout_s: float = 0.0) -> bool:
        """Whether a response, or the end of the connection, arrives within ``timeout_s``."""
        # Data that was read ahead, or that TLS has decrypted, does not make the socket readable.
        if self.has_ahead():
            return True
        return bool(readable([self.socket.fileno()], timeout_s))

    def watched_by(self, poller: Poller[Any]) -> None:
        """Register with ``poller`` for reading, until the socket is closed."""
        if self not in poller:
            self._pollers.append(poller)
            poller.add(self, self.socket.fileno())

    def ended_idle(self) -> bool:
        """Whether the broker has closed an idle connection, on which no response is due.

        Recently used connections are not checked (`_IDLE_S`). Never raises.
        """
        return time.monotonic() - self.last_used > _IDLE_S and self.hung_up()

    def hung_up(self) -> bool:
        """Whether a connection on which no response is due has ended.

        It reads what TLS sends unasked (new session tickets, for example). Never raises.
        """
        try:
            timeout_s = self.socket.gettimeout()
            self.socket.settimeout(0.0)
            try:
                self.socket.recv(1)  # the end, or data that Kafka would not send
            finally:
                self.socket.settimeout(timeout_s)
        except (BlockingIOError, ssl.SSLWantReadError):
            return False
        except OSError:
            return True
        return True

    def _leave_pollers(self) -> None:
        while self._pollers:
            self._pollers.pop().remove(self)

    def close(self) -> None:
        """Close the socket; never raises."""
        self._leave_pollers()
        with contextlib.suppress(OSError):
            self.socket.close()


def _joined(parts: Iterable[Buffer]) -> Iterator[Buffer]:
    """The same bytes in fewer parts, because TLS makes at least one record of each part."""
    joined = bytearray()
    for part in parts:
        if len(joined) + len(part) > _TLS_JOIN_BYTES and joined:
            yield joined
            joined = bytearray()
        if len(part) > _TLS_JOIN_BYTES:
            yield part
        else:
            joined += part
    if joined:
        yield joined

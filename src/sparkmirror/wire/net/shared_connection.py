"""One connection to a broker that several threads share.

Their requests are pipelined: a broker responds in the order of the requests, so over a long link
many small requests take one round trip together. No thread of its own is needed: one of the
threads that wait receives for all of them.
"""

from __future__ import annotations

import contextlib
import io
import socket
import struct
import threading
import time
from collections import deque
from typing import Any

from kafka.protocol.broker_version_data import infer_broker_version_from_api_versions

from sparkmirror.wire.net.connection import Connection, ConnectionLost
from sparkmirror.wire.net.framing import RESPONSE_FRAME_BYTES_MAX
from sparkmirror.wire.net.kafka_python_limits import UNREADABLE
from sparkmirror.wire.net.poller import readable
from sparkmirror.wire.protocol_errors import (
    ApiUnsupported,
    UnexpectedResponse,
    UnreadableResponse,
)

__all__ = ["NoResponse", "Sent", "SharedConnection"]

_CORRELATION = struct.Struct(">i")
# Brokers close connections that were idle for ten minutes; firewalls may forget them in silence.
_IDLE_S_MAX = 9 * 60.0
# From this release on a broker responds at once and expects the client to pause (KIP-219).
_CLIENTS_PAUSE_FROM = (2, 0)


class NoResponse(ConnectionLost):
    """A response did not arrive in time."""


class Sent:
    """A request that was sent. Its outcome is a frame, or the failure of the connection."""

    __slots__ = ("correlation", "failure", "frame", "message", "version")

    def __init__(self, message: Any, version: int, correlation: int) -> None:
        self.message = message
        self.version = version
        self.correlation = correlation
        self.frame: memoryview | None = None
        self.failure: Exception | None = None

    @property
    def done(self) -> bool:
        """Whether the outcome is known."""
        return self.frame is not None or self.failure is not None


class _NewBuffers:
    """A buffer of its own for each response: several threads may read responses at a time."""

    def view(self, size: int) -> memoryview:
        if size > RESPONSE_FRAME_BYTES_MAX:
            raise ConnectionLost(f"invalid frame size ({size} bytes)")
        return memoryview(bytearray(size))


class SharedConnection:
    """Requests of several threads over ``connection``, which it owns.

    While the broker throttles this client, requests wait; with ``ends_throttled`` the connection
    ends instead. Raises `ConnectionLost` (`NoResponse`: in time), `ApiUnsupported` and
    `UnreadableResponse`.
    """

    def __init__(self, connection: Connection, *, ends_throttled: bool = False) -> None:
        self.address = connection.host, connection.port
        self._connection = connection
        self._versions = connection.api_versions
        release = infer_broker_version_from_api_versions(self._versions)
        self._pauses = release >= _CLIENTS_PAUSE_FROM
        self._ends_throttled = ends_throttled
        # Guards the socket, too: TLS does not allow two threads to use it at a time.
        self._turn = threading.Condition()
        self._waiting: deque[Sent] = deque()
        self._receives = False  # a thread waits for the socket, and will receive
        self._failure: Exception | None = None
        self._closing = False
        self._paused_until = 0.0
        self._buffers = _NewBuffers()

    # -- requests --------------------------------------------------------------------------

    def request(self, message: Any, deadline: float) -> Any:
        """The response to a kafka-python request, at the latest at ``deadline`` (monotonic).

        A message with a method ``raw_response`` makes the response itself, from the version and
        the bytes after the header.
        """
        return self.finish(self.begin(message, deadline), deadline)

    def begin(self, message: Any, deadline: float) -> Sent:
        """Send a request; `finish` waits for its response."""
        version = self._version(message)
        with self._turn:
            self._wait_to_send(deadline)
            try:
                correlation = self._connection.send_message(message, version)
            except ConnectionLost as error:
                self._fail(error)
                raise
            sent = Sent(message, version, correlation)
            self._waiting.append(sent)
        return sent

    def _version(self, message: Any) -> int:
        """The highest version of the API of ``message`` that the broker and the message allow."""
        lowest = max(int(message.min_version), message._min_version or 0)
        highest = int(message.max_version)
        if message._max_version is not None:
            highest = min(highest, message._max_version)
        offered = self._versions.get(message.API_KEY)
        if offered is None:
            raise ApiUnsupported(f"the broker does not have {message.name}")
        version = min(highest, offered[1])
        if version < max(lowest, offered[0]):
            raise ApiUnsupported(
                f"the broker has versions {offered[0]} to {offered[1]} of {message.name}, "
                f"sparkmirror needs one of {lowest} to {highest}"
            )
        return version

    def _wait_to_send(self, deadline: float) -> None:
        """Wait while the broker throttles us, and for responses that precede a new login."""
        while True:
            if self._failure is not None:
                raise ConnectionLost(str(self._failure)) from self._failure
            now = time.monotonic()
            pause_s = self._paused_until - now
            try:
                if pause_s <= 0 and self._connection.log_in_if_due(idle=not self._waiting):
                    return
            except ConnectionLost as error:
                self._fail(error)
                raise
            if now >= deadline:
                raise NoResponse(self._throttled())
            self._turn.wait(min(deadline - now, pause_s) if pause_s > 0 else deadline - now)

    def finish(self, sent: Sent, deadline: float) -> Any:
        """The response to ``sent``. If it is late, the connection is closed: the broker hangs."""
        while not sent.done:
            with self._turn:
                while not sent.done and self._receives and time.monotonic() < deadline:
                    self._turn.wait(deadline - time.monotonic())
                if sent.done:
                    break
                if time.monotonic() >= deadline:
                    late = NoResponse(f"{self._where()}: no response to {sent.message.name}")
                    self._fail(late)
                    raise late
                self._receives = True
            self._receive(deadline)
        return self._outcome(sent)

    def ready(self) -> None:
        """Receive what has arrived; for an owner that waits for `fileno` itself."""
        with self._turn:
            if self._failure is None:
                self._take_in()
            self._turn.notify_all()

    def fileno(self) -> int:
        """The socket's descriptor; -1 when it is closed."""
        return self._connection.socket.fileno()

    def _receive(self, deadline: float) -> None:
        arrived: list[int] = []
        try:
            arrived = readable([self.fileno()], deadline - time.monotonic())
        finally:
            with self._turn:
                self._receives = False
                if self._failure is not None:
                    self._connection.close()  # `_fail` left the descriptor to this thread
                elif arrived:
                    self._take_in()
                self._turn.notify_all()

    def _take_in(self) -> None:
        """Give the responses that have arrived to their requests."""
        try:
            while self._waiting:
                frame = self._connection.receive_available(self._buffers)
                if frame is None:
                    return
                if _CORRELATION.unpack_from(frame)[0] != self._waiting[0].correlation:
                    raise UnexpectedResponse(f"{self._where()}: a response to another request")
                self._waiting.popleft().frame = frame
        except (ConnectionLost, UnexpectedResponse) as error:
            self._fail(error)

    def _outcome(self, sent: Sent) -> Any:
        if sent.frame is None:
            failure = sent.failure
            if isinstance(failure, UnreadableResponse):
                raise type(failure)(str(failure)) from failure
            raise ConnectionLost(str(failure)) from failure
        try:
            response = _decoded(sent.message, sent.version, bytes(sent.frame))
        except UNREADABLE as error:
            unreadable = UnreadableResponse(f"the response cannot be read ({type(error).__name__})")
            with self._turn:
                self._fail(unreadable)
            raise unreadable from error
        self._note_throttle(response)
        return response

    def _note_throttle(self, response: Any) -> None:
        throttle_ms = getattr(response, "throttle_time_ms", 0) or 0
        if throttle_ms > 0 and self._pauses:
            with self._turn:
                if self._ends_throttled:
                    self._fail(ConnectionLost(self._throttled()))
                    return
                until = time.monotonic() + throttle_ms / 1000
                self._paused_until = max(self._paused_until, until)

    # -- the connection --------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """The number of requests without a response."""
        return len(self._waiting)

    def usable(self) -> bool:
        """Whether it can take a request: it is open, and the broker has not closed it."""
        if not self._turn.acquire(blocking=False):
            return True  # another thread uses it at this moment
        try:
            if self._failure is not None:
                return False
            if self._waiting:
                return True
            old = time.monotonic() - self._connection.last_used > _IDLE_S_MAX
            if old or self._connection.hung_up():
                self._fail(ConnectionLost(f"{self._where()}: the broker closed the connection"))
                return False
            return True
        finally:
            self._turn.release()

    def close(self) -> None:
        """Close the socket; requests in flight on other threads fail at once."""
        self._closing = True
        self._shut_down()  # wakes a thread that holds the lock while it sends or logs in
        with self._turn:
            self._fail(ConnectionLost(f"{self._where()}: the connection was closed"))

    def _fail(self, error: Exception) -> None:
        """End the connection and all requests that wait; called with the lock."""
        if self._closing:  # to the thread that it wakes, it looks as if the broker had done it
            error = ConnectionLost(f"{self._where()}: the connection was closed")
        if self._failure is None:
            self._failure = error
            while self._waiting:
                self._waiting.popleft().failure = error
        if self._receives:
            # Another thread waits for the descriptor. It closes it, or its number may be reused.
            self._shut_down()
        else:
            self._connection.close()
        self._turn.notify_all()

    def _shut_down(self) -> None:
        with contextlib.suppress(OSError):  # it has ended already
            # Not TLS's own ``shutdown``, which would change an object that another thread uses.
            socket.socket.shutdown(self._connection.socket, socket.SHUT_RDWR)

    def _throttled(self) -> str:
        return f"{self._where()}: the broker throttles this client"

    def _where(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"


def _decoded(message: Any, version: int, frame: bytes) -> Any:
    kind = message.header.get_response_class()
    raw = getattr(message, "raw_response", None)
    if raw is None:
        return kind.decode(frame, header=True)
    data = io.BytesIO(frame)
    kind.parse_header(data)
    return raw(version, data.read())

"""One blocking TCP connection to one broker, and the frames that travel on it.

Small requests go through kafka-python's message classes (`Connection.request`). Fetch and Produce
write and read their own frames (`send_frame`, `receive_frame`), because they carry the data.
"""

from __future__ import annotations

import contextlib
import itertools
import select
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any, Protocol

from kafka.protocol.metadata.api_versions import ApiVersionsRequest, ApiVersionsResponse

from sparkmirror.errors import NotKafka, Unreachable, Unsupported
from sparkmirror.model import ClusterClient

__all__ = ["Connection", "ConnectionLost", "FrameBuffer", "ReceiveBuffer"]

_SIZE = struct.Struct(">i")
_CORRELATION = struct.Struct(">i")
# Linux refuses more than 1,024 pieces in one sendmsg call.
_IOV_MAX = 1024
# A broker never sends a frame that Fetch did not ask for; anything above this is not Kafka.
FRAME_BYTES_MAX = 2**31 - 1
_HANDSHAKE_FRAME_BYTES_MAX = 1 << 20

Buffer = bytes | bytearray | memoryview


class ConnectionLost(Exception):
    """The connection broke or timed out; what was in flight on it has an unknown outcome."""


class FrameBuffer(Protocol):
    """Where a response goes."""

    def view(self, size: int) -> memoryview:
        """A writable view of exactly ``size`` bytes."""


class ReceiveBuffer:
    """One growing buffer that is written again and again.

    Fresh buffers would be zeroed and paged in for every response; one that is kept stays warm.
    What a caller keeps of a frame it must have passed on before it receives the next one.
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


class Connection:
    """A connected, version-checked socket to one broker.

    Raises `Unreachable`, `NotKafka` or `Unsupported` while connecting, `ConnectionLost` afterwards.
    """

    def __init__(
        self,
        host: str,
        port: int,
        client: ClusterClient,
        *,
        send_buffer_bytes: int = -1,
        receive_buffer_bytes: int = -1,
    ) -> None:
        self.host = host
        self.port = port
        self.client = client
        self._correlation = itertools.count(1)
        self._client_id = client.client_id.encode()
        self.last_used = time.monotonic()
        if client.security_protocol.upper() != "PLAINTEXT":
            raise Unsupported(
                f"security.protocol={client.security_protocol} is not supported yet.",
                where=f"cluster {client.alias}",
                do="Use a PLAINTEXT listener.",
            )
        self.socket = self._connect(send_buffer_bytes, receive_buffer_bytes)
        self._size_buffer = memoryview(bytearray(4))
        try:
            # A broker that hangs still gets its connections accepted by its kernel, so the first
            # answer has no more time than connecting has.
            self.socket.settimeout(min(client.connect_timeout_ms, client.request_timeout_ms) / 1000)
            self._versions = self._handshake()
            self.socket.settimeout(client.request_timeout_ms / 1000)
        except BaseException:
            self.socket.close()
            raise

    def _connect(self, send_buffer_bytes: int, receive_buffer_bytes: int) -> socket.socket:
        where = f"cluster {self.client.alias}, {self.host}:{self.port}"
        try:
            sock = socket.create_connection(
                (self.host, self.port), timeout=self.client.connect_timeout_ms / 1000
            )
        except socket.gaierror as error:
            raise Unreachable(
                f"the host name does not resolve ({error.strerror}).",
                where=where,
                do="Check the name, or the broker's advertised.listeners.",
            ) from error
        except OSError as error:
            raise Unreachable(
                f"cannot connect ({error}).",
                where=where,
                do="Check that the broker runs and that the port is open from here.",
            ) from error
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, size in (
            (socket.SO_SNDBUF, send_buffer_bytes),
            (socket.SO_RCVBUF, receive_buffer_bytes),
        ):
            if size > 0:
                sock.setsockopt(socket.SOL_SOCKET, option, size)
        return sock

    def _handshake(self) -> dict[int, tuple[int, int]]:
        """Ask for API versions (v0, which every broker since 0.10 answers)."""
        where = f"cluster {self.client.alias}, {self.host}:{self.port}"
        try:
            correlation = self.send_message(ApiVersionsRequest(), 0)
            size = self._receive_size()
            if not 0 < size <= _HANDSHAKE_FRAME_BYTES_MAX:
                raise NotKafka(
                    "something answers there that does not speak Kafka's protocol.",
                    where=where,
                    do="Check the port and the listener's security protocol.",
                )
            frame = memoryview(bytearray(size))
            self._receive_into(frame)
        except ConnectionLost as error:
            raise NotKafka(
                f"the connection was accepted, but no Kafka broker answered ({error}).",
                where=where,
                do="Check the port and the listener's security protocol (a TLS listener hangs up).",
            ) from error
        try:
            if _CORRELATION.unpack_from(frame)[0] != correlation:
                raise ValueError("wrong correlation id")
            response = ApiVersionsResponse.decode(bytes(frame[4:]), version=0)
        except (ValueError, struct.error, IndexError, KeyError) as error:
            raise NotKafka(
                "something answers there that does not speak Kafka's protocol.",
                where=where,
                do="Check the port and the listener's security protocol.",
            ) from error
        return {key.api_key: (key.min_version, key.max_version) for key in response.api_keys}

    def api_version(self, api_key: int, lowest: int, highest: int, name: str) -> int:
        """The highest version of an API that both sides know.

        Raises `Unsupported` when there is none.
        """
        low, high = self._versions.get(api_key, (0, -1))
        version = min(high, highest)
        if version < max(low, lowest):
            raise Unsupported(
                f"the broker offers versions {low} to {high} of the {name} API, "
                f"sparkmirror needs one of {lowest} to {highest}.",
                where=f"cluster {self.client.alias}, {self.host}:{self.port}",
                do="Brokers from 0.11 on are supported.",
            )
        return version

    # -- sending ---------------------------------------------------------------------------

    def header(self, api_key: int, api_version: int) -> tuple[int, bytes]:
        """(correlation id, non-flexible request header bytes without the frame size)."""
        correlation = next(self._correlation)
        head = struct.pack(
            f">hhih{len(self._client_id)}s",
            api_key,
            api_version,
            correlation,
            len(self._client_id),
            self._client_id,
        )
        return correlation, head

    def send_frame(self, parts: Sequence[Buffer], size: int) -> None:
        """Write one frame: the 4-byte ``size``, then ``parts`` without copying them."""
        self.last_used = time.monotonic()
        try:
            self._send_parts([_SIZE.pack(size), *parts])
        except OSError as error:
            raise ConnectionLost(f"{self.host}:{self.port}: {error or 'timed out'}") from error

    def _send_parts(self, parts: list[Buffer]) -> None:
        index = 0
        while index < len(parts):
            window = parts[index : index + _IOV_MAX]
            sent = self.socket.sendmsg(window)
            for part in window:
                size = len(part)
                if sent < size:
                    parts[index] = memoryview(part)[sent:]
                    break
                sent -= size
                index += 1

    def send_message(self, message: Any, version: int) -> int:
        """Send one of kafka-python's request objects; returns the correlation id."""
        correlation = next(self._correlation)
        message.with_header(correlation_id=correlation, client_id=self.client.client_id)
        frame = message.encode(version=version, header=True, framed=True)
        self.last_used = time.monotonic()
        try:
            self.socket.sendall(frame)
        except OSError as error:
            raise ConnectionLost(f"{self.host}:{self.port}: {error or 'timed out'}") from error
        return correlation

    # -- receiving -------------------------------------------------------------------------

    def _receive_into(self, view: memoryview) -> None:
        position, size = 0, len(view)
        while position < size:
            try:
                count = self.socket.recv_into(view[position:])
            except OSError as error:
                raise ConnectionLost(f"{self.host}:{self.port}: {error or 'timed out'}") from error
            if count == 0:
                raise ConnectionLost(f"{self.host}:{self.port}: the broker closed the connection")
            position += count

    def _receive_size(self) -> int:
        self._receive_into(self._size_buffer)
        size: int = _SIZE.unpack_from(self._size_buffer)[0]
        return size

    def receive_frame(self, buffer: FrameBuffer | None = None) -> memoryview:
        """One whole frame without its size, into ``buffer`` or a fresh one.

        The first four bytes are the correlation id.
        """
        size = self._receive_size()
        if not 4 <= size <= FRAME_BYTES_MAX:
            raise ConnectionLost(f"{self.host}:{self.port}: nonsense frame of {size} bytes")
        view = buffer.view(size) if buffer is not None else memoryview(bytearray(size))
        self._receive_into(view)
        self.last_used = time.monotonic()
        return view

    def readable(self, timeout_s: float = 0.0) -> bool:
        """True when a response (or the end of the connection) is waiting."""
        return bool(select.select([self.socket], [], [], timeout_s)[0])

    def request(self, message: Any, *, lowest: int = 0, highest: int = 1 << 15) -> Any:
        """Send a kafka-python request and wait for its answer. Only with nothing in flight.

        Returns kafka-python's response object. Raises `ConnectionLost`, `Unsupported`.
        """
        version = self.api_version(
            message.API_KEY, lowest, min(highest, message.max_version), message.name
        )
        correlation = self.send_message(message, version)
        frame = self.receive_frame()
        if _CORRELATION.unpack_from(frame)[0] != correlation:
            self.close()
            raise ConnectionLost(f"{self.host}:{self.port}: answer to another request")
        response_class = _response_class(message)
        return response_class.decode(bytes(frame), version=version, header=True)

    def close(self) -> None:
        """Close the socket; never raises."""
        with contextlib.suppress(OSError):
            self.socket.close()


def _response_class(message: Any) -> Any:
    from kafka.protocol.api_header import ResponseClassRegistry  # noqa: PLC0415  (after kafka)

    return ResponseClassRegistry.get_response_class(message.header)

"""What crosses this machine's loopback interface to and from some ports; only root may look."""

from __future__ import annotations

import ctypes
import socket
import struct
import threading
from collections import defaultdict
from collections.abc import Collection
from types import TracebackType
from typing import Self

_IP = 0x0800
_SO_ATTACH_FILTER, _SO_RCVBUFFORCE = 26, 33
_SOL_PACKET, _PACKET_STATISTICS = 263, 6
_OUTGOING = 4  # each packet of the loopback interface is seen twice
_BUFFER_BYTES = 64 << 20
_ALL = 0x40000
# Instructions of the kernel's packet filters: load from there, compare, end.
_BYTE, _IP_HEAD, _HALF, _EQUAL, _RETURN = 0x30, 0xB1, 0x48, 0x15, 0x06


class Capture:
    """TCP payloads by connection and direction, for as long as the block runs.

    Raises ``PermissionError`` for whoever may not look. A packet that was missed fails the end.
    """

    def __init__(self, ports: Collection[int]) -> None:
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_IP))
        self._filter(ports)
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
        self._socket.bind(("lo", _IP))
        self._socket.settimeout(0.1)
        self._streams: defaultdict[bytes, bytearray] = defaultdict(bytearray)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._closing.set()
        self._thread.join(60)
        _, dropped = struct.unpack(
            "II", self._socket.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8)
        )
        self._socket.close()
        assert error is not None or dropped == 0, f"{dropped} packets were missed"

    def holds(self, text: bytes) -> bool:
        """Whether ``text`` crossed the interface in one direction of one connection."""
        return any(text in stream for stream in self._streams.values())

    def sent_to(self, port: int) -> list[bytes]:
        """What crossed the interface to ``port``, by connection."""
        end = port.to_bytes(2)
        return [bytes(stream) for place, stream in self._streams.items() if place.endswith(end)]

    def _filter(self, ports: Collection[int]) -> None:
        """A program for the kernel: TCP of these ports; all else is not even queued."""
        end = 3 + 2 * (1 + len(ports))  # there: drop; behind it: take
        code = [(_BYTE, 0, 0, 9), (_EQUAL, 0, end - 2, socket.IPPROTO_TCP), (_IP_HEAD, 0, 0, 0)]
        for field in (0, 2):  # the port that it comes from, the one that it goes to
            code.append((_HALF, 0, 0, field))
            for port in ports:
                code.append((_EQUAL, end - len(code), 0, port))
        code += [(_RETURN, 0, 0, 0), (_RETURN, 0, 0, _ALL)]
        program = b"".join(struct.pack("HBBI", *each) for each in code)
        buffer = ctypes.create_string_buffer(program)
        self._socket.setsockopt(
            socket.SOL_SOCKET,
            _SO_ATTACH_FILTER,
            struct.pack("HL", len(code), ctypes.addressof(buffer)),
        )

    def _run(self) -> None:
        while True:
            try:
                packet, place = self._socket.recvfrom(_ALL)
            except TimeoutError:
                if self._closing.is_set():
                    return
                continue
            if place[2] == _OUTGOING:
                continue
            head = 4 * (packet[0] & 15)
            size = struct.unpack_from(">H", packet, 2)[0] or len(packet)
            data = packet[head + 4 * (packet[head + 12] >> 4) : size]
            self._streams[packet[12:20] + packet[head : head + 4]] += data

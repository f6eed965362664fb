"""A TCP proxy that misbehaves on request: slow, silent, cut off, reset, or damaging."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable

HOST = "127.0.0.1"
_CHUNK_BYTES = 1 << 16
_LINGER_NONE = struct.pack("ii", 1, 0)

TO_BROKER, TO_CLIENT = "to broker", "to client"


class Proxy:
    """Forwards connections to ``port`` from a free port of its own.

    ``delay_s`` holds every chunk back; ``bytes_per_s``, when set, is what all connections together
    bring to the broker. ``bytes_to_client`` counts what brokers have answered since it was made:
    take the difference.
    ``tap``, when set, sees ``(connection number, direction, chunk)`` as it is forwarded.
    """

    def __init__(self, port: int = 0) -> None:
        self.forward_to = port
        self.delay_s = 0.0
        self.bytes_per_s: float | None = None
        self._free_at = 0.0
        self.bytes_to_client = 0
        self.connections = 0
        self.flipped = 0
        self.tap: Callable[[int, str, bytes], None] | None = None
        self._flows = threading.Event()
        self._flows.set()
        self._lock = threading.Lock()
        self._left: int | None = None
        self._flip: tuple[str, bytes] | None = None
        self._flips_left = 0
        self._open: list[socket.socket] = []
        self._server = socket.create_server((HOST, 0))
        self.port: int = self._server.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    # -- faults ----------------------------------------------------------------------------

    def stall(self) -> None:
        """Half-open: connections stay, new ones are accepted, nothing passes any more."""
        self._flows.clear()

    def stall_behind(self, count: int) -> None:
        """`stall` as soon as ``count`` more bytes have passed to clients: within an answer."""
        with self._lock:
            self._left = count

    @property
    def stalled(self) -> bool:
        return not self._flows.is_set()

    def resume(self) -> None:
        """Everything passes again; what was held back goes first."""
        self._flows.set()

    def cut(self) -> None:
        """End every connection in order (FIN)."""
        for one in self._taken():
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def reset(self) -> None:
        """End every connection without a word (RST)."""
        for one in self._taken():
            with contextlib.suppress(OSError):
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NONE)
                one.shutdown(socket.SHUT_RD)
                one.close()

    def flip(self, direction: str, pattern: bytes, *, times: int = 1) -> None:
        """Flip one bit in the next ``times`` chunks that contain ``pattern``."""
        with self._lock:
            self._flip, self._flips_left = (direction, pattern), times

    def heal(self) -> None:
        """No fault any more."""
        self.delay_s = 0.0
        self.bytes_per_s = None
        self.tap = None
        with self._lock:
            self._flip, self._flips_left, self.flipped = None, 0, 0
            self._left = None
        self.resume()

    def close(self) -> None:
        self.resume()
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.cut()

    # -- forwarding ------------------------------------------------------------------------

    def _taken(self) -> list[socket.socket]:
        with self._lock:
            taken, self._open = self._open, []
        return taken

    def _serve(self) -> None:
        with contextlib.suppress(OSError):  # `close` ends it
            while True:
                client, _ = self._server.accept()
                self.connections += 1
                number = self.connections
                threading.Thread(target=self._join, args=(client, number), daemon=True).start()

    def _join(self, client: socket.socket, number: int) -> None:
        self._flows.wait()
        try:
            broker = socket.create_connection((HOST, self.forward_to), timeout=5)
        except OSError:
            client.close()
            return
        broker.settimeout(None)
        for one in (client, broker):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self._open += [client, broker]
        pump = threading.Thread(
            target=self._pump, args=(broker, client, TO_CLIENT, number), daemon=True
        )
        pump.start()
        self._pump(client, broker, TO_BROKER, number)
        pump.join()
        for one in (client, broker):
            one.close()

    def _pump(
        self, giver: socket.socket, taker: socket.socket, direction: str, number: int
    ) -> None:
        with contextlib.suppress(OSError):
            while chunk := giver.recv(_CHUNK_BYTES):
                self._flows.wait()
                if self.delay_s:
                    time.sleep(self.delay_s)
                chunk = self._damaged(direction, chunk)
                if direction == TO_CLIENT:
                    with self._lock:
                        self.bytes_to_client += len(chunk)
                else:
                    self._take_time(len(chunk))
                if self.tap is not None:
                    self.tap(number, direction, chunk)
                if direction == TO_CLIENT:
                    chunk = self._behind_stall(taker, chunk)
                taker.sendall(chunk)
        with contextlib.suppress(OSError):
            taker.shutdown(socket.SHUT_RDWR)

    def _behind_stall(self, taker: socket.socket, chunk: bytes) -> bytes:
        """Pass what goes before a stall; the rest once it is over."""
        with self._lock:
            if self._left is None:
                return chunk
            first, chunk = chunk[: self._left], chunk[self._left :]
            self._left -= len(first)
            if not self._left:
                self._left = None
                self.stall()
        taker.sendall(first)
        self._flows.wait()
        return chunk

    def _take_time(self, size: int) -> None:
        if self.bytes_per_s is None:
            return
        with self._lock:
            self._free_at = max(self._free_at, time.monotonic()) + size / self.bytes_per_s
            wait_s = self._free_at - time.monotonic()
        time.sleep(max(0.0, wait_s))

    def _damaged(self, direction: str, chunk: bytes) -> bytes:
        with self._lock:
            if not self._flips_left or self._flip is None or self._flip[0] != direction:
                return chunk
            at = chunk.find(self._flip[1])
            if at < 0:
                return chunk
            self._flips_left -= 1
            self.flipped += 1
        return chunk[:at] + bytes([chunk[at] ^ 0x10]) + chunk[at + 1 :]

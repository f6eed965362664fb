"""A far place on this machine: forwards connections, every byte later by half a round trip.

usage: python -m benchmarks.delay PORT TO_PORT ROUND_TRIP_MS MB_PER_S

What is on its way is kept with the time at which it is due, so a delay costs no throughput.
MB_PER_S is of all connections and both directions together; 0: no limit.
"""

from __future__ import annotations

import contextlib
import math
import select
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from benchmarks.link import Narrow

__all__ = ["delayed"]

HOST = "127.0.0.1"
_CHUNK_BYTES = 1 << 20
# More than any link here holds (bandwidth x delay); beyond it nothing is taken in.
_HELD_BYTES_MAX = 128 << 20
_READ = select.POLLIN
_WRITE = select.POLLOUT


@dataclass(eq=False)
class _Way:
    """One direction of a connection. ``held``: (time at which it is due, bytes), in order."""

    giver: socket.socket
    taker: socket.socket
    held: deque[tuple[float, memoryview]] = field(default_factory=deque)
    held_bytes: int = 0
    ended: bool = False
    blocked: bool = False


class _Forwarder:
    def __init__(self, port: int, to_port: int, delay_s: float, bytes_per_s: float) -> None:
        self._to_port, self._delay_s = to_port, delay_s
        self._narrow = Narrow(bytes_per_s)
        self._server = socket.create_server((HOST, port), backlog=128)
        self._server.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._server, _READ)
        self._from: dict[int, _Way] = {}
        self._to: dict[int, _Way] = {}

    def run(self) -> None:
        """Forward until the process is ended."""
        print("ready", flush=True)
        while True:
            for fd, events in self._poll.poll(self._wait_ms()):
                if fd == self._server.fileno():
                    self._accept()
                    continue
                if events & _WRITE and fd in self._to:
                    self._to[fd].blocked = False
                if events & ~_WRITE and fd in self._from:
                    self._take(self._from[fd])
            now = time.monotonic()
            for way in list(self._from.values()):
                self._give(way, now)

    def _wait_ms(self) -> float | None:
        due = [way.held[0][0] for way in self._from.values() if way.held and not way.blocked]
        return max(0.0, (min(due) - time.monotonic()) * 1000) if due else None

    def _accept(self) -> None:
        near, _ = self._server.accept()
        far = socket.create_connection((HOST, self._to_port))
        for one in (near, far):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            one.setblocking(False)
        for giver, taker in ((near, far), (far, near)):
            way = _Way(giver, taker)
            self._from[giver.fileno()] = self._to[taker.fileno()] = way
        for one in (near, far):
            self._watch(one)

    def _watch(self, one: socket.socket) -> None:
        """Wait for what this end of a connection can do now."""
        giving, taking = self._from[one.fileno()], self._to[one.fileno()]
        events = 0 if giving.ended or giving.held_bytes > _HELD_BYTES_MAX else _READ
        self._poll.register(one, events | (_WRITE if taking.blocked else 0))

    def _take(self, way: _Way) -> None:
        try:
            data = way.giver.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        way.ended = not data
        passed = self._narrow.passed(len(data), time.monotonic(), math.inf) or 0.0
        way.held.append((passed + self._delay_s, memoryview(data)))
        way.held_bytes += len(data)
        self._watch(way.giver)

    def _give(self, way: _Way, now: float) -> None:
        before, blocked = way.held_bytes, way.blocked
        try:
            while way.held and not way.blocked and way.held[0][0] <= now:
                due, data = way.held.popleft()
                if not data:
                    self._end(way)
                    return
                sent = way.taker.send(data)
                way.held_bytes -= sent
                if sent < len(data):
                    way.held.appendleft((due, data[sent:]))
                    way.blocked = True
        except BlockingIOError:
            way.held.appendleft((due, data))
            way.blocked = True
        except OSError:
            self._end(way)
            return
        if way.blocked or blocked:
            self._watch(way.taker)
        if before > _HELD_BYTES_MAX >= way.held_bytes:
            self._watch(way.giver)

    def _end(self, way: _Way) -> None:
        """Both directions at once: no client here half-closes."""
        for one in (way.giver, way.taker):
            self._from.pop(one.fileno(), None)
            self._to.pop(one.fileno(), None)
            with contextlib.suppress(KeyError, ValueError):
                self._poll.unregister(one)
            one.close()


@contextmanager
def delayed(port: int, to_port: int, round_trip_ms: float, mb_per_s: float = 0.0) -> Iterator[None]:
    """Have ``port`` lead to ``to_port`` over such a distance, in a process of its own."""
    words = ["-m", "benchmarks.delay", *map(str, (port, to_port, round_trip_ms, mb_per_s))]
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE)
    try:
        if process.stdout is None or not process.stdout.readline():
            raise RuntimeError(f"nothing forwards from port {port}")
        yield
    finally:
        process.terminate()
        process.wait(10)


if __name__ == "__main__":
    _port, _to_port = map(int, sys.argv[1:3])
    with contextlib.suppress(KeyboardInterrupt):
        _Forwarder(_port, _to_port, float(sys.argv[3]) / 2000, float(sys.argv[4]) * 1e6).run()

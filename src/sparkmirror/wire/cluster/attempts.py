"""Attempts to connect to brokers, each on a thread of its own, and the first that succeeds.

Name resolution has no time limit, and a broker that hangs accepts connections and is then silent
in the middle of a handshake. Whoever serves several brokers must not wait for that.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

from sparkmirror.errors import ClusterError, Unreachable
from sparkmirror.wire.net.connection import Connection

__all__ = ["Attempt", "FirstConnection", "wait_for_any"]

Address = tuple[str, int]

# How long a server may take before the next one is tried, too.
_NEXT_SERVER_S = 0.5


class Attempt:
    """One attempt to connect to ``address`` by ``connect``, which it calls at once.

    ``ended`` is notified when it is over; several attempts may share it. ``began``: when it began,
    by the owner's clock.
    """

    def __init__(
        self,
        address: Address,
        connect: Callable[[Address], Connection],
        ended: threading.Condition,
        began: float,
    ) -> None:
        self.address = address
        self.began = began
        self.over = False
        """Whether its outcome is known."""
        self.lasted_s = 0.0
        """How long it took until it was over."""
        self._connect = connect
        self._ended = ended
        self._abandoned = False
        self._connection: Connection | None = None
        self._error: Exception | None = None
        name = f"connect-{address[0]}:{address[1]}"
        thread = threading.Thread(target=self._run, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # there can be no more threads
            self._run()

    def _run(self) -> None:
        connection: Connection | None = None
        error: Exception | None = None
        began = time.monotonic()
        try:
            connection = self._connect(self.address)
        except Exception as raised:
            error = raised  # `take` raises it in the owner's thread
        with self._ended:
            self.over, self.lasted_s = True, time.monotonic() - began
            if not self._abandoned:
                self._connection, self._error, connection = connection, error, None
            self._ended.notify_all()
        if connection is not None:
            connection.close()

    def wait(self, seconds: float | None) -> None:
        """Wait until it is over, for ``seconds`` at most; None: for as long as that takes."""
        wait_for_any([self], self._ended, seconds)

    def take(self) -> Connection | None:
        """The connection, which its caller owns then; None before it is `over`.

        Raises the error of an attempt that failed.
        """
        with self._ended:
            connection, self._connection = self._connection, None
            error, self._error = self._error, None
        if error is not None:
            raise error
        return connection

    def abandon(self) -> None:
        """Have its connection closed, now or when it is there."""
        with self._ended:
            self._abandoned = True
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def wait_for_any(
    attempts: list[Attempt], ended: threading.Condition, seconds: float | None
) -> None:
    """Wait until one of ``attempts`` is over, for ``seconds`` at most (None: without a limit)."""
    with ended:
        ended.wait_for(lambda: any(one.over for one in attempts), seconds)


class FirstConnection:
    """A connection to the first of ``servers`` (address and node id) that responds.

    ``ready``: one that is open already. ``begin`` begins an attempt, ``ended`` is what attempts
    notify. ``failed`` is called with the node of an attempt that failed, ``opened`` with the
    connection, its node, and the attempts that it has overtaken. ``alias``: of the cluster.
    """

    def __init__(
        self,
        alias: str,
        servers: Iterable[tuple[Address, int]],
        begin: Callable[[Address], Attempt],
        ended: threading.Condition,
        failed: Callable[[int, Attempt], None],
        opened: Callable[[Connection, int, list[Attempt]], None],
        ready: Connection | None = None,
    ) -> None:
        self._ready = ready
        self._opened = opened
        self._running: dict[Attempt, int] = {}  # with the node id of the server
        self._alias = alias
        self._left = deque(servers)
        self._begin = begin
        self._ended = ended
        self._failed = failed
        self._failure: ClusterError | None = None
        self._next_at = -math.inf

    def wait(self, seconds: float) -> Connection | None:
        """The connection, which its caller owns then; None if that takes longer.

        ``seconds`` may be infinite. Raises the last `ClusterError` when no server responds.
        """
        ready, self._ready = self._ready, None
        if ready is not None:
            return ready
        until = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            if self._left and now >= self._next_at:
                address, node = self._left.popleft()
                self._running[self._begin(address)] = node
                self._next_at = now + _NEXT_SERVER_S
            if not self._running:
                raise self._failure or Unreachable(
                    "no bootstrap server is configured.", where=f"cluster {self._alias}"
                )
            wait_s = min(until, self._next_at if self._left else math.inf) - now
            wait_for_any(
                list(self._running), self._ended, None if wait_s == math.inf else max(0.0, wait_s)
            )
            for attempt in [one for one in self._running if one.over]:
                node = self._running.pop(attempt)
                try:
                    connection = attempt.take()
                except ClusterError as error:
                    self._failure, self._next_at = error, -math.inf
                    self._failed(node, attempt)
                    continue
                if connection is not None:
                    self._opened(connection, node, list(self._running))
                    return connection
            if self._running and time.monotonic() >= until:
                return None

    def connection(self) -> Connection:
        """`wait` for as long as it takes."""
        while True:
            found = self.wait(math.inf)
            if found is not None:
                return found

    def abandon(self) -> None:
        """End the attempts."""
        if self._ready is not None:
            self._ready.close()
        for attempt in self._running:
            attempt.abandon()

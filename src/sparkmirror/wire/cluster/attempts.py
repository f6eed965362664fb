"""Attempts to connect to brokers, each on a thread of its own.

Name resolution has no time limit, and a broker that hangs accepts connections and is then silent
in the middle of a handshake. Whoever serves several brokers must not wait for that.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from sparkmirror.wire.net.connection import Connection

__all__ = ["Attempt", "wait_for_any"]

Address = tuple[str, int]


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

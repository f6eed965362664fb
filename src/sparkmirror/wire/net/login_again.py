"""A login on an open connection (KIP-368), on a thread of its own: its broker may hang."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

from sparkmirror.wire.net.framing import ConnectionLost


class LoginAgain(threading.Thread):
    """Calls ``log_in``, which uses ``connected``; nobody else may use that meanwhile.

    ``error``: why it failed, once the thread has ended.
    """

    def __init__(self, log_in: Callable[[], object], connected: socket.socket) -> None:
        super().__init__(name="login", daemon=True)
        self.error: ConnectionLost | None = None
        self._log_in = log_in
        self._socket = connected
        self._lock = threading.Lock()
        self._over = self._left = False
        self.start()

    def run(self) -> None:
        """Log in."""
        try:
            self._log_in()
        except ConnectionLost as error:
            self.error = error
        except Exception as error:
            self.error = ConnectionLost(f"logging in again: {error}")
        with self._lock:
            self._over = True
            if self._left:
                self._socket.close()

    def leave(self) -> bool:
        """End the login, which then closes the socket; False if it is over.

        Another socket could get the number of a descriptor that is closed under a waiting thread.
        """
        with self._lock:
            if self._over:
                return False
            self._left = True
        with contextlib.suppress(OSError):
            # Not that of a TLS socket: it drops the TLS state first, and what the login sends in
            # that moment would leave unencrypted.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        return True

"""A login of a connection that its owner closes meanwhile."""

from __future__ import annotations

import socket

from sparkmirror.wire.net.login_again import LoginAgain


class _Tls(socket.socket):
    """As a TLS socket: ``shutdown`` would drop its TLS state before anything else."""

    dropped = False

    def shutdown(self, how: int) -> None:
        self.dropped = True
        super().shutdown(how)


def test_leaving_a_login_keeps_its_tls_state() -> None:
    """What the login sends in that moment would leave unencrypted."""
    near, far = socket.socketpair()
    tls = _Tls(fileno=near.detach())
    login = LoginAgain(lambda: tls.recv(1), tls)
    try:
        assert login.leave()
        login.join(5)
        assert not login.is_alive()
        assert not tls.dropped
    finally:
        far.close()
        tls.close()

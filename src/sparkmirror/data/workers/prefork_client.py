"""Runs in place of a Python that Spark starts: gets a fork of `prefork_server`, waits for its end.

``python -I -S prefork_client.py DIRECTORY -m MODULE ARGUMENTS``. It imports next to nothing,
because its only purpose is to be fast. If the server does not respond, it becomes the Python that
Spark wanted.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import sys
import time

__all__ = ["SOCKET_NAME", "owner"]

SOCKET_NAME = "door"
_POLL_S = 0.2


def owner(peer: socket.socket) -> int:
    """The user at the other end; ours if the system cannot say (the directory is ours)."""
    if not hasattr(socket, "SO_PEERCRED"):
        return os.geteuid()
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    user: int = struct.unpack("3i", credentials)[1]
    return user


def _request_fork(directory: str, arguments: list[str]) -> tuple[socket.socket, int]:
    """The connection that reports the fork's end, and its process id. Raises ``OSError``."""
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # pathlib takes longer to load than all the rest.
    request = {"arguments": arguments, "environment": dict(os.environ), "directory": os.getcwd()}
    text = json.dumps(request).encode()
    peer.connect(f"{directory}/{SOCKET_NAME}")
    if owner(peer) != os.geteuid():
        raise PermissionError("the server is another user's")
    socket.send_fds(peer, [struct.pack(">I", len(text))], [0, 1, 2])
    peer.sendall(text)
    answer = peer.recv(4, socket.MSG_WAITALL)
    if len(answer) < 4:
        raise ConnectionError("no fork")
    return peer, struct.unpack(">i", answer)[0]


def _wait_for_fork(peer: socket.socket, pid: int) -> int:
    """Wait for the end of the fork ``pid``; returns its exit code."""

    def pass_on(number: int, _frame: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    signal.signal(signal.SIGTERM, pass_on)
    # The fork has copies of these. Only its end, not ours, must close them for their readers.
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):
        os.dup2(nothing, stream)
    with contextlib.suppress(OSError):
        answer = peer.recv(4, socket.MSG_WAITALL)
        if len(answer) == 4:
            code: int = struct.unpack(">i", answer)[0]
            return code if code >= 0 else 128 - code
    # The server has ended before its fork.
    with contextlib.suppress(ProcessLookupError):
        while True:
            os.kill(pid, 0)
            time.sleep(_POLL_S)
    return 0


def _main(directory: str, arguments: list[str]) -> int:
    try:
        peer, pid = _request_fork(directory, arguments)
    except OSError:
        # -P: nothing is imported from the current directory, where others may write.
        command = [sys.executable, "-P", *arguments]
        os.execv(sys.executable, command)  # noqa: S606  (nothing in between)
    return _wait_for_fork(peer, pid)


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1], sys.argv[2:]))

"""Runs in place of a Python that Spark starts: gets a fork of `prefork_server`, waits for its end.

``python -I -S prefork_client.py DIRECTORY -m MODULE ARGUMENTS``. It imports next to nothing,
because its only purpose is to be fast: Spark starts half a dozen of these one after another, and
`socket`, `signal`, `json` and `contextlib` take twice as long to load as Python itself. If the
server does not respond, it becomes the Python that Spark wanted.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` without its enums
import _socket
import os
import struct
import sys
import time

__all__ = ["SOCKET_NAME", "Request", "owner"]

SOCKET_NAME = "door"
_POLL_S = 0.2


class Request:
    """What a fork gets: its arguments, its environment and its current directory."""

    def __init__(self, arguments: list[str], environment: dict[str, str], directory: str) -> None:
        self.arguments = arguments
        self.environment = environment
        self.directory = directory

    def encode(self) -> bytes:
        """As texts with a zero byte behind each: the system allows none within them."""
        pairs = [f"{name}={value}" for name, value in self.environment.items()]
        texts = [self.directory, str(len(self.arguments)), *self.arguments, *pairs]
        return b"".join(os.fsencode(text) + b"\0" for text in texts)

    @classmethod
    def decode(cls, data: bytes) -> Request:
        """What `encode` gave. Raises ``ValueError``."""
        directory, count, *texts = map(os.fsdecode, data.split(b"\0")[:-1])
        if not 0 < int(count) <= len(texts):
            raise ValueError(f"a request with {len(texts)} of {count} arguments")
        pairs = (text.partition("=") for text in texts[int(count) :])
        return cls(texts[: int(count)], {name: value for name, _, value in pairs}, directory)


def owner(peer: _socket.socket) -> int:
    """The user at the other end; ours if the system cannot say (the directory is ours)."""
    if not hasattr(_socket, "SO_PEERCRED"):
        return os.geteuid()
    credentials = peer.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, struct.calcsize("3i"))
    user: int = struct.unpack("3i", credentials)[1]
    return user


def _request_fork(directory: str, arguments: list[str]) -> tuple[_socket.socket, int]:
    """The connection that reports the fork's end, and its process id. Raises ``OSError``."""
    peer = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    data = Request(arguments, dict(os.environ), os.getcwd()).encode()
    peer.connect(f"{directory}/{SOCKET_NAME}")
    if owner(peer) != os.geteuid():
        raise PermissionError("the server is another user's")
    streams = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, struct.pack("3i", 0, 1, 2))
    peer.sendmsg([struct.pack(">I", len(data))], [streams])
    peer.sendall(data)
    answer = peer.recv(4, _socket.MSG_WAITALL)
    if len(answer) < 4:
        raise ConnectionError("no fork")
    return peer, struct.unpack(">i", answer)[0]


def _wait_for_fork(peer: _socket.socket, pid: int) -> int:
    """Wait for the end of the fork ``pid``; returns its exit code."""

    def pass_on(number: int, _frame: object) -> None:
        _kill(pid, number)

    _signal.signal(_signal.SIGTERM, pass_on)
    # The fork has copies of these. Only its end, not ours, must close them for their readers.
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):
        os.dup2(nothing, stream)
    try:
        answer = peer.recv(4, _socket.MSG_WAITALL)
    except OSError:
        answer = b""
    if len(answer) == 4:
        code: int = struct.unpack(">i", answer)[0]
        return code if code >= 0 else 128 - code
    # The server has ended before its fork.
    while _kill(pid, 0):
        time.sleep(_POLL_S)
    return 0


def _kill(pid: int, number: int) -> bool:
    """Send a signal; returns whether the process was there."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


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

"""What Spark starts in place of Python: asks `prefork_server` for a fork, stands for it to its end.

``python -I -S prefork_client.py DIRECTORY -m MODULE ARGUMENTS``. It imports next to nothing, since
all that it is for is to be quick. Where nobody opens, it becomes the Python that was asked for.
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

__all__ = ["DOOR", "owner"]

DOOR = "door"
_POLL_S = 0.2


def owner(peer: socket.socket) -> int:
    """The user at the other end; ours where the system does not tell (the directory is ours)."""
    if not hasattr(socket, "SO_PEERCRED"):
        return os.geteuid()
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    user: int = struct.unpack("3i", credentials)[1]
    return user


def _ask(directory: str, arguments: list[str]) -> tuple[socket.socket, int]:
    """The connection on which the fork's end is told, and its process id. Raises ``OSError``."""
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # pathlib takes longer to load than all the rest.
    request = {"arguments": arguments, "environment": dict(os.environ), "directory": os.getcwd()}
    text = json.dumps(request).encode()
    peer.connect(f"{directory}/{DOOR}")
    if owner(peer) != os.geteuid():
        raise PermissionError("another user opens")
    socket.send_fds(peer, [struct.pack(">I", len(text))], [0, 1, 2])
    peer.sendall(text)
    answer = peer.recv(4, socket.MSG_WAITALL)
    if len(answer) < 4:
        raise ConnectionError("no fork")
    return peer, struct.unpack(">i", answer)[0]


def _stand_for(peer: socket.socket, pid: int) -> int:
    """Wait for the end of the fork ``pid``; its exit code."""

    def pass_on(number: int, _frame: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    signal.signal(signal.SIGTERM, pass_on)
    # The fork has copies: who reads from it must see its end, not ours.
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):
        os.dup2(nothing, stream)
    with contextlib.suppress(OSError):
        answer = peer.recv(4, socket.MSG_WAITALL)
        if len(answer) == 4:
            code: int = struct.unpack(">i", answer)[0]
            return code if code >= 0 else 128 - code
    # The nursery has ended before its fork.
    with contextlib.suppress(ProcessLookupError):
        while True:
            os.kill(pid, 0)
            time.sleep(_POLL_S)
    return 0


def _main(directory: str, arguments: list[str]) -> int:
    try:
        peer, pid = _ask(directory, arguments)
    except OSError:
        # Not from the current directory, which is anybody's.
        command = [sys.executable, "-P", *arguments]
        os.execv(sys.executable, command)  # noqa: S606  (nothing in between)
    return _stand_for(peer, pid)


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1], sys.argv[2:]))

"""What a stranger can send to Spark's ports: frames of its own protocol, made by hand."""

from __future__ import annotations

import socket
import struct
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

REQUEST, ANSWER, FAILURE, ONE_WAY = 3, 4, 5, 9
_HEAD = struct.Struct(">qB")
_ADDRESSED = struct.Struct(">qi")
_FRAME_BYTES_MAX = 1 << 24


@dataclass(frozen=True)
class Answer:
    """``kind``: one of the frame types above, 0 where nothing, or no frame, came back."""

    kind: int
    body: bytes = b""


def serialized(jvm: Any, value: Any) -> bytes:
    """A Java object as Spark sends it; ``jvm``: py4j's view of any JVM with Spark's classes."""
    stream = jvm.java.io.ByteArrayOutputStream()
    jvm.java.io.ObjectOutputStream(stream).writeObject(value)
    return bytes(stream.toByteArray())


def instance(jvm: Any, name: str, *arguments: Any) -> Any:
    """A Scala case class made with ``arguments``; a case object without."""
    kind = jvm.java.lang.ClassLoader.getSystemClassLoader().loadClass(name)
    if not arguments:
        return kind.getField("MODULE$").get(None)
    values = jvm.java.util.ArrayList()
    for argument in arguments:
        values.add(argument)
    return kind.getConstructors()[0].newInstance(values.toArray())


def message(host: str, port: int, endpoint: str, content: bytes) -> bytes:
    """What a frame carries: no sender, the receiver's address and name, a Java object."""
    name, place = endpoint.encode(), host.encode()
    receiver = struct.pack(f">BH{len(place)}si", 1, len(place), place, port)
    return b"\0" + receiver + struct.pack(f">H{len(name)}s", len(name), name) + content


def tell(host: str, port: int, body: bytes) -> None:
    """A message that nobody answers; returns when the server has hung up, or read it."""
    with _connected(host, port) as peer:
        peer.sendall(_framed(ONE_WAY, struct.pack(">i", len(body)) + body))
        _ask(peer, body)  # the frames of a connection are read in order


def ask(host: str, port: int, body: bytes) -> Answer:
    """A request, and what came back."""
    with _connected(host, port) as peer:
        return _ask(peer, body)


def _ask(peer: socket.socket, body: bytes) -> Answer:
    number = uuid.uuid4().int >> 66
    try:
        # And the end of a line, for whoever reads lines: py4j's gateway refuses this one at once.
        peer.sendall(_framed(REQUEST, _ADDRESSED.pack(number, len(body)) + body) + b"\n")
        size, kind = _HEAD.unpack(_read(peer, _HEAD.size))
        if not _HEAD.size <= size <= _FRAME_BYTES_MAX:
            return Answer(0)  # words of py4j's gateway, not a frame
        rest = _read(peer, size - _HEAD.size)
    except ConnectionError:
        return Answer(0)
    assert _ADDRESSED.unpack_from(rest)[0] == number
    return Answer(kind, rest[_ADDRESSED.size :])


def _framed(kind: int, rest: bytes) -> bytes:
    return _HEAD.pack(_HEAD.size + len(rest), kind) + rest


@contextmanager
def _connected(host: str, port: int) -> Iterator[socket.socket]:
    with socket.create_connection((host, port), timeout=120) as peer:
        yield peer


def _read(peer: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = peer.recv(size - len(data))
        if not part:
            raise ConnectionResetError("the server has hung up")
        data += part
    return data

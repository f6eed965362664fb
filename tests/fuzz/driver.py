"""What the driver's client reads: answers of every API that it uses, and internal topics' records.

kafka-python decodes most of it; `sparkmirror.wire.net.kafka_python_limits` bounds it. Large answers
are read by ours (`sparkmirror.wire.admin.raw_responses`). Answers are made from the schemas of its
own messages, so every field of every version is met.
"""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time
from functools import cache
from random import Random
from types import SimpleNamespace
from typing import Any

from kafka.protocol.admin import DescribeAclsResponse, DescribeConfigsResponse
from kafka.protocol.api_header import ResponseClassRegistry
from kafka.protocol.consumer import OffsetFetchResponse
from kafka.protocol.metadata import MetadataResponse

from sparkmirror.errors import BatchError
from sparkmirror.model import TopicPartition
from sparkmirror.settings import ClusterClient
from sparkmirror.wire.admin import (
    cluster,  # noqa: F401  (they register APIs)
    inspector,  # noqa: F401  (they register APIs)
)
from sparkmirror.wire.admin.acl_answers import read_acls
from sparkmirror.wire.admin.config_decoder import ConfigReader
from sparkmirror.wire.admin.groups import read_offsets
from sparkmirror.wire.admin.leaders import read_metadata
from sparkmirror.wire.admin.raw_responses import DecodeCache, RawResponse
from sparkmirror.wire.admin.topic_reader import TopicTail
from sparkmirror.wire.group import session  # noqa: F401  (they register APIs)
from sparkmirror.wire.net.connection import Connection, ConnectionLost
from sparkmirror.wire.net.framing import FramedSocket
from sparkmirror.wire.net.kafka_python_limits import UNREADABLE
from sparkmirror.wire.net.shared_connection import SharedConnection
from sparkmirror.wire.produce import transactions  # noqa: F401  (they register APIs)
from sparkmirror.wire.protocol_errors import UnreadableResponse
from tests.fuzz.inputs import batches, bomb, mutated

__all__ = ["admin", "internal", "large", "received", "response_frame", "responses"]

_ID = 77
_BUFFERED_BYTES = 32 << 10  # any socket's buffers take as much
_MANY = (2_000, 20_000, 100_000)


_CONFIGS = ConfigReader()  # one for all answers, as in a cluster
_LARGE = (
    (DescribeConfigsResponse, 0, _CONFIGS.read),
    (DescribeAclsResponse, 0, DecodeCache(read_acls).read),
    (MetadataResponse, 1, DecodeCache(read_metadata).read),
    (OffsetFetchResponse, 8, DecodeCache(read_offsets).read),
)


@cache
def responses() -> list[Any]:
    """The classes of the answers that the driver may get."""
    found = ResponseClassRegistry._response_class_registry
    return [found[key] for key in sorted(found)]


class _Peer(Connection):
    """A connection to a broker that has sent ``data``, and then ends it."""

    def __init__(self, data: bytes, versions: dict[int, tuple[int, int]]) -> None:
        FramedSocket.__init__(self, "broker", 9092)
        ours, brokers = socket.socketpair()
        ours.settimeout(5.0)
        self._use(ours)
        self._versions = versions
        self._login_at = math.inf
        if len(data) > _BUFFERED_BYTES:
            threading.Thread(target=_send, args=(brokers, data)).start()
        else:
            _send(brokers, data)

    def send_message(self, message: Any, version: int) -> int:
        """Nothing goes out."""
        message.encode(version=version)
        return _ID


def _send(brokers: socket.socket, data: bytes) -> None:
    with brokers, contextlib.suppress(OSError):
        brokers.sendall(data)


def received(kind: Any, version: int, data: bytes) -> Any:
    """What a request gets for which the broker sends ``data``, a frame with its size."""
    message = SimpleNamespace(
        name=kind.name, API_KEY=kind.API_KEY, max_version=version, min_version=version,
        _max_version=None, _min_version=None, encode=lambda version: b"",
        header=SimpleNamespace(get_response_class=lambda: kind[version]),
    )  # fmt: skip
    peer = SharedConnection(_Peer(data, {kind.API_KEY: (version, version)}))
    try:
        return peer.request(message, time.monotonic() + 10)
    finally:
        peer.close()


def admin(rng: Random) -> None:
    """One answer to a request of the driver's; one that cannot be read ends the connection."""
    kind = rng.choice(responses())
    version = rng.randrange(kind.max_version + 1)
    frame = response_frame(kind, version, rng)
    if rng.random() < 0.9:
        frame = mutated(frame, rng)
    size = len(frame) if rng.random() < 0.8 else rng.choice((0, 3, 2**20, 2**26, 2**31 - 1, -1))
    data = size.to_bytes(4, "big", signed=True) + frame
    try:
        assert type(received(kind, version, data)) is kind[None]
    except (UnreadableResponse, ConnectionLost):
        return


def large(rng: Random) -> None:
    """One of the answers that we read ourselves."""
    kind, lowest, read = rng.choice(_LARGE)
    version = rng.randrange(lowest, kind.max_version + 1)
    frame = response_frame(kind, version, rng)[5 if kind.flexible_version_q(version) else 4 :]
    whole = rng.random() < 0.1
    data = frame if whole else mutated(frame, rng)
    try:
        read(RawResponse(version, data, throttles_from=3))
    except UNREADABLE:
        assert not whole


def internal(rng: Random) -> None:
    """Record batches as `TopicTail` gets them."""
    data = bomb(rng) if rng.random() < 0.02 else batches(rng)
    tp = TopicPartition("t", 0)
    link = SimpleNamespace(client=ClusterClient("A", ("a:1",), "fuzz"), closes=0)
    passes = rng.random() < 0.5
    tail = TopicTail(link, link, {tp: (0, 1 << 60)}, passes=passes)  # type: ignore[arg-type]
    part = SimpleNamespace(
        error_code=0, records=data, aborted_transactions=None, high_watermark=rng.randrange(1 << 20)
    )
    try:
        for _, key, _ in tail._taken(tp, part):
            assert key is None or len(key) <= len(data) << 16
    except BatchError:
        assert not passes


# --- answers from schemas -----------------------------------------------------------------------


def response_frame(kind: Any, version: int, rng: Random) -> bytes:
    """A valid answer of any content, without its size."""
    flexible = kind.flexible_version_q(version)
    # The answer to ApiVersions has the old header always, so that every client can read it.
    head = _ID.to_bytes(4, "big") + (b"\0" if flexible and kind.API_KEY != 18 else b"")
    out = bytearray(head)
    # One of its arrays may be a long one.
    room = [rng.choice(_MANY)] if rng.random() < 0.03 else []
    _struct(out, kind._struct, version, flexible, rng, room)
    return bytes(out)


def _struct(
    out: bytearray, struct: Any, version: int, flexible: bool, rng: Random, room: list[int]
) -> None:
    for field in struct.untagged_fields(version):
        _field(out, field, version, flexible, rng, room)
    if flexible:
        tags = rng.choice((0, 0, 0, 1, 3))
        out.append(tags)
        for _ in range(tags):
            value = rng.randbytes(rng.randrange(6))
            out += bytes((99, len(value))) + value


def _field(
    out: bytearray, field: Any, version: int, flexible: bool, rng: Random, room: list[int]
) -> None:
    if field.is_array():
        count = room.pop() if room and rng.random() < 0.5 else rng.choice((0, 1, 1, 2))
        out += _count(count, flexible, 4)
        inner = bytearray()
        for number in range(count):
            if number < 50:  # the rest of a long one repeats
                inner = bytearray()
                if field.is_struct_array():
                    _struct(inner, field.array_of, version, flexible, rng, [])
                else:
                    _simple(inner, field.array_of, flexible, rng)
            out += inner
    elif field.is_struct():
        if field.nullable_for_version_q(version):
            out.append(1)
        _struct(out, field, version, flexible, rng, room)
    else:
        _simple(out, field, flexible, rng)


def _simple(out: bytearray, field: Any, flexible: bool, rng: Random) -> None:
    kind = field._type_str
    if kind in ("string", "bytes", "records"):
        data = rng.choice((b"", b"a", "käse".encode(), b"x" * 300))
        out += _count(len(data), flexible, 2 if kind == "string" else 4) + data
    elif kind == "uuid":
        out += rng.randbytes(16)
    else:
        out += rng.choice((bytes(field._type.size), rng.randbytes(field._type.size)))


def _count(count: int, flexible: bool, size: int) -> bytes:
    if not flexible:
        return count.to_bytes(size, "big")
    value, out = count + 1, bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes((*out, value))

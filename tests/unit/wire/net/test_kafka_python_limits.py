"""What kafka-python makes of hostile answers, with the bounds of `kafka_python_limits`."""

from __future__ import annotations

import socket
import struct
import tracemalloc
import types
from collections.abc import Coroutine, Iterator
from random import Random
from types import SimpleNamespace
from typing import Any

import kafka.errors as kafka_errors
import kafka.net.connection as connecting
import pytest
from kafka.net import transport
from kafka.net.inet import KafkaNetSocket, create_connection
from kafka.protocol.admin import ListGroupsResponse
from kafka.protocol.metadata import ApiVersionsResponse
from kafka.protocol.schemas.fields.struct import StructField
from kafka.record.memory_records import MemoryRecords

from sparkmirror.errors import CorruptBatch
from sparkmirror.records.records import Record, encode_batch
from sparkmirror.testing.probe import free_ports
from sparkmirror.wire.admin.requester import client_options
from sparkmirror.wire.net import kafka_python_limits
from sparkmirror.wire.net.kafka_python_limits import FRAME_BYTES_MAX, passing_over
from tests.fuzz.driver import response_frame, responses
from tests.unit.wire.test_hostile_answers import CLIENT

HEAD = struct.pack(">ih", 0, 0)


def count(number: int) -> bytes:
    """Of a compact array with ``number`` elements."""
    value, out = number + 1, bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes((*out, value))


def test_a_number_without_end_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="more than five bytes"):
        ListGroupsResponse.decode(HEAD + b"\xff" * (8 << 20), version=4)


def test_tags_cost_what_they_hold() -> None:
    """Not the rest of the answer each, which would be hours for these."""
    tagged = b"\1\1\1" + b"\1\x63\0"
    assert StructField._emit_tagged_decode is kafka_python_limits._emit_tags
    answer = ListGroupsResponse.decode(HEAD + count(300_000) + tagged * 300_000 + b"\0", version=4)
    assert len(answer.groups) == 300_000
    with pytest.raises(ValueError, match="longer than the response"):
        ListGroupsResponse.decode(HEAD + count(1) + b"\1\1\1" + b"\1\x63\x7f" + b"\0", version=4)


def test_known_tags_are_read_and_others_left_out() -> None:
    versions = ApiVersionsResponse(
        error_code=0, api_keys=[], throttle_time_ms=0, finalized_features_epoch=7
    )
    data = bytes(versions.encode(version=3))
    assert ApiVersionsResponse.decode(data, version=3).finalized_features_epoch == 7
    assert data[-11:-8] == b"\1\1\x08", "one tag, number 1, eight bytes"
    more = data[:-11] + b"\2" + data[-10:] + b"\x63\2ab"
    again = ApiVersionsResponse.decode(more, version=3)
    assert again.finalized_features_epoch == 7
    assert again.unknown_tags is None


def test_an_answer_of_small_elements_costs_a_bounded_multiple() -> None:
    frame = HEAD + count(100_000) + b"\1\1\1\0" * 100_000 + b"\0"
    tracemalloc.start()
    try:
        answer = ListGroupsResponse.decode(frame, version=4)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(answer.groups) == 100_000
    assert peak < 32 * len(frame)
    assert client_options(CLIENT)["receive_message_max_bytes"] == FRAME_BYTES_MAX


def test_every_answer_is_read_as_before() -> None:
    """Valid ones of all APIs and versions, made from the schemas, come back whole."""
    seed = Random(3)
    for kind in responses():
        for version in range(kind.max_version + 1):
            frame = response_frame(kind, version, seed)
            if kind.API_KEY == 18:  # with an error it is one of version 0
                frame = frame[:4] + bytes(2) + frame[6:]
            with_head = kind[version].decode(frame, header=True)
            assert type(with_head) is kind[None]


def protocol(kind: Any, version: int) -> Any:
    """As of a connection that waits for an answer of ``kind``."""
    found = connecting.KafkaProtocol(receive_message_max_bytes=FRAME_BYTES_MAX)
    header = SimpleNamespace(correlation_id=1, get_response_class=lambda: kind[version])
    found.in_flight_requests.append(header)
    return found


@pytest.mark.parametrize(
    "answer",
    [
        b"\0\0\0\1\0" + HEAD + b"\xff" * 9,  # a number without end
        b"\0\0\0\1\0" + HEAD + count(3),  # elements that are not there
        b"\0\0\0\1\0" + HEAD + count(1) + b"\2\xff\1\1\0\0",  # no UTF-8
        b"\0\0\0\2\0" + HEAD + count(0) + b"\0",  # the answer to another request
    ],
)
def test_what_cannot_be_read_ends_the_connection(
    answer: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    framed = len(answer).to_bytes(4, "big") + answer
    with pytest.raises(kafka_errors.KafkaProtocolError):
        protocol(ListGroupsResponse, 4).receive_bytes(framed)
    assert "buffer" not in caplog.text, "the bytes of a hostile answer are not logged"


@pytest.mark.parametrize("size", [-1, FRAME_BYTES_MAX + 1, 2**31 - 1])
def test_a_size_that_no_answer_has_ends_it_too(size: int) -> None:
    with pytest.raises(kafka_errors.InvalidReceiveError):
        protocol(ListGroupsResponse, 4).receive_bytes(struct.pack(">i", size))


@pytest.mark.parametrize("kind", [transport.KafkaTCPTransport, transport.KafkaSSLTransport])
def test_a_peer_that_never_stops_is_read_in_portions(kind: Any) -> None:
    endless = SimpleNamespace(_sock=SimpleNamespace(recv=bytes))
    data, error = kind._sock_recv(endless)
    assert error is None
    assert len(data) == 4 << 20


def test_records_are_unpacked_within_bounds() -> None:
    """By codecs that kafka-python has no package for here."""
    for codec in (1, 2, 3, 4):
        fits = encode_batch([Record(0, 1, b"k", bytes(1 << 20))], codec=codec)
        (record,) = MemoryRecords(fits).next_batch()
        assert (record.key, record.value) == (b"k", bytes(1 << 20))
        bomb = encode_batch([Record(0, 1, b"k", bytes(33 << 20))], codec=codec)
        with pytest.raises(CorruptBatch, match="unpacks to more than"):
            list(MemoryRecords(bomb).next_batch())
        # Where others can write, it hides nothing of what stands behind it.
        both = MemoryRecords(bomb + fits)
        with passing_over():
            read = [[record.key for record in both.next_batch()] for _ in range(2)]
        assert read == [[], [b"k"]]
    odd = encode_batch([Record(n, 1, b"k", None) for n in range(2)])[:-1] + b"\x7f"  # 63 headers
    with passing_over():
        assert len(list(MemoryRecords(odd).next_batch())) == 1
    with pytest.raises(kafka_errors.CorruptRecordError):
        list(MemoryRecords(odd).next_batch())


@pytest.mark.parametrize("ends", ["refused", "the loop ends"])
def test_a_socket_that_does_not_connect_is_closed(
    monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """Else it is open for as long as anybody keeps the error, a log's records included."""
    made: list[socket.socket] = []
    make = KafkaNetSocket.socket
    monkeypatch.setattr(
        KafkaNetSocket, "socket", lambda *args: made.append(make(*args)) or made[-1]
    )

    @types.coroutine
    def wait_write(*_: object, **__: object) -> Iterator[None]:
        yield

    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        port = server.getsockname()[1] if ends == "the loop ends" else free_ports(1)[0]
        connecting = create_connection(SimpleNamespace(wait_write=wait_write), "127.0.0.1", port)
        if ends == "refused":
            with pytest.raises(kafka_errors.KafkaConnectionError):
                _run(connecting)
        else:
            connecting.send(None)
            assert made[0].fileno() >= 0
            connecting.close()
    assert [sock.fileno() for sock in made] == [-1]


def _run(task: Coroutine[None, None, object]) -> None:
    while True:
        task.send(None)

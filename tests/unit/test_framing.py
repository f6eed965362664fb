"""Answers that are read ahead: together, in pieces, and in front of other reads."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from sparkmirror.wire.framing import ConnectionLost, FramedSocket

ANSWERS = [struct.pack(">i", number) + b"x" * (3 * number) for number in range(4)]
SENT = b"".join(struct.pack(">i", len(answer)) + answer for answer in ANSWERS)


class Framed(FramedSocket):
    """One end of a pair of sockets."""

    def __init__(self, connected: socket.socket) -> None:
        super().__init__("broker", 9092)
        connected.settimeout(10.0)
        self._use(connected)


@pytest.fixture
def ends() -> Iterator[tuple[Framed, socket.socket]]:
    ours, brokers = socket.socketpair()
    with ours, brokers:
        yield Framed(ours), brokers


Ends = tuple[Framed, socket.socket]


def _drain(framed: Framed) -> list[bytes]:
    """What one look at a readable socket brings."""
    found = [bytes(framed.receive_ahead())]
    while framed.has_ahead():
        found.append(bytes(framed.receive_ahead()))
    return found


def test_answers_that_are_there_are_read_together(ends: Ends) -> None:
    framed, broker = ends
    broker.sendall(SENT)
    assert _drain(framed) == ANSWERS
    assert not framed.readable()


@pytest.mark.parametrize("cut", range(1, len(SENT)))
def test_answers_may_come_in_pieces(ends: Ends, cut: int) -> None:
    framed, broker = ends
    broker.sendall(SENT[:cut])
    found: list[bytes] = []
    if cut >= 4 + len(ANSWERS[0]):
        found += _drain(framed)
        assert not framed.readable(), "the rest of an answer has not come"
    broker.sendall(SENT[cut:])
    while len(found) < len(ANSWERS):
        found += _drain(framed)
    assert found == ANSWERS


def test_a_large_answer_is_read_to_its_end(ends: Ends) -> None:
    framed, broker = ends
    large = b"c" * 40_000
    broker.sendall(SENT + struct.pack(">i", len(large)) + large + SENT)
    found: list[bytes] = []
    while framed.readable():
        found += _drain(framed)
    assert found == [*ANSWERS, large, *ANSWERS]


def test_an_answer_larger_than_the_sockets_buffers_is_read_to_its_end(ends: Ends) -> None:
    framed, broker = ends
    large = struct.pack(">i", 7) + b"d" * (4 << 20)
    sender = threading.Thread(
        target=broker.sendall, args=(struct.pack(">i", len(large)) + large,), daemon=True
    )
    sender.start()
    assert bytes(framed.receive_frame()) == large
    sender.join(10)
    assert not sender.is_alive()


def test_what_was_read_ahead_is_there_for_whoever_reads_next(ends: Ends) -> None:
    framed, broker = ends
    broker.sendall(SENT)
    assert framed.receive_ahead() == ANSWERS[0]
    assert framed.readable()
    assert [framed.receive_frame() for _ in ANSWERS[1:]] == ANSWERS[1:]
    assert not framed.readable()


@pytest.mark.parametrize("size", [-1, 0, 3, 1 << 30])
def test_a_size_that_no_answer_has_ends_the_connection(ends: Ends, size: int) -> None:
    framed, broker = ends
    broker.sendall(struct.pack(">i", size) + b"abcdef")
    with pytest.raises(ConnectionLost, match=f"broker:9092: nonsense frame of {size} bytes"):
        framed.receive_ahead()


@pytest.mark.parametrize("sent", [b"", SENT[:2], SENT[:6]])
def test_a_broker_that_hangs_up_is_told(ends: Ends, sent: bytes) -> None:
    framed, broker = ends
    broker.sendall(sent)
    broker.shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionLost, match="broker:9092: the broker closed the connection"):
        framed.receive_ahead()


def test_an_answer_that_stops_half_way_times_out(ends: Ends) -> None:
    framed, broker = ends
    framed.socket.settimeout(0.01)
    broker.sendall(SENT[:6])
    with pytest.raises(ConnectionLost, match="broker:9092: timed out"):
        framed.receive_ahead()

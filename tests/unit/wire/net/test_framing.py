"""Answers that are read ahead: together, in pieces, and in front of other reads."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sparkmirror.wire.net.framing import ConnectionLost, FramedSocket, ReceiveBuffer
from sparkmirror.wire.net.poller import Poller
from tests.certificates import Authority
from tests.patience import patience

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
    found: list[bytes] = []
    while not found or framed.has_ahead():
        answer = framed.receive_ahead()
        if answer is None:
            break
        found.append(bytes(answer))
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
    with pytest.raises(ConnectionLost, match=rf"broker:9092: invalid frame size \({size} bytes\)"):
        framed.receive_ahead()


@pytest.mark.parametrize("sent", [b"", SENT[:2], SENT[:6]])
def test_a_broker_that_hangs_up_is_told(ends: Ends, sent: bytes) -> None:
    framed, broker = ends
    broker.sendall(sent)
    broker.shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionLost, match="broker:9092: the broker closed the connection"):
        framed.receive_ahead()


@pytest.mark.parametrize("cut", [1, 3, 4, 6, 7])
def test_a_small_answer_that_stops_half_way_keeps_nobody_waiting(ends: Ends, cut: int) -> None:
    framed, broker = ends
    broker.sendall(SENT[:cut])
    began = time.monotonic()
    assert framed.receive_ahead() is None
    assert framed.receive_ahead() is None
    assert time.monotonic() - began < 5.0  # the socket's own timeout is ten seconds
    assert not framed.readable()
    broker.sendall(SENT[cut:])
    assert _drain(framed) == ANSWERS


# -- answers that come bit by bit ----------------------------------------------------------------

LARGE = struct.pack(">i", 7) + bytes(n % 251 for n in range(100_000))
LARGE_SENT = struct.pack(">i", len(LARGE)) + LARGE


@pytest.mark.parametrize("cut", [1, 3, 4, 5, 60_000, len(LARGE_SENT) - 1])
def test_an_answer_that_pauses_keeps_nobody_waiting(ends: Ends, cut: int) -> None:
    framed, broker = ends
    buffer = ReceiveBuffer()
    broker.sendall(LARGE_SENT[:cut])
    began = time.monotonic()
    assert framed.receive_available(buffer) is None
    assert framed.receive_available(buffer) is None
    assert time.monotonic() - began < 5.0  # the socket's own timeout is ten seconds
    buffer.view(len(LARGE))[:] = bytes(len(LARGE))  # another broker's answer
    broker.sendall(LARGE_SENT[cut:])
    frame = framed.receive_available(buffer)
    assert frame is not None
    assert bytes(frame) == LARGE


def test_an_answer_may_come_byte_by_byte_and_the_next_one_at_once(ends: Ends) -> None:
    framed, broker = ends
    buffer = ReceiveBuffer()
    small = struct.pack(">i", 8) + b"abc"
    found = []
    for byte in struct.pack(">i", len(small)) + small:
        broker.sendall(bytes([byte]))
        found.append(framed.receive_available(buffer))
    assert found[:-1] == [None] * (len(found) - 1)
    assert found[-1] == small
    broker.sendall(LARGE_SENT)
    frame = framed.receive_available(buffer)
    assert frame is not None
    assert bytes(frame) == LARGE


def test_an_answer_that_comes_without_a_pause_goes_straight_into_the_buffer(ends: Ends) -> None:
    framed, broker = ends
    sender = threading.Thread(target=broker.sendall, args=(LARGE_SENT,), daemon=True)
    sender.start()
    buffer = ReceiveBuffer()
    while (frame := framed.receive_available(buffer)) is None:
        pass  # on a busy machine the sender may pause
    assert frame.obj is buffer.view(1).obj
    assert bytes(frame) == LARGE
    sender.join(10)


@pytest.mark.parametrize("cut", [0, 2, 4, 50_000])
def test_a_broker_that_hangs_up_in_an_answer_is_told(ends: Ends, cut: int) -> None:
    framed, broker = ends
    buffer = ReceiveBuffer()
    if cut:
        broker.sendall(LARGE_SENT[:cut])
        assert framed.receive_available(buffer) is None
    broker.shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionLost, match="broker:9092: the broker closed the connection"):
        framed.receive_available(buffer)


# -- frames that the socket does not take at once ------------------------------------------------


def _received(brokers: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        found += brokers.recv(min(1 << 20, size - len(found)))
    return bytes(found)


def test_a_frame_that_fits_is_gone_at_once(ends: Ends) -> None:
    framed, brokers = ends
    framed.begin_frame([b"head", memoryview(b""), b"body"], 8)
    assert not framed.unsent
    assert brokers.recv(100) == b"\0\0\0\x08headbody"
    assert framed.go_on_sending()


def test_what_a_full_socket_does_not_take_follows_when_there_is_room(ends: Ends) -> None:
    framed, brokers = ends
    poller: Poller[FramedSocket] = Poller()
    framed.watched_by(poller)
    parts = [bytes([number % 251]) * 1_000 for number in range(3_000)]
    began = time.monotonic()
    framed.begin_frame(parts, 3_000_000)
    assert time.monotonic() - began < 5, "nobody reads, and nobody waits"
    assert framed.unsent
    assert poller.wait() == [], "it takes nothing yet"
    framed.copy_unsent()
    found = bytearray()
    brokers.setblocking(False)
    while framed.unsent:
        with contextlib.suppress(BlockingIOError):
            found += brokers.recv(1 << 20)
        if poller.wait(0.01) == [framed]:
            framed.go_on_sending()
    assert poller.wait() == [], "whoever has sent all wants no word of room"
    brokers.setblocking(True)
    found += _received(brokers, 3_000_004 - len(found))
    assert bytes(found) == struct.pack(">i", 3_000_000) + b"".join(parts)


def test_what_the_other_host_has_is_told_from_what_is_under_way() -> None:
    """Also of what the system has taken and not delivered yet."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        framed = Framed(socket.create_connection(server.getsockname()))
        brokers, _ = server.accept()
    size = 32 << 20  # more than both systems keep
    framed.begin_frame([bytes(size)], size)
    before, left = framed.delivery()
    assert framed.unsent
    assert before + left == size + 4
    brokers.setblocking(False)
    found = 0
    while found < size + 4:
        with contextlib.suppress(BlockingIOError):
            found += len(brokers.recv(1 << 20))
        framed.go_on_sending()
        delivered, left = framed.delivery()
        assert delivered >= max(found, before)
        assert delivered + left == size + 4
        before = delivered
    framed.begin_frame([b"next"], 4)
    deadline = time.monotonic() + patience()
    while framed.delivery() != (size + 12, 0):
        assert time.monotonic() < deadline
    framed.close()
    brokers.close()
    assert framed.delivery() == (0, 0)


def test_whoever_is_gone_takes_nothing(ends: Ends) -> None:
    framed, brokers = ends
    framed.begin_frame([bytes(3_000_000)], 3_000_000)
    brokers.close()
    with pytest.raises(ConnectionLost):
        framed.go_on_sending()


def test_a_frame_that_does_not_fit_goes_through_tls_as_well(tmp_path: Path) -> None:
    certified = Authority().certify("broker", "127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certified.pem_file(tmp_path / "server.pem"))
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    ours, brokers = socket.socketpair()
    with ThreadPoolExecutor(1) as pool:
        shaken = pool.submit(context.wrap_socket, brokers, server_side=True)
        framed = Framed(trusting.wrap_socket(ours))
        poller: Poller[FramedSocket] = Poller()
        framed.watched_by(poller)
        with shaken.result() as far, framed.socket:
            parts = [b"head", *(bytes([number]) * 400_000 for number in range(9)), b"tail"]
            size = sum(map(len, parts))
            framed.begin_frame(parts, size)
            assert framed.unsent
            reading = pool.submit(_received, far, size + 4)
            while not framed.go_on_sending():
                poller.wait(1.0)
            assert reading.result(30) == struct.pack(">i", size) + b"".join(parts)
            assert framed.socket.gettimeout() == 10.0


def test_an_answer_comes_bit_by_bit_through_tls_as_well(tmp_path: Path) -> None:
    certified = Authority().certify("broker", "127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certified.pem_file(tmp_path / "server.pem"))
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    ours, brokers = socket.socketpair()
    with ThreadPoolExecutor(1) as pool:
        shaken = pool.submit(context.wrap_socket, brokers, server_side=True)
        ours.settimeout(10.0)
        framed = Framed(trusting.wrap_socket(ours))
        poller: Poller[FramedSocket] = Poller()
        framed.watched_by(poller)
        with shaken.result() as far, framed.socket:
            buffer = ReceiveBuffer()
            far.sendall(LARGE_SENT[:50_000])
            assert framed.receive_available(buffer) is None
            assert framed.socket.gettimeout() == 10.0
            sending = pool.submit(far.sendall, LARGE_SENT[50_000:])
            frame = None
            while frame is None:
                assert poller.wait(10.0)  # nothing that TLS has decrypted is left behind
                frame = framed.receive_available(buffer)
            assert bytes(frame) == LARGE
            sending.result(10)

"""What the long link of the benchmarks makes of a packet that loses a segment."""

from __future__ import annotations

import socket
import struct

import pytest
from benchmarks.link import FAR, NEAR, QUEUE_S, Narrow, without_segment

VNET, IP_BYTES, TCP_BYTES, SEGMENT = 10, 20, 32, 1448
SEQUENCE = 0xFFFF_FF00
FIN_PSH_ACK = 0x19


def packet(data: bytes, *, protocol: int = socket.IPPROTO_TCP) -> bytes:
    """As the kernel hands it over: a virtio header, IPv4, TCP with timestamps, many segments."""
    size = SEGMENT if len(data) > SEGMENT else 0
    vnet = struct.pack("=BBHHHH", 1, 1 if size else 0, IP_BYTES + TCP_BYTES, size, IP_BYTES, 16)
    total = IP_BYTES + TCP_BYTES + len(data)
    ends = socket.inet_aton(NEAR) + socket.inet_aton(FAR)
    ip = struct.pack(">BBHHHBBH", 0x45, 0, total, 7, 0x4000, 64, protocol, 0) + ends
    tcp = struct.pack(">HHIIBBHHH", 40_000, 9092, SEQUENCE, 1, 0x80, FIN_PSH_ACK, 500, 0, 0)
    return vnet + ip + tcp + bytes(12) + data


def read(one: bytes) -> tuple[int, int, int, int, bytes]:
    """Segment size, IP's length, sequence number, flags, data; IP's checksum is checked."""
    size = struct.unpack_from("=BBHH", one)[3]
    words = struct.unpack_from(">10H", one, VNET)
    total = sum(words)
    assert (total & 0xFFFF) + (total >> 16) == 0xFFFF
    sequence = struct.unpack_from(">I", one, VNET + IP_BYTES + 4)[0]
    flags = one[VNET + IP_BYTES + 13]
    return size, words[1], sequence, flags, one[VNET + IP_BYTES + TCP_BYTES :]


@pytest.mark.parametrize("lost", range(4))
def test_all_segments_but_the_lost_one_arrive_in_place(lost: int) -> None:
    data = bytes(n // 7 % 256 for n in range(3 * SEGMENT + 100))
    pieces = [data[n * SEGMENT : (n + 1) * SEGMENT] for n in range(4)]
    parts = without_segment(packet(data), lost)
    found = {}
    for part in parts:
        size, length, sequence, flags, carried = read(part)
        assert length == IP_BYTES + TCP_BYTES + len(carried)
        assert size == (SEGMENT if len(carried) > SEGMENT else 0)
        at = (sequence - SEQUENCE) % 2**32
        # The end of what was sent is said by its last byte alone.
        assert bool(flags & 0x09) == (at + len(carried) == len(data))
        found |= {at + n: carried[n : n + SEGMENT] for n in range(0, len(carried), SEGMENT)}
    wanted = {n * SEGMENT: piece for n, piece in enumerate(pieces) if n != lost}
    assert found == wanted


def test_a_packet_of_one_segment_is_lost_whole() -> None:
    assert without_segment(packet(b"x" * 100), 0) == []


def test_what_is_not_tcp_is_lost_whole() -> None:
    assert without_segment(packet(b"x" * 100, protocol=socket.IPPROTO_UDP), 0) == []


def test_a_narrow_link_lets_its_bytes_pass_one_after_the_other() -> None:
    link = Narrow(1_000_000)
    assert link.passed(100_000, 5.0, QUEUE_S) == pytest.approx(5.1)
    assert link.passed(50_000, 5.0, QUEUE_S) == pytest.approx(5.15)
    assert link.passed(1_448, 5.0, QUEUE_S) is None, "the queue is full"
    assert link.passed(1_000, 5.1, QUEUE_S) == pytest.approx(5.151)
    assert link.passed(1_000, 9.0, QUEUE_S) == pytest.approx(9.001), "nothing is saved up"


def test_a_link_without_a_limit_holds_nothing_back() -> None:
    link = Narrow(0.0)
    assert [link.passed(1 << 30, 5.0, QUEUE_S) for _ in range(3)] == [5.0] * 3

"""A long link that loses packets: between two addresses of this machine, packet by packet.

usage: python -m benchmarks.link DESCRIPTOR ROUND_TRIP_MS LOSS_PERCENT MB_PER_S

A TUN device has the address `NEAR`, and all of its network leads into it. Whoever connects to
`FAR` meets the forwarder, which keeps each packet for half a round trip and gives it back with its
two addresses exchanged: it arrives at `NEAR`, and the answers take the same way. Both ends are
the kernel's own TCP, with its congestion control, windows and retransmissions, which a proxy that
takes connections apart cannot show. The kernel hands over up to 64 KiB at once (segmentation
offload), so a packet costs one read and one write; a loss takes out one segment of 1,448 bytes.

`Link.at` starts it. A link that is narrow, too, has a queue of `QUEUE_S`: what does not fit is
lost, as in a router. MB_PER_S is of both directions together, 0 for no limit.

Needs root and iproute2. What the forwarder itself can carry is measured without a delay.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import select
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

__all__ = ["FAR", "NEAR", "QUEUE_S", "Link", "Narrow", "available", "without_segment"]

NEAR, FAR = "10.77.0.1", "10.77.0.2"
_DEVICE = "sparkmirror0"
_MTU = 1500
_QUEUE_PACKETS = 20_000
QUEUE_S = 0.1
"""How much a narrow link holds back before it loses packets."""
# linux/if_tun.h and linux/virtio_net.h.
_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
_TUN_F_CSUM, _TUN_F_TSO4 = 0x01, 0x02
_VNET = struct.Struct("=BBHHHH")
_GSO_NONE = 0
_READ_BYTES = _VNET.size + 65_536 + 256
_ADDRESSES = slice(_VNET.size + 12, _VNET.size + 20)
_FIN_PSH = 0x09
# Reads between two looks at what is due.
_READS_MAX = 64


def available() -> bool:
    """Whether this machine lets us make such a link."""
    return os.geteuid() == 0 and shutil.which("ip") is not None and os.path.exists("/dev/net/tun")


@dataclass(frozen=True)
class _Segments:
    """Where a packet with several segments has what: offsets in bytes, after the virtio header."""

    tcp: int
    payload: int
    size: int
    count: int


def _segments(packet: bytes) -> _Segments | None:
    """None: not TCP with data."""
    _, _, _, size, _, _ = _VNET.unpack_from(packet)
    at = _VNET.size
    tcp = (packet[at] & 0x0F) * 4
    if packet[at + 9] != socket.IPPROTO_TCP or len(packet) < at + tcp + 20:
        return None
    payload = tcp + (packet[at + tcp + 12] >> 4) * 4
    data = len(packet) - at - payload
    if data <= 0:
        return None
    size = size or data
    return _Segments(tcp, payload, size, -(-data // size))


def without_segment(packet: bytes, lost: int) -> list[bytes]:
    """What is left of a TCP packet (virtio header first) whose segment ``lost`` does not arrive."""
    there = _segments(packet)
    if there is None:
        return []
    head, data = packet[: _VNET.size + there.payload], packet[_VNET.size + there.payload :]
    first, last = data[: lost * there.size], data[(lost + 1) * there.size :]
    parts = [(0, first, True), ((lost + 1) * there.size, last, False)]
    return [_part(head, there, skipped, part, more=more) for skipped, part, more in parts if part]


def _part(head: bytes, there: _Segments, skipped: int, data: bytes, *, more: bool) -> bytes:
    """A packet of its own for ``data``. ``more``: it is not the last of the original one."""
    new = bytearray(head)
    flags, kind, header, size, start, offset = _VNET.unpack_from(new)
    if len(data) <= there.size:
        kind, size = _GSO_NONE, 0
    _VNET.pack_into(new, 0, flags, kind, header, size, start, offset)
    ip, tcp = _VNET.size, _VNET.size + there.tcp
    struct.pack_into(">H", new, ip + 2, there.payload + len(data))
    struct.pack_into(">H", new, ip + 10, 0)
    struct.pack_into(">H", new, ip + 10, _checksum(new[ip : ip + there.tcp]))
    (sequence,) = struct.unpack_from(">I", new, tcp + 4)
    struct.pack_into(">I", new, tcp + 4, (sequence + skipped) & 0xFFFFFFFF)
    if more:
        new[tcp + 13] &= ~_FIN_PSH & 0xFF
    return bytes(new) + data


def _checksum(header: bytes | bytearray) -> int:
    """Of an IPv4 header whose own field is zero (RFC 1071)."""
    total = sum(struct.unpack(f">{len(header) // 2}H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


class Narrow:
    """When what is sent has passed a link of ``bytes_per_s``; 0: at once. Times in seconds."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at = 0.0

    def passed(self, size: int, now: float, queue_s: float) -> float | None:
        """When ``size`` bytes that come ``now`` have passed; None if the queue is full."""
        if not self._bytes_per_s:
            return now
        if self._free_at - now > queue_s:
            return None
        self._free_at = max(now, self._free_at) + size / self._bytes_per_s
        return self._free_at


class _Forwarder:
    """``loss``: the share of the TCP segments with data that do not arrive."""

    def __init__(self, device: int, delay_s: float, loss: float, bytes_per_s: float) -> None:
        self._device, self._delay_s, self._loss = device, delay_s, loss
        self._narrow = Narrow(bytes_per_s)
        self._random = random.Random(7)
        self._held: deque[tuple[float, bytes]] = deque()
        # Segments until the next one is lost: drawn once for each loss, not for each segment.
        self._until_loss = self._next_loss()

    def run(self) -> None:
        """Forward until the process is ended."""
        poll = select.epoll()
        poll.register(self._device, select.EPOLLIN)
        while True:
            wait_s = max(0.0, self._held[0][0] - time.monotonic()) if self._held else None
            if poll.poll(wait_s):
                self._take()
            self._give()

    def _take(self) -> None:
        now = time.monotonic()
        for _ in range(_READS_MAX):
            try:
                packet = os.read(self._device, _READ_BYTES)
            except BlockingIOError:
                return
            if packet[_VNET.size] >> 4 != 4:
                continue  # IPv6 asks who else is there
            passed = self._narrow.passed(len(packet), now, QUEUE_S)
            if passed is None:
                continue
            for one in self._what_arrives(packet):
                self._held.append((passed + self._delay_s, one))

    def _what_arrives(self, packet: bytes) -> list[bytes]:
        if not self._loss or (there := _segments(packet)) is None:
            return [packet]
        if self._until_loss >= there.count:
            self._until_loss -= there.count
            return [packet]
        lost, self._until_loss = self._until_loss, self._next_loss()
        return without_segment(packet, lost)

    def _next_loss(self) -> int:
        return int(self._random.expovariate(self._loss)) if self._loss else 0

    def _give(self) -> None:
        now = time.monotonic()
        while self._held and self._held[0][0] <= now:
            packet = bytearray(self._held.popleft()[1])
            there = packet[_ADDRESSES]
            packet[_ADDRESSES] = there[4:] + there[:4]  # the checksums stay what they are
            with contextlib.suppress(BlockingIOError):  # the receiver's queue is full: a loss
                os.write(self._device, packet)


class Link:
    """The device and its addresses, as long as a ``with`` block lasts.

    ``congestion``: how TCP meets losses and delays: cubic, bbr, as Linux names them.
    """

    def __init__(self, congestion: str) -> None:
        self._congestion = congestion
        self._device = -1

    def __enter__(self) -> Self:
        self._device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        flags = _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR
        fcntl.ioctl(self._device, _TUNSETIFF, struct.pack("16sH22x", _DEVICE.encode(), flags))
        fcntl.ioctl(self._device, _TUNSETOFFLOAD, _TUN_F_CSUM | _TUN_F_TSO4)
        queue = ("txqueuelen", str(_QUEUE_PACKETS))
        route = ("dev", _DEVICE, "src", NEAR, "congctl", self._congestion)
        for words in (
            ("address", "add", f"{NEAR}/24", "dev", _DEVICE),
            ("link", "set", _DEVICE, "mtu", str(_MTU), *queue, "up"),
            ("route", "replace", "10.77.0.0/24", *route),
        ):
            subprocess.run(["ip", *words], check=True)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._device)

    @contextmanager
    def at(
        self, round_trip_ms: float, loss_percent: float, mb_per_s: float = 0.0
    ) -> Iterator[None]:
        """Have what is sent arrive, so late and with such losses. Connections outlive a change."""
        words = [str(self._device), str(round_trip_ms), str(loss_percent), str(mb_per_s)]
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.link", *words], pass_fds=[self._device]
        )
        try:
            yield
        finally:
            process.terminate()
            process.wait(10)


if __name__ == "__main__":
    _delay_s, _loss = float(sys.argv[2]) / 2000, float(sys.argv[3]) / 100
    with contextlib.suppress(KeyboardInterrupt):
        _Forwarder(int(sys.argv[1]), _delay_s, _loss, float(sys.argv[4]) * 1e6).run()

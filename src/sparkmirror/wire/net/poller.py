"""Waits until one of several descriptors is readable, or writable again.

``select.select`` does not take descriptors from 1,024 on, which a process with many connections
has, and it is given all of them at every call. A `Poller` keeps its registrations. It uses ``poll``
and not ``epoll``, which silently forgets a closed descriptor, even if its number is used again.
"""

from __future__ import annotations

import errno
import os
import select
import time
from collections.abc import Iterable
from typing import Generic, TypeVar

__all__ = ["Poller", "readable"]

T = TypeVar("T")


class Poller(Generic[T]):
    """Reports which of its descriptors are ready, each by a key of the owner's. One owner.

    ``within``: a wider poller, which watches all descriptors of this one, too.
    """

    def __init__(self, within: Poller[T] | None = None) -> None:
        self._poll = select.poll()
        self._numbers: dict[T, int] = {}
        self._keys: dict[int, T] = {}
        self._within = within

    def __contains__(self, key: T) -> bool:
        return key in self._numbers

    def add(self, key: T, number: int) -> None:
        """Watch the descriptor ``number`` until `remove`; a key has one descriptor."""
        if self._numbers.get(key) == number:
            return
        self.remove(key)
        # Another key that had this number has closed its descriptor.
        self._numbers.pop(self._keys.get(number, key), None)
        self._numbers[key], self._keys[number] = number, key
        self._poll.register(number, select.POLLIN)
        if self._within is not None:
            self._within.add(key, number)

    def also_writable(self, key: T, wanted: bool) -> None:
        """Set whether `wait` also reports ``key`` when its descriptor is writable."""
        number = self._numbers.get(key, -1)
        if number >= 0:
            self._poll.modify(number, select.POLLIN | select.POLLOUT if wanted else select.POLLIN)
        if self._within is not None:
            self._within.also_writable(key, wanted)

    def remove(self, key: T) -> None:
        """Stop watching ``key``, before its descriptor is closed. Ignores an unknown key."""
        number = self._numbers.pop(key, -1)
        if number >= 0:
            del self._keys[number]
            self._poll.unregister(number)
        if self._within is not None:
            self._within.remove(key)

    def wait(self, timeout_s: float = 0.0) -> list[T]:
        """Keys whose descriptors are readable (also: at an end or an error), or writable if wanted.

        Empty after ``timeout_s``.
        """
        timeout_s = max(0.0, timeout_s)
        whole_ms = int(timeout_s * 1000)
        found = self._poll.poll(whole_ms)
        if not found and timeout_s * 1000 > whole_ms:
            # ``poll`` takes whole milliseconds: rounded up, an interval of 4 ms would become 5 ms.
            time.sleep(timeout_s - whole_ms / 1000)
            found = self._poll.poll(0)
        return [self._keys[number] for number, _ in found]


def readable(numbers: Iterable[int], timeout_s: float) -> list[int]:
    """Which of ``numbers`` are readable (also: at an end or an error) within ``timeout_s``.

    For occasional waits. Raises OSError for a descriptor that is not open.
    """
    poll = select.poll()
    for number in numbers:
        poll.register(number, select.POLLIN)
    found = poll.poll(max(0.0, timeout_s) * 1000)
    if any(event & select.POLLNVAL for _, event in found):
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    return [number for number, _ in found]

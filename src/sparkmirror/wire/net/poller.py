"""Waiting until one of several descriptors has something to read, or takes more again.

``select.select`` takes no descriptor from 1,024 on, which a process with many connections has, and
goes through all of them at every call. A `Poller` keeps what it waits for. It stands on ``poll``
and not on ``epoll``: that one forgets a descriptor that is closed, and goes on without a word when
its number is used again.
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
    """Tells which of its descriptors can be read, each by a key of the owner's. One owner.

    ``within``: a wider one, which has all that this one has.
    """

    def __init__(self, within: Poller[T] | None = None) -> None:
        self._poll = select.poll()
        self._numbers: dict[T, int] = {}
        self._keys: dict[int, T] = {}
        self._within = within

    def __contains__(self, key: T) -> bool:
        return key in self._numbers

    def add(self, key: T, number: int) -> None:
        """Wait for the descriptor ``number`` as well, until `remove`; a key has one descriptor."""
        if self._numbers.get(key) == number:
            return
        self.remove(key)
        # Whoever had the number before has closed it.
        self._numbers.pop(self._keys.get(number, key), None)
        self._numbers[key], self._keys[number] = number, key
        self._poll.register(number, select.POLLIN)
        if self._within is not None:
            self._within.add(key, number)

    def also_writable(self, key: T, wanted: bool) -> None:
        """Whether `wait` tells of ``key`` as well when its descriptor takes something again."""
        number = self._numbers.get(key, -1)
        if number >= 0:
            self._poll.modify(number, select.POLLIN | select.POLLOUT if wanted else select.POLLIN)
        if self._within is not None:
            self._within.also_writable(key, wanted)

    def remove(self, key: T) -> None:
        """Wait for it no more, before its descriptor is closed; nothing where it is not known."""
        number = self._numbers.pop(key, -1)
        if number >= 0:
            del self._keys[number]
            self._poll.unregister(number)
        if self._within is not None:
            self._within.remove(key)

    def wait(self, timeout_s: float = 0.0) -> list[T]:
        """Those that can be read (also: an end or an error), or written where that is wanted;
        empty when the time is over.
        """
        timeout_s = max(0.0, timeout_s)
        whole_ms = int(timeout_s * 1000)
        found = self._poll.poll(whole_ms)
        if not found and timeout_s * 1000 > whole_ms:
            # ``poll`` would round up, and a pace of 4 ms become one of 5.
            time.sleep(timeout_s - whole_ms / 1000)
            found = self._poll.poll(0)
        return [self._keys[number] for number, _ in found]


def readable(numbers: Iterable[int], timeout_s: float) -> list[int]:
    """Which of these descriptors can be read (also: an end or an error) within ``timeout_s``.

    For waits that are few; raises OSError for a descriptor that is not open.
    """
    poll = select.poll()
    for number in numbers:
        poll.register(number, select.POLLIN)
    found = poll.poll(max(0.0, timeout_s) * 1000)
    if any(event & select.POLLNVAL for _, event in found):
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    return [number for number, _ in found]

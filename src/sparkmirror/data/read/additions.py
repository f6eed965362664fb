"""Begins partitions that a slot gets while it streams, beside its other partitions.

A beginning asks both clusters where the partitions continue, which may take seconds. So it has a
thread and connections of its own. The slot's loop takes the result, and nothing else waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from sparkmirror.internal_topics.commands import SourcePartition

__all__ = ["Additions"]

_Begun = TypeVar("_Begun")


class Additions(Generic[_Begun]):
    """The beginnings of one slot; one owner thread.

    ``begin`` begins partitions and returns the result. It runs on another thread, and must return
    soon after its second argument is set.
    """

    def __init__(
        self, begin: Callable[[tuple[SourcePartition, ...], threading.Event], _Begun]
    ) -> None:
        self._begin = begin
        self._over = threading.Event()
        self._threads: list[_Beginning[_Begun]] = []

    @property
    def under_way(self) -> bool:
        """Whether there is a beginning whose result was not taken yet."""
        return bool(self._threads)

    def start(self, partitions: tuple[SourcePartition, ...]) -> None:
        """Begin ``partitions``, all at once."""
        thread = _Beginning(self._begin, partitions, self._over)
        self._threads.append(thread)
        thread.start()

    def take(self) -> list[_Begun]:
        """The results that are there since the last call; raises what a beginning has raised."""
        done = [one for one in self._threads if not one.is_alive()]
        self._threads = [one for one in self._threads if one not in done]
        for one in done:
            if one.error is not None:
                raise one.error
        return [result for one in done for result in one.results]

    def close(self) -> None:
        """Give up beginnings that are not done; their threads end by themselves."""
        self._over.set()


class _Beginning(threading.Thread, Generic[_Begun]):
    """One beginning. ``results``: one result once it has succeeded."""

    def __init__(
        self,
        begin: Callable[[tuple[SourcePartition, ...], threading.Event], _Begun],
        partitions: tuple[SourcePartition, ...],
        over: threading.Event,
    ) -> None:
        super().__init__(name="additions", daemon=True)
        self.results: list[_Begun] = []
        self.error: Exception | None = None
        self._begin = begin
        self._partitions = partitions
        self._over = over

    def run(self) -> None:
        """Begin the partitions, and keep the result or the error for `Additions.take`."""
        try:
            self.results.append(self._begin(self._partitions, self._over))
        except Exception as error:
            self.error = error

"""Requests of one fetcher that are in flight or answered, and when they may be repeated.

A slot may have thousands of partitions, of which one response has news of a few. So a fetcher looks
at all of them only after something has happened to one (an error, new metadata, a halt, …). Until
then, the next request of a channel is its last one with the positions that have changed since.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from sparkmirror.model import TopicPartition
from sparkmirror.records.selection import AbortedTransaction
from sparkmirror.wire.fetch.channels import Channel
from sparkmirror.wire.fetch.partition_state import FetchState
from sparkmirror.wire.fetch.sessions import FetchSession, Params
from sparkmirror.wire.fetch.throttle import Grant
from sparkmirror.wire.net.connection import Connection

__all__ = ["FetchedPartition", "Repeats", "Request"]


@dataclass(slots=True)
class FetchedPartition:
    """One partition of a Fetch response, without an error.

    ``records`` is a view into the receive buffer: use it before the next `Fetcher.receive`.
    Offsets are the source's; -1 where the broker returned none.
    """

    tp: TopicPartition
    fetch_offset: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: list[AbortedTransaction]
    records: memoryview


@dataclass(slots=True)
class Request:
    """One request. ``repeats``: whether the next one may be this one with changed positions.

    ``helps``: the channel whose partitions a helper (`staggered`) asks for, too; ``void``: whether
    such a response is not used, because something happened to one of them meanwhile.
    """

    connection: Connection
    correlation: int
    version: int
    states: dict[TopicPartition, FetchState]
    deadline: float
    sent_at: float
    requested: dict[TopicPartition, Params] = field(default_factory=dict)
    session: FetchSession | None = None
    grant: Grant | None = None
    repeats: bool = False
    helps: Channel | None = None
    void: bool = False

    def free(self) -> None:
        """Let other requests have the partitions, unless it only helped one that has them."""
        if self.helps is not None:
            return
        for state in self.states.values():
            state.requested = False


class Repeats:
    """Answered requests that may be repeated. Their partitions still count as requested.

    ``steady``: whether, before ``until``, each partition is in flight, in such a request, or not
    wanted. ``changed``: partitions with another position than in their last request.
    """

    def __init__(self) -> None:
        self.steady = False
        self.until = float("-inf")
        self.answered: dict[Channel, Request] = {}
        self.changed: dict[TopicPartition, FetchState] = {}
        self._left_out: Collection[TopicPartition] = ()
        self._generation = -1

    def looked(
        self, *, steady: bool, until: float, generation: int, left_out: Collection[TopicPartition]
    ) -> None:
        """Note what a look at all partitions has found, and by which metadata."""
        self.steady, self.until = steady, until
        self._generation, self._left_out = generation, left_out

    def outdated(self, generation: int, left_out: Collection[TopicPartition]) -> bool:
        """Whether the metadata, or what is left out, is not that of the last look."""
        return generation != self._generation or left_out != self._left_out

    def end(self, in_flight: Iterable[Request]) -> None:
        """Have all partitions looked at, now and when the requests in flight are answered."""
        self.steady = False
        for request in in_flight:
            request.repeats = False
            request.void = request.helps is not None
        self.free()

    def free(self) -> None:
        """Let other requests have the partitions of the answered ones."""
        for request in self.answered.values():
            request.free()
        self.answered.clear()
        # Those in flight have another position by now if a helper's response was used.
        self.changed = {tp: state for tp, state in self.changed.items() if state.requested}

    def answer(self, channel: Channel, request: Request) -> None:
        """Note that ``request`` was answered."""
        if request.helps is not None:
            return
        if request.repeats:
            self.answered[channel] = request
        else:
            self.steady = False
            request.free()

    def changed_in(self, request: Request) -> list[FetchState]:
        """The partitions of ``request`` that have another position now."""
        return [state for tp, state in self.changed.items() if request.states.get(tp) is state]

"""Fetch sessions (KIP-227): a broker remembers the partitions, and requests list only changes.

A request that lists thousands of partitions costs both sides milliseconds, even if the response is
small. In a session the request lists only partitions whose parameters changed, and the response
only those with news. A broker keeps a limited number of sessions (1,000 by default) and may evict
one at any time: the next request then lists everything again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sparkmirror.model import TopicPartition

__all__ = ["NO_SESSION", "SESSION_LOST", "SESSION_PARTITIONS_MIN", "FetchSession", "Params"]

SESSION_PARTITIONS_MIN = 16
"""Fewer partitions are listed as quickly without a session, which spares the broker's cache."""

SESSION_LOST = frozenset({70, 71, 106})
"""FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR."""

NO_SESSION = (0, -1)

_EPOCH_MAX = (1 << 31) - 1

Params = tuple[int, int, int]
"""Parameters of a partition: (offset, leader epoch, maximum bytes)."""


@dataclass(slots=True)
class FetchSession:
    """The partitions of one client that one broker remembers.

    ``epoch``: of the next request; 0 lists everything and begins a session, which replaces the
    session ``id``, if any.
    """

    id: int = 0
    epoch: int = 0
    known: dict[TopicPartition, Params] = field(default_factory=dict)

    def next_request(
        self, wanted: dict[TopicPartition, Params]
    ) -> tuple[Mapping[TopicPartition, Params], list[TopicPartition]]:
        """(partitions to list, partitions to forget) so that the broker remembers ``wanted``.

        Those to list are in the order of ``wanted``. `header` does not change.
        """
        known, self.known = self.known, wanted
        if self.epoch == 0:
            return wanted, []
        changed = {tp: params for tp, params in wanted.items() if known.get(tp) != params}
        # Known partitions that are not wanted must be forgotten; counting tells if there are any.
        if len(wanted) - sum(tp not in known for tp in changed) == len(known):
            return changed, []
        return changed, [tp for tp in known if tp not in wanted]

    def next_changes(
        self, changed: Mapping[TopicPartition, Params]
    ) -> Mapping[TopicPartition, Params]:
        """The partitions of ``changed``, all known, to list so that the broker remembers them.

        The others stay as they are. Requires a session that has begun.
        """
        listed = {tp: params for tp, params in changed.items() if self.known[tp] != params}
        self.known.update(listed)
        return listed

    @property
    def header(self) -> tuple[int, int]:
        """(session id, epoch) of the next request."""
        return self.id, self.epoch

    def on_response(self, session_id: int) -> None:
        """Take the session id of a response without an error; 0: the broker has no room."""
        self.id = session_id
        self.epoch = (self.epoch + 1 if self.epoch < _EPOCH_MAX else 1) if session_id else 0

    def restart(self) -> None:
        """List everything in the next request."""
        self.epoch = 0

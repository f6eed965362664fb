"""Fetch sessions (KIP-227): a broker remembers what it is asked for, and is told changes only.

A request that lists thousands of partitions costs both sides milliseconds, whatever the answer
brings. In a session it lists those whose offset is another one than before, and the answer those
with something new. A broker has room for a limited number of sessions (1,000 by default) and may
forget one at any time: then everything is listed again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sparkmirror.model import TopicPartition

__all__ = ["NO_SESSION", "SESSION_LOST", "SESSION_PARTITIONS_MIN", "FetchSession", "Params"]

SESSION_PARTITIONS_MIN = 16
"""Fewer partitions are listed as quickly, and need no place among the broker's sessions."""

SESSION_LOST = frozenset({70, 71, 106})
"""FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR."""

NO_SESSION = (0, -1)

_EPOCH_MAX = (1 << 31) - 1

Params = tuple[int, int, int]
"""What is asked of a partition: (offset, leader epoch, bytes at most)."""


@dataclass(slots=True)
class FetchSession:
    """What one broker knows of one client's partitions.

    ``epoch``: of the next request; 0 lists everything and begins a session, in the place of the one
    with the number ``id``, if any.
    """

    id: int = 0
    epoch: int = 0
    known: dict[TopicPartition, Params] = field(default_factory=dict)

    def ask(
        self, wanted: dict[TopicPartition, Params]
    ) -> tuple[Mapping[TopicPartition, Params], list[TopicPartition]]:
        """(what to list, what to have forgotten) so that the broker knows ``wanted``, in its order.

        The request goes out with `header` as it was before this call.
        """
        known, self.known = self.known, wanted
        if self.epoch == 0:
            return wanted, []
        changed = {tp: params for tp, params in wanted.items() if known.get(tp) != params}
        # Whatever is known and not wanted is too much; the sizes tell whether there is any.
        if len(wanted) - sum(tp not in known for tp in changed) == len(known):
            return changed, []
        return changed, [tp for tp in known if tp not in wanted]

    @property
    def header(self) -> tuple[int, int]:
        """(session id, epoch) of the next request."""
        return self.id, self.epoch

    def answered(self, session_id: int) -> None:
        """Take in an answer without an error: its session id, 0 when the broker has no room."""
        self.id = session_id
        self.epoch = (self.epoch + 1 if self.epoch < _EPOCH_MAX else 1) if session_id else 0

    def restart(self) -> None:
        """List everything with the next request."""
        self.epoch = 0

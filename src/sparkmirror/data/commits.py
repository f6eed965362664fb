"""Positions as a sink commits them: to which cluster, under which name, as whose member.

MirrorMaker 2's positions belong to a group without members on the target. MirrorMaker 1's belong
to the consumer group on the source that the driver is a member of: the broker takes a commit only
with the group's present generation, so that a mirror which the group has given up (it hung, or was
cut off) can neither set back nor overtake the positions of whoever copies its partitions now.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace

from sparkmirror.errors import Fenced
from sparkmirror.model import FlowSettings, Halt, Member, MirrorMode, TopicPartition
from sparkmirror.wire.connect_offsets import encode_source_offset, offsets_topic, partition_for_key
from sparkmirror.wire.routes import Routes

__all__ = ["Commits", "connect_record"]

log = logging.getLogger(__name__)

# The time that a broker itself gives a commit (offsets.commit.timeout.ms). Rows wait meanwhile.
_COMMIT_TIMEOUT_MS = 5_000
# While a cooperative group forms a generation, the sink hears of it a moment after the broker.
_NEXT_GENERATION_S = 5.0


class Commits:
    """Commits for one sink. ``fenced`` tells why nothing may be written any more, None if it may.

    ``clock`` returns monotonic seconds.
    """

    def __init__(self, flow: FlowSettings) -> None:
        self.by_source = flow.mode is MirrorMode.MM1
        """Whether positions stand under the source's topic names (else the target's)."""
        self.fenced: Halt | None = None
        client = flow.source if self.by_source else flow.target
        timeout_ms = min(_COMMIT_TIMEOUT_MS, client.request_timeout_ms)
        self.routes = Routes(replace(client, request_timeout_ms=timeout_ms))
        self._flow = flow
        self._member: Member | None = None
        self._refused_at: float | None = None

    def member(self, member: Member | None) -> None:
        """Commit as ``member`` from now on."""
        self._member, self._refused_at = member, None

    def commit(
        self,
        offsets: Mapping[TopicPartition, tuple[int, str]],
        leader_epochs: Mapping[TopicPartition, int] | None = None,
    ) -> bool:
        """Whether ``offsets`` are committed; False when the group wants none from this member.

        Raises `MirrorError` or `ConnectionLost` when the cluster does not answer.
        """
        if self.fenced is not None:
            return False
        try:
            self.routes.commit(
                self._flow.position_group, dict(offsets), self._member, leader_epochs
            )
        except Fenced as error:
            now = time.monotonic()
            if self._refused_at is None:
                self._refused_at = now
            patient = self._member is not None and self._member.cooperative
            if patient and now - self._refused_at < _NEXT_GENERATION_S:
                return False
            log.warning("flow %s: %s", self._flow.name, error)
            self.fenced = Halt(error.code, str(error), retriable=True)
            return False
        self._refused_at = None
        return True

    def close(self) -> None:
        """Close the connections."""
        self.routes.close()


def connect_record(
    flow: FlowSettings, source: TopicPartition, position: int
) -> tuple[TopicPartition, bytes, bytes | None]:
    """A position in MirrorMaker 2's format: where it is written, key and value."""
    topic = flow.offset_storage_topic or offsets_topic(flow.source.alias)
    key, value = encode_source_offset(flow.source.alias, source, position)
    partition = partition_for_key(key, flow.offset_storage_partitions)
    return TopicPartition(topic, partition), key, value

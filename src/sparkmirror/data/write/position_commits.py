"""How a sink commits positions: to which cluster, under which names, as which group member.

MirrorMaker 2's positions belong to a group without members on the target. MirrorMaker 1's belong
to the consumer group on the source of which the driver is a member. There the broker accepts a
commit only with the group's current generation. So a mirror that the group has removed (it hung, or
was cut off) can neither set back nor overtake the positions of the member that has its partitions
now.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import replace

from sparkmirror.errors import Fenced
from sparkmirror.internal_topics.connect_offsets import (
    encode_mapped_offset,
    encode_source_offset,
    offsets_topic,
    partition_for_key,
)
from sparkmirror.model import MirrorMode, TopicPartition
from sparkmirror.progress import Halt
from sparkmirror.settings import FlowSettings, Member
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.cluster.coordinators import Coordinators

__all__ = ["Commits", "connect_record", "storage_topic"]

log = logging.getLogger(__name__)

# A broker's own timeout for a commit (offsets.commit.timeout.ms).
_COMMIT_TIMEOUT_MS = 5_000
# When a cooperative group forms a generation, the sink learns of it a moment after the broker.
_NEXT_GENERATION_S = 5.0


class Commits:
    """Commits for one sink, one at a time. ``fenced``: why nothing may be written any more.

    ``fenced`` is None while the sink may write. A commit has a thread of its own: a coordinator
    that is far away, or hangs, does not delay records.
    """

    def __init__(self, flow: FlowSettings) -> None:
        self.by_source = flow.mode is MirrorMode.MM1
        """Whether positions are kept under the source's topic names (else the target's)."""
        self.fenced: Halt | None = None
        client = flow.source if self.by_source else flow.target
        timeout_ms = min(_COMMIT_TIMEOUT_MS, client.request_timeout_ms)
        connections = ClusterConnections(replace(client, request_timeout_ms=timeout_ms))
        self.coordinators = Coordinators(connections)
        self._flow = flow
        self._member: Member | None = None
        self._refused_at: float | None = None
        self._job: _Commit | None = None

    def member(self, member: Member | None) -> None:
        """Commit as ``member`` from now on."""
        self._member, self._refused_at = member, None

    @property
    def under_way(self) -> bool:
        """Whether a commit has begun whose `outcome` was not taken yet."""
        return self._job is not None

    def begin(
        self,
        offsets: Mapping[TopicPartition, tuple[int, str]],
        leader_epochs: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """Start to commit ``offsets``, unless `fenced`. No commit may be in flight."""
        if self.fenced is not None:
            return
        self._job = _Commit(
            self.coordinators, self._flow.position_group, offsets, self._member, leader_epochs
        )
        self._job.start()

    def outcome(self, *, wait: bool = False) -> bool | None:
        """Whether the offsets are committed; False if the group accepts none from this member.

        None while that is not known, unless ``wait`` is set. Raises `MirrorError` or
        `ConnectionLost` if the commit failed.
        """
        job = self._job
        if job is None or (job.is_alive() and not wait):
            return None
        job.join()
        self._job = None
        error = job.error
        if error is None:
            self._refused_at = None
            return True
        if not isinstance(error, Fenced):
            raise error
        if job.member != self._member:
            return False  # the next commit is the new member's
        now = time.monotonic()
        if self._refused_at is None:
            self._refused_at = now
        patient = self._member is not None and self._member.cooperative
        if patient and now - self._refused_at < _NEXT_GENERATION_S:
            return False
        log.warning("flow %s: %s", self._flow.name, error)
        self.fenced = Halt(error.code, str(error), retriable=True)
        return False

    def close(self) -> None:
        """Wait for the commit in flight, then close the connections."""
        if self._job is not None:
            self._job.join()
        self.coordinators.close()


class _Commit(threading.Thread):
    """One commit. ``error``: the result once the thread has ended; None means committed."""

    def __init__(
        self,
        coordinators: Coordinators,
        group: str,
        offsets: Mapping[TopicPartition, tuple[int, str]],
        member: Member | None,
        leader_epochs: Mapping[TopicPartition, int] | None,
    ) -> None:
        super().__init__(name="commit", daemon=True)
        self.member = member
        self.error: Exception | None = None
        self._coordinators = coordinators
        self._group = group
        self._offsets = dict(offsets)
        self._leader_epochs = leader_epochs

    def run(self) -> None:
        """Commit, and keep the error for `Commits.outcome`."""
        try:
            self._coordinators.commit(self._group, self._offsets, self.member, self._leader_epochs)
        except Exception as error:
            self.error = error


def storage_topic(flow: FlowSettings) -> str:
    """The topic of positions in MirrorMaker 2's format."""
    return flow.offset_storage_topic or offsets_topic(flow.source.alias)


def connect_record(
    flow: FlowSettings,
    source: TopicPartition,
    position: int,
    remote: str = "",
    *,
    partitions: int,
) -> tuple[TopicPartition, bytes, bytes | None]:
    """A position in MirrorMaker 2's format: its partition, key and value.

    ``partitions``: how many the topic has.
    ``remote``: the name that a map gave the topic. Java has no maps, and ignores such a record.
    """
    topic = storage_topic(flow)
    if remote:
        key, value = encode_mapped_offset(flow.source.alias, source, remote, position)
    else:
        key, value = encode_source_offset(flow.source.alias, source, position)
    partition = partition_for_key(key, partitions)
    return TopicPartition(topic, partition), key, value

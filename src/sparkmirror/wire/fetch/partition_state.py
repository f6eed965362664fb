"""State of one partition of a `fetcher.Fetcher`: next offset, back-off, reaction to errors."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from sparkmirror.model import TopicPartition
from sparkmirror.progress import Halt
from sparkmirror.wire.cluster.acl_advice import Right, grant
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.cluster.error_codes import (
    BROKER_NOT_AVAILABLE,
    LEADERSHIP,
    OFFSET_OUT_OF_RANGE,
    RETRIABLE,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_LEADER_EPOCH,
    UNKNOWN_TOPIC_OR_PARTITION,
    error_name,
)
from sparkmirror.wire.fetch.messages import PartitionData

__all__ = ["FetchState"]

log = logging.getLogger(__name__)

# A partition without a leader, or whose broker cannot be connected, is halted after this time, and
# still retried.
_UNKNOWN_S_MAX = 30.0
# A longer time in which nobody tried, because the flow was paused, is not the broker's. A loop that
# a slow target keeps busy takes less for a round.
_TRIED_S_MAX = 30.0
# How often the cached metadata is checked for its leader; `Searches` limits the requests.
_UNKNOWN_RETRY_S = 1.0
_DENIED_RETRY_S = 30.0
# How long the leader serves a partition after the follower in our rack has failed.
_LEADER_ONLY_S = 5.0


@dataclass(slots=True)
class FetchState:
    """State of one partition; times are the fetcher's monotonic seconds.

    ``node``, ``channel``: the broker and channel that fetch it (`channels`). ``end``: end of the
    readable log in the last response. ``cut_short``: how many consecutive responses with records
    did not reach that end. ``failed_at``: when the last error came, or damage; a response to a
    request from before is not used. ``failing_since``: when the errors began that nothing else has
    followed yet. ``unreached_since``, ``tried_at``: since when its broker has had no connection,
    and when one was last wanted.
    """

    tp: TopicPartition
    offset: int
    halt: Halt | None = None
    retry_at: float = 0.0
    unknown_since: float | None = None
    failing_since: float | None = None
    unreached_since: float | None = None
    tried_at: float = float("-inf")
    replica: int | None = None
    replica_until: float = 0.0
    leader_until: float = 0.0
    bytes_max: int = 0
    requested: bool = False
    range_checked: bool = False
    failed_at: float = float("-inf")
    held: bool = False
    log: tuple[str, int] | None = None
    node: int | None = None
    channel: int = 0
    end: int = -1
    cut_short: int = 0

    def go_on(self, offset: int) -> None:
        """Continue at ``offset``, up to which a response was used; count it if it was cut short."""
        self.offset = offset
        self.bytes_max = 0
        self.cut_short = self.cut_short + 1 if offset < self.end else 0

    def follow(self, replica: int, until: float) -> None:
        """Fetch from the follower that the leader named (KIP-392), until ``until``."""
        if self.replica is None:
            log.info("%s: fetching from follower %d, which is in our rack", self.tp, replica)
        self.replica = replica
        self.replica_until = until

    def leave_replica(self, now: float) -> None:
        """Fetch from the leader for a while: the follower may lag or be gone."""
        if self.replica is not None:
            log.info("%s: fetching from the leader, no longer from %d", self.tp, self.replica)
        self.replica = None
        self.leader_until = now + _LEADER_ONLY_S

    def note_unknown(self, connections: ClusterConnections, now: float) -> None:
        """Request metadata for a partition without a leader, and halt it when that lasts.

        A cluster out of reach says nothing about leaders.
        """
        connections.mark_stale(self.tp)
        if self.unknown_since is None:
            self.unknown_since = now
        elif now - self.unknown_since > _UNKNOWN_S_MAX:
            told = connections.topic_errors.get(self.tp.topic, UNKNOWN_TOPIC_OR_PARTITION)
            code = connections.leaderless.get(self.tp, told)
            lasted_s = now - self.unknown_since
            reason = f"the source has had no leader for {self.tp} for {lasted_s:.0f} s"
            if not connections.reachable:
                # It does not say how long: as in `note_unreached`.
                code = BROKER_NOT_AVAILABLE
                reason = f"the source, where {self.tp} is, cannot be reached: no broker responds"
            elif code == TOPIC_AUTHORIZATION_FAILED:
                right = Right("Describe", "Topic", self.tp.topic)
                reason = f"no permission to describe {self.tp.topic}: "
                reason += grant(connections.client, right)
            self.halt = Halt(error_name(code), reason, retriable=True)
            self.retry_at = now + _UNKNOWN_RETRY_S

    def note_unreached(self, now: float) -> None:
        """Halt the partition when its broker has had no connection for long.

        The reason does not say how long: with a whole cluster out of reach, each change of it would
        be reported for each partition.
        """
        if self.unreached_since is None or now - self.tried_at > _TRIED_S_MAX:
            self.unreached_since = now
        self.tried_at = now
        if now - self.unreached_since > _UNKNOWN_S_MAX:
            reason = f"broker {self.node} of the source, where {self.tp} is, cannot be reached"
            self.halt = Halt(error_name(BROKER_NOT_AVAILABLE), reason, retriable=True)
            self.retry_at = now + _UNKNOWN_RETRY_S

    def fail(
        self, connections: ClusterConnections, part: PartitionData, now: float, *, holds: bool
    ) -> None:
        """Handle an error response. ``holds``: an offset out of range holds the partition."""
        code, name = part.code, error_name(part.code)
        self.failed_at = now
        self.retry_at = now + connections.client.retry_backoff_ms / 1000
        if self.replica is not None:
            self.leave_replica(now)
            return
        if code in LEADERSHIP:
            connections.mark_stale(self.tp)
            if code == UNKNOWN_LEADER_EPOCH:
                connections.doubt(self.tp)
            if code == UNKNOWN_TOPIC_OR_PARTITION:
                self.note_unknown(connections, now)
        elif code == OFFSET_OUT_OF_RANGE and not self.range_checked:
            # A newly elected leader may not know its own end yet: retry once.
            self.range_checked = True
            connections.mark_stale(self.tp)
        elif code == OFFSET_OUT_OF_RANGE and holds:
            self.held = True
        elif code == OFFSET_OUT_OF_RANGE:
            self.halt = Halt(name, self._out_of_range(part.log_start_offset, part.high_watermark))
        elif code == TOPIC_AUTHORIZATION_FAILED:
            advice = grant(connections.client, Right("Read", "Topic", self.tp.topic))
            reason = f"no permission to read {self.tp.topic}: {advice}"
            self.halt = Halt(name, reason, retriable=True)
            self.retry_at = now + _DENIED_RETRY_S
        elif code not in RETRIABLE:
            reason = f"the source returned {name} for {self.tp}"
            self.halt = Halt(name, reason, retriable=True)
            self.retry_at = now + _DENIED_RETRY_S
        if self.halt is None and code != OFFSET_OUT_OF_RANGE:
            self._note_lasting(name, now)

    def _note_lasting(self, name: str, now: float) -> None:
        """Halt the partition if its errors last: its broker cannot read it."""
        if self.failing_since is None:
            self.failing_since = now
        elif now - self.failing_since > _UNKNOWN_S_MAX:
            lasted_s = now - self.failing_since
            reason = f"the source has returned {name} for {self.tp} for {lasted_s:.0f} s"
            self.halt = Halt(name, reason, retriable=True)
            self.retry_at = now + _UNKNOWN_RETRY_S

    def _out_of_range(self, log_start: int, high: int) -> str:
        if 0 <= self.offset < log_start:
            return (
                f"source offsets {self.offset} to {log_start - 1} of {self.tp} were deleted before "
                "they were mirrored"
            )
        return (
            f"offset {self.offset} of {self.tp} is not in the source's log any more "
            f"(it starts at {log_start} and ends at {high}): the topic was truncated or recreated"
        )

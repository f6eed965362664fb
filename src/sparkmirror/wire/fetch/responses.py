"""What a `fetcher.Fetcher` does with a response: errors, pauses, and what is new in it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from sparkmirror.records.walk import unread
from sparkmirror.settings import FetchSettings
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.cluster.error_codes import OFFSET_OUT_OF_RANGE, THROTTLED, error_name
from sparkmirror.wire.fetch.assigned_partitions import AssignedPartitions
from sparkmirror.wire.fetch.channels import Channel, Channels
from sparkmirror.wire.fetch.in_flight import FetchedPartition, Request
from sparkmirror.wire.fetch.messages import PartitionData, parse_response
from sparkmirror.wire.fetch.pacing import Pauses
from sparkmirror.wire.fetch.request_plan import RequestPlan
from sparkmirror.wire.fetch.sessions import SESSION_LOST
from sparkmirror.wire.fetch.staggered import Staggered
from sparkmirror.wire.fetch.throttle import Grant, Throttle

__all__ = ["PACED_BELOW_BYTES", "Responses"]

log = logging.getLogger(__name__)

PACED_BELOW_BYTES = 64 * 1024
"""Smaller responses are paced. A response that took longer than the interval adds no delay."""
_THROTTLE_LOG_S = 60.0
_PAUSES_VERSION = 8  # from there on, clients wait for a quota; Java's do the same


class Responses(AssignedPartitions):
    """The partitions of one fetcher, and what responses say of them.

    ``holds``, ``clock``: see `Fetcher`, which extends this class with requests.
    """

    def __init__(
        self,
        connections: ClusterConnections,
        settings: FetchSettings,
        *,
        channels: Channels,
        plan: RequestPlan,
        staggered: Staggered,
        holds: bool,
        clock: Callable[[], float],
    ) -> None:
        super().__init__(connections, settings, holds=holds, clock=clock)
        self.errors: dict[str, int] = {}
        self._channels = channels
        self._plan = plan
        self._staggered = staggered
        self._pauses = Pauses()
        self._throttle_log_at = float("-inf")
        self._new = 0, 0  # batches with records in the newest response, and bytes of all new ones
        self.throttle: Throttle | None = None
        """Limits on what is fetched; None for no limits."""

    def _unsettle(self) -> None:
        super()._unsettle()
        self._staggered.void()

    def _count(self, code: str) -> None:
        self.errors[code] = self.errors.get(code, 0) + 1

    def _settle(self, grant: Grant | None, parts: Iterable[PartitionData], flight_s: float) -> None:
        if self.throttle is not None:
            read = ((part.tp, part.records) for part in parts)
            self.throttle.settle(grant, read, flight_s)

    def _take(
        self, channel: Channel, request: Request, frame: memoryview
    ) -> list[FetchedPartition]:
        response = parse_response(frame, request.version)
        if len({part.tp for part in response.partitions}) < len(response.partitions):
            raise ValueError("a Fetch response has a partition twice")
        now = self._clock()
        self._channels.note_response(channel, request.connection, now - request.sent_at)
        self._settle(request.grant, response.partitions, now - request.sent_at)
        if response.throttle_ms > 0:
            self._note_throttle(response.throttle_ms, now)
        # Before 2.0, brokers have held the response back for that time themselves.
        if response.throttle_ms > 0 and request.version >= _PAUSES_VERSION:
            # A quota applies to the client id, so it holds for all connections to the broker.
            node = channel[0]
            for one in self._channels.of(node) + self._channels.helpers(node):
                self._pauses.wait(one, now + response.throttle_ms / 1000)
            self._staggered.rest(channel[0], now)
        elif len(frame) < PACED_BELOW_BYTES:
            self._pauses.pace(channel, request.sent_at, now)
        self._plan.note_response(channel, request.session, response)
        if response.code:
            self._unsettle()
        if response.code and response.code not in SESSION_LOST:
            self._count(error_name(response.code))
            for state in request.states.values():
                state.retry_at = now + self.connections.client.retry_backoff_ms / 1000
        if request.void:
            return []
        self._new = 0, 0
        taken = [self._take_partition(channel, request, part, now) for part in response.partitions]
        self._staggered.note_read(request.helps or channel, *self._new, now)
        return [part for part in taken if part is not None]

    def _note_throttle(self, throttle_ms: int, now: float) -> None:
        self._count(THROTTLED)
        if now - self._throttle_log_at >= _THROTTLE_LOG_S:
            self._throttle_log_at = now
            client = self.connections.client
            log.warning(
                "fetching from cluster %s: throttled by a quota of client id %s, waiting %d ms",
                *(client.alias, client.client_id, throttle_ms),
            )

    def _take_partition(
        self, channel: Channel, request: Request, part: PartitionData, now: float
    ) -> FetchedPartition | None:
        tp = part.tp
        state = request.states.get(tp)
        if state is None or self._states.get(tp) is not state:
            return None
        main = request.helps or channel
        if request.helps is not None and (state.node, state.channel) != main:
            return None
        if request.sent_at < state.failed_at:
            return None  # it is asked for again, and one error is counted and tried once
        requested = request.requested[tp][0]
        passed = requested < state.offset  # another request for it has been answered since
        if passed and part.code == OFFSET_OUT_OF_RANGE:
            return None  # what was read already may have been deleted since
        if part.code:
            self._count(error_name(part.code))
            self._unsettle()
            state.fail(self.connections, part, now, holds=self._holds)
            return None
        records = part.records
        if passed or (len(records) and self._staggered.counts(main)):
            first = self._unread(part, state.offset, passed=passed)
            if first is None:
                return None
            records = records[first:]
        if part.replica >= 0 and not part.records and state.leader_until <= now:
            state.follow(part.replica, now + self.connections.client.metadata_age_ms_max / 1000)
            self._unsettle()
        state.range_checked, state.failing_since = False, None
        if records:
            # Brokers fill a response in request order: a partition that got data moves to the end.
            self._states[tp] = self._states.pop(tp)
        committed = self.settings.isolation_level == "read_committed"
        state.end = part.last_stable_offset if committed else part.high_watermark
        return FetchedPartition(
            tp,
            state.offset if passed else requested,
            part.high_watermark,
            part.last_stable_offset,
            part.log_start_offset,
            part.aborted,
            records,
        )

    def _unread(self, part: PartitionData, offset: int, *, passed: bool) -> int | None:
        """Where in the records of ``part`` those from ``offset`` on begin, and count them.

        ``passed``: whether the response begins before that. None if it is not used then: it has
        nothing new, or it lists aborted transactions, whose markers may be in the part before.
        """
        if not passed and len(part.records) >= PACED_BELOW_BYTES:
            self._note_new(1, len(part.records))
            return 0
        found = unread(part.records, offset)
        if not passed:
            if found is not None:
                self._note_new(len(found[1]), len(part.records) - found[0])
            return 0
        if found is not None:
            self._staggered.reread += found[0]
        if part.aborted or found is None or found[0] == len(part.records):
            return None
        self._note_new(len(found[1]), len(part.records) - found[0])
        return found[0]

    def _note_new(self, batches: int, size: int) -> None:
        self._new = self._new[0] + batches, self._new[1] + size

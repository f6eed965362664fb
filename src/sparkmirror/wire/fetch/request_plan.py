"""What the Fetch requests of one fetcher ask for: partitions, bytes, waiting time, and sessions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sparkmirror.model import TopicPartition
from sparkmirror.settings import FetchSettings
from sparkmirror.wire.cluster.metadata import Leader
from sparkmirror.wire.fetch.channels import Channel
from sparkmirror.wire.fetch.messages import (
    FETCH_SESSIONS_FROM,
    FetchPartition,
    FetchResponse,
    request_body,
)
from sparkmirror.wire.fetch.partition_state import FetchState
from sparkmirror.wire.fetch.sessions import (
    NO_SESSION,
    SESSION_PARTITIONS_MIN,
    FetchSession,
    Params,
)
from sparkmirror.wire.fetch.throttle import Grant, Throttle

_SHARING_MAX = 8
_SHARE_BYTES_MIN = 256 * 1024


@dataclass(slots=True)
class FetchRequest:
    """``body``: without its header. ``requested``: offset, leader epoch and bytes per partition."""

    body: bytes
    requested: dict[TopicPartition, Params]
    session: FetchSession | None


class RequestPlan:
    """Plans the requests of one fetcher. ``linger_ms``, ``batch_bytes``: see `Fetcher`."""

    def __init__(self, settings: FetchSettings, linger_ms: int, batch_bytes: int) -> None:
        self._linger_ms = linger_ms
        self._set(settings)
        self._batch_bytes = batch_bytes
        self._busy: dict[Channel, int] = {}  # partitions with records in the newest response
        self._sessions: dict[Channel, FetchSession] = {}

    def _set(self, settings: FetchSettings) -> None:
        self.settings = settings
        self._lingering = replace(
            settings, fetch_max_wait_ms=min(self._linger_ms, settings.fetch_max_wait_ms)
        )

    def wait_at_most(self, wait_ms: int) -> None:
        """Let brokers wait for records for ``wait_ms`` at most, from the next request on."""
        self._set(replace(self.settings, fetch_max_wait_ms=wait_ms))

    def waits(self, channel: Channel) -> FetchSettings:
        """The settings of the next request: how long the broker waits, and for how many bytes."""
        wanted = self._busy.get(channel, 0) * self._batch_bytes
        if not self._lingering.fetch_max_wait_ms or wanted <= self.settings.fetch_min_bytes:
            return self.settings
        return replace(
            self._lingering, fetch_min_bytes=min(wanted, self.settings.fetch_max_bytes // 2)
        )

    def make(
        self,
        version: int,
        channel: Channel,
        states: list[FetchState],
        settings: FetchSettings,
        leaders: Mapping[TopicPartition, Leader],
        *,
        throttle: Throttle | None,
        grant: Grant | None,
        now: float,
    ) -> FetchRequest:
        """The next request on ``channel`` for ``states``; ``settings``: those of `waits`.

        ``grant``: what ``throttle`` allows. ``now``: monotonic seconds.
        """
        # Without a rack in the request, the leader serves it: this avoids a follower that failed.
        rack = self.settings.client_rack
        if any(state.leader_until > now for state in states):
            rack = ""
        requested = self._requested(states, leaders, throttle, grant, self._share(len(states)))
        session = self._session(channel, len(states)) if version >= FETCH_SESSIONS_FROM else None
        # Brokers return the first batch whole, however large. Backfill asks for no more than that.
        large = states[:1] if grant is not None and grant.backfill else states
        bytes_max = max([settings.fetch_max_bytes] + [state.bytes_max for state in large])
        header = NO_SESSION if session is None else session.header
        listed, forgotten = (requested, []) if session is None else session.next_request(requested)
        body = request_body(
            version,
            settings,
            [FetchPartition(tp, *params) for tp, params in listed.items()],
            bytes_max,
            rack.encode(),
            session=header,
            forgotten=forgotten,
        )
        return FetchRequest(body, requested, session)

    def make_again(
        self,
        version: int,
        session: FetchSession,
        changed: list[FetchState],
        partitions: int,
        settings: FetchSettings,
        leaders: Mapping[TopicPartition, Leader],
    ) -> bytes:
        """The body of a request for the same ``partitions`` (a number) as the last of ``session``.

        It has the new offsets of ``changed``. None of the partitions asks for more bytes than its
        share, and none stays with its leader for a time.
        """
        requested = self._requested(changed, leaders, None, None, self._share(partitions))
        listed = session.next_changes(requested)
        return request_body(
            version,
            settings,
            [FetchPartition(tp, *params) for tp, params in listed.items()],
            settings.fetch_max_bytes,
            self.settings.client_rack.encode(),
            session=session.header,
        )

    def note_response(
        self, channel: Channel, session: FetchSession | None, response: FetchResponse
    ) -> None:
        """Note a response on ``channel``; after an error the next request begins a new session."""
        if session is not None:
            if response.code:
                session.restart()
            else:
                session.on_response(response.session_id)
        self._busy[channel] = sum(1 for part in response.partitions if part.records)

    def _session(self, channel: Channel, partitions: int) -> FetchSession | None:
        session = self._sessions.get(channel)
        if session is None and partitions >= SESSION_PARTITIONS_MIN:
            session = self._sessions[channel] = FetchSession()
        return session

    def _requested(
        self,
        states: list[FetchState],
        leaders: Mapping[TopicPartition, Leader],
        throttle: Throttle | None,
        grant: Grant | None,
        share: int,
    ) -> dict[TopicPartition, Params]:
        requested: dict[TopicPartition, Params] = {}
        for state in states:
            leader = leaders.get(state.tp)
            epoch = -1 if leader is None else leader.fencing
            most = share
            if grant is not None and throttle is not None:
                most = throttle.partition_bytes(grant, state, share)
            requested[state.tp] = (state.offset, epoch, state.bytes_max or most)
        return requested

    def _share(self, partitions: int) -> int:
        """Maximum bytes per partition in a response that ``partitions`` partitions share.

        A Produce request carries one batch per partition, so batches of several partitions take
        fewer requests than as many batches of one partition.
        """
        share = self.settings.fetch_max_bytes // min(max(1, partitions), _SHARING_MAX)
        return min(self.settings.partition_fetch_bytes_max, max(share, _SHARE_BYTES_MIN))

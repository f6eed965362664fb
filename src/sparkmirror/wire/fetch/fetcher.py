"""The Fetch path: long polls on every broker that leads one of a slot's partitions.

`Fetcher` is a small state machine without threads. Each broker has at most one Fetch request in
flight per channel (`channels`). The caller's poller watches the connections, so several brokers and
several fetchers share one wait. A partition is in exactly one of these states:

* in flight: it is part of a request that has no response yet;
* ready: the next request contains it;
* waiting: its leader is unknown, its broker backs off or is being connected, or its last error has
  a back-off;
* held: its offset may belong to another log (another topic id, another leader epoch, offset out
  of range). The caller checks the log, then releases or halts the partition;
* halted: an error that a quick retry does not cure, such as a broker that stays out of reach. The
  caller reports it. A retriable halt ends after its back-off.

Helpers (`staggered`) may ask for partitions that are in flight, too. `assigned_partitions` has what
is fetched and from where, `partition_state` the state of one partition, `responses` what a response
does to it, `request_plan` what a request asks for, `in_flight` the requests and when one is only
repeated, `sessions` the fetch sessions, `pacing` the pauses, and `messages` the layout of requests
and responses.
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Callable, Collection
from dataclasses import replace

from sparkmirror.model import TopicPartition
from sparkmirror.settings import FetchSettings
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.fetch.channels import Channel, Channels
from sparkmirror.wire.fetch.in_flight import FetchedPartition
from sparkmirror.wire.fetch.in_flight import Request as _Request
from sparkmirror.wire.fetch.messages import (
    FETCH_HIGHEST,
    FETCH_KEY,
    FETCH_LOWEST,
)
from sparkmirror.wire.fetch.partition_state import FetchState
from sparkmirror.wire.fetch.request_plan import RequestPlan
from sparkmirror.wire.fetch.responses import PACED_BELOW_BYTES, Responses
from sparkmirror.wire.fetch.staggered import WAITING_MAX, Staggered
from sparkmirror.wire.net.connection import (
    Connection,
    ConnectionLost,
    FrameBuffer,
    ReceiveBuffer,
)
from sparkmirror.wire.net.poller import Poller

__all__ = ["FetchedPartition", "Fetcher"]

log = logging.getLogger(__name__)

# How often to look whether a login has ended.
_LOGIN_S = 0.02

_I32 = struct.Struct(">i")


class Fetcher(Responses):
    """Long-polls one cluster for a set of partitions. One owner, no threads.

    ``buffer`` provides the memory for each response; ``clock`` returns monotonic seconds.
    ``holds``: a partition is held until `release` names its log, and held again whenever the log
    may have changed. Without it, an offset out of range halts the partition.
    ``poller`` waits for the connections, and may wait for others; default: a poller of its own.
    ``linger_ms``: after a response with records, the broker may wait this long, at most
    ``fetch.max.wait.ms``, for ``batch_bytes`` per partition that had records in that response.
    ``channels_max``: how many requests may be in flight at a far broker. ``reread_bytes``: how many
    bytes per second it may send again so that further ones wait for the same partitions
    (`staggered`).
    """

    def __init__(
        self,
        connections: ClusterConnections,
        settings: FetchSettings,
        *,
        buffer: FrameBuffer | None = None,
        holds: bool = False,
        poller: Poller[Connection] | None = None,
        linger_ms: int = 0,
        batch_bytes: int = 0,
        channels_max: int = 1,
        reread_bytes: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        channels = Channels(connections, channels_max, WAITING_MAX - 1 if reread_bytes else 0)
        super().__init__(
            connections,
            settings,
            channels=channels,
            plan=RequestPlan(settings, linger_ms, batch_bytes),
            staggered=Staggered(channels, settings, 0 if linger_ms else reread_bytes),
            holds=holds,
            clock=clock,
        )
        self._looked_at = float("-inf")
        self._logging_in = False  # a connection, on a thread of its own
        self._buffer = ReceiveBuffer() if buffer is None else buffer
        self._poller = Poller[Connection]() if poller is None else poller
        self.left_out: Collection[TopicPartition] = ()
        """Partitions that requests leave out at present; a response in flight still counts."""
        self.held: list[TopicPartition] = []
        """Partitions that wait only for the caller to check their log."""
        self.frame = memoryview(b"")
        """The newest response; the views that `receive` returned point into it."""

    # -- requests --------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether the newest response was large: the broker probably has more."""
        return len(self.frame) >= PACED_BELOW_BYTES

    @property
    def waiting(self) -> bool:
        """Whether a request is in flight."""
        return bool(self._requests)

    def ready(self, timeout_s: float) -> list[Connection]:
        """Connections for `receive`; empty when nothing arrived within ``timeout_s``."""
        return self._poller.wait(timeout_s)

    def wait_at_most(self, wait_ms: int) -> None:
        """Let brokers wait for records for ``wait_ms`` at most, from the next request on."""
        self._plan.wait_at_most(wait_ms)
        self.settings = self._plan.settings

    def next_due_s(self) -> float:
        """Seconds until `send` has work even if no response arrives."""
        # Times that have passed since the last `send` count as due: without them a wake-up is lost.
        now, looked_at = self._clock(), self._looked_at
        due = [request.deadline for request in self._requests.values()]
        if self._repeats.steady:
            due += [self._repeats.until] if self._repeats.until > looked_at else []
        else:
            due += [
                state.retry_at
                for state in self._states.values()
                if not state.requested and state.retry_at > looked_at
            ]
        due += self._pauses.ends_after(looked_at)
        if self.throttle is not None and self.throttle.due_at() > looked_at:
            due.append(self.throttle.due_at())
        idle = self.settings.fetch_max_wait_ms / 1000
        again = _LOGIN_S if self._logging_in else self.connections.look_again_s
        return max(0.0, min([at - now for at in due] + [idle, again]))

    def send(self) -> None:
        """Send a request in every channel that has ready partitions and no request in flight.

        Raises `Unsupported` for a broker without Fetch version 4.
        """
        now = self._clock()
        self._expire(now)
        self.connections.refresh_if_due()
        self.held, self._logging_in = [], False
        repeats = self._repeats
        if repeats.outdated(self.connections.generation, self.left_out):
            self._unsettle()
        steady = repeats.steady and now < repeats.until and self.throttle is None
        if not steady or not all(
            self._send_again(channel, request, now)
            for channel, request in list(repeats.answered.items())
        ):
            self._send_all(now)
        if self.throttle is None:
            for channel, request in list(self._requests.items()):
                missing = 0 if request.helps else self._staggered.missing(channel, now)
                if missing:
                    self._send_helpers(channel, request, missing, now)

    def _send_helpers(self, main: Channel, request: _Request, missing: int, now: float) -> None:
        """Have ``missing`` further requests wait for the partitions of ``request``, in flight."""
        states = self._staggered.partitions(main, request.states.values(), self.left_out, now)
        for channel in self._staggered.helpers(main) if states else ():
            if not missing:
                return
            if channel in self._requests or not self._pauses.over(channel, now):
                continue
            missing -= 1
            # One that takes long is used later: others have to be read meanwhile.
            connection = self.connections.connection(*channel, wait_s=0.0)
            if connection is not None:
                # The first connection's responses may all have waited for records.
                self._channels.note_response(channel, connection, connection.round_trip_s)
            elif not self.connections.connecting(*channel):
                self._staggered.rest(main[0], now)
                return
            self._send_to(channel, states, now, helps=main)
            if self._requests.get(main) is not request:
                return  # the connection was lost, and all are looked at anew

    def _send_all(self, now: float) -> None:
        """Look at all partitions, and send what is ready."""
        self._repeats.free()
        self._halts = None
        if self._holds and self.connections.generation != self._generation:
            self._hold_moved()
        if self.throttle is not None:
            self.throttle.begin(now)
        by_channel: dict[Channel, list[FetchState]] = {}
        steady, until = True, float("inf")
        for state in self._states.values():
            if state.requested or state.tp in self.left_out:
                continue
            if state.retry_at > now:
                until = min(until, state.retry_at)
                continue
            if state.halt is not None:
                if not state.halt.retriable:
                    continue
                state.halt = None
            node = self._node(state, now)
            if node is not None and state.held:
                self.held.append(state.tp)
                steady = False
            elif node is not None:
                channel = self._channels.choose(state, node, self._states.values(), now)
                if self.throttle is not None:
                    channel = self._channels.beside(
                        channel, self.throttle.backfill_group(state), now
                    )
                if channel not in self._requests:
                    by_channel.setdefault(channel, []).append(state)
                else:
                    steady = False
            else:
                steady = False
        for channel, states in by_channel.items():
            steady = (
                self._pauses.over(channel, now) and self._send_to(channel, states, now) and steady
            )
        self._repeats.looked(
            steady=steady,
            until=until,
            generation=self.connections.generation,
            left_out=self.left_out,
        )

    def _send_again(self, channel: Channel, before: _Request, now: float) -> bool:
        """Send the request after ``before``, which was answered, if the pause after that is over.

        False: look at all partitions.
        """
        changed = self._repeats.changed_in(before)
        everyone = self._states.values()
        for state in changed:
            if self._channels.choose(state, channel[0], everyone, now) != channel:
                return False
        if not self._pauses.over(channel, now):
            return True
        connection, session = self.connections.connection(*channel), before.session
        if connection is None or connection is not before.connection or connection.ended_idle():
            return False
        if not self._ready(connection):
            return False
        if session is None or not session.epoch:
            return False
        settings = self._staggered.waits(channel, channel, self._plan.waits(channel), now)
        body = self._plan.make_again(
            before.version, session, changed, len(before.states), settings, self.connections.leaders
        )
        for state in changed:
            del self._repeats.changed[state.tp]
        del self._repeats.answered[channel]
        correlation, head = connection.header(FETCH_KEY, before.version)
        request = replace(
            before, correlation=correlation, deadline=self._deadline(settings, now), sent_at=now
        )
        self._requests[channel] = request
        try:
            self._put(connection, head, body)
        except ConnectionLost as error:
            self._lost(connection, error)
            return False
        return True

    def _deadline(self, settings: FetchSettings, now: float) -> float:
        timeout_ms = settings.fetch_max_wait_ms + self.connections.client.request_timeout_ms
        return now + timeout_ms / 1000

    def _ready(self, connection: Connection) -> bool:
        """Whether ``connection`` may send. False: it logs in again, or it is lost."""
        try:
            ready = connection.ready_to_send(idle=True)
        except ConnectionLost as error:
            self._lost(connection, error)
            return False
        self._logging_in = self._logging_in or not ready
        return ready

    def _put(self, connection: Connection, head: bytes, body: bytes) -> None:
        connection.watched_by(self._poller)
        connection.begin_frame([head, body], len(head) + len(body))

    def _send_to(
        self,
        channel: Channel,
        states: list[FetchState],
        now: float,
        *,
        helps: Channel | None = None,
    ) -> bool:
        """Send a request for ``states``; whether all of them are in flight now.

        ``helps``: the channel on which they are in flight already.
        """
        connection = self.connections.connection(*channel)
        if connection is not None and connection.ended_idle():
            self._forget_ended(connection)
            return False
        for state in states if helps is None else ():
            if connection is None:
                state.note_unreached(now)
            else:
                state.unreached_since = None
        if connection is None or not self._ready(connection):
            return False
        settings, grant = self._plan.waits(channel), None
        if self.throttle is not None:
            grant = self.throttle.grant(states, settings)
            states, settings = grant.states, grant.settings
            if not states:
                return False
        else:
            settings = self._staggered.waits(helps or channel, channel, settings, now)
        version = connection.api_version(FETCH_KEY, FETCH_LOWEST, FETCH_HIGHEST, "Fetch")
        correlation, head = connection.header(FETCH_KEY, version)
        request = self._plan.make(
            version,
            channel,
            states,
            settings,
            self.connections.leaders,
            throttle=self.throttle,
            grant=grant,
            now=now,
        )
        try:
            self._put(connection, head, request.body)
        except ConnectionLost as error:
            if request.session is not None:
                request.session.restart()
            self._settle(grant, (), 0.0)
            self._lost(connection, error)
            return False
        for state in states if helps is None else ():
            state.requested = True
        self._requests[channel] = _Request(
            connection,
            correlation,
            version,
            {state.tp: state for state in states},
            self._deadline(settings, now),
            now,
            request.requested,
            request.session,
            grant,
            # What some of them need otherwise ends at times of its own.
            repeats=helps is None
            and request.session is not None
            and grant is None
            and not any(
                s.bytes_max or s.leader_until > now or s.replica is not None for s in states
            ),
            helps=helps,
        )
        return True

    def expire(self) -> None:
        """Fail requests whose responses are overdue; `send` does so, too."""
        self._expire(self._clock())

    def _expire(self, now: float) -> None:
        self._looked_at = now
        for request in list(self._requests.values()):
            # A readable response is not overdue: this thread was too busy to read it.
            if now >= request.deadline and not request.connection.readable():
                self._lost(request.connection, ConnectionLost("no answer to Fetch in time"))

    def _lost(self, connection: Connection, error: ConnectionLost) -> None:
        log.warning("fetching from cluster %s: %s", self.connections.client.alias, error)
        self._count("CONNECTION_LOST")
        self._unsettle()
        for channel, request in list(self._requests.items()):
            if request.connection is connection:
                del self._requests[channel]
                self._settle(request.grant, (), 0.0)
                if request.session is not None:
                    request.session.restart()
                request.free()
                if request.helps is not None:
                    self._staggered.rest(channel[0], self._clock())
                    continue
                for state in request.states.values():
                    if state.replica is not None:
                        state.leave_replica(self._clock())
        self.connections.drop(connection)

    # -- responses -------------------------------------------------------------------------

    def receive(self, connection: Connection) -> list[FetchedPartition]:
        """Read the response on ``connection``; returns its partitions that have no error.

        Empty while the response is incomplete, or when the connection is lost. The views in the
        result are valid until the next call.
        """
        requested = [channel for channel, r in self._requests.items() if r.connection is connection]
        if not requested:
            if connection in self._poller and connection.hung_up():
                self._forget_ended(connection)
            return []
        channel = requested[0]
        request = self._requests[channel]
        try:
            if connection.unsent:
                connection.go_on_sending()
                if not connection.readable():
                    return []
            frame = request.connection.receive_available(self._buffer)
            if frame is None:
                # A response that still makes progress does not time out.
                request.deadline = self._clock() + self.connections.client.request_timeout_ms / 1000
                return []
            self.frame = frame
            if _I32.unpack_from(frame)[0] != request.correlation:
                raise ConnectionLost("a response to another request")
            del self._requests[channel]
            self._repeats.answer(channel, request)
            self._staggered.answered(request.helps or channel, channel)
            return self._take(channel, request, frame)
        except (ConnectionLost, struct.error, UnicodeDecodeError, ValueError) as error:
            self._repeats.answered.pop(channel, None)
            self._requests[channel] = request
            self._lost(request.connection, ConnectionLost(f"{error}"))
            return []

    def _forget_ended(self, connection: Connection) -> None:
        log.info("%s:%d closed an idle connection", connection.host, connection.port)
        self._unsettle()
        self.connections.drop(connection)

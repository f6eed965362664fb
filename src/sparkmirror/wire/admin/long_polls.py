"""Fetch requests that wait at the leaders of some partitions until there are new records.

They have connections of their own: a broker serves the requests of one connection in turn, so
all others would wait behind them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from sparkmirror.errors import Unreachable
from sparkmirror.model import TopicPartition
from sparkmirror.settings import ClusterClient
from sparkmirror.wire.admin.leaders import Leaders
from sparkmirror.wire.admin.messages import fetch_request
from sparkmirror.wire.admin.requester import Requester
from sparkmirror.wire.net.poller import readable
from sparkmirror.wire.net.shared_connection import Sent, SharedConnection
from sparkmirror.wire.protocol_errors import ApiUnsupported, RequestError

__all__ = ["LongPolls"]

log = logging.getLogger(__name__)

_WAIT_MS = 500
# How long one call may look for the leaders and connect to them.
_LOOK_MS = 5_000


class _Poll(NamedTuple):
    """A request in flight, and when it is overdue (monotonic)."""

    connection: SharedConnection
    sent: Sent
    partitions: tuple[TopicPartition, ...]
    overdue_at: float


class LongPolls:
    """At most one request in flight at each leader. One owner thread.

    An unavailable cluster is no error: there are no responses then, and the leaders are looked up
    again. Raises `Denied` when a broker refuses the login.
    """

    def __init__(self, client: ClusterClient, bytes_max: int) -> None:
        self._client = client
        self._bytes_max = bytes_max
        self._requester = Requester(client)
        self._leaders = Leaders(self._requester)
        self._polls: list[_Poll] = []
        self._fresh = False
        self._again_at = 0.0

    def responses(self, positions: Mapping[TopicPartition, int], timeout_ms: int) -> list[Any]:
        """Fetch responses from ``positions`` on; waits up to ``timeout_ms`` for the first one.

        The positions of partitions that were not in a response must be those of the last call.
        """
        deadline = time.monotonic() + timeout_ms / 1000
        while True:
            self._send(positions)
            found = self._arrived()
            now = time.monotonic()
            if found or now >= deadline:
                return found
            until = deadline
            if any(tp not in self._in_flight() for tp in positions):
                until = min(deadline, max(self._again_at, now + 0.001))
            if self._polls:
                readable([one.connection.fileno() for one in self._polls], until - now)
            else:
                time.sleep(until - now)

    def look_again(self) -> None:
        """After an error of a partition: look its leader up again, after a pause."""
        self._fresh = True
        self._again_at = time.monotonic() + self._client.retry_backoff_ms / 1000

    def close(self) -> None:
        """Close the connections."""
        self._polls = []
        self._requester.close()

    def _in_flight(self) -> set[TopicPartition]:
        return {tp for one in self._polls for tp in one.partitions}

    def _send(self, positions: Mapping[TopicPartition, int]) -> None:
        in_flight = self._in_flight()
        idle = [tp for tp in positions if tp not in in_flight]
        if not idle or time.monotonic() < self._again_at:
            return
        try:
            led, _ = self._leaders.by_leader(idle, fresh=self._fresh, timeout_ms=_LOOK_MS)
        except Unreachable as error:
            self._failed(error)
            return
        self._fresh = False
        if sum(map(len, led.values())) < len(idle):
            self.look_again()  # some have no leader at present
        for node, partitions in led.items():
            wanted = {tp: positions[tp] for tp in partitions}
            message = fetch_request(wanted, self._bytes_max, read_committed=True, wait_ms=_WAIT_MS)
            deadline = time.monotonic() + _LOOK_MS / 1000
            try:
                connection = self._requester.connection(node, deadline)
                sent = connection.begin(message, deadline)
            except ApiUnsupported:
                raise
            except RequestError as error:
                self._failed(error)
                continue
            limit_s = (_WAIT_MS + self._client.request_timeout_ms) / 1000
            overdue_at = time.monotonic() + limit_s
            self._polls.append(_Poll(connection, sent, tuple(partitions), overdue_at))

    def _arrived(self) -> list[Any]:
        found, left = [], []
        for one in self._polls:
            one.connection.ready()
            if not one.sent.done and time.monotonic() < one.overdue_at:
                left.append(one)
                continue
            try:
                found.append(one.connection.finish(one.sent, one.overdue_at))
            except RequestError as error:
                self._failed(error)
        self._polls = left
        return found

    def _failed(self, error: Exception) -> None:
        log.debug("waiting for records of cluster %s: %s", self._client.alias, error)
        self.look_again()

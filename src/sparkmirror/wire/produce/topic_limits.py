"""How large a batch the topics of the target accept.

`TopicLimits` knows it for the topics whose batches are joined (`joining`). It requests their
configs on a thread of its own (`LimitsRequest`), and learns from refusals. If the configs may not
be read (DescribeConfigs), the default of brokers counts.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from itertools import takewhile
from typing import Protocol

from kafka.protocol.admin import DescribeConfigsRequest

from sparkmirror.errors import MirrorError
from sparkmirror.settings import ClusterClient
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.net.connection import ConnectionLost
from sparkmirror.wire.protocol_errors import error_name

__all__ = ["ACCEPTED_BYTES", "LimitsRequest", "TopicLimits"]

log = logging.getLogger(__name__)

ACCEPTED_BYTES = 1_000_000
"""What a topic counts as accepting while its limit is unknown.

It is below 1,048,588 bytes, the default of max.message.bytes.
"""
ACCEPTED_BYTES_MIN = 32 * 1024
"""A refused batch was at least twice as large: less is not learned from it."""
# A topic's limit may be changed while it is mirrored.
_ASK_AGAIN_S = 300.0
_TOPIC_RESOURCE = 2
# Brokers refuse a batch that is larger than either.
_LIMITS = ("max.message.bytes", "segment.bytes")


class Asked(Protocol):
    """A request under way."""

    @property
    def limits(self) -> Mapping[str, int]:
        """The response, once it is no longer `is_alive`: bytes by topic."""

    def is_alive(self) -> bool:
        """Whether the response is still to come."""


class TopicLimits:
    """The limits of one cluster's topics. One owner.

    ``ask`` begins a request for the limits of topics; None: nobody is asked. ``clock``: monotonic
    seconds.
    """

    def __init__(
        self,
        ask: Callable[[Collection[str]], Asked] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask = ask
        self._clock = clock
        self._asked: Asked | None = None
        self._unasked: set[str] = set()
        self._ask_at: dict[str, float] = {}  # of the others, the earliest first
        self._stated: dict[str, int] = {}
        self._refused: dict[str, int] = {}  # the smallest refused batch

    def of(self, topic: str) -> int:
        """The size of batches that ``topic`` accepts, in bytes; never waits for a response."""
        if self._ask is not None:
            self._ask_about(topic, self._ask)
        stated = self._stated.get(topic, ACCEPTED_BYTES)
        refused = self._refused.get(topic)
        if refused is None:
            return stated
        return min(stated, max(ACCEPTED_BYTES_MIN, refused // 2))

    def refused(self, topic: str, size: int) -> None:
        """Note that ``topic`` refused a batch of ``size`` bytes as too large."""
        self._refused[topic] = min(size, self._refused.get(topic, size))
        self._ask_at.pop(topic, None)

    def _ask_about(self, topic: str, ask: Callable[[Collection[str]], Asked]) -> None:
        if topic not in self._ask_at:
            self._unasked.add(topic)
        asked = self._asked
        if asked is not None:
            if asked.is_alive():
                return
            self._asked = None
            self._take(asked.limits)
        now = self._clock()
        due = list(takewhile(lambda name: self._ask_at[name] <= now, self._ask_at))
        for name in due:
            del self._ask_at[name]  # it goes to the end
        due += self._unasked
        self._unasked.clear()
        if due:
            self._ask_at |= dict.fromkeys(due, now + _ASK_AGAIN_S)
            self._asked = ask(due)

    def _take(self, limits: Mapping[str, int]) -> None:
        self._stated |= limits
        for topic, limit in limits.items():
            # A limit that does not explain the refusal is not the only one: a topic may have a
            # compression of its own, and brokers count what they write.
            if limit < self._refused.get(topic, 0):
                del self._refused[topic]


class LimitsRequest(threading.Thread):
    """Asks any broker of ``client``'s cluster for the limits of ``topics``; starts at once.

    Topics whose configs the broker does not show are missing in ``limits``.
    """

    def __init__(self, client: ClusterClient, topics: Collection[str]) -> None:
        super().__init__(name="topic-limits", daemon=True)
        self.limits: dict[str, int] = {}
        """In bytes, by topic."""
        self._client = client
        self._topics = topics
        self.start()

    def run(self) -> None:
        """Fill in ``limits``."""
        connections = ClusterConnections(self._client)
        try:
            connection = connections.any_connection()
            with connections.idle.using(connection):
                response = connection.request(_request(self._topics))
        except (MirrorError, ConnectionLost) as error:
            log.info("the limits of topics of cluster %s: %s", self._client.alias, error)
            return
        finally:
            connections.close()
        for row in response.results:
            if row.error_code:
                name = error_name(row.error_code)
                log.info("the limits of topic %s are not shown (%s)", row.resource_name, name)
                continue
            found = [int(one.value) for one in row.configs if one.name in _LIMITS and one.value]
            if found:
                self.limits[row.resource_name] = min(found)


def _request(topics: Collection[str]) -> DescribeConfigsRequest:
    row = DescribeConfigsRequest.DescribeConfigsResource
    return DescribeConfigsRequest(
        resources=[
            row(
                resource_type=_TOPIC_RESOURCE,
                resource_name=name,
                configuration_keys=list(_LIMITS),
            )
            for name in sorted(topics)
        ]
    )

"""Partition leaders for the control plane, and requests to them."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import count
from typing import Any, NamedTuple

from kafka.protocol.metadata import MetadataRequest, MetadataResponse

from sparkmirror.errors import Unreachable
from sparkmirror.model import TopicPartition
from sparkmirror.side_by_side import of_each
from sparkmirror.wire.admin.messages import topic_view
from sparkmirror.wire.admin.raw_responses import DecodeCache, RawResponse, undecoded
from sparkmirror.wire.admin.requester import Requester
from sparkmirror.wire.cluster.acl_advice import Right
from sparkmirror.wire.cluster.messages import list_offsets_request
from sparkmirror.wire.cluster.views import TopicView

__all__ = ["MOVED", "Leaders", "read_metadata"]

# Error codes that mean "try another broker": leader moved, not known there yet, being elected.
MOVED = frozenset({3, 5, 6, 9, 13, 56, 74, 75, 78, 100})

# With thousands of topics, only responses that have changed are decoded again.
_Request = undecoded(MetadataRequest, throttles_from=3)

_AGE_S_MAX = 30.0
_ATTEMPTS = 4
# Unknown topic, not the leader: a busy broker tells others that it leads a new partition before it
# has made the log itself. Other errors may last, such as that of a broken disk.
_SETTLING = frozenset({3, 6})
_SETTLING_S_MAX = 10.0
_BACKOFF_S_MAX = 1.0


class Described(NamedTuple):
    """A Metadata response; by topic, its view and the leader's node id per partition (-1: none)."""

    response: Any
    views: dict[str, TopicView]
    leaders: dict[str, dict[int, int]]


def read_metadata(raw: RawResponse) -> Described:
    """Decode a Metadata response. Raises an error of `kafka_python_limits.UNREADABLE`."""
    response = MetadataResponse[raw.version].decode(raw.data)
    views = {
        topic.name: topic_view(topic)
        for topic in response.topics
        if topic.partitions and topic.name is not None
    }
    leaders = {
        topic.name: {p.partition_index: p.leader_id for p in topic.partitions}
        for topic in response.topics
    }
    return Described(response, views, leaders)


class Leaders:
    """Metadata of one cluster, with a cache of leaders. Thread-safe."""

    def __init__(self, requester: Requester) -> None:
        self._requester = requester
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, dict[int, int]]] = {}
        self._responses: DecodeCache[Described] = DecodeCache(read_metadata)

    def metadata(self, names: Sequence[str] | None, timeout_ms: int | None = None) -> Any:
        """The Metadata response for ``names`` (None: all topics); never creates a topic.

        ``timeout_ms``: as for `Requester.request`.
        """
        return self.described(names, timeout_ms).response

    def described(self, names: Sequence[str] | None, timeout_ms: int | None = None) -> Described:
        """As `metadata`, with views of the topics.

        An unchanged response yields the same object, so nobody may change it.
        """
        row = MetadataRequest.MetadataRequestTopic
        topics = None if names is None else [row(name=name) for name in names]
        found: Described = self._requester.request(
            lambda: _Request(topics=topics, allow_auto_topic_creation=False, min_version=1),
            "describing the cluster" if names == [] else "describing topics",
            read=self._responses.read,
            needs=Right("Describe", "Topic"),
            timeout_ms=timeout_ms,
        )
        now = time.monotonic()
        with self._lock:
            if names is None:  # the whole cluster: what is not in it is gone
                self._known = {}
            for name, leaders in found.leaders.items():
                self._known[name] = (now, leaders)
        return found

    def known(self, topic: str, partitions: Iterable[int]) -> bool:
        """Whether all ``partitions`` of ``topic`` had leaders at most 30 s ago."""
        with self._lock:
            asked_at, leaders = self._known.get(topic, (0.0, {}))
        recent = bool(leaders) and time.monotonic() - asked_at <= _AGE_S_MAX
        return recent and all(leaders.get(number, -1) >= 0 for number in partitions)

    def of(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The node id of each leader that was known last; without a request."""
        with self._lock:
            known = {topic: leaders for topic, (_, leaders) in self._known.items()}
        found = ((tp, known.get(tp.topic, {}).get(tp.partition, -1)) for tp in partitions)
        return {tp: leader for tp, leader in found if leader >= 0}

    def by_leader(
        self,
        partitions: Iterable[TopicPartition],
        *,
        fresh: bool,
        timeout_ms: int | None = None,
    ) -> tuple[dict[int, list[TopicPartition]], set[TopicPartition]]:
        """(partitions by their leader's node id, partitions that ``fresh`` metadata does not have).

        Partitions without a leader are in neither. ``fresh``: request metadata even if the cached
        one is recent; without it the second part is empty. ``timeout_ms``: as for `metadata`.
        """
        wanted = list(partitions)
        now = time.monotonic()
        with self._lock:
            known = dict(self._known)
        stale = {
            tp.topic
            for tp in wanted
            if fresh or tp.topic not in known or now - known[tp.topic][0] > _AGE_S_MAX
        }
        if stale:
            self.metadata(sorted(stale), timeout_ms)
            with self._lock:
                known = dict(self._known)
        led: dict[int, list[TopicPartition]] = defaultdict(list)
        gone: set[TopicPartition] = set()
        for tp in wanted:
            leader = known.get(tp.topic, (0.0, {}))[1].get(tp.partition)
            if leader is not None and leader >= 0:
                led[leader].append(tp)
            elif leader is None and fresh:
                gone.add(tp)
        return led, gone

    def list_offsets(
        self, partitions: Iterable[TopicPartition], timestamp: int, isolation: int
    ) -> dict[TopicPartition, int]:
        """Offset for ``timestamp`` (ms, `EARLIEST`, `LATEST`) per partition.

        ``isolation`` 1: the end is the last stable offset. Retries while leaders are elected, and
        longer where a leader responds that it does not lead yet; partitions whose leader does not
        respond after that are missing.
        """
        result: dict[TopicPartition, int] = {}
        missing = set(partitions)
        client = self._requester.client
        began = time.monotonic()
        longest_s = min(client.request_timeout_ms / 1000, _SETTLING_S_MAX)
        for attempt in count():
            if attempt:
                time.sleep(min(client.retry_backoff_ms * 2**attempt / 1000, _BACKOFF_S_MAX))
            led, gone = self.by_leader(missing, fresh=attempt > 0)
            missing -= gone
            settling = False
            # Over a long link each broker takes a round trip, and the first time several.
            answers = of_each(lambda one: self._query(*one, timestamp, isolation), led.items())
            for found, gone, soon in answers:
                result.update(found)
                missing -= found.keys() | gone
                settling = settling or soon
            over = time.monotonic() - began >= longest_s
            if not missing or over or (attempt + 1 >= _ATTEMPTS and not settling):
                break
        return result

    def _query(
        self, node: int, group: Sequence[TopicPartition], timestamp: int, isolation: int
    ) -> tuple[dict[TopicPartition, int], set[TopicPartition], bool]:
        """(offsets from ``node``, partitions with a final error, whether it may lead one soon).

        Nothing if it is unreachable.
        """
        try:
            response = self._requester.request(
                partial(list_offsets_request, group, timestamp, read_committed=isolation == 1),
                "reading offsets",
                node=node,
                needs=Right("Describe", "Topic"),
            )
        except Unreachable:
            return {}, set(), False  # the next attempt looks up the leader again
        found, denied, soon = {}, set(), False
        for topic in response.topics:
            for row in topic.partitions:
                tp = TopicPartition(topic.name, row.partition_index)
                if not row.error_code:
                    found[tp] = int(row.offset)
                elif row.error_code not in MOVED:
                    denied.add(tp)
                soon = soon or row.error_code in _SETTLING
        return found, denied, soon

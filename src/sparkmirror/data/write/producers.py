"""The producers of this process, one for each flow and target cluster.

Spark reuses its Python workers from epoch to epoch. A producer that is kept keeps its producer id.
What was learned about the target's topics is kept beside it: exactly-once has a new producer for
each epoch and after each refusal, and must not learn it again.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from sparkmirror.errors import MirrorError
from sparkmirror.settings import FlowSettings
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.net.connection import ConnectionLost
from sparkmirror.wire.produce.producer import Producer
from sparkmirror.wire.produce.topic_limits import LimitsRequest, TopicLimits

__all__ = ["drop_producer", "drop_producers", "limits_of", "producer_of"]

_RESPONSES_S = 2.0

_kept: dict[str, Producer] = {}
_limits: dict[str, TopicLimits] = {}


def producer_of(flow: FlowSettings) -> Producer:
    """The flow's producer; created on first use."""
    key = _key(flow)
    producer = _kept.get(key)
    if producer is None:
        connections = ClusterConnections(
            flow.target, send_buffer_bytes=flow.produce.send_buffer_bytes
        )
        producer = _kept[key] = Producer(connections, flow.produce, limits=limits_of(flow))
    return producer


def limits_of(flow: FlowSettings) -> TopicLimits:
    """The limits of the flow's topics on the target, requested when they are first needed.

    All producers of the flow share them.
    """
    return _limits.setdefault(_key(flow), TopicLimits(partial(LimitsRequest, flow.target)))


def drop_producer(flow: FlowSettings) -> None:
    """Close the flow's producer, if there is one; the next task gets a new one.

    Before that, wait a moment for its requests in flight. The next attempt continues where the
    target's logs end; what is appended after it has read those ends would be written twice.
    """
    producer = _kept.pop(_key(flow), None)
    if producer is not None:
        with suppress(MirrorError, ConnectionLost):
            producer.await_responses(_RESPONSES_S)
        producer.close()


def drop_producers() -> None:
    """Close the producers of all flows; the process continues without their slots."""
    _limits.clear()
    while _kept:
        _kept.popitem()[1].close()


def _key(flow: FlowSettings) -> str:
    return f"{flow.name}|{','.join(flow.target.bootstrap_servers)}"

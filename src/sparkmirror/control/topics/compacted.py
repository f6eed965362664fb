"""Creates and reads small compacted topics with one partition, as MirrorMaker 2 uses for state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sparkmirror.control.topics.replicas import (
    alive,
    ask_for,
    fewer_told,
    too_few_brokers,
)
from sparkmirror.errors import TooFewBrokers, TopicError
from sparkmirror.model import TopicPartition
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.admin.topic_reader import TopicTail
from sparkmirror.wire.cluster.views import NewTopic

__all__ = ["COMPACTED", "CompactedTopic", "TopicFollower", "create_compacted", "plan_compacted"]

COMPACTED = {"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"}
"""Configs of the mirror's own compacted topics.

By default Kafka 4 rejects records with timestamps more than an hour ahead of the broker's clock.
LogAppendTime makes these topics independent of the clock of the mirror's machine.
"""


@dataclass(frozen=True, slots=True)
class CompactedTopic:
    """A topic with one partition that is created if missing.

    ``factor``: replication factor, from the setting ``key``; -1 means the broker's default.
    ``at_most_brokers``: use fewer replicas if there are too few brokers. ``own_times``: records
    keep the timestamps of their producer.
    """

    name: str
    factor: int
    key: str
    at_most_brokers: bool = False
    own_times: bool = False


def plan_compacted(cluster: Cluster, wanted: CompactedTopic) -> NewTopic | None:
    """The topic to create; None if it exists. Raises `MirrorError`."""
    if wanted.name in cluster.topics([wanted.name]):
        return None
    configs = {"cleanup.policy": "compact"} if wanted.own_times else COMPACTED
    return NewTopic(wanted.name, 1, wanted.factor, configs)


def create_compacted(cluster: Cluster, wanted: CompactedTopic) -> str:
    """Create the topic if it is missing; returns a notice, or "" if it exists.

    An existing topic is not changed. Raises `TooFewBrokers` if there are too few brokers for the
    replication factor, and other `MirrorError`.
    """
    new = plan_compacted(cluster, wanted)
    if new is None:
        return ""
    fewer = {new.name} if wanted.at_most_brokers else ()
    outcomes, asked = ask_for(cluster, [new], cluster.create_topics, fewer)
    outcome = outcomes[new.name]
    if isinstance(outcome.error, TooFewBrokers):
        brokers, said = alive(cluster), outcome.error
        raise too_few_brokers(cluster.alias, new, wanted.key, brokers, said) from said
    if outcome.error is not None:
        raise outcome.error
    told = f"{cluster.alias}: created internal topic {new.name}{fewer_told(new, asked[new.name])}"
    return "" if outcome.existed else told


class TopicFollower:
    """Reads partition 0 of one topic from the start of the log on. For one thread."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self.topic = topic
        self._cluster = cluster
        self._partition = TopicPartition(topic, 0)
        self._tail: TopicTail | None = None

    @property
    def begun(self) -> bool:
        """Whether the topic was there when it was read."""
        return self._tail is not None

    def read(self) -> Iterator[tuple[bytes | None, bytes | None]]:
        """Keys and values from where the last call stopped, up to the current end.

        Raises `MirrorError`, for example if the topic does not exist; the next call continues.
        """
        if self._tail is None:
            self._tail = self._cluster.tail(self.topic, partitions=[0])
        ends = self._cluster.end_offsets([self._partition], "read_committed")
        if self._partition not in ends:  # it would look empty
            raise TopicError(
                f"{self._partition} cannot be read: it has no live leader.",
                where=f"cluster {self._cluster.alias}",
                do="Start a broker that has an in-sync replica of it.",
            )
        for _, key, value in self._tail.read_to(ends):
            yield key, value

    def close(self) -> None:
        """Close the connection. Raises `MirrorError` if that fails."""
        tail, self._tail = self._tail, None
        if tail is not None:
            tail.close()

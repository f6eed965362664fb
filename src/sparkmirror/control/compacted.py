"""The small compacted topics that MirrorMaker 2 keeps its state in: made when missing, followed."""

from __future__ import annotations

from collections.abc import Iterator

from sparkmirror.errors import TopicError
from sparkmirror.model import TopicPartition
from sparkmirror.wire.client import Cluster
from sparkmirror.wire.tail import TopicTail
from sparkmirror.wire.views import NewTopic

__all__ = ["TopicFollower", "create_compacted"]


def create_compacted(cluster: Cluster, topic: str, factor: int, key: str) -> str:
    """Create ``topic`` with one partition when it is missing; the notice, "" when it was there.

    ``factor``: replication factor, from the setting ``key``; -1 leaves it to the broker. Raises
    `MirrorError`. An existing topic is left as it is.
    """
    if topic in cluster.topics([topic]):
        return ""
    brokers = len(cluster.describe().brokers)
    if factor > brokers:
        raise TopicError(
            f"the topic cannot be created: {key} is {factor}, but the cluster has {brokers} "
            f"broker{'s' if brokers != 1 else ''}.",
            where=f"cluster {cluster.alias}, topic {topic}",
            do=f"Set {key} to {brokers} or less (-1 takes the broker's default), or create the "
            "topic yourself.",
        )
    new = NewTopic(topic, 1, factor, {"cleanup.policy": "compact"})
    outcome = cluster.create_topics([new])[topic]
    if outcome.error is not None:
        raise outcome.error
    return "" if outcome.existed else f"{cluster.alias}: created internal topic {topic}"


class TopicFollower:
    """Reads partition 0 of one topic, from its beginning and then what is new; one owner thread."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self.topic = topic
        self._cluster = cluster
        self._partition = TopicPartition(topic, 0)
        self._tail: TopicTail | None = None

    def read(self) -> Iterator[tuple[bytes | None, bytes | None]]:
        """Keys and values up to the present end, from where the last call stopped.

        Raises `MirrorError`, also when the topic does not exist; the next call goes on.
        """
        if self._tail is None:
            self._tail = self._cluster.tail(self.topic, partitions=[0])
        ends = self._cluster.end_offsets([self._partition], "read_committed")
        for _, key, value in self._tail.read_to(ends):
            yield key, value

    def close(self) -> None:
        """Close the connection. Raises `MirrorError` when it does not close in peace."""
        tail, self._tail = self._tail, None
        if tail is not None:
            tail.close()

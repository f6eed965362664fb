"""`MirrorClient`: what a cluster knows about the clusters that are mirrored to it.

For programs that fail over between clusters: which clusters are upstream and how many hops away,
which topics are remote, and where a consumer group continues. All this comes from topic names and
from the checkpoints topic. So it is the same whether Java's MirrorMaker 2 or sparkmirror wrote
them. If a map gives remote topics their names, an internal topic of sparkmirror says which source
topics they come from. ::

    with MirrorClient({"bootstrap.servers": "b1:9092"}) as client:
        for tp, at in client.remote_consumer_offsets("my-group", "A").items():
            consumer.seek(tp.topic, tp.partition, at.offset)
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from sparkmirror.config.mirror_client import mirror_client_settings
from sparkmirror.internal_topics.mm2_records import Checkpoint, decode_checkpoint
from sparkmirror.internal_topics.remote_names import (
    REMOTE_NAMES_TOPIC,
    RemoteName,
    collect_remote_names,
    origins,
)
from sparkmirror.model import TopicPartition
from sparkmirror.names.java_regex import compile_regex
from sparkmirror.names.replication_policy import (
    ReplicationPolicy,
    is_remote_topic,
    make_policy,
    sources_of,
)
from sparkmirror.wire.admin.cluster import Cluster

__all__ = [
    "Checkpoint",
    "MirrorClient",
    "OffsetAndMetadata",
    "RemoteClusterUtils",
    "TopicPartition",
    "latest_checkpoints",
]

Properties = Mapping[str, str] | str | os.PathLike[str]

_TIMEOUT_S = 60.0


class OffsetAndMetadata(NamedTuple):
    """Where a group continues in one partition; ``metadata`` is that of its commit."""

    offset: int
    metadata: str = ""


class MirrorClient:
    """Reads from one cluster what is mirrored to it. Close it when done.

    ``properties``: the keys of Java's MirrorClientConfig, as a mapping or the path of a properties
    file: ``bootstrap.servers``, ``security.protocol`` and the like, ``replication.policy.class``,
    ``replication.policy.separator``. With IdentityReplicationPolicy, ``source.cluster.alias`` is
    the source of every topic. Other keys are ignored, so a consumer's own properties may be used.
    The first call connects. Calls raise only `MirrorError`, and `TypeError` for arguments of a
    wrong type.
    """

    def __init__(self, properties: Properties, *, request_timeout_s: float = 30.0) -> None:
        given = properties if isinstance(properties, Mapping) else Path(properties)
        settings = mirror_client_settings(given, request_timeout_ms=int(request_timeout_s * 1000))
        self.replication_policy = make_policy(settings.policy, settings.source_alias)
        self._admin = Cluster(settings.admin)
        self._reader = (
            self._admin if settings.consumer == settings.admin else Cluster(settings.consumer)
        )

    @classmethod
    def of(cls, cluster: Cluster, policy: ReplicationPolicy) -> MirrorClient:
        """A client that uses ``cluster``. The caller closes ``cluster``."""
        client = cls.__new__(cls)
        client.replication_policy = policy
        client._admin = client._reader = cluster
        return client

    def __enter__(self) -> MirrorClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; a later call opens them again."""
        for cluster in {id(one): one for one in (self._admin, self._reader)}.values():
            cluster.close()

    # --- names ------------------------------------------------------------------------------

    def heartbeat_topics(self) -> set[str]:
        """The heartbeats topics on this cluster, its own and those of other clusters."""
        return self._topics(self.replication_policy.is_heartbeats_topic)

    def checkpoint_topics(self) -> set[str]:
        """The checkpoints topics on this cluster."""
        return self._topics(self.replication_policy.is_checkpoints_topic)

    def upstream_clusters(self) -> set[str]:
        """All clusters whose heartbeats arrive here, directly or through other clusters."""
        return set(self.hops())

    def replication_hops(self, upstream_alias: str) -> int:
        """Number of flows between that cluster and this one on the shortest path; -1 if none."""
        return self.hops().get(upstream_alias, -1)

    def hops(self) -> dict[str, int]:
        """`replication_hops` of all upstream clusters."""
        found: dict[str, int] = {}
        for topic in self.heartbeat_topics():
            for hops, source in enumerate(sources_of(self.replication_policy, topic), 1):
                found[source] = min(hops, found.get(source, hops))
        return found

    def remote_topics(self, source: str | None = None) -> set[str]:
        """The topics that were mirrored to this cluster: all, or those of cluster ``source``."""
        present = self._topics(lambda _: True)
        named = self._named()
        found = ((topic, self._origin(topic, named)) for topic in present)
        return {
            topic
            for topic, origin in found
            if origin is not None and (source is None or origin[0] == source)
        }

    def topic_origin(self, topic: str) -> tuple[str, str] | None:
        """Source cluster alias and source topic of ``topic``; None if it is not a remote topic."""
        return self._origin(topic, self._named())

    def _origin(self, topic: str, named: Mapping[str, RemoteName]) -> tuple[str, str] | None:
        if topic in named:
            return named[topic].cluster, named[topic].topic
        policy = self.replication_policy
        if not is_remote_topic(policy, topic):
            return None
        return policy.readings(topic)[0]

    def _named(self) -> dict[str, RemoteName]:
        """What topics are copies of that a map has named; nothing where there is no map."""
        if REMOTE_NAMES_TOPIC not in self._admin.topics([REMOTE_NAMES_TOPIC]):
            return {}
        records = self._reader.read_compacted(REMOTE_NAMES_TOPIC, partitions=[0], passes=True)
        return origins(collect_remote_names((key, value) for _, key, value in records))

    def _topics(self, wanted: Callable[[str], bool]) -> set[str]:
        return {
            name
            for name, view in self._admin.topics().items()
            if not view.internal and wanted(name)
        }

    # --- groups -----------------------------------------------------------------------------

    def remote_consumer_offsets(
        self, group: str, remote_alias: str, timeout_s: float = _TIMEOUT_S
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Where ``group`` of cluster ``remote_alias`` continues here, by partition of this cluster.

        Empty if the group has no checkpoint. Reads the checkpoints topic to its end, for at most
        ``timeout_s``. Raises `TopicError` if that topic does not exist.
        """
        if not isinstance(group, str):
            raise TypeError(f"group must be a string, not {type(group).__name__}")
        found = self.checkpoints(remote_alias, timeout_s)
        return _by_group(found).get(group, {})

    def remote_consumer_offsets_matching(
        self, regex: str | re.Pattern[str], remote_alias: str, timeout_s: float = _TIMEOUT_S
    ) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]:
        """The same for all groups whose whole name matches; a text is a Java regex."""
        pattern = compile_regex(regex, where="regex") if isinstance(regex, str) else regex
        if not isinstance(pattern, re.Pattern):
            raise TypeError(f"regex must be a string or a pattern, not {type(regex).__name__}")
        found = _by_group(self.checkpoints(remote_alias, timeout_s))
        return {group: found[group] for group in sorted(found) if pattern.fullmatch(group)}

    def checkpoints(
        self, remote_alias: str, timeout_s: float = _TIMEOUT_S
    ) -> dict[tuple[str, TopicPartition], Checkpoint]:
        """The newest checkpoint per group and partition of this cluster.

        Limits and errors are those of `remote_consumer_offsets`.
        """
        if not isinstance(remote_alias, str):
            raise TypeError(f"remote_alias must be a string, not {type(remote_alias).__name__}")
        topic = self.replication_policy.checkpoints_topic(remote_alias)
        with self._reader.tail(topic, partitions=[0]) as tail:
            return latest_checkpoints(tail.read_to_end(within_s=timeout_s))


def latest_checkpoints(
    records: Iterable[tuple[int, bytes | None, bytes | None]],
) -> dict[tuple[str, TopicPartition], Checkpoint]:
    """The last checkpoint of each group and partition; other records are skipped."""
    found: dict[tuple[str, TopicPartition], Checkpoint] = {}
    for _, key, value in records:
        checkpoint = decode_checkpoint(key, value)
        if checkpoint is not None:
            found[checkpoint.group, checkpoint.remote] = checkpoint
    return found


def _by_group(
    checkpoints: Mapping[tuple[str, TopicPartition], Checkpoint],
) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]:
    groups: dict[str, dict[TopicPartition, OffsetAndMetadata]] = {}
    for (group, tp), one in sorted(checkpoints.items(), key=lambda item: item[0]):
        groups.setdefault(group, {})[tp] = OffsetAndMetadata(one.downstream, one.metadata)
    return groups


class RemoteClusterUtils:
    """The calls of Java's RemoteClusterUtils; each call opens and closes a client of its own."""

    @staticmethod
    def replication_hops(properties: Properties, upstream_alias: str) -> int:
        """`MirrorClient.replication_hops`."""
        with MirrorClient(properties) as client:
            return client.replication_hops(upstream_alias)

    @staticmethod
    def heartbeat_topics(properties: Properties) -> set[str]:
        """`MirrorClient.heartbeat_topics`."""
        with MirrorClient(properties) as client:
            return client.heartbeat_topics()

    @staticmethod
    def checkpoint_topics(properties: Properties) -> set[str]:
        """`MirrorClient.checkpoint_topics`."""
        with MirrorClient(properties) as client:
            return client.checkpoint_topics()

    @staticmethod
    def upstream_clusters(properties: Properties) -> set[str]:
        """`MirrorClient.upstream_clusters`."""
        with MirrorClient(properties) as client:
            return client.upstream_clusters()

    @staticmethod
    def translate_offsets(
        properties: Properties, remote_alias: str, group: str, timeout_s: float = _TIMEOUT_S
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """`MirrorClient.remote_consumer_offsets`."""
        with MirrorClient(properties) as client:
            return client.remote_consumer_offsets(group, remote_alias, timeout_s)

    @staticmethod
    def translate_offsets_matching(
        properties: Properties,
        remote_alias: str,
        regex: str | re.Pattern[str],
        timeout_s: float = _TIMEOUT_S,
    ) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]:
        """`MirrorClient.remote_consumer_offsets_matching`."""
        with MirrorClient(properties) as client:
            return client.remote_consumer_offsets_matching(regex, remote_alias, timeout_s)

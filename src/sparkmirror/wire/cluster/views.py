"""Plain data that `wire.admin.cluster.Cluster` returns: brokers, topics, configs, ACLs, groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sparkmirror.errors import MirrorError

__all__ = [
    "AclBinding",
    "BrokerView",
    "ClusterView",
    "Committed",
    "ConfigEntry",
    "GroupMember",
    "GroupOwner",
    "GroupView",
    "NewTopic",
    "TopicOutcome",
    "TopicView",
]


@dataclass(frozen=True, slots=True)
class BrokerView:
    """One broker as the cluster advertises it."""

    node: int
    host: str
    port: int
    rack: str = ""


@dataclass(frozen=True, slots=True)
class ClusterView:
    """Id, live brokers and controller (-1: unknown) of a cluster."""

    cluster_id: str
    brokers: tuple[BrokerView, ...]
    controller: int


@dataclass(frozen=True, slots=True)
class TopicView:
    """One topic. ``topic_id``: 36-character UUID, empty when the broker has none.

    ``partitions``: their number. ``leaderless``: numbers of the partitions without a live leader.
    """

    name: str
    topic_id: str
    partitions: int
    replication: int
    leaderless: tuple[int, ...] = ()
    internal: bool = False


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One topic setting. ``source``: Kafka's name, e.g. ``DYNAMIC_TOPIC_CONFIG``.

    ``is_default``: its value is Kafka's own default (source ``DEFAULT_CONFIG``), nobody set it.
    """

    value: str | None
    source: str
    is_default: bool = False
    read_only: bool = False
    sensitive: bool = False


@dataclass(frozen=True, slots=True, order=True)
class AclBinding:
    """One ACL. ``pattern``: ``LITERAL`` or ``PREFIXED``; the rest in Kafka's names too."""

    resource_type: str
    name: str
    pattern: str
    principal: str
    host: str
    operation: str
    permission: str

    def __str__(self) -> str:
        kind = self.resource_type.capitalize()
        prefixed = " (prefix)" if self.pattern == "PREFIXED" else ""
        host = "" if self.host == "*" else f" from {self.host}"
        what = f"{self.permission} {self.operation} for {self.principal}{host}"
        return f"{what} on {kind} {self.name}{prefixed}"


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. ``replication_factor`` -1 leaves it to the broker's default."""

    name: str
    partitions: int
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicOutcome:
    """The result for one topic of a batch. ``existed``: it existed already and is unchanged."""

    name: str
    error: MirrorError | None = None
    existed: bool = False


@dataclass(frozen=True, slots=True)
class Committed:
    """A group's committed offset of one partition. ``leader_epoch`` -1: none."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class GroupView:
    """A consumer group. ``state``: Kafka's name (``Empty``, ``Stable``, …), empty when unknown."""

    name: str
    state: str


@dataclass(frozen=True, slots=True)
class GroupMember:
    """An active member of a consumer group."""

    client_id: str
    host: str


@dataclass(frozen=True, slots=True)
class GroupOwner:
    """The member of a consumer group that owns a partition. ``member``: its member id.

    ``host``: as the broker shows it, without the slash. An owner in ZooKeeper has none; its
    ``member`` is the id of the consumer thread.
    """

    member: str
    client_id: str = ""
    host: str = ""

    def __str__(self) -> str:
        return f"{self.client_id}_/{self.host}" if self.host else self.member

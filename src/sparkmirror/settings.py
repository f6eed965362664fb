"""What a mirror is told: settings as its parts use them, checked and without their files.

They cross process boundaries (driver, planner, Spark's workers), so they hold only values that
pickle. The end of a name says the unit of a duration or a size.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from sparkmirror.model import MirrorMode, Partitioner
from sparkmirror.transform_settings import RegistrySettings, SmtSettings, TransformSettings

__all__ = [
    "EXACT_SLOTS_MAX",
    "FETCH_BYTES_MAX",
    "CheckpointSettings",
    "ClusterClient",
    "FaultSettings",
    "FetchSettings",
    "FlowNaming",
    "FlowSettings",
    "GroupSettings",
    "HeartbeatSettings",
    "Member",
    "MetricsSettings",
    "MirrorSettings",
    "OffsetSyncSettings",
    "PolicySettings",
    "ProduceSettings",
    "RecordSettings",
    "ThrottleRule",
    "TopicRule",
    "TopicSettings",
]


@dataclass(frozen=True, slots=True)
class ClusterClient:
    """How to reach one cluster in one role (source consumer, target producer, admin).

    ``properties`` holds the other Java client properties that the file gives for this role, such
    as security keys. Secrets in it are in clear text: never log it.
    """

    alias: str
    bootstrap_servers: tuple[str, ...]
    client_id: str
    security_protocol: str = "PLAINTEXT"
    request_timeout_ms: int = 30_000
    connect_timeout_ms: int = 10_000
    connect_timeout_ms_max: int = 30_000
    reconnect_backoff_ms: int = 50
    reconnect_backoff_ms_max: int = 1_000
    retry_backoff_ms: int = 100
    retry_backoff_ms_max: int = 1_000
    metadata_age_ms_max: int = 300_000
    properties: Mapping[str, str] = field(default_factory=dict)


FETCH_BYTES_MAX = 4 * 1024 * 1024
"""Memory for one Fetch response, in bytes; a larger response would only cost more memory."""


EXACT_SLOTS_MAX = 1_000
"""Limit on the slots of an exactly-once flow: a start fences the transactional ids of all slots."""


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """How the source is read. Names follow the Java consumer's properties.

    ``reread_bytes``: how many bytes per second a slot may read again from a far broker, so that
    several requests wait for the next records (`wire/fetch/staggered.py`); 0: one waits.
    """

    fetch_max_wait_ms: int = 500
    fetch_min_bytes: int = 1
    fetch_max_bytes: int = FETCH_BYTES_MAX
    partition_fetch_bytes_max: int = FETCH_BYTES_MAX
    isolation_level: str = "read_committed"
    auto_offset_reset: str = "earliest"
    check_crcs: bool = True
    client_rack: str = ""
    receive_buffer_bytes: int = -1
    reread_bytes: int = 500_000


@dataclass(frozen=True, slots=True)
class ProduceSettings:
    """How records are written to the target. Names follow the Java producer's properties.

    ``link_joining``: whether batches that wait for a slow link are joined (``auto``, ``off``,
    ``always``). ``link_compression``: the codec of joined batches; empty keeps that of the source's
    batches.
    """

    acks: int = -1
    enable_idempotence: bool = True
    in_flight_requests_max: int = 5
    linger_ms: int = 0
    delivery_timeout_ms: int = 2_147_483_647
    request_bytes_max: int = 16 * 1024 * 1024
    join_bytes: int = 256 * 1024
    send_buffer_bytes: int = -1
    link_joining: str = "auto"
    link_compression: str = ""


@dataclass(frozen=True, slots=True)
class RecordSettings:
    """The record path: what happens to each record between source and sink, if anything.

    ``codec``: codec number of the batches that are written; -1 keeps the source batch's codec.
    ``levels``: compression level by codec number. ``sticky_bytes``: Java's ``batch.size``, the
    bytes after which sticky records change their partition. ``handler``: ``module:function`` that
    is called with each record; empty for none. ``drop_failed``: records that the target refuses are
    dropped and counted, instead of stopping the mirror (``--abort.on.send.failure=false``).
    """

    partitioner: Partitioner = Partitioner.NUMBER
    codec: int = -1
    sticky_bytes: int = 16_384
    handler: str = ""
    handler_args: str | None = None
    drop_failed: bool = False
    levels: tuple[int, ...] = (0, 6, 0, 9, 3)

    @property
    def used(self) -> bool:
        """Whether the record path is needed. If not, whole batches are carried."""
        return self.partitioner is not Partitioner.NUMBER or bool(self.handler)


@dataclass(frozen=True, slots=True)
class FaultSettings:
    """What happens to a partition when data is lost or the target refuses records.

    ``source_loss``: ``fail`` or ``record-and-continue``. ``target_loss``: one of these or
    ``repair``. ``bad_record``: ``pause``, ``skip`` or ``dead-letter``. The other fields list the
    topics (Java regexes) to which another of these values applies.
    """

    source_loss: str = "fail"
    source_loss_fail: tuple[str, ...] = ()
    source_loss_continue: tuple[str, ...] = ()
    target_loss: str = "repair"
    target_loss_repair: tuple[str, ...] = ()
    target_loss_fail: tuple[str, ...] = ()
    target_loss_continue: tuple[str, ...] = ()
    bad_record: str = "pause"
    bad_record_pause: tuple[str, ...] = ()
    bad_record_skip: tuple[str, ...] = ()
    bad_record_dead_letter: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """Replication policy of a flow.

    ``aliases``: the file's clusters. If a topic's name begins with one of them and the separator,
    that cluster is the topic's source. Java does not know the aliases and may see another source.
    """

    kind: str = "default"
    separator: str = "."
    internal_separator_enabled: bool = True
    aliases: tuple[str, ...] = ()


class TopicRule(NamedTuple):
    """One rule of a map of topic names: source topics whose whole name matches get ``name``.

    ``regex``: a Java regex. ``name``: a replacement in Java's syntax (`names.topics_map`).
    """

    regex: str
    name: str


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """Which topics a flow mirrors, and how it creates remote topics.

    ``include``, ``exclude``: Java regexes, joined by ``|``, that match the whole name; an empty
    tuple matches nothing. ``map``: rules that give whole names on the target instead of the
    policy's; the first rule that matches counts. ``smts``: the flow's single message transforms, in
    order (`names.smts`). ``sync_configs_keep``: configs (also regexes)
    whose overrides on the target stay if the source has none. What is synchronised after creation
    is MirrorMaker 2's: other modes never do it, whatever the switches say.
    """

    include: tuple[str, ...] = (".*",)
    exclude: tuple[str, ...] = (r"mm2.*\.internal", r".*\.replica", "__.*")
    config_properties_exclude: tuple[str, ...] = (
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
        "message.timestamp.difference.max.ms",
        "log.message.timestamp.before.max.ms",
        "log.message.timestamp.after.max.ms",
        "message.timestamp.type",
        "unclean.leader.election.enable",
        "min.insync.replicas",
    )
    map: tuple[TopicRule, ...] = ()
    smts: tuple[SmtSettings, ...] = ()
    use_defaults_from: str = "target"
    replication_factor: int = 2
    refresh_enabled: bool = True
    refresh_interval_s: int = 600
    heartbeats_replication_enabled: bool = True
    sync_configs_enabled: bool = True
    sync_configs_interval_s: int = 600
    sync_configs_keep: tuple[str, ...] = ()
    sync_acls_enabled: bool = True
    sync_acls_interval_s: int = 600

    @property
    def renamed(self) -> bool:
        """Whether a map or a RegexRouter may give names that are not the policy's."""
        return bool(self.map) or any(one.kind == "RegexRouter" for one in self.smts)


@dataclass(frozen=True, slots=True)
class OffsetSyncSettings:
    """How the mirror publishes which target offsets belong to which source offsets.

    MirrorMaker 2's readers and our own use that. ``location``: the cluster of the offset-syncs
    topic, ``source`` or ``target``. ``client``, ``produce``: how syncs are written there.
    """

    enabled: bool = False
    location: str = "source"
    lag_max: int = 100
    replication_factor: int = 3
    client: ClusterClient | None = None
    produce: ProduceSettings = field(default_factory=ProduceSettings)


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    """How the progress of consumer groups is carried over to the target.

    ``include``, ``exclude``: Java regexes of group names, as in `TopicSettings`.
    ``sync_enabled``: also commit translated offsets for idle groups of the target.
    ``client``: how checkpoints are read back from the target.
    """

    enabled: bool = False
    interval_s: int = 60
    replication_factor: int = 3
    include: tuple[str, ...] = (".*",)
    exclude: tuple[str, ...] = ("console-consumer-.*", "connect-.*", "__.*")
    refresh_enabled: bool = True
    refresh_interval_s: int = 600
    sync_enabled: bool = False
    sync_interval_s: int = 60
    client: ClusterClient | None = None


@dataclass(frozen=True, slots=True)
class HeartbeatSettings:
    """Heartbeats of ``source->target``, written to ``target``.

    They do not need a flow ``source->target``: a flow A->B mirrors the heartbeats of B->A.
    """

    source: str
    target: ClusterClient
    target_admin: ClusterClient
    topic: str = "heartbeats"
    interval_s: int = 1
    replication_factor: int = 3

    @property
    def name(self) -> str:
        """``A->B``, as MirrorMaker writes a flow."""
        return f"{self.source}->{self.target.alias}"


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """How a mirror with MirrorMaker 1's files takes part in its consumer group on the source.

    Names follow the Java consumer's properties. ``strategies``: assignors by their names in the
    group protocol, in order of preference. ``rebalance_timeout_ms``: ``max.poll.interval.ms``.
    ``listener``: ``module:name`` of a rebalance listener, empty for none.
    """

    strategies: tuple[str, ...] = ("range", "cooperative-sticky")
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    rebalance_timeout_ms: int = 300_000
    instance_id: str = ""
    listener: str = ""
    listener_args: str | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """Membership in one generation of a consumer group; commits need it to be accepted.

    ``cooperative``: the member keeps its partitions while the group rebalances.
    """

    member_id: str
    generation: int
    instance_id: str = ""
    cooperative: bool = False


@dataclass(frozen=True, slots=True)
class FlowNaming:
    """The settings of one flow that decide which topics it mirrors, and their remote names.

    ``mirror``: see `FlowSettings.mirror`.
    """

    source: str
    target: str
    policy: PolicySettings
    topics: TopicSettings
    mode: MirrorMode = MirrorMode.MM2
    mirror: str = ""

    @property
    def name(self) -> str:
        """``A->B``."""
        return f"{self.source}->{self.target}"


@dataclass(frozen=True, slots=True)
class ThrottleRule:
    """A limit on the bytes per second that a flow reads from its source.

    ``topics``: a Java regex of source topics, which share the limit; empty: all of the flow.
    ``bytes_s``: 0 for no limit. ``between``: ``HH:MM-HH:MM`` in the time zone of the process that
    runs the flow, empty for always.
    """

    topics: str = ""
    bytes_s: int = 0
    between: str = ""


@dataclass(frozen=True, slots=True)
class FlowSettings:
    """Everything the pipeline needs to run one flow ``source->target``.

    ``beside``: the other enabled flows of the file with the same target. Empty unless one of all
    these flows has a map of topic names: only then may two flows give the same name. ``returns``:
    every way from the target back to the source over the other enabled flows of the file. Empty
    unless a transform routes records: only then may a name lead back.
    """

    source: ClusterClient
    target: ClusterClient
    source_admin: ClusterClient
    target_admin: ClusterClient
    mode: MirrorMode = MirrorMode.MM2
    enabled: bool = True
    tasks_max: int = 1
    group_id: str = ""
    policy: PolicySettings = field(default_factory=PolicySettings)
    topics: TopicSettings = field(default_factory=TopicSettings)
    fetch: FetchSettings = field(default_factory=FetchSettings)
    group: GroupSettings = field(default_factory=GroupSettings)
    records: RecordSettings = field(default_factory=RecordSettings)
    produce: ProduceSettings = field(default_factory=ProduceSettings)
    faults: FaultSettings = field(default_factory=FaultSettings)
    offset_syncs: OffsetSyncSettings = field(default_factory=OffsetSyncSettings)
    checkpoints: CheckpointSettings = field(default_factory=CheckpointSettings)
    position_interval_ms: int = 1_000
    exactly_once: bool = False
    transaction_interval_ms: int = 100
    transaction_commit_percent: int = 25
    transaction_bytes: int = 32 * 1024 * 1024
    transaction_timeout_ms: int = 60_000
    epoch_s: int = 86_400
    offset_storage_topic: str = ""
    offset_storage_partitions: int = 25
    offset_storage_replication_factor: int = 3
    # MirrorMaker 1: where an old consumer kept the group's offsets (``host:port/chroot``).
    zookeeper: str = ""
    # In a run: whether the driver signs assignments. If it does, workers accept no others.
    signed: bool = False
    # The key that signs the flow's claims; never log it.
    control_secret: str = field(default="", repr=False)
    # If the owner reports nothing for this long, other processes take over the flow.
    session_ms: int = 10_000
    throttles: tuple[ThrottleRule, ...] = ()
    beside: tuple[FlowNaming, ...] = ()
    transforms: tuple[TransformSettings, ...] = ()
    returns: tuple[tuple[FlowNaming, ...], ...] = ()
    # What `hash_json` puts before each value; never log it.
    hash_salt: str = field(default="", repr=False)
    # How many topics the mirror may create because records name them; 0: none.
    routed_topics_max: int = 0
    registry: RegistrySettings = field(default_factory=RegistrySettings)
    # Whether small rows may reach the sink without Spark's JVM (`data.rows.ring`).
    ring: bool = False

    @property
    def name(self) -> str:
        """``A->B``, as MirrorMaker writes a flow."""
        return f"{self.source.alias}->{self.target.alias}"

    @property
    def uses_ring(self) -> bool:
        """Whether they do: Spark needs all rows if a transform is between source and sink."""
        return self.ring and not self.transforms and not self.records.used

    @property
    def mirror(self) -> str:
        """The part of the names of the flow's internal topics that differs between mirrors.

        MirrorMaker 1's files have no aliases, so several mirrors to one target would share one
        name. There it is a hash of the group and the source's bootstrap servers.
        """
        if self.mode is MirrorMode.MM2:
            return self.source.alias
        told = "\0".join((self.group_id, *sorted(self.source.bootstrap_servers)))
        return f"mm1-{hashlib.sha256(told.encode()).hexdigest()[:16]}"

    @property
    def naming(self) -> FlowNaming:
        """The settings that decide about its topics and their names."""
        ends = self.source.alias, self.target.alias
        return FlowNaming(*ends, self.policy, self.topics, self.mode, self.mirror)

    @property
    def keeps_names(self) -> bool:
        """Whether the target records which source topic each remote topic comes from.

        If there is a map, the names of remote topics do not show it.
        """
        return bool(self.topics.renamed or self.beside)

    @property
    def position_group(self) -> str:
        """The consumer group whose committed offsets are this flow's positions."""
        return self.group_id or f"__mirror.{self.name}"

    @property
    def syncs_writer(self) -> ClusterClient:
        """The client that writes the flow's offset syncs."""
        if self.offset_syncs.location == "source":
            return self.offset_syncs.client or self.source
        if self.exactly_once:
            return self.target  # offset syncs are written in the transactions of the records
        return self.offset_syncs.client or self.target

    @property
    def clients(self) -> tuple[ClusterClient, ...]:
        """The clients that the flow uses, each of which may have a login of its own."""
        syncs = [self.syncs_writer] if self.offset_syncs.enabled else []
        checkpoints = [self.checkpoints.client or self.target] if self.checkpoints.enabled else []
        data = self.source, self.source_admin, self.target, self.target_admin
        return (*data, *syncs, *checkpoints)


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """Where a run serves its metrics and health, and who may read them.

    ``listen``: ``HOST:PORT``, empty = nowhere. ``labels``: detail of the series, ``partition``,
    ``topic`` or ``flow``. A scraper must present ``token`` or the content of ``token_file``; never
    log them. ``where``: the place in the file, for errors.
    """

    listen: str = ""
    labels: str = "partition"
    tls_cert: str = ""
    tls_key: str = ""
    token: str = field(default="", repr=False)
    token_file: str = ""
    where: str = ""


@dataclass(frozen=True, slots=True)
class MirrorSettings:
    """One configuration file, checked and split into flows.

    ``warnings``: one-line remarks for the user (ignored keys and why), in file order.
    ``file``: the path of the file.
    """

    flows: tuple[FlowSettings, ...]
    clusters: tuple[str, ...]
    mode: MirrorMode = MirrorMode.MM2
    heartbeats: tuple[HeartbeatSettings, ...] = ()
    warnings: tuple[str, ...] = ()
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    file: str = ""

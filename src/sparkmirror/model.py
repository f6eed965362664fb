"""The nouns of the project: plain, frozen, picklable data with no behaviour beyond arithmetic.

Everything here crosses process lines (driver, planner, executor workers), so it holds only
values that pickle and compare by content. Offsets are int64 Kafka offsets, times are epoch
milliseconds unless a name ends in another unit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

__all__ = [
    "SEND_FAILED",
    "CheckpointSettings",
    "ClusterClient",
    "FaultSettings",
    "FetchSettings",
    "FlowSettings",
    "GroupSettings",
    "Halt",
    "HeartbeatSettings",
    "JoinCounts",
    "Lane",
    "Member",
    "MetricsSettings",
    "MirrorMode",
    "MirrorSettings",
    "OffsetSyncSettings",
    "PartitionProgress",
    "Partitioner",
    "PolicySettings",
    "ProduceSettings",
    "RecordSettings",
    "SlotProgress",
    "SourceRecord",
    "Spread",
    "TargetRecord",
    "TopicPartition",
    "TopicRule",
    "TopicSettings",
]


class TopicPartition(NamedTuple):
    """One partition of one topic; sorts by topic, then number.

    A tuple, because it is looked up several times per batch: its hash is C's.
    """

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class MirrorMode(Enum):
    """Which tool's file the flow was read from; it decides where positions are kept.

    ``MM2``: committed offsets of group ``__mirror.A->B`` on the target.
    ``MM1``: committed offsets of the consumer file's ``group.id`` on the source.
    """

    MM2 = "mm2"
    MM1 = "mm1"


@dataclass(frozen=True, slots=True)
class ClusterClient:
    """How one cluster is reached in one role (source consumer, target producer, admin).

    ``properties`` holds the remaining Java client properties that the file gives for this
    role (security keys and the like), resolved and unredacted: never log it.
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
"""Size of the memory that one Fetch response gets; larger answers would only cost more memory."""

EXACT_SLOTS_MAX = 1_000
"""Most slots of an exactly-once flow: each start fences the transactional ids of all of them."""


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """How the source is read. Names follow the Java consumer's properties."""

    fetch_max_wait_ms: int = 500
    fetch_min_bytes: int = 1
    fetch_max_bytes: int = FETCH_BYTES_MAX
    partition_fetch_bytes_max: int = FETCH_BYTES_MAX
    isolation_level: str = "read_committed"
    auto_offset_reset: str = "earliest"
    check_crcs: bool = True
    client_rack: str = ""
    receive_buffer_bytes: int = -1


@dataclass(frozen=True, slots=True)
class ProduceSettings:
    """How the target is written. Names follow the Java producer's properties.

    ``link_joining``: whether batches that wait for a slow link are joined (auto, off, always);
    ``link_compression``: the codec of those, empty for that of the source's batches.
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
class JoinCounts:
    """What joining batches for a slow link has done: how many, their bytes before and after, and
    the processor time that it took.
    """

    batches: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    cpu_s: float = 0.0

    def plus(self, more: JoinCounts) -> JoinCounts:
        """Both together."""
        return JoinCounts(
            self.batches + more.batches,
            self.bytes_in + more.bytes_in,
            self.bytes_out + more.bytes_out,
            self.cpu_s + more.cpu_s,
        )

    def since(self, before: JoinCounts) -> JoinCounts:
        """What came since; all of it where ``before`` is of a count that has begun anew."""
        if self.batches < before.batches:
            return self
        return JoinCounts(
            self.batches - before.batches,
            self.bytes_in - before.bytes_in,
            self.bytes_out - before.bytes_out,
            self.cpu_s - before.cpu_s,
        )


class Partitioner(Enum):
    """Where MirrorMaker 1's producer puts a record (``partitioner.class``).

    ``NUMBER``: the source partition's number, as MirrorMaker 2 does. ``KEY``: murmur2 of the key,
    records without one sticky. ``STICKY``: all sticky. ``ROUND_ROBIN``: one after the other.
    """

    NUMBER = "number"
    KEY = "key"
    STICKY = "sticky"
    ROUND_ROBIN = "round_robin"


@dataclass(frozen=True, slots=True)
class TargetRecord:
    """What a message handler returns: one record to be written.

    ``partition`` None leaves the choice to the partitioner, ``timestamp_ms`` None, or a negative
    one, takes the time of writing.
    """

    topic: str
    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None
    partition: int | None = None


@dataclass(frozen=True, slots=True)
class SourceRecord:
    """What a message handler is given: one record as the source has it.

    ``timestamp_ms`` is -1 for a record without one.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()

    def to_target(self) -> TargetRecord:
        """The same record as MirrorMaker's built-in handler writes it: partition left open."""
        return TargetRecord(self.topic, self.value, self.key, self.headers, self.timestamp_ms)


@dataclass(frozen=True, slots=True)
class RecordSettings:
    """The record path: what is done to each record between source and sink, if anything.

    ``codec``: with which records are written anew (a batch attribute's number), -1 the source
    batch's; ``levels``: how hard each codec tries. ``sticky_bytes``: Java's ``batch.size``, after
    which sticky records change partition.
    ``handler``: ``module:function``, called with each record; empty for none. ``drop_failed``:
    what the target refuses is dropped and counted, instead of stopping the mirror
    (``--abort.on.send.failure=false``).
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
        """Whether records are looked at; otherwise whole batches are carried."""
        return self.partitioner is not Partitioner.NUMBER or bool(self.handler)


@dataclass(frozen=True, slots=True)
class FaultSettings:
    """What becomes of a partition whose data the source lost, or the target lost or refuses.

    ``source_loss``: ``fail`` or ``record-and-continue``; ``target_loss``: these or ``repair``;
    ``bad_record``: ``pause``, ``skip`` or ``dead-letter``. The other fields name the topics (Java
    regexes) that are treated otherwise.
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
    """Replication policy of a flow (reference B).

    ``aliases``: the file's clusters. A topic whose name begins with one of them and the separator
    came from there, also where Java, which knows no aliases, sees another one.
    """

    kind: str = "default"
    separator: str = "."
    internal_separator_enabled: bool = True
    aliases: tuple[str, ...] = ()


class TopicRule(NamedTuple):
    """One rule of a map of topic names: source topics that ``regex`` matches wholly get ``name``.

    A Java regex, and a replacement as Java reads it (`names.topics_map`).
    """

    regex: str
    name: str


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """Which topics a flow mirrors and how remote topics are made.

    ``include``/``exclude``: Java regexes, joined by ``|``, full match; empty = matches nothing.
    ``map``: whole names at the target instead of the policy's, by the first rule that matches.
    ``sync_configs_keep``: configs (regexes too) whose overrides on the target are left alone where
    the source has none. What is synchronised after creation is MirrorMaker 2's: other modes never
    do it, whatever the switches say.
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


@dataclass(frozen=True, slots=True)
class OffsetSyncSettings:
    """Where source offsets went, for MirrorMaker 2's readers and for our own (reference A.4, D.5).

    ``location``: the cluster of the offset-syncs topic, ``source`` or ``target``. ``client`` and
    ``produce``: how the syncs are written there.
    """

    enabled: bool = False
    location: str = "source"
    lag_max: int = 100
    replication_factor: int = 3
    client: ClusterClient | None = None
    produce: ProduceSettings = field(default_factory=ProduceSettings)


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    """Consumer groups on the other side (reference D.7 to D.9).

    ``include``/``exclude``: Java regexes of group names, as in `TopicSettings`.
    ``sync_enabled``: also commit translated offsets to idle groups of the target.
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
    """Heartbeats of ``source->target``, written to ``target`` (reference D.10).

    They do not need a flow: heartbeats of B->A are what a flow A->B mirrors.
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
    """MirrorMaker 1: how the mirror takes part in its consumer group on the source.

    Names follow the Java consumer's properties; ``strategies`` are assignors by their names in the
    group protocol, in order of preference; ``rebalance_timeout_ms`` is ``max.poll.interval.ms``;
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
    """One generation's membership in a consumer group: what a commit must show to be taken.

    ``cooperative``: partitions stay with the member while the group forms a new generation.
    """

    member_id: str
    generation: int
    instance_id: str = ""
    cooperative: bool = False


@dataclass(frozen=True, slots=True)
class Lane:
    """What decides about the topics of one flow and about their names at the target.

    ``mirror``: as `FlowSettings.mirror`.
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
class FlowSettings:
    """Everything the pipeline needs to run one flow ``source->target``.

    ``beside``: the other enabled flows of the file into the target, if one of them, or this one,
    has a map of topic names: then two of them may give one name.
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
    transaction_bytes: int = 32 * 1024 * 1024
    transaction_timeout_ms: int = 60_000
    epoch_s: int = 300
    offset_storage_topic: str = ""
    offset_storage_partitions: int = 25
    offset_storage_replication_factor: int = 3
    # MirrorMaker 1: where an old consumer kept the group's offsets (``host:port/chroot``).
    zookeeper: str = ""
    # In a run: whether its driver signs assignments, so that workers obey no others.
    signed: bool = False
    # What claims of the flow are signed with; never log it.
    control_secret: str = field(default="", repr=False)
    # After how long without a report others take the flow over.
    session_ms: int = 10_000
    beside: tuple[Lane, ...] = ()

    @property
    def name(self) -> str:
        """``A->B``, as MirrorMaker writes a flow."""
        return f"{self.source.alias}->{self.target.alias}"

    @property
    def mirror(self) -> str:
        """What the flow's own topics on the target are named after.

        MirrorMaker 1's files have no aliases, so several mirrors that write to one target would
        all be called the same: there the group and the source's addresses tell them apart.
        """
        if self.mode is MirrorMode.MM2:
            return self.source.alias
        told = "\0".join((self.group_id, *sorted(self.source.bootstrap_servers)))
        return f"mm1-{hashlib.sha256(told.encode()).hexdigest()[:16]}"

    @property
    def lane(self) -> Lane:
        """What decides about its topics and their names."""
        ends = self.source.alias, self.target.alias
        return Lane(*ends, self.policy, self.topics, self.mode, self.mirror)

    @property
    def keeps_names(self) -> bool:
        """Whether the target has to know which remote topic comes from which topic.

        Where there is a map, names do not tell it.
        """
        return bool(self.topics.map or self.beside)

    @property
    def position_group(self) -> str:
        """The consumer group whose committed offsets are this flow's positions."""
        return self.group_id or f"__mirror.{self.name}"


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """Where a run serves its metrics and health, and to whom.

    ``listen``: ``HOST:PORT``, empty = nowhere. ``labels``: how fine the series are, ``partition``,
    ``topic`` or ``flow``. ``token`` or the content of ``token_file`` is what a scraper has to
    present; never log it. ``where`` names the place in the file, for errors.
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
    """One configuration file, read, checked and split into flows.

    ``warnings`` are one-line remarks for the user (ignored keys and why), in file order.
    ``file``: where it is.
    """

    flows: tuple[FlowSettings, ...]
    clusters: tuple[str, ...]
    mode: MirrorMode = MirrorMode.MM2
    heartbeats: tuple[HeartbeatSettings, ...] = ()
    warnings: tuple[str, ...] = ()
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    file: str = ""


@dataclass(frozen=True, slots=True)
class Halt:
    """Why one partition is not being mirrored, while the others go on.

    ``code`` is a stable error name (see ``errors``), ``retriable`` says whether the pipeline
    keeps trying by itself. ``attempt``: which try of the slot it ended, -1 when it ended none.
    """

    code: str
    reason: str
    retriable: bool = False
    attempt: int = -1


SEND_FAILED = "SEND_FAILED"
"""Code of the halt that stops a MirrorMaker 1 flow (``--abort.on.send.failure``)."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A value as MirrorMaker 2 tells it: the last one, and those of the last 30 to 60 seconds.

    ``low``, ``mean`` and ``high`` are None when that time saw none.
    """

    last: float
    low: float | None = None
    mean: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """Where one source partition stands.

    ``position``: next source offset to mirror, everything before it is on the target.
    ``timestamp_ms``: largest record timestamp mirrored so far, -1 when none.
    ``age_ms``: how old records were when they were read, ``latency_ms``: when the target had
    acknowledged them; None when the slot has seen none yet.
    """

    topic: str
    partition: int
    position: int
    timestamp_ms: int = -1
    records: int = 0
    bytes: int = 0
    halt: Halt | None = None
    age_ms: Spread | None = None
    latency_ms: Spread | None = None


@dataclass(frozen=True, slots=True)
class SlotProgress:
    """What one slot (Spark task) has done, as it reports it about once a second.

    Counters grow from the start of the worker process. ``latency_counts[i]`` counts batches whose
    latency (target acknowledgement minus largest record timestamp) fell into bucket ``i`` of
    ``observe.figures.latency.BOUNDS_MS``, ``latency_ms_sum`` is their sum. ``errors`` counts
    retried failures by code, and as ``THROTTLED`` answers after which a broker's quota made us
    wait. ``paused``: it fetches nothing, because somebody asked so. ``run_id`` and ``attempt`` name
    the attempt of the slot's task that reports: Spark's number of it, which grows within a run;
    empty and -1 in reports of releases that did not say. ``joined``: batches that waited for the
    link.
    """

    flow: str
    slot: int
    worker: str
    epoch: int
    time_ms: int
    records: int
    bytes: int
    batches: int
    latency_counts: tuple[int, ...] = ()
    errors: Mapping[str, int] = field(default_factory=dict)
    partitions: tuple[PartitionProgress, ...] = ()
    latency_ms_sum: int = 0
    paused: bool = False
    run_id: str = ""
    attempt: int = -1
    joined: JoinCounts = JoinCounts()

    def replaces(self, known: SlotProgress | None) -> bool:
        """Whether this is the slot's newest report, ``known`` being the newest before.

        The latest attempt has the slot: what an earlier one, which Spark has given up, still says
        is not the slot's, however late it says it.
        """
        if known is None or self.attempt != known.attempt:
            return known is None or self.attempt > known.attempt
        return self.time_ms >= known.time_ms

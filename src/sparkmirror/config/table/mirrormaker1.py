"""Settings rows of MirrorMaker 1: its consumer group membership, and its record path."""

from __future__ import annotations

from sparkmirror.config.table.setting import Scope, Setting, Status, Type
from sparkmirror.model import Partitioner
from sparkmirror.settings import GroupSettings, RecordSettings

_CONSUMER = (Scope.CONSUMER,)
_G = GroupSettings()
_JAVA = "org.apache.kafka.clients.consumer."
STRATEGIES = {
    f"{_JAVA}RangeAssignor": "range",
    f"{_JAVA}RoundRobinAssignor": "roundrobin",
    f"{_JAVA}StickyAssignor": "sticky",
    f"{_JAVA}CooperativeStickyAssignor": "cooperative-sticky",
}
_SHORT = tuple(STRATEGIES.values())

GROUP_ROWS = (
    Setting(
        "group.id", Type.STRING, None,
        "MirrorMaker 1: consumer group on the source that assigns the partitions and holds the "
        "positions; required there.", _CONSUMER,
    ),
    Setting(
        "session.timeout.ms", Type.INT, str(_G.session_timeout_ms),
        "MirrorMaker 1: time without heartbeats until the group reassigns a member's partitions.",
        _CONSUMER, low=1,
    ),
    Setting(
        "heartbeat.interval.ms", Type.INT, str(_G.heartbeat_interval_ms),
        "MirrorMaker 1: time between two heartbeats to the group; less than session.timeout.ms.",
        _CONSUMER, low=1,
    ),
    Setting(
        "max.poll.interval.ms", Type.INT, str(_G.rebalance_timeout_ms),
        "MirrorMaker 1: how long a rebalance waits for a member to write what it has read.",
        _CONSUMER, low=1,
    ),
    Setting(
        "partition.assignment.strategy", Type.LIST, ",".join(list(STRATEGIES)[i] for i in (0, 3)),
        "MirrorMaker 1: assignors in order of preference; all members need one in common.",
        _CONSUMER, choices=(*STRATEGIES, *_SHORT),
        empty_allowed=False,
    ),
    Setting(
        "group.instance.id", Type.STRING, None,
        "MirrorMaker 1: name of a static member; the group waits session.timeout.ms for its return "
        "before it reassigns its partitions.", _CONSUMER,
    ),
    Setting(
        "group.protocol", Type.STRING, "classic",
        "Group protocol; always the classic one, as in MirrorMaker 1.", _CONSUMER,
        choices=("classic", "consumer"), fold_case=True, status=Status.IGNORED,
        reason="the classic protocol is used with every group",
    ),
    Setting(
        "group.remote.assignor", Type.STRING, None, "Assignor on the broker.", _CONSUMER,
        status=Status.IGNORED, reason="it belongs to group.protocol=consumer",
    ),
)  # fmt: skip


_PRODUCER = (Scope.PRODUCER,)
# Kafka's classes are spelled without their package, as in the rest of the table.
PARTITIONERS = {
    "DefaultPartitioner": Partitioner.KEY,
    "UniformStickyPartitioner": Partitioner.STICKY,
    "RoundRobinPartitioner": Partitioner.ROUND_ROBIN,
    # 0.8's partitioners, which also hashed keys.
    "kafka.producer.DefaultPartitioner": Partitioner.KEY,
    "kafka.producer.ByteArrayPartitioner": Partitioner.KEY,
}
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}

RECORD_ROWS = (
    Setting(
        "partitioner.class", Type.CLASS, None,
        "MirrorMaker 1: how records are partitioned: by key (the default), all sticky, or round "
        "robin.", _PRODUCER, choices=tuple(PARTITIONERS),
        reason="custom Java partitioners cannot be loaded; a message handler may choose partitions",
    ),
    Setting(
        "partitioner.ignore.keys", Type.BOOLEAN, "false",
        "MirrorMaker 1: partition records with a key like records without one: sticky.", _PRODUCER,
    ),
    Setting(
        "batch.size", Type.INT, str(RecordSettings().sticky_bytes),
        "MirrorMaker 1: bytes of records without a key that go to one partition before the next.",
        _PRODUCER, low=0,
    ),
    Setting(
        "compression.type", Type.STRING, None,
        "MirrorMaker 1, unless partitions are kept: compression of written batches. Default: the "
        "source's.", _PRODUCER, choices=tuple(CODECS), fold_case=True,
        java_default="none",
    ),
    *(
        Setting(
            f"compression.{codec}.level", Type.INT, default,
            f"MirrorMaker 1, unless partitions are kept: compression level of {codec}.", _PRODUCER,
            low=low, high=high,
        )
        for codec, default, low, high in (
            ("gzip", "-1", -1, 9), ("lz4", "9", 1, 17), ("zstd", "3", -131_072, 22),
        )
    ),
)  # fmt: skip

"""Settings rows of MirrorMaker 1's record path."""

from __future__ import annotations

from sparkmirror.config.table.setting import Scope, Setting, Type
from sparkmirror.model import Partitioner, RecordSettings

__all__ = ["CODECS", "PARTITIONERS", "RECORD_ROWS"]

_PRODUCER = (Scope.PRODUCER,)
# As the table spells classes of Kafka's: without their package.
PARTITIONERS = {
    "DefaultPartitioner": Partitioner.KEY,
    "UniformStickyPartitioner": Partitioner.STICKY,
    "RoundRobinPartitioner": Partitioner.ROUND_ROBIN,
    # 0.8's own, which hashed keys as well.
    "kafka.producer.DefaultPartitioner": Partitioner.KEY,
    "kafka.producer.ByteArrayPartitioner": Partitioner.KEY,
}
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}

RECORD_ROWS = (
    Setting(
        "partitioner.class", Type.CLASS, None,
        "MirrorMaker 1: where records go: by key (also without this key), all sticky, or round "
        "robin.", _PRODUCER, choices=tuple(PARTITIONERS),
        reason="custom Java partitioners cannot be loaded; a message handler may choose partitions",
    ),
    Setting(
        "partitioner.ignore.keys", Type.BOOLEAN, "false",
        "MirrorMaker 1: treat records with a key like those without one: sticky.", _PRODUCER,
    ),
    Setting(
        "batch.size", Type.INT, str(RecordSettings().sticky_bytes),
        "MirrorMaker 1: bytes of records without a key that go to one partition before the next.",
        _PRODUCER, low=0,
    ),
    Setting(
        "compression.type", Type.STRING, None,
        "MirrorMaker 1, unless partitions are kept: compression of what is written. Without it, "
        "that of the source's batches.", _PRODUCER, choices=tuple(CODECS), fold_case=True,
        java_default="none",
    ),
    *(
        Setting(
            f"compression.{codec}.level", Type.INT, default,
            f"MirrorMaker 1, unless partitions are kept: how hard {codec} tries.", _PRODUCER,
            low=low, high=high,
        )
        for codec, default, low, high in (
            ("gzip", "-1", -1, 9), ("lz4", "9", 1, 17), ("zstd", "3", -131_072, 22),
        )
    ),
)  # fmt: skip

"""Settings rows of MirrorMaker 1's record path, and their typed settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sparkmirror.config.properties import Entry
from sparkmirror.config.setting import Scope, Setting, Type
from sparkmirror.model import Partitioner, RecordSettings

if TYPE_CHECKING:
    from sparkmirror.config.values import Reader

__all__ = ["RECORD_ROWS", "record_settings"]

_PRODUCER = (Scope.PRODUCER,)
# As the table spells classes of Kafka's: without their package.
_PARTITIONERS = {
    "DefaultPartitioner": Partitioner.KEY,
    "UniformStickyPartitioner": Partitioner.STICKY,
    "RoundRobinPartitioner": Partitioner.ROUND_ROBIN,
    # 0.8's own, which hashed keys as well.
    "kafka.producer.DefaultPartitioner": Partitioner.KEY,
    "kafka.producer.ByteArrayPartitioner": Partitioner.KEY,
}
_CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}

RECORD_ROWS = (
    Setting(
        "partitioner.class", Type.CLASS, None,
        "MirrorMaker 1: where records go: by key (also without this key), all sticky, or round "
        "robin.", _PRODUCER, choices=tuple(_PARTITIONERS),
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
        "that of the source's batches.", _PRODUCER, choices=tuple(_CODECS), fold_case=True,
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


def _levels(reader: Reader) -> tuple[int, ...]:
    levels = list(RecordSettings().levels)
    for name in ("gzip", "lz4", "zstd"):
        key = f"compression.{name}.level"
        if reader.given(key):
            levels[_CODECS[name]] = reader.integer(key)
    return tuple(levels)


def record_settings(
    conf: Mapping[str, Entry],
    *,
    keep_partitions: bool,
    handler: str = "",
    handler_args: str | None = None,
    drop_failed: bool = False,
) -> RecordSettings:
    """What MirrorMaker 1 does to each record. ``conf``: the producer file."""
    # The reader needs the whole table, of which these rows are a part.
    from sparkmirror.config.values import Reader  # noqa: PLC0415

    reader = Reader(conf, Scope.PRODUCER)
    chosen = reader.text("partitioner.class")
    partitioner = _PARTITIONERS[chosen] if chosen else Partitioner.KEY
    if reader.boolean("partitioner.ignore.keys") and partitioner is Partitioner.KEY:
        partitioner = Partitioner.STICKY
    codec = reader.text("compression.type").lower()
    return RecordSettings(
        partitioner=Partitioner.NUMBER if keep_partitions else partitioner,
        codec=_CODECS[codec] if codec else -1,
        levels=_levels(reader),
        sticky_bytes=max(1, reader.integer("batch.size")),
        handler=handler,
        handler_args=handler_args,
        drop_failed=drop_failed,
    )

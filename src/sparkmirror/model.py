"""Data types that the whole project shares: frozen, picklable, compared by content.

Offsets are int64 Kafka offsets. Points in time are epoch milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

__all__ = [
    "MirrorMode",
    "Partitioner",
    "SourceRecord",
    "TargetRecord",
    "TopicPartition",
]


class TopicPartition(NamedTuple):
    """One partition of one topic; sorts by topic, then number.

    A tuple, because it is a dictionary key several times per batch, and tuples hash in C.
    """

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class MirrorMode(Enum):
    """The tool whose file the flow was read from. It decides where positions are kept.

    ``MM2``: committed offsets of group ``__mirror.A->B`` on the target.
    ``MM1``: committed offsets of the consumer file's ``group.id`` on the source.
    """

    MM2 = "mm2"
    MM1 = "mm1"


class Partitioner(Enum):
    """How MirrorMaker 1's producer chooses a record's partition (``partitioner.class``).

    ``NUMBER``: the source partition's number, as MirrorMaker 2 does. ``KEY``: murmur2 of the key;
    records without a key are sticky. ``STICKY``: all records are sticky. ``ROUND_ROBIN``: the
    partitions in turn, record by record.
    """

    NUMBER = "number"
    KEY = "key"
    STICKY = "sticky"
    ROUND_ROBIN = "round_robin"


@dataclass(frozen=True, slots=True)
class TargetRecord:
    """One record to write, as a message handler returns it.

    ``partition``: None leaves the choice to the partitioner. ``timestamp_ms``: None or a negative
    value stands for the time of writing.
    """

    topic: str
    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None
    partition: int | None = None


@dataclass(frozen=True, slots=True)
class SourceRecord:
    """One record of the source, as a message handler receives it.

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
        """The record as MirrorMaker's built-in handler returns it, without a partition."""
        return TargetRecord(self.topic, self.value, self.key, self.headers, self.timestamp_ms)

"""What it means that a partition and its copy are equal: the results of every comparison.

A partition is equal when count and digest are; the digest covers timestamp, headers, key and value
of every committed record, in order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sparkmirror.model import TopicPartition

__all__ = ["EMPTY", "Difference", "PartitionResult", "Reading", "compare"]


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read of one partition: number of records, and their SHA-256 (hexadecimal)."""

    records: int
    digest: str


EMPTY = Reading(0, hashlib.sha256().hexdigest())


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a partition and its copy part.

    ``kind``: ``differs``, ``missing`` (the copy lacks the record), ``behind`` (not mirrored yet),
    ``extra`` (the copy has one more), ``no partition`` or ``left out`` (the topic is not mirrored:
    it cannot have the name that a map of topic names gives it). Offsets are those of the first
    record concerned, None where there is none on that side. ``what`` says it in words.
    """

    kind: str
    source_offset: int | None
    target_offset: int | None
    what: str


@dataclass(frozen=True, slots=True)
class PartitionResult:
    """One source partition beside its copy; ``target`` is None when there is no such partition.

    ``by_key``: only the last value of each key was compared, as in compacted topics.
    ``remark``: what was left out of the comparison, and why.
    """

    topic: str
    partition: int
    source: Reading
    target: Reading | None
    difference: Difference | None = None
    by_key: bool = False
    remark: str = ""

    @property
    def equal(self) -> bool:
        """Whether the copy holds the same records in order; ``by_key``: the same state."""
        if self.difference is not None or self.target is None:
            return False
        return self.by_key or self.source == self.target


def compare(
    source: Mapping[TopicPartition, Reading],
    target: Mapping[TopicPartition, Reading],
    remote_topic: Callable[[str], str],
) -> list[PartitionResult]:
    """Source partitions beside the target's, in order; ``remote_topic`` names a topic's copy.

    A target partition that the source does not have counts as a difference, too.
    """
    copies = {TopicPartition(remote_topic(at.topic), at.partition): at for at in source}
    results = [
        PartitionResult(at.topic, at.partition, source[at], target.get(copy))
        for copy, at in copies.items()
    ]
    results += [
        PartitionResult(at.topic, at.partition, EMPTY, reading)
        for at, reading in target.items()
        if at not in copies
    ]
    return sorted(results, key=lambda result: (result.topic, result.partition))

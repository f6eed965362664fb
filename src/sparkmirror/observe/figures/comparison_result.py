"""Results of comparing partitions with their copies.

A partition is equal to its copy if count and digest are equal. The digest covers timestamp,
headers, key and value of every committed record, in order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sparkmirror.model import TopicPartition

__all__ = ["EMPTY", "Difference", "PartitionResult", "Reading", "compare"]


@dataclass(frozen=True, slots=True)
class Reading:
    """The records read from one partition: their number, and their SHA-256 in hexadecimal."""

    records: int
    digest: str


EMPTY = Reading(0, hashlib.sha256().hexdigest())


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference between a partition and its copy.

    ``kind``: ``differs``, ``missing`` (the copy lacks the record), ``behind`` (not mirrored yet),
    ``extra`` (the copy has an additional record), ``failed`` (a transform fails on the record, and
    the mirror stops there), ``no partition``, ``unread`` (it could not be read: nothing is known)
    or ``left out`` (the topic is not mirrored because it cannot have the name that a map of topic
    names gives it, or its transform makes other records each time, or nothing of a sample could be
    compared). The offsets are those of the first record concerned; None if that side has none.
    ``what``: the difference in words.
    """

    kind: str
    source_offset: int | None
    target_offset: int | None
    what: str


@dataclass(frozen=True, slots=True)
class PartitionResult:
    """One source partition and its copy; ``target`` is None if the copy does not exist.

    ``by_key``: only the last value of each key was compared, as in compacted topics.
    ``remark``: what was not compared, and why.
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
        """Whether the copy has the same records in the same order; ``by_key``: the same state."""
        if self.difference is not None or self.target is None:
            return False
        return self.by_key or self.source == self.target

    @property
    def unread(self) -> bool:
        """Whether it could not be read, so that nothing is known of it."""
        return self.difference is not None and self.difference.kind == "unread"


def compare(
    source: Mapping[TopicPartition, Reading],
    target: Mapping[TopicPartition, Reading],
    remote_topic: Callable[[str], str],
) -> list[PartitionResult]:
    """Compare source partitions with the target's; ``remote_topic`` returns the name of a copy.

    Results are sorted. A target partition that the source does not have is a difference, too.
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

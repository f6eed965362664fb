"""Assigns records to the partitions of a target topic, as Java's producer does.

A record with a key goes to ``murmur2(key) mod partitions``. So equal keys keep their order even if
source and target have different numbers of partitions. Records without a key go to one partition
until it has received ``sticky_bytes`` of them (KIP-480, KIP-794), then to another one.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sparkmirror.model import Partitioner
from sparkmirror.records.codecs import LEVELS
from sparkmirror.records.columns import Columns
from sparkmirror.records.encode_columns import encode_columns
from sparkmirror.records.header_columns import Int64s
from sparkmirror.records.key_columns import Scan
from sparkmirror.records.murmur2 import key_partitions

__all__ = ["PartitionedBatches", "RecordPartitioner", "write_partitioned"]

# Bytes of a record besides its key, value and headers: exact enough to limit a batch.
_PREFIX_BYTES = 8


@dataclass(slots=True)
class PartitionedBatches:
    """Batches in the order in which they are produced, and the target partition of each.

    ``timestamp_ms``: the largest timestamp of the records.
    """

    batches: list[bytes]
    partitions: list[int]
    records: int
    timestamp_ms: int


class RecordPartitioner:
    """Chooses partitions of one target topic. ``sticky_bytes``: Java's ``batch.size``."""

    def __init__(
        self,
        partitioner: Partitioner,
        *,
        sticky_bytes: int = 16_384,
        rng: random.Random | None = None,
    ) -> None:
        self._partitioner = partitioner
        self._sticky_bytes = sticky_bytes
        self._random = rng or random.Random()  # noqa: S311  (spreads load, guards nothing)
        self._partition = -1
        self._sent_bytes = 0
        self._turn = 0

    def choose(self, found: Scan, partitions: int) -> Int64s:
        """The partition of each record; ``partitions``: how many the target topic has."""
        columns = found.columns
        if self._partitioner is Partitioner.ROUND_ROBIN:
            count = len(columns.offset)
            first, self._turn = self._turn, self._turn + count
            return (first + np.arange(count, dtype=np.int64)) % partitions
        if self._partitioner is Partitioner.STICKY:
            return self._choose_sticky(columns.rest_bytes, partitions)
        keyed = found.key_bytes >= 0
        if keyed.all():
            return key_partitions(columns.flat, found.key_at, found.key_bytes, partitions)
        chosen = np.empty(len(keyed), np.int64)
        rows = np.flatnonzero(keyed)
        chosen[rows] = key_partitions(
            columns.flat, found.key_at[rows], found.key_bytes[rows], partitions
        )
        rest = np.flatnonzero(~keyed)
        chosen[rest] = self._choose_sticky(columns.rest_bytes[rest], partitions)
        return chosen

    def _choose_sticky(self, sizes: Int64s, partitions: int) -> Int64s:
        """One partition until it has received ``sticky_bytes``, then another one."""
        if not 0 <= self._partition < partitions:
            self._partition = self._random.randrange(partitions)
        after = self._sent_bytes + np.cumsum(sizes + _PREFIX_BYTES)
        # The record that fills a batch still belongs to it.
        turns = np.concatenate(([0], after[:-1])) // self._sticky_bytes
        turns[0] = self._sent_bytes // self._sticky_bytes
        route = [self._partition]
        for _ in range(int(turns[-1])):
            step = self._random.randrange(1, partitions) if partitions > 1 else 0
            route.append((route[-1] + step) % partitions)
        self._partition = route[-1]
        self._sent_bytes = int(after[-1]) - int(turns[-1]) * self._sticky_bytes
        chosen: Int64s = np.array(route, np.int64)[turns]
        return chosen


def write_partitioned(
    found: Scan,
    chosen: Int64s,
    *,
    codec: int,
    batch_bytes: int,
    levels: Sequence[int] = LEVELS,
    now_ms: int | None = None,
) -> PartitionedBatches:
    """Batches of the records in their new partitions, each about ``batch_bytes`` at most.

    The records of a partition keep the order of the source. ``levels``: compression level by codec.
    ``now_ms``: the timestamp for records without one; with None, they stay without one.
    """
    columns = found.columns
    timestamp = columns.timestamp
    if now_ms is not None:
        timestamp = np.where(timestamp < 0, now_ms, timestamp)
    order = np.argsort(chosen, kind="stable")
    partition = chosen[order]
    size = columns.rest_bytes[order] + _PREFIX_BYTES
    before = np.cumsum(size) - size
    new = np.concatenate(([True], partition[1:] != partition[:-1]))
    # How many whole batches the records of the same partition before a record fill.
    begin = np.maximum.accumulate(np.where(new, before, 0))
    full = (before - begin) // batch_bytes
    new |= np.concatenate(([True], full[1:] != full[:-1]))
    firsts = np.flatnonzero(new)
    partitioned = Columns(
        columns.flat,
        np.cumsum(new) - 1,
        columns.offset[order],
        timestamp[order],
        columns.attributes[order],
        columns.rest_at[order],
        columns.rest_bytes[order],
    )
    written = encode_columns(partitioned, [codec] * len(firsts), levels)
    return PartitionedBatches(
        [one.data for one in written],
        _plain(partition[firsts]),
        len(order),
        int(columns.timestamp.max()),
    )


def _plain(numbers: Int64s) -> list[int]:
    plain: Sequence[int] = numbers.tolist()
    return list(plain)

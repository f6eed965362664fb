"""MirrorMaker 2's rules for offset syncs: when one is emitted, and how offsets are translated.

An offset sync says "source offset u of this partition is target offset d". `PartitionState` decides
which records get one (Java: ``OffsetSyncWriter.PartitionState``). `OffsetSyncStore` keeps 64 syncs
per partition, denser towards the newest, and translates with them (Java: ``OffsetSyncStore``). Both
decide exactly as Java does, so that each tool can use what the other writes. Pure: no sockets, no
clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparkmirror.model import TopicPartition

__all__ = ["SLOTS", "OffsetSync", "OffsetSyncStore", "PartitionState"]

SLOTS = 64
"""Number of syncs that the store keeps per partition."""

_INT64_MAX = (1 << 63) - 1
_UINT64 = 1 << 64


@dataclass(frozen=True, slots=True, eq=False)
class OffsetSync:
    """One sync. Compared by identity, because the store's rules are about the same sync."""

    upstream: int
    downstream: int


class PartitionState:
    """Decides which records of one source partition get an offset sync.

    A sync is due for the first record, for a record more than ``lag_max`` target offsets after the
    newest sync, if source offsets are skipped or go back, and if target offsets go back.
    """

    def __init__(self, lag_max: int) -> None:
        self._lag_max = lag_max
        self._previous_upstream = -1
        self._previous_downstream = -1
        self._last_sync_downstream = -1

    def update(self, upstream: int, downstream: int) -> bool:
        """Note one acknowledged record; returns whether a sync is due for it."""
        no_previous_sync = self._last_sync_downstream == -1
        translation_too_stale = downstream - (self._last_sync_downstream + 1) >= self._lag_max
        skipped_upstream = upstream - self._previous_upstream != 1
        truncated_downstream = downstream < self._previous_downstream
        due = no_previous_sync or translation_too_stale or skipped_upstream or truncated_downstream
        if due:
            self._last_sync_downstream = downstream
        self._previous_upstream, self._previous_downstream = upstream, downstream
        return due

    def advance(self, upstream: int, downstream: int, count: int) -> list[range]:
        """Note ``count`` acknowledged records with consecutive offsets on both sides.

        Returns the records (0 … count-1) for which a sync is due, as at most two ranges in order.
        The result is that of `update` for each record.
        """
        due: list[range] = []
        if self.update(upstream, downstream):
            due.append(range(1))
        period = max(1, self._lag_max + 1)
        first = max(1, self._last_sync_downstream + 1 + self._lag_max - downstream)
        if first < count:
            later = range(first, count, period)
            due.append(later)
            self._last_sync_downstream = downstream + later[-1]
        self._previous_upstream = upstream + count - 1
        self._previous_downstream = downstream + count - 1
        return due


class OffsetSyncStore:
    """The syncs of an offset-syncs topic that a reader keeps, and translation with them.

    Slot 0 holds the newest sync of a partition, slot 63 the oldest. Invariants for different syncs
    in slots i < j: ``up[i] <= up[j] + 2**j - 2**i`` (B) and
    ``up[i] >= up[j] + 2**max(i - 2, 0)`` (C).

    ``must_read_to_end``: until `finish_reading`, keep only the newest sync of each partition,
    because earlier translations are unknown. False if the checkpoints emitted so far are known.
    Nothing is translated before `finish_reading`.
    """

    def __init__(self, *, must_read_to_end: bool) -> None:
        self._must_read_to_end = must_read_to_end
        self._read_to_end = False
        self._slots: dict[TopicPartition, list[OffsetSync]] = {}

    def finish_reading(self) -> None:
        """Note that the topic has been read to the end that it had at the start."""
        self._read_to_end = True

    def add(self, source: TopicPartition, upstream: int, downstream: int) -> None:
        """Add the next sync of the topic."""
        new = OffsetSync(upstream, downstream)
        slots = self._slots.get(source)
        only_newest = self._must_read_to_end and not self._read_to_end
        if slots is None or only_newest or upstream < slots[0].upstream:
            self._slots[source] = [new] * SLOTS
        else:
            _insert(slots, new)

    def slots(self, source: TopicPartition) -> list[tuple[int, OffsetSync]]:
        """The different syncs of a partition, each with its first slot, newest first."""
        found: list[tuple[int, OffsetSync]] = []
        for slot, sync in enumerate(self._slots.get(source, ())):
            if not found or found[-1][1] is not sync:
                found.append((slot, sync))
        return found

    def translate(self, source: TopicPartition, upstream: int) -> int | None:
        """A target offset at or before the translation of source offset ``upstream``.

        None if nothing is known yet; -1 if ``upstream`` is older than every sync in the store.
        """
        slots = self._slots.get(source)
        if slots is None or not self._read_to_end:
            return None
        sync = next((sync for sync in slots if sync.upstream <= upstream), slots[-1])
        if sync.upstream > upstream:
            return -1
        return sync.downstream + (upstream > sync.upstream)


def _insert(slots: list[OffsetSync], new: OffsetSync) -> None:
    """Put ``new`` into slot 0, and move older syncs to later slots as the invariants require."""
    old = slots.copy()
    slots[0] = replacement = new
    at = 0  # index in `old` from which the next replacement may come
    for current in range(1, SLOTS):
        previous = current - 1
        skip = True
        while skip and at < current:
            candidate = old[at]
            recent = _recent_enough(slots[previous], candidate, previous, current)
            apart = _apart(slots[previous], candidate, previous)
            apart_from_next = current == SLOTS - 1 or _apart(candidate, slots[current + 1], current)
            duplicate = candidate is old[at + 1]
            promoted = recent and apart and apart_from_next
            if promoted:
                replacement = candidate
            skip = duplicate or not apart
            if promoted or skip:
                at += 1
        if slots[previous] is slots[current] or _recent_enough(
            slots[previous], slots[current], previous, current
        ):
            return
        slots[current] = replacement


def _recent_enough(newer: OffsetSync, older: OffsetSync, i: int, j: int) -> bool:
    """Invariant B; true if the bound overflows."""
    bound = _wrap(older.upstream + (1 << j) - (1 << i))
    return bound < 0 or newer.upstream <= bound


def _apart(newer: OffsetSync, older: OffsetSync, i: int) -> bool:
    """Invariant C; false if the bound overflows."""
    bound = _wrap(older.upstream + (1 << max(i - 2, 0)))
    return bound >= 0 and newer.upstream >= bound


def _wrap(value: int) -> int:
    """``value`` wrapped around as an int64."""
    return (value + _INT64_MAX + 1) % _UINT64 - _INT64_MAX - 1

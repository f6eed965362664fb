"""Limits on the bytes that one slot reads: token buckets, with backfill slowed first.

Each `Limit` has a bucket that fills at the slot's rate, up to `_BURST_S` seconds of it. Every whole
batch of a Fetch response is taken from the buckets of its topic. So the mean is exact however large
batches are: a bucket may be overdrawn, and then nothing is requested until it has refilled.

By its backlog (offsets that are not read yet, times the mean size of the last ones), a partition is

* **current**: below `_CURRENT_S` seconds of the rate. It is requested as without a limit, until the
  bucket is overdrawn by `Limit.debt_bytes`. So while all current partitions together need less than
  the rate, they never wait: what they take, the others do not get.
* **near**: below `_NEAR_S`, or not known yet. The same, but only until a quarter of that debt.
* **backfill**: anything more. A request is sent only when the bucket holds enough for it. It
  reserves those bytes, asks for no more, and uses a connection of its own. So it neither delays
  nor ends the long polls of the others. But it always gets `_BACKFILL_SHARE` of the rate: current
  partitions cannot starve those that have fallen behind.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from sparkmirror.model import TopicPartition
from sparkmirror.progress import ThrottleUse
from sparkmirror.records.header import HEADER_BYTES, base_offset, last_offset_delta
from sparkmirror.records.walk import walk_batches
from sparkmirror.settings import FetchSettings
from sparkmirror.wire.fetch.partition_state import FetchState

__all__ = ["DEBT_S", "Grant", "Limit", "Throttle"]

DEBT_S = 0.15
"""How far current partitions may overdraw, in seconds of a slot's even share of the rate."""
_BURST_S = 0.2
# A request for backfill waits until the bucket holds this much: at most 20 requests per second.
_QUANTUM_S = 0.05
_CURRENT_S = 0.25
_NEAR_S = 2.0
_NEAR_DEBT = 0.25
# Of a partition of which nothing was read yet.
_OFFSET_BYTES = 1_000
_POLL_MS = 50
_BACKFILL_SHARE = 0.1
# Smaller requests would return one batch at a time.
_CURRENT_BYTES_MIN = 64 * 1024
_WAKE_S_MIN = 0.005


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit for a slot. ``topics``: whole names match; None: all topics, ``name`` is empty.

    ``bytes_s``: what this slot may read per second. ``total_bytes_s``: what all slots together may.
    ``debt_bytes``: how far current partitions may overdraw.
    """

    name: str
    topics: re.Pattern[str] | None
    bytes_s: float
    total_bytes_s: float
    debt_bytes: float


@dataclass(slots=True, eq=False)
class _Bucket:
    limit: Limit
    filled_at: float
    level: float = 0.0
    assured: float = 0.0
    """What backfill may read even if the bucket is empty."""
    used: list[int] = field(default_factory=lambda: [0, 0])
    waited_s: list[float] = field(default_factory=lambda: [0.0, 0.0])
    holds: list[bool] = field(default_factory=lambda: [False, False])
    """Whether the newest round left out (current, backfill) partitions."""

    @property
    def quantum(self) -> float:
        """What the bucket must hold before backfill is requested."""
        return max(1.0, self.limit.bytes_s * _QUANTUM_S)

    @property
    def burst(self) -> float:
        """What the bucket can hold."""
        return max(self.quantum, self.limit.bytes_s * _BURST_S)

    def fill(self, now: float) -> None:
        """Add what has accrued since the last call."""
        passed_s, self.filled_at = max(0.0, now - self.filled_at), now
        rate = self.limit.bytes_s
        self.level = max(self.level, min(self.burst, self.level + passed_s * rate))
        self.assured = min(self.burst, self.assured + passed_s * rate * _BACKFILL_SHARE)

    def adopt(self, limit: Limit) -> None:
        """Continue with another rate; a debt keeps its length in time if the total changed."""
        if limit.total_bytes_s != self.limit.total_bytes_s:
            scale = limit.total_bytes_s / self.limit.total_bytes_s
            self.level, self.assured = self.level * scale, self.assured * scale
        self.limit = limit
        self.level = min(self.level, self.burst)
        self.assured = min(self.assured, self.burst)

    def reserve(self, size: int, *, backfill: bool) -> None:
        """Set ``size`` bytes aside for a request; a negative ``size`` returns them."""
        self.level = min(self.burst, self.level - size)
        if backfill:
            self.assured = min(self.burst, self.assured - size)

    def take(self, size: int, *, backfill: bool) -> None:
        """Count ``size`` bytes that were read."""
        self.used[backfill] += size
        self.level -= size
        if backfill:
            # Without a floor, a long backfill would use up what it is assured of later. But a batch
            # that is larger than the bucket counts in full.
            self.assured = max(self.assured - size, min(0.0, self.level))

    def spare(self) -> float:
        """Bytes that a request for backfill may ask for now; 0 if it must wait."""
        spare = max(self.level, self.assured)
        return spare if spare >= self.quantum else 0.0

    def lent_s(self, debt: float) -> float:
        """Seconds until less than ``debt`` bytes are overdrawn."""
        return (-debt - self.level) / self.limit.bytes_s

    def due_s(self) -> float:
        """Seconds until backfill is requested again."""
        rate = self.limit.bytes_s
        return min(
            (self.quantum - self.level) / rate,
            (self.quantum - self.assured) / (rate * _BACKFILL_SHARE),
        )


@dataclass(slots=True)
class Grant:
    """What a request may read. ``states``: those of its partitions that may be requested now.

    ``settings``: of the request. ``backfill``: those of its partitions that are slowed first.
    """

    states: list[FetchState]
    settings: FetchSettings
    backfill: frozenset[TopicPartition] = frozenset()
    reserved: list[tuple[_Bucket, int, bool]] = field(default_factory=list)
    """(bucket, bytes, whether for backfill)."""
    short: bool = False
    """Whether more would have been requested without the limits."""


class Throttle:
    """The limits of one slot. One owner, no threads. ``now``: monotonic seconds throughout.

    ``update`` sets the limits.
    """

    def __init__(self) -> None:
        self._buckets: dict[str, _Bucket] = {}
        self._groups: dict[str, int] = {}
        self._of_group: list[tuple[_Bucket, ...]] = [()]
        self._offset_bytes: dict[TopicPartition, float] = {}
        self._round_at = -math.inf
        self._due_s = math.inf

    def update(self, limits: Sequence[Limit], now: float) -> None:
        """Replace the limits. A bucket that stays keeps its level."""
        kept: dict[str, _Bucket] = {}
        for limit in limits:
            bucket = self._buckets.get(limit.name)
            if bucket is None:
                bucket = _Bucket(limit, now)
            else:
                bucket.fill(now)
                bucket.adopt(limit)
            kept[limit.name] = bucket
        self._buckets = kept
        self._groups, self._of_group = {}, [()]

    def uses(self) -> tuple[ThrottleUse, ...]:
        """What each limit has let pass and delayed since it was set."""
        return tuple(
            ThrottleUse(name, *bucket.used, *(round(one * 1000) for one in bucket.waited_s))
            for name, bucket in self._buckets.items()
        )

    # -- before requests -------------------------------------------------------------------

    def begin(self, now: float) -> None:
        """Begin a round of requests: fill the buckets, count how long partitions waited."""
        passed_s = min(max(0.0, now - self._round_at), self._due_s)
        for bucket in self._buckets.values():
            for kind in (0, 1):
                if bucket.holds[kind]:
                    bucket.waited_s[kind] += passed_s
            bucket.holds = [False, False]
            bucket.fill(now)
        self._round_at, self._due_s = now, math.inf

    def backfill_group(self, state: FetchState) -> int:
        """The number of the group of limits that slow ``state`` as backfill; 0 for none."""
        group = self._group(state.tp.topic)
        return group if group and self._behind_s(state, group) > _NEAR_S else 0

    def _behind_s(self, state: FetchState, group: int) -> float:
        """The backlog in seconds of the slot's even share; what is not known counts as near."""
        if state.end < 0:
            return _NEAR_S
        even = min(bucket.limit.debt_bytes for bucket in self._of_group[group]) / DEBT_S
        return self._backlog_bytes(state) / even

    def grant(self, states: list[FetchState], settings: FetchSettings) -> Grant:
        """Decide which of ``states`` a request may contain, and reserve what backfill may read.

        ``settings``: of the request without limits.
        """
        current: list[FetchState] = []
        late: dict[int, list[FetchState]] = {}
        for state in states:
            group = self.backfill_group(state)
            if group:
                late.setdefault(group, []).append(state)
            elif self._passes(state):
                current.append(state)
        grant = Grant(current, settings)
        size = self._current_bytes(current, settings.fetch_max_bytes)
        self._expect(grant, size)
        asked = [self._reserve(grant, *one, settings.fetch_max_bytes) for one in late.items()]
        wait_ms, bytes_min = settings.fetch_max_wait_ms, settings.fetch_min_bytes
        if grant.backfill:
            size, bytes_min = sum(asked), 1
        if len(grant.states) < len(states):
            # The partitions that were left out may not wait for the end of a long poll.
            wait_ms = min(wait_ms, _POLL_MS)
        grant.settings = replace(
            settings, fetch_max_bytes=size, fetch_max_wait_ms=wait_ms, fetch_min_bytes=bytes_min
        )
        return grant

    def partition_bytes(self, grant: Grant, state: FetchState, share: int) -> int:
        """The maximum for ``state`` in the request of ``grant``; ``share``: without limits."""
        if state.tp in grant.backfill:
            return min(share, grant.settings.fetch_max_bytes)
        group = self._group(state.tp.topic)
        return min(share, self._burst_bytes(group)) if group else share

    def _passes(self, state: FetchState) -> bool:
        """Whether ``state``, which is no backfill, may be requested now."""
        group = self._group(state.tp.topic)
        if not group:
            return True
        lent = 1.0 if self._behind_s(state, group) <= _CURRENT_S else _NEAR_DEBT
        passes = True
        for bucket in self._of_group[group]:
            due_s = bucket.lent_s(lent * bucket.limit.debt_bytes)
            if due_s > 0:
                bucket.holds[0] = True
                self._note_due(due_s)
                passes = False
        return passes

    def _expect(self, grant: Grant, bytes_max: int) -> None:
        """Reserve what the current partitions of ``grant`` are known to have.

        Without that, requests to many brokers would together overdraw a bucket many times.
        """
        expected: dict[int, float] = {}
        for state in grant.states:
            group = self._group(state.tp.topic)
            if group:
                backlog = self._backlog_bytes(state)
                expected[group] = expected.get(group, 0.0) + backlog
        for group, size in expected.items():
            for bucket in self._of_group[group] if size >= 1 else ():
                bucket.reserve(min(int(size), bytes_max), backfill=False)
                grant.reserved.append((bucket, min(int(size), bytes_max), False))

    def _backlog_bytes(self, state: FetchState) -> float:
        """Bytes of ``state`` that are not read yet, as far as is known."""
        mean = self._offset_bytes.get(state.tp, _OFFSET_BYTES)
        return max(0, state.end - state.offset) * mean

    def _current_bytes(self, states: list[FetchState], bytes_max: int) -> int:
        """The maximum of a response for current partitions."""
        groups = {self._group(state.tp.topic) for state in states}
        if not groups or 0 in groups:
            return bytes_max
        return min(bytes_max, max(self._burst_bytes(group) for group in groups))

    def _burst_bytes(self, group: int) -> int:
        """What a current partition may return at once: a burst must not overdraw for long."""
        debt = min(bucket.limit.debt_bytes for bucket in self._of_group[group])
        return max(_CURRENT_BYTES_MIN, int(debt / 2))

    def _reserve(self, grant: Grant, group: int, members: list[FetchState], bytes_max: int) -> int:
        """Add ``members`` to ``grant`` if all their buckets have room; returns the bytes."""
        buckets = self._of_group[group]
        spare = min(bucket.spare() for bucket in buckets)
        if spare < 1:
            for bucket in buckets:
                if not bucket.spare():
                    bucket.holds[1] = True
                    self._note_due(bucket.due_s())
            return 0
        size = min(int(spare), bytes_max)
        # If the bucket was full, something else is slower than the limit.
        grant.short = (
            any(bucket.level < 0.9 * bucket.burst for bucket in buckets) and size < bytes_max
        )
        for bucket in buckets:
            bucket.reserve(size, backfill=True)
            grant.reserved.append((bucket, size, True))
        grant.states = [*members, *grant.states]
        grant.backfill |= {state.tp for state in members}
        return size

    def _note_due(self, due_s: float) -> None:
        self._due_s = min(self._due_s, max(_WAKE_S_MIN, due_s))

    def due_at(self) -> float:
        """When the next round has partitions that this one left out; infinity if it left none."""
        return self._round_at + self._due_s

    # -- after responses -------------------------------------------------------------------

    def settle(
        self,
        grant: Grant | None,
        parts: Iterable[tuple[TopicPartition, memoryview]],
        flight_s: float,
    ) -> None:
        """Return what ``grant`` reserved, and take what was read. ``flight_s``: of the request."""
        read = 0
        reserved = [] if grant is None else grant.reserved
        for bucket, size, backfill in reserved:
            bucket.reserve(-size, backfill=backfill)
        for tp, records in parts:
            buckets = self._of_group[self._group(tp.topic)]
            if not buckets or not len(records):
                continue
            size = self._measure(tp, records)
            backfill = grant is not None and tp in grant.backfill
            read += size if backfill else 0
            for bucket in buckets:
                bucket.take(size, backfill=backfill)
        for bucket, size, backfill in reserved:
            if backfill and grant is not None and grant.short and 2 * read >= size:
                # The bucket refilled during the flight, so no round had to leave anything out.
                bucket.waited_s[1] += min(flight_s, size / bucket.limit.bytes_s)
        if grant is not None:
            grant.reserved.clear()

    def _measure(self, tp: TopicPartition, records: memoryview) -> int:
        """Bytes of the whole batches in ``records``."""
        starts = walk_batches(records).starts
        if len(starts) < 2:
            return 0
        size, last = starts[-1], records[starts[-2] : starts[-1]]
        if len(last) >= HEADER_BYTES:
            offsets = base_offset(last) + last_offset_delta(last) + 1 - base_offset(records)
            self._offset_bytes[tp] = size / max(1, offsets)
        return size

    def _group(self, topic: str) -> int:
        """The number of the set of limits that apply to ``topic``; 0 for none."""
        known = self._groups.get(topic)
        if known is None:
            buckets = tuple(
                bucket
                for bucket in self._buckets.values()
                if bucket.limit.topics is None or bucket.limit.topics.fullmatch(topic) is not None
            )
            if buckets not in self._of_group:
                self._of_group.append(buckets)
            known = self._groups[topic] = self._of_group.index(buckets)
        return known

"""How much each partition is written, how far behind it is, and how fast slots are. No I/O.

Everything comes from what the driver has anyway: end offsets of the source, and the slots' reports.
A partition's rate is what is *written* to it, not what is mirrored: a slot that is too slow would
otherwise seem to have little to do, and get more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sparkmirror.internal_topics.deals.load import Load
from sparkmirror.model import TopicPartition
from sparkmirror.progress import SlotProgress

_HALF_LIFE_S = 60.0
# Rates of a shorter time say little.
_KNOWN_S = 20.0
# A slot is slow if its backlog grows by this share of what comes in, for so many samples.
_GROWS_SHARE, _GROWS_BYTES, _GROWS_TIMES = 0.1, 1_000_000, 3
_SPEED_MIN = 0.25
_RECORD_BYTES_MAX, _BYTES_MAX = 1 << 31, 1 << 62
# A slow slot is tried with more again: its speed doubles in an hour of samples, ten seconds each.
_RECOVERY = 1.002


@dataclass(slots=True)
class _Partition:
    end: int
    at_s: float
    records_s: float | None = None
    position: int = -1
    mean_bytes: float | None = None


@dataclass(slots=True)
class _Slot:
    worker: str
    attempt: int
    time_ms: int
    bytes: int
    partitions: frozenset[TopicPartition]
    backlog_bytes: float = 0.0
    mirrored_s: float = 0.0
    grew: int = 0
    speed: float = 1.0
    throttled_ms: int = 0


@dataclass
class Loads:
    """The loads of one flow's partitions and slots. For one thread.

    ``capacity_bytes_s``: the most that a slot has been seen to mirror.
    """

    capacity_bytes_s: float = 0.0
    _partitions: dict[TopicPartition, _Partition] = field(default_factory=dict)
    _slots: dict[int, _Slot] = field(default_factory=dict)
    _halted: frozenset[TopicPartition] = frozenset()
    _mean_bytes: float | None = None
    _began_s: float | None = None

    def known(self, now_s: float) -> bool:
        """Whether rates cover enough time for a deal."""
        return self._began_s is not None and now_s - self._began_s >= _KNOWN_S

    def observe(
        self, reports: Sequence[SlotProgress], ends: Mapping[TopicPartition, int], now_s: float
    ) -> None:
        """Take the newest report of each slot and the newest end offsets, at monotonic ``now_s``.

        Ends of which none has grown are no sample: the source may be unavailable.
        """
        reports = sorted(reports, key=lambda report: report.epoch)
        if self._take_ends(ends, now_s) and self._began_s is None:
            self._began_s = now_s
        records, size = 0, 0
        self._halted = frozenset(
            TopicPartition(p.topic, p.partition)
            for report in reports
            for p in report.partitions
            if p.halt is not None
        )
        for report in reports:
            for p in report.partitions:
                known = self._partitions.get(TopicPartition(p.topic, p.partition))
                records, size = records + p.records, size + p.bytes
                if known is not None:
                    known.position = p.position if p.position >= 0 else known.position
                    known.mean_bytes = _mean(p.bytes, p.records) or known.mean_bytes
        self._mean_bytes = _mean(size, records) or self._mean_bytes
        self._take_slots(reports)

    def _take_ends(self, ends: Mapping[TopicPartition, int], now_s: float) -> bool:
        known = self._partitions
        for tp in known.keys() - ends.keys():
            del known[tp]
        if known and all(ends[tp] <= one.end for tp, one in known.items()):
            ends = {tp: end for tp, end in ends.items() if tp not in known}
        for tp, end in ends.items():
            one = known.get(tp)
            if one is None:
                known[tp] = _Partition(end, now_s)
                continue
            passed_s = now_s - one.at_s
            if passed_s > 0:
                rate = max(0, end - one.end) / passed_s
                kept = 0.5 ** (passed_s / _HALF_LIFE_S)
                one.records_s = (
                    rate if one.records_s is None else kept * one.records_s + (1 - kept) * rate
                )
                one.end, one.at_s = end, now_s
        return bool(known)

    def load(self, tp: TopicPartition, leader: int = -1) -> Load:
        """The load of one partition; that of an idle one if nothing is known, or it is halted.

        A halted partition stands still in any slot, and says nothing about its own.
        """
        one = self._partitions.get(tp) if tp not in self._halted else None
        size = None if one is None else one.mean_bytes or self._mean_bytes
        if one is None or size is None:
            return Load(leader=leader)
        behind = max(0, one.end - one.position) if one.position >= 0 else 0
        return Load((one.records_s or 0.0) * size, behind * size, leader)

    # -- slots ------------------------------------------------------------------------------

    def speeds(self, count: int) -> list[float]:
        """The speed of each of ``count`` slots, as a share of that of the fastest one."""
        return [self._slots[slot].speed if slot in self._slots else 1.0 for slot in range(count)]

    def _take_slots(self, reports: Iterable[SlotProgress]) -> None:
        newest = {report.slot: report for report in reports}
        for gone in self._slots.keys() - newest.keys():
            del self._slots[gone]
        for slot, report in newest.items():
            self._take_slot(slot, report)
        for slot, one in self._slots.items():
            others = [other for number, other in self._slots.items() if number != slot]
            alone = sum(other.grew > 0 for other in others) * 2 < len(others)
            fastest = max((other.mirrored_s for other in others), default=0.0)
            if one.grew >= _GROWS_TIMES and alone and fastest > 0:
                one.speed = max(_SPEED_MIN, min(one.speed, one.mirrored_s / fastest))
            elif not one.grew:
                one.speed = min(1.0, one.speed * _RECOVERY)

    def _take_slot(self, slot: int, report: SlotProgress) -> None:
        tps = frozenset(TopicPartition(p.topic, p.partition) for p in report.partitions)
        tps -= self._halted
        backlog = sum(self.load(tp).backlog_bytes for tp in tps)
        before = self._slots.get(slot)
        now = _Slot(report.worker, report.attempt, report.time_ms, report.bytes, tps, backlog)
        now.throttled_ms = sum(
            use.current_wait_ms + use.backfill_wait_ms for use in report.throttles
        )
        if before is not None:
            same = (before.worker, before.attempt) == (report.worker, report.attempt)
            passed_s = (report.time_ms - before.time_ms) / 1000
            if same and passed_s <= 0:
                return
            # Spark gives the slots of each epoch to any executor.
            if _host(before.worker) == _host(report.worker):
                now.speed = before.speed
            if same and tps == before.partitions:
                now.mirrored_s = min(max(0, report.bytes - before.bytes), _BYTES_MAX) / passed_s
                incoming = sum(self.load(tp).bytes_s for tp in tps) * passed_s
                grown = backlog - before.backlog_bytes
                grows = grown > max(_GROWS_BYTES, _GROWS_SHARE * incoming)
                held = report.paused or now.throttled_ms > before.throttled_ms
                now.grew = before.grew + 1 if grows and not held else 0
                self.capacity_bytes_s = max(self.capacity_bytes_s, now.mirrored_s)
        self._slots[slot] = now


def _mean(n_bytes: int, records: int) -> float | None:
    """The mean size of records; None without any. Others than slots may have written a report."""
    return min(n_bytes, records * _RECORD_BYTES_MAX) / records if n_bytes > 0 < records else None


def _host(worker: str) -> str:
    return worker.partition(":")[0]

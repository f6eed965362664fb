"""Figures of one source partition: its totals and its lag."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from sparkmirror.observe.figures.samples import Rate
from sparkmirror.progress import Halt, PartitionProgress, Spread

__all__ = ["PartitionRow", "PartitionTotal", "continued", "lag_of", "worst_s"]


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """One source partition at one moment; ``None`` means not known yet.

    ``position``: the next source offset to mirror; ``end``: the source's end offset. ``records``,
    ``bytes``: what this run has mirrored; rates cover the last 30 to 60 s. ``behind_s``: the lag in
    seconds; ``newest_age_s``: the age of the newest mirrored record.
    """

    topic: str
    partition: int
    position: int | None
    end: int | None
    lag_records: int | None
    lag_bytes: int | None
    behind_s: float | None
    newest_age_s: float | None
    records: int
    bytes: int
    records_per_s: float
    bytes_per_s: float
    age_ms: Spread | None
    latency_ms: Spread | None
    halt: Halt | None


@dataclass(slots=True)
class PartitionTotal:
    """Totals of one partition in this run."""

    records: int = 0
    bytes: int = 0
    rate: Rate = field(default_factory=Rate)

    def add(self, ticks_ms: int, records: int, n_bytes: int) -> None:
        """Add the growth that a report shows."""
        self.records += records
        self.bytes += n_bytes
        if records or n_bytes:
            self.rate.add(ticks_ms, records, n_bytes)

    def lag_bytes(self, lag_records: int | None, mean_bytes: float | None) -> int | None:
        """``lag_records`` in bytes, estimated by the mean size of this run's mirrored records.

        Without any from this partition by ``mean_bytes``; None if that is None, too.
        """
        if not lag_records:
            return lag_records
        mean = self.bytes / self.records if self.records else mean_bytes
        return None if mean is None else round(lag_records * mean)

    def row(
        self,
        progress: PartitionProgress,
        end: int | None,
        oldest_ms: int | None,
        *,
        mean_bytes: float | None,
        now_ms: int,
        ticks_ms: int,
    ) -> PartitionRow:
        """The present figures of the partition."""
        lag_records, behind_s = lag_of(progress, end, oldest_ms, now_ms)
        records_per_s, bytes_per_s = self.rate.per_second(ticks_ms)
        return PartitionRow(
            topic=progress.topic,
            partition=progress.partition,
            position=progress.position if progress.position >= 0 else None,
            end=end,
            lag_records=lag_records,
            lag_bytes=self.lag_bytes(lag_records, mean_bytes),
            behind_s=behind_s,
            newest_age_s=_age_s(progress, now_ms),
            records=self.records,
            bytes=self.bytes,
            records_per_s=records_per_s,
            bytes_per_s=bytes_per_s,
            age_ms=progress.age_ms,
            latency_ms=progress.latency_ms,
            halt=progress.halt,
        )


def lag_of(
    progress: PartitionProgress, end: int | None, oldest_ms: int | None, now_ms: int
) -> tuple[int | None, float | None]:
    """(lag in records, lag in seconds); None for what is unknown.

    ``oldest_ms``: timestamp of the oldest record that is not at the target.
    """
    if end is None or progress.position < 0:
        return None, None
    records = max(0, end - progress.position)
    if not records:
        return 0, 0.0
    return records, None if oldest_ms is None else max(0.0, (now_ms - oldest_ms) / 1_000)


def worst_s(lags: Iterable[tuple[int | None, float | None]]) -> float | None:
    """The combined lag in seconds of several partitions, from (records, seconds) of each.

    It is the highest known lag; 0 if no partition lags, None if some lag but none is known in
    seconds.
    """
    behind = [seconds for records, seconds in lags if records != 0]
    ages = [seconds for seconds in behind if seconds is not None]
    return max(ages) if ages else None if behind else 0.0


def _age_s(progress: PartitionProgress, now_ms: int) -> float | None:
    if progress.timestamp_ms < 0:
        return None
    return max(0.0, (now_ms - progress.timestamp_ms) / 1_000)


def continued(now: PartitionProgress, former: PartitionProgress | None) -> PartitionProgress:
    """``now``, with values of ``former`` where a task that has just started has none yet."""
    if former is None or (now.position >= 0 and now.timestamp_ms >= 0):
        return now
    return replace(
        now,
        position=now.position if now.position >= 0 else former.position,
        timestamp_ms=now.timestamp_ms if now.timestamp_ms >= 0 else former.timestamp_ms,
        age_ms=now.age_ms or _faded(former.age_ms),
        latency_ms=now.latency_ms or _faded(former.latency_ms),
    )


def _faded(spread: Spread | None) -> Spread | None:
    """Only the last value: the samples of a former task are not from the last minute."""
    return None if spread is None else Spread(spread.last)

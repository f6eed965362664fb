"""What slots report about their work, about once a second.

Reports cross process boundaries (Spark's workers, control topic, driver), so they hold only values
that pickle. Points in time are epoch milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = [
    "SEND_FAILED",
    "Halt",
    "JoinCounts",
    "PartitionProgress",
    "SlotLoad",
    "SlotProgress",
    "Spread",
    "ThrottleUse",
    "TransformCounts",
]


@dataclass(frozen=True, slots=True)
class JoinCounts:
    """Totals of joining batches for a slow link.

    ``batches``: source batches that were joined. ``bytes_in``, ``bytes_out``: their bytes before
    and after. ``cpu_s``: processor time of joining.
    """

    batches: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    cpu_s: float = 0.0

    def plus(self, more: JoinCounts) -> JoinCounts:
        """The sum of both."""
        return JoinCounts(
            self.batches + more.batches,
            self.bytes_in + more.bytes_in,
            self.bytes_out + more.bytes_out,
            self.cpu_s + more.cpu_s,
        )

    def since(self, before: JoinCounts) -> JoinCounts:
        """The difference to ``before``; all of ``self`` if the counters restarted since."""
        if self.batches < before.batches:
            return self
        return JoinCounts(
            self.batches - before.batches,
            self.bytes_in - before.bytes_in,
            self.bytes_out - before.bytes_out,
            self.cpu_s - before.cpu_s,
        )


@dataclass(frozen=True, slots=True)
class Halt:
    """Why one partition is not mirrored. The others continue.

    ``code``: a stable error name (see ``errors``). ``retriable``: whether the pipeline retries
    without a command. ``attempt``: the partition's attempt (`data.read.retry_schedule`) that the
    halt ended, -1 for none.
    """

    code: str
    reason: str
    retriable: bool = False
    attempt: int = -1


SEND_FAILED = "SEND_FAILED"
"""Code of the halt that stops a flow of MirrorMaker 1's files (``--abort.on.send.failure``)."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A value as MirrorMaker 2 reports it: the last one, and figures of the last 30 to 60 seconds.

    ``low``, ``mean`` and ``high`` are None when there was no value in that time.
    """

    last: float
    low: float | None = None
    mean: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """The state of one source partition.

    ``position``: next source offset to mirror; the target has everything before it.
    ``timestamp_ms``: largest record timestamp mirrored so far, -1 for none.
    ``age_ms``: age of records when they were read. ``latency_ms``: their age when the target had
    acknowledged them. Both are None until the slot has seen records.
    """

    topic: str
    partition: int
    position: int
    timestamp_ms: int = -1
    records: int = 0
    bytes: int = 0
    halt: Halt | None = None
    age_ms: Spread | None = None
    latency_ms: Spread | None = None


@dataclass(frozen=True, slots=True)
class ThrottleUse:
    """What one limit has done in a slot, in counts that grow until the limit is removed.

    ``topics``: see `ThrottleRule`. ``current``: of partitions that keep up, ``backfill``: of the
    others; bytes that were read, and milliseconds in which the limit delayed requests.
    """

    topics: str
    current_bytes: int
    backfill_bytes: int
    current_wait_ms: int
    backfill_wait_ms: int


@dataclass(frozen=True, slots=True)
class TransformCounts:
    """Records that one transform has processed. Records that come again count again.

    ``records_in``: those that its SQL has run for. They are ``records_out``, which go to the
    target, ``filtered`` (left out by the SQL) or ``failed`` (the SQL failed on them). Where the
    time went: processor time of the source worker that reads records (``unpack_s``) and of the sink
    that writes new batches (``pack_s``); time in which Spark evaluated the SQL, or processor time
    of a handler (``sql_s``).
    """

    transform: str
    records_in: int = 0
    records_out: int = 0
    filtered: int = 0
    failed: int = 0
    unpack_s: float = 0.0
    sql_s: float = 0.0
    pack_s: float = 0.0

    def plus(self, more: TransformCounts) -> TransformCounts:
        """The sum of both."""
        return TransformCounts(
            self.transform,
            self.records_in + more.records_in,
            self.records_out + more.records_out,
            self.filtered + more.filtered,
            self.failed + more.failed,
            self.unpack_s + more.unpack_s,
            self.sql_s + more.sql_s,
            self.pack_s + more.pack_s,
        )

    def since(self, before: TransformCounts | None) -> TransformCounts:
        """The difference to ``before``; all of ``self`` if the counters restarted since."""
        if before is None or self.records_in < before.records_in:
            return self
        return TransformCounts(
            self.transform,
            self.records_in - before.records_in,
            self.records_out - before.records_out,
            self.filtered - before.filtered,
            self.failed - before.failed,
            max(0.0, self.unpack_s - before.unpack_s),
            max(0.0, self.sql_s - before.sql_s),
            max(0.0, self.pack_s - before.pack_s),
        )


@dataclass(frozen=True, slots=True)
class SlotProgress:
    """What one slot (Spark task) has done; it reports this about once a second.

    Counters grow from the start of the worker process. ``latency_counts[i]``: batches whose latency
    (target acknowledgement minus largest record timestamp) fell into bucket ``i`` of
    ``observe.figures.latency.BOUNDS_MS``; ``latency_ms_sum``: the sum of their latencies.
    ``errors``: retried failures by code, and as ``THROTTLED`` the responses after which a broker's
    quota made us wait. ``paused``: the slot fetches nothing because an operator paused it.
    ``run_id``, ``attempt``: the run, and Spark's number of the task's attempt that reports, which
    grows within a run; empty and -1 in reports of older releases. ``joined``: what joining batches
    for a slow link has done. ``throttles``: what the limits have done. ``transforms``: what each
    transform has done, since the task began. ``pieces``: how many further records hold the
    partitions (`internal_topics.reports`); 0: the report is one record. ``complete``: all of them
    are in ``partitions``. ``began_ms``, ``ended_ms``: when the task's first rows arrived, and when
    its last ones had; 0: not yet, or unknown.
    """

    flow: str
    slot: int
    worker: str
    epoch: int
    time_ms: int
    records: int
    bytes: int
    batches: int
    latency_counts: tuple[int, ...] = ()
    errors: Mapping[str, int] = field(default_factory=dict)
    partitions: tuple[PartitionProgress, ...] = ()
    latency_ms_sum: int = 0
    paused: bool = False
    run_id: str = ""
    attempt: int = -1
    joined: JoinCounts = JoinCounts()
    throttles: tuple[ThrottleUse, ...] = ()
    transforms: tuple[TransformCounts, ...] = ()
    pieces: int = 0
    complete: bool = True
    began_ms: int = 0
    ended_ms: int = 0

    def replaces(self, known: SlotProgress | None) -> bool:
        """Whether this report replaces ``known``, the newest report of the slot so far.

        The slot belongs to the latest attempt. Spark has given up the earlier ones, so their
        reports never replace a later attempt's, even if they arrive late.
        """
        if known is None or self.attempt != known.attempt:
            return known is None or self.attempt > known.attempt
        return self.time_ms >= known.time_ms


@dataclass(frozen=True, slots=True)
class SlotLoad:
    """The loads of one slot's partitions: sums, and the leaders of its partitions, sorted.

    ``weight``: by which partitions are dealt, bytes per second (`internal_topics.deals.load`).
    ``speed``: 1.0, or less for a slot that others outrun. ``apart``: it has partitions that are far
    behind.
    """

    weight: int
    bytes_s: int
    backlog_bytes: int
    leaders: tuple[int, ...] = ()
    speed: float = 1.0
    apart: bool = False

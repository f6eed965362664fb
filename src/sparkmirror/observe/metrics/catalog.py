"""The table of all metrics of ``/metrics``: name, type, labels, meaning.

``exposition`` uses it, and docs/metrics.md is generated from it::

    python -m sparkmirror.observe.metrics.catalog docs/metrics.md
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

MIRROR_SOURCE = "kafka_connect_mirror_mirrorsourceconnector"
MIRROR_CHECKPOINT = "kafka_connect_mirror_mirrorcheckpointconnector"

FLOW = ("source", "target")
PARTITION = (*FLOW, "group", "topic", "partition")
REMOTE = (*FLOW, "topic", "partition")
CHECKPOINT = (*FLOW, "group", "topic", "partition")


@dataclass(frozen=True, slots=True)
class Metric:
    """One family of series. A counter is exposed with the suffix ``_total``."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str

    @property
    def shown(self) -> str:
        """The name in queries."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


def _spread(name: str, labels: tuple[str, ...], what: str) -> tuple[Metric, ...]:
    return (
        Metric(name, "gauge", labels, f"{what}: the last value."),
        Metric(f"{name}_min", "gauge", labels, f"{what}: lowest of the last 30 to 60 s."),
        Metric(f"{name}_max", "gauge", labels, f"{what}: highest of the last 30 to 60 s."),
        Metric(f"{name}_avg", "gauge", labels, f"{what}: mean of the last 30 to 60 s."),
    )


_MM2 = (
    Metric(
        f"{MIRROR_SOURCE}_record_count", "gauge", REMOTE, "Records that the target acknowledged."
    ),
    Metric(f"{MIRROR_SOURCE}_record_rate", "gauge", REMOTE, "The same per second."),
    Metric(
        f"{MIRROR_SOURCE}_byte_count", "gauge", REMOTE,
        "Bytes of the record batches that the target acknowledged, as sent (compressed, with keys"
        " and headers; MirrorMaker 2 counts uncompressed values).",
    ),
    Metric(f"{MIRROR_SOURCE}_byte_rate", "gauge", REMOTE, "The same per second."),
    *_spread(f"{MIRROR_SOURCE}_record_age_ms", REMOTE, "Age of records when they were read"),
    *_spread(
        f"{MIRROR_SOURCE}_replication_latency_ms", REMOTE,
        "Age of records when the target had acknowledged them",
    ),
    *_spread(
        f"{MIRROR_CHECKPOINT}_checkpoint_latency_ms", CHECKPOINT,
        "Time from listing a group to the acknowledgement of its checkpoint",
    ),
)  # fmt: skip

_OWN = (
    Metric(
        "sparkmirror_build_info", "gauge", ("version", "python", "pyspark", "kafka_python"),
        "1; versions of the components.",
    ),
    Metric(
        "sparkmirror_flow_info", "gauge", (*FLOW, "group", "mode"),
        "1; the group that holds the positions, and the kind of file of the flow (mm1, mm2).",
    ),
    Metric(
        "sparkmirror_flow_state", "gauge", (*FLOW, "state"),
        "1 for the state the flow is in: starting, running, waiting (the source or the"
        " target does not respond), standby, paused, draining or drained.",
    ),
    Metric("sparkmirror_records", "counter", FLOW, "Records mirrored by this run."),
    Metric("sparkmirror_bytes", "counter", FLOW, "Bytes of record batches mirrored."),
    Metric(
        "sparkmirror_batches", "counter", FLOW,
        "Record batches mirrored, counted before any are joined for the link.",
    ),
    Metric(
        "sparkmirror_link_joined_batches", "counter", FLOW,
        "Batches that waited for a slow link to the target and were joined to larger ones.",
    ),
    Metric("sparkmirror_link_joined_bytes", "counter", FLOW, "Bytes of these batches."),
    Metric(
        "sparkmirror_link_written_bytes", "counter", FLOW,
        "Bytes of the joined batches that were written in their place.",
    ),
    Metric(
        "sparkmirror_link_joining_cpu_seconds", "counter", FLOW,
        "Processor time spent on joining them.",
    ),
    Metric("sparkmirror_partitions", "gauge", FLOW, "Source partitions assigned."),
    Metric(
        "sparkmirror_partitions_reported", "gauge", FLOW,
        "Source partitions whose position is known.",
    ),
    Metric(
        "sparkmirror_halted_partitions", "gauge", FLOW,
        "Source partitions that are halted. One that is retried counts until something of it is"
        " acknowledged, or a minute has passed without a new failure.",
    ),
    Metric(
        "sparkmirror_partition_halted", "gauge",
        (*FLOW, "topic", "partition", "code", "retriable", "reason"),
        "1 for each halted source partition, with the reason. Only with partition labels.",
    ),
    Metric("sparkmirror_flow_lag_records", "gauge", FLOW, "Records not mirrored yet."),
    Metric(
        "sparkmirror_flow_lag_seconds", "gauge", FLOW,
        "Age of the oldest record that is not at the target; 0 without lag.",
    ),
    Metric(
        "sparkmirror_flow_lag_bytes", "gauge", FLOW,
        "Estimated bytes not mirrored yet, from the mean size of mirrored records.",
    ),
    Metric(
        "sparkmirror_flow_catch_up_seconds", "gauge", FLOW,
        "Estimated time until the lag is zero, at the rate of the last 30 s. Only while a record"
        " that is at least 10 s old is not at the target and the lag shrinks.",
    ),
    Metric(
        "sparkmirror_end_offsets_age_seconds", "gauge", FLOW,
        "Time since the source told the end offset of the partition for which that is longest ago."
        " After a minute, or three rounds for many partitions, its lag and that of the flow are"
        " unknown: they have no samples. Not with `--once`.",
    ),
    Metric("sparkmirror_lag_records", "gauge", PARTITION, "Source end offset minus position."),
    Metric(
        "sparkmirror_lag_seconds", "gauge", PARTITION,
        "Age of the oldest record that is not at the target; 0 without lag. Record times are read"
        " every 2 s for at most 50 partitions, least recently read ones first.",
    ),
    Metric(
        "sparkmirror_lag_bytes", "gauge", PARTITION,
        "Estimated bytes not mirrored yet, from the mean size of mirrored records.",
    ),
    Metric(
        "sparkmirror_position_age_seconds", "gauge", PARTITION,
        "Age of the newest mirrored record, with or without lag.",
    ),
    Metric(
        "sparkmirror_position_offset", "gauge", PARTITION,
        "Next source offset to mirror. Only with partition labels.",
    ),
    Metric(
        "sparkmirror_end_offset", "gauge", PARTITION,
        "End offset of the source partition. Only with partition labels.",
    ),
    Metric(
        "sparkmirror_group_lag_records", "gauge", PARTITION,
        "Source end offset minus the committed offset of a consumer group of the source, for the"
        " groups and topics that have checkpoints; at the last round of checkpoints.",
    ),
    Metric(
        "sparkmirror_group_lag_seconds", "gauge", PARTITION,
        "Age of the first record that the group has not read, at that time; 0 without lag.",
    ),
    Metric(
        "sparkmirror_latency_seconds", "histogram", FLOW,
        "Age of a chunk's newest record when the target had acknowledged it.",
    ),
    Metric(
        "sparkmirror_errors",
        "counter",
        (*FLOW, "code"),
        "Failures that were retried, losses at the source, records that were left out.",
    ),
    Metric(
        "sparkmirror_transform_in_records", "counter", (*FLOW, "transform"),
        "Records for which the SQL of a transform has run; records that come again count again.",
    ),
    Metric(
        "sparkmirror_transform_out_records", "counter", (*FLOW, "transform"),
        "Those of them that go to the target.",
    ),
    Metric(
        "sparkmirror_transform_filtered_records", "counter", (*FLOW, "transform"),
        "Those that the SQL leaves out.",
    ),
    Metric(
        "sparkmirror_transform_failed_records", "counter", (*FLOW, "transform"),
        "Those on which the SQL fails; a partition that pauses counts its record with each try.",
    ),
    Metric(
        "sparkmirror_transform_seconds", "counter", (*FLOW, "transform", "stage"),
        "Where a transform's time goes, summed over slots: `unpack` and `pack` are processor time"
        " of the workers that read records and write new batches, `sql` is the time in which Spark"
        " evaluates the SQL, measured on one record in 16, or the processor time of a handler.",
    ),
    Metric(
        "sparkmirror_spark_epochs", "counter", FLOW,
        "Epochs that Spark has completed; it calls them micro-batches. They last for"
        " `sparkmirror.epoch.seconds`.",
    ),
    Metric(
        "sparkmirror_spark_query_restarts", "counter", FLOW,
        "How often the flow's query has failed and was restarted.",
    ),
    Metric(
        "sparkmirror_spark_epoch_seconds", "gauge", (*FLOW, "phase"),
        "Duration of the last completed epoch by Spark's phases: in `addBatch` the slots ran,"
        " `triggerExecution` is all of it.",
    ),
    Metric(
        "sparkmirror_pause_seconds", "gauge", FLOW,
        "How long the partitions paused when the last epoch began: from the end of the first slot"
        " of the epoch before until the last slot of this one has begun.",
    ),
    Metric("sparkmirror_pauses", "counter", FLOW, "Such pauses in this run."),
    Metric("sparkmirror_paused_seconds", "counter", FLOW, "Their duration, summed."),
    Metric(
        "sparkmirror_spark_rows_per_second", "gauge", FLOW,
        "Rows per second that Spark carried within the last completed epoch: responses of the"
        " source's brokers, and records for transforms. Unless `sparkmirror.ring.enabled` is false,"
        " small responses are not among them.",
    ),
    Metric(
        "sparkmirror_table_rows", "gauge", (*FLOW, "table"),
        "Rows of a static table that transforms look up rows in.",
    ),
    Metric(
        "sparkmirror_table_read_timestamp_seconds", "gauge", (*FLOW, "table"),
        "Time when these rows were read.",
    ),
    Metric("sparkmirror_throttled", "counter", FLOW, "Responses that were throttled by a quota."),
    Metric(
        "sparkmirror_throttle_bytes_per_second", "gauge", (*FLOW, "topics"),
        "Limit on reading that applies now; `topics` is a regex, empty for the whole flow.",
    ),
    Metric(
        "sparkmirror_slot_weight_bytes_per_second", "gauge", (*FLOW, "slot"),
        "Weight of a slot's partitions, by which they are dealt: what is written to them, plus what"
        " it takes to read their backlog in an hour.",
    ),
    Metric(
        "sparkmirror_partition_moves", "counter", FLOW,
        "Partitions that were dealt to another slot, because of their load.",
    ),
    Metric(
        "sparkmirror_throttle_wait_seconds", "counter", (*FLOW, "kind"),
        "Time in which limits delayed requests, summed over slots; `kind` is `backfill`, or"
        " `current` for partitions that keep up.",
    ),
    Metric(
        "sparkmirror_last_report_timestamp_seconds", "gauge", FLOW,
        "When a slot's report last came in; at least every 10 s while the flow runs.",
    ),
)  # fmt: skip

CATALOG: dict[str, Metric] = {metric.name: metric for metric in _MM2 + _OWN}

_HEAD = """\
# Metrics

Generated by `make docs` from the table that `/metrics` uses; do not edit. How to enable and protect
it is in [monitoring](monitoring.md#metrics).

Counters and sums begin at 0 with each run. With `sparkmirror.metrics.labels=topic` the label
`partition` is omitted, with `flow` also `topic`. Counts, rates and lag are then sums, latencies and
ages the highest of all (`_min` the lowest, `_avg` the mean of means).
"""


def metrics_page() -> str:
    """The text of docs/metrics.md."""
    lines = [_HEAD, "## MirrorMaker 2's", ""]
    lines += [
        "Names are those of the usual JMX exporter rules; `topic` is the remote topic. A value",
        "without samples in the last minute is `NaN`, as in MirrorMaker 2.",
        "",
        *_table(_MM2),
        "",
        "## sparkmirror's own",
        "",
        "`topic` is the source's topic.",
        "",
        *_table(_OWN),
    ]
    return "\n".join(lines) + "\n"


def _table(metrics: tuple[Metric, ...]) -> list[str]:
    lines = ["| name | type | labels | what |", "|---|---|---|---|"]
    for metric in metrics:
        labels = ", ".join(metric.labels)
        lines.append(f"| `{metric.shown}` | {metric.kind} | {labels} | {metric.help} |")
    return lines


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(metrics_page(), encoding="utf-8")

"""A sample of records in a real Spark: what becomes of each, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pytest

from sparkmirror.data.rows.rows import Chunk
from sparkmirror.data.transform import replay as replays
from sparkmirror.data.transform import trial
from sparkmirror.data.transform.pack import Packed
from sparkmirror.data.transform.plan import TransformPlan
from sparkmirror.data.transform.replay import Part, Replay, groups, read_parts
from sparkmirror.data.transform.routing import Router
from sparkmirror.errors import PartitionError, Unreachable
from sparkmirror.internal_topics.assignments import SourcePartition
from sparkmirror.records.header import split
from sparkmirror.records.records import Record, decode_records, encode_batch
from sparkmirror.settings import ClusterClient, FlowSettings
from sparkmirror.transform_settings import TransformSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CLIENT = ClusterClient("A", ("localhost:1",), "test")
_NUMBER = "CAST(CAST(value AS STRING) AS INT)"


@pytest.fixture(scope="module")
def replay(spark: SparkSession) -> Replay:
    transforms = (
        TransformSettings("big", ("numbers",), f"{_NUMBER} > 5", "upper(hex(value)) AS value"),
        TransformSettings("keys", ("keys",), "", "NULL AS key"),
    )
    flow = FlowSettings(_CLIENT, _CLIENT, _CLIENT, _CLIENT, transforms=transforms)
    return Replay(TransformPlan(spark, flow), flow)


def _part(topic: str, first: int, *values: bytes | None) -> Part:
    records = [
        Record(first + number, 1_000 + number, b"k", value, ((b"h", None),))
        for number, value in enumerate(values)
    ]
    data = encode_batch(records, codec=3)
    end = first + len(records)
    return Chunk(topic, 2, f"A.{topic}", first, end, len(records), 1_000, 0, len(data)), data


def test_each_record_is_kept_filtered_or_failed(replay: Replay) -> None:
    parts = [
        _part("numbers", 10, b"7", b"1", b"x1"),
        _part("keys", 0, b"a"),
        _part("numbers", 20, None, b"9"),
    ]
    found = trial.tried(replay, parts)
    assert [(one.topic, one.before.offset, one.outcome) for one in found] == [
        ("numbers", 10, "kept"),
        ("numbers", 11, "filtered"),
        ("numbers", 12, "failed"),
        ("keys", 0, "kept"),
        ("numbers", 20, "filtered"),
        ("numbers", 21, "kept"),
    ]
    assert [one.after.value for one in found if one.after] == [b"37", b"a", b"39"]
    assert [one.after.key for one in found if one.after] == [b"k", None, b"k"]
    assert [one.before.value for one in found] == [b"7", b"1", b"x1", b"a", None, b"9"]
    assert found[0].after is not None
    assert (found[0].after.timestamp, found[0].after.headers) == (1_000, ((b"h", None),))
    assert "[CAST_INVALID_INPUT]" in found[2].reason
    assert {one.reason for one in found if not one.failed} == {""}


def test_no_record_stops_the_others(replay: Replay) -> None:
    """Although the flow pauses for records on which the SQL fails."""
    found = trial.tried(replay, [_part("numbers", 0, b"x", b"7", b"y", b"8")])
    assert [one.outcome for one in found] == ["failed", "kept", "failed", "kept"]


def test_costs_are_measured_on_the_sample_repeated(
    replay: Replay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "_COST_RECORDS", 7)
    jobs: list[int] = []
    packed = replay.packed

    def counted(parts: Any, **options: Any) -> Any:
        jobs.append(sum(chunk.record_count for chunk, _ in parts))
        return packed(parts, **options)

    monkeypatch.setattr(replay, "packed", counted)
    cost = trial.measure(replay, [_part("numbers", 0, b"1", b"7", b"x")])
    assert (cost.records, cost.repeats, jobs) == (9, 3, [9, 9])
    assert cost.raw_records_s > cost.transform_records_s > 0


def test_a_large_sample_is_tried_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [_part("numbers", 10 * n, b"7", b"8") for n in range(5)]
    sizes: list[int] = []

    class Groups:
        def packed(self, some: Sequence[Part], *, reasons: int = 0) -> list[Packed]:
            sizes.append(sum(len(data) for _, data in some))
            return [
                Packed(chunk, memoryview(data), sources=chunk.base_offset + np.arange(2))
                for chunk, data in some
            ]

    size = len(parts[0][1])
    monkeypatch.setattr(trial, "GROUP_BYTES", 2 * size)
    found = trial.tried(cast(Replay, Groups()), parts)
    assert sizes == [2 * size, 2 * size, size]
    assert [one.before.offset for one in found] == [10 * n + m for n in range(5) for m in (0, 1)]
    assert [one.after for one in found] == [one.before for one in found]


def test_costs_of_large_records_are_measured_on_the_first_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also if compression makes them small: Spark gets them without."""
    parts = [_part("numbers", n, bytes(100_000)) for n in range(50)]
    counts: list[int] = []

    class Counting:
        def packed(self, some: Sequence[Part]) -> None:
            counts.append(sum(chunk.record_count for chunk, _ in some))

    monkeypatch.setattr(trial, "_COST_BYTES_MAX", 1_000_000)
    cost = trial.measure(cast(Replay, Counting()), parts)
    assert (cost.records, cost.repeats, counts) == (10, 1, [10, 10])
    cost = trial.measure(cast(Replay, Counting()), parts[:3])
    assert (cost.records, cost.repeats, counts[2:]) == (9, 3, [9, 9])


def test_spark_gets_a_sample_in_jobs_that_fit_into_its_memory(
    replay: Replay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However well the records are compressed."""
    parts = [_part("numbers", 10 * n, *[b" %d" % n + b" " * 5_000] * 3) for n in range(20)]
    parts.append(_part("keys", 0, b"a"))
    whole = trial.tried(replay, parts)
    sizes: list[int] = []
    frame = replay._frame

    def counted(table: pa.Table) -> DataFrame:
        sizes.append(table.nbytes)
        return frame(table)

    monkeypatch.setattr(replay, "_frame", counted)
    monkeypatch.setattr(replays, "_JOB_BYTES", 1 << 20)
    assert trial.tried(replay, parts) == whole
    assert len(sizes) > 3
    assert max(sizes) < 2 << 20
    assert {one.outcome for one in whole} == {"kept", "filtered"}


def test_a_sample_is_repeated_in_large_rows_that_are_read_as_a_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    part = _part("numbers", 10, b"1", b"22", b"333")
    monkeypatch.setattr(trial, "_ROW_BYTES", 4 * len(part[1]) + 5)
    rows = list(trial._repeated(part, 10))
    assert [chunk.record_count for chunk, _ in rows] == [12, 12, 6]
    for chunk, data in rows:
        records = [
            record
            for start, end in split(memoryview(data))
            for record in decode_records(memoryview(data)[start:end])
        ]
        assert [one.offset for one in records] == list(range(10, 10 + chunk.record_count))
        assert [one.value for one in records[3:6]] == [b"1", b"22", b"333"]
        assert (chunk.size, chunk.next_offset) == (len(data), 10 + chunk.record_count)
        trial._pass((chunk, data))


@pytest.fixture(params=["true", "false"], ids=["ansi", "not-ansi"])
def defaults(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """Settings that a user's spark-defaults.conf may have: each new session has them."""
    found = {
        "spark.sql.execution.arrow.useLargeVarTypes": "true",
        "spark.sql.ansi.enabled": request.param,
        "spark.sql.ansi.enforceReservedKeywords": "true",
        "spark.sql.timestampType": "TIMESTAMP_NTZ",
        "spark.sql.session.timeZone": "Asia/Tokyo",
    }
    context: Any = spark.sparkContext
    conf = context._jsc.sc().conf()
    for name, value in found.items():
        conf.set(name, value)
    yield found
    for name in found:
        conf.remove(name)


_SELECT = (
    f"substr(CAST(value AS STRING), {_NUMBER}) AS value, timestamp + INTERVAL 1 HOUR AS timestamp, "
    "date_format(timestamp, 'HH') AS key"
)


def test_spark_defaults_do_not_change_what_a_transform_gives(
    spark: SparkSession, defaults: dict[str, str]
) -> None:
    session = spark.newSession()
    assert {name: session.conf.get(name) for name in defaults} == defaults
    transforms = (TransformSettings("all", ("t",), f"{_NUMBER} > 0", _SELECT),)
    flow = FlowSettings(_CLIENT, _CLIENT, _CLIENT, _CLIENT, transforms=transforms)
    found = trial.tried(
        Replay(TransformPlan(spark, flow), flow), [_part("t", 0, b"1", b"002", b"x", None, b"1")]
    )
    assert [one.outcome for one in found] == ["kept", "kept", "failed", "filtered", "kept"]
    kept = [one.after for one in found if one.after]
    assert [(one.key, one.value, one.timestamp) for one in kept] == [
        (b"00", b"1", 3_601_000),
        (b"00", b"02", 3_601_001),
        (b"00", b"1", 3_601_004),
    ]


def test_the_plan_is_that_of_the_query(replay: Replay) -> None:
    plan = replay.spark_plan()
    assert plan.startswith("== Physical Plan ==")
    assert "Project [" in plan
    assert "tryrecord" in plan.lower()


def test_a_group_ends_when_it_is_large_enough() -> None:
    parts = [_part("numbers", 0, b"7") for _ in range(5)]
    size = len(parts[0][1])
    assert [len(one) for one in groups(iter(parts), 2 * size)] == [2, 2, 1]
    assert list(groups(iter([]), 1)) == []


class _Selected:
    """Two responses with four records each at offsets 0, 2, 4 …; the second pass ends early."""

    opened: list[tuple[int, int]] = []  # noqa: RUF012

    def __init__(
        self,
        _client: Any,
        _fetch: Any,
        _tp: Any,
        start: int,
        end: int,
        *,
        note_appended: bool = False,
    ) -> None:
        self.opened.append((start, end))
        self.appended: list[tuple[int, int]] = []
        self._note_appended = note_appended
        self._offsets = [one for one in range(0, 16, 2) if start <= one < end]

    def __iter__(self) -> Iterator[Any]:
        from sparkmirror.records.records import Carried

        for first in range(0, len(self._offsets), 4):
            carried = Carried()
            carried.offsets = self._offsets[first : first + 4]
            yield carried

    def selections(self) -> Iterator[Any]:
        from sparkmirror.records.selection import Selection

        for offset in self._offsets:
            data = memoryview(encode_batch([Record(offset, 0, None, b"v", ())], codec=0))
            if self._note_appended:
                self.appended = [(offset, offset + 1)]
            yield Selection([data], [(offset, 1)], offset + 2, 1, 1, len(data))
        yield Selection(next_offset=99)

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("most", "end", "offsets"),
    [(3, 5, [0, 2, 4]), (5, 9, [0, 2, 4, 6, 8]), (100, 16, list(range(0, 16, 2)))],
)
def test_a_sample_ends_after_a_number_of_records(
    most: int, end: int, offsets: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replays, "RecordStream", _Selected)
    _Selected.opened.clear()
    flow = FlowSettings(_CLIENT, _CLIENT, _CLIENT, _CLIENT)
    parts = list(read_parts(flow, SourcePartition("t", 0, "A.t"), 0, 16, most))
    assert _Selected.opened == [(0, 16), (0, end)]
    assert [chunk.base_offset for chunk, _ in parts] == offsets
    assert [chunk.remote_topic for chunk, _ in parts] == ["A.t"] * len(offsets)
    # The SQL can ask who stamped a record, as in a mirror.
    assert [list(chunk.appended) for chunk, _ in parts] == [[(one, one + 1)] for one in offsets]


def test_a_target_that_does_not_answer_does_not_pass_for_a_filter(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Topics:
        def partitions(self, topic: str, *, again: bool = False) -> int:
            raise Unreachable("the target hangs.", where="cluster B")

        def close(self) -> None:
            pass

    monkeypatch.setattr(replays, "Router", lambda flow, _: Router(flow, cast(Any, Topics())))
    transforms = (TransformSettings("route", ("t",), "", "'eu' AS topic", routes=True),)
    flow = FlowSettings(_CLIENT, _CLIENT, _CLIENT, _CLIENT, transforms=transforms)
    routed = Replay(TransformPlan(spark, flow), flow)
    with pytest.raises(PartitionError, match="the target hangs"):
        trial.tried(routed, [_part("t", 7, b"us", b"eu")])


def test_routed_records_show_where_they_go(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Topics:
        closed = 0

        def partitions(self, topic: str, *, again: bool = False) -> int:
            return 0 if topic == "missing" else 3

        def close(self) -> None:
            Topics.closed += 1

    monkeypatch.setattr(replays, "Router", lambda flow, _: Router(flow, cast(Any, Topics())))
    select = "CASE CAST(value AS STRING) WHEN 'eu' THEN 'orders.eu' WHEN 'x' THEN 'missing' END"
    transforms = (TransformSettings("route", ("t",), "", f"{select} AS topic", routes=True),)
    flow = FlowSettings(_CLIENT, _CLIENT, _CLIENT, _CLIENT, transforms=transforms)
    routed = Replay(TransformPlan(spark, flow), flow)
    found = trial.tried(routed, [_part("t", 7, b"us", b"eu", b"x", b"eu")])
    assert [(one.before.offset, one.outcome, str(one.target or "")) for one in found] == [
        (7, "kept", "A.t-2"),
        (8, "kept", "orders.eu-2"),
        (9, "failed", ""),
        (10, "kept", "orders.eu-2"),
    ]
    assert [one.after.value for one in found if one.after] == [b"us", b"eu", b"eu"]
    assert "missing" in found[2].reason
    assert Topics.closed

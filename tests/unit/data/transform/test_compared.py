"""What a comparison gets for a source range of a transformed topic, in a real Spark."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from sparkmirror.data.rows.rows import RUNS_MAX, Chunk
from sparkmirror.data.transform import compared
from sparkmirror.data.transform.compared import ReplayedTopics
from sparkmirror.data.transform.plan import TransformPlan
from sparkmirror.data.transform.replay import Part, Replay
from sparkmirror.model import TopicPartition
from sparkmirror.records.records import Record, decode_rest, encode_batch
from sparkmirror.settings import ClusterClient, FaultSettings, FlowSettings
from sparkmirror.transform_settings import TransformSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CLIENT = ClusterClient("A", ("localhost:1",), "test")
_NUMBER = "CAST(CAST(value AS STRING) AS INT)"
TP = TopicPartition("numbers", 2)


def _topics(
    spark: SparkSession,
    where: str = f"{_NUMBER} % 2 = 0",
    select: str = "concat('n', CAST(value AS STRING)) AS value",
    bad_record: str = "pause",
) -> ReplayedTopics:
    transforms = (TransformSettings("even", ("numbers",), where, select),)
    flow = FlowSettings(
        *[_CLIENT] * 4, transforms=transforms, faults=FaultSettings(bad_record=bad_record)
    )
    return ReplayedTopics(flow, lambda: Replay(TransformPlan(spark, flow), flow))


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> dict[int, bytes]:
    """Value by source offset; read in parts of two thousand records, one job each."""
    values: dict[int, bytes] = {}

    def read_parts(_flow: Any, one: Any, start: int, end: int) -> Iterator[Part]:
        offsets = [each for each in values if start <= each < end]
        for first in range(0, len(offsets), 2_000):
            some = offsets[first : first + 2_000]
            data = encode_batch(
                [Record(each, each, b"k", values[each], ()) for each in some], codec=0
            )
            next_offset = some[-1] + 1
            yield (
                Chunk(one.topic, one.partition, one.remote_topic, some[0], next_offset, len(some),
                      some[-1], 0, len(data)),
                data,
            )  # fmt: skip

    monkeypatch.setattr(compared, "read_parts", read_parts)
    monkeypatch.setattr(compared, "GROUP_BYTES", 1)
    return values


def _read(topics: ReplayedTopics, start: int, end: int) -> list[tuple[int, int, bytes | None]]:
    """(offset, timestamp, value) of each record."""
    found = []
    for run in topics.read(TP, start, end):
        rows = zip(run.offsets, run.timestamps, run.rests, strict=True)
        found += [
            (offset, time, decode_rest(offset, time, memoryview(rest)).value)
            for offset, time, rest in rows
        ]
    return found


def test_records_are_those_that_a_mirror_makes(
    spark: SparkSession, source: dict[int, bytes]
) -> None:
    """With exact offsets, however many records are left out between them."""
    count = 2 * RUNS_MAX + 2_500
    source |= {100 + n: b"%d" % n for n in range(count)}
    topics = _topics(spark)
    assert _read(topics, 101, 100 + count) == [
        (100 + n, 100 + n, b"n%d" % n) for n in range(2, count, 2)
    ]
    assert topics.stopped(TP) is None
    assert topics.remark(TP) == "source records after the transform even"


def test_they_end_where_the_partition_pauses(spark: SparkSession, source: dict[int, bytes]) -> None:
    source |= {0: b"0", 1: b"2", 2: b"x", 3: b"4"}
    topics = _topics(spark)
    assert [one[0] for one in _read(topics, 0, 4)] == [0, 1]
    offset, why = topics.stopped(TP) or (-1, "")
    assert offset == 2
    assert why.startswith("the SQL of the transform even failed on these records: [CAST_INVALID")


def test_records_that_are_skipped_are_left_out(
    spark: SparkSession, source: dict[int, bytes]
) -> None:
    source |= {0: b"0", 1: b"x", 2: b"2"}
    topics = _topics(spark, bad_record="skip")
    assert [one[0] for one in _read(topics, 0, 3)] == [0, 2]
    assert topics.stopped(TP) is None
    assert topics.remark(TP).endswith(", without those on which it fails")


@pytest.mark.parametrize(
    ("select", "why"),
    [
        ("key", ""),
        ("'now' AS value, TIMESTAMP '2024-01-01' AS timestamp", ""),
        ("CAST(rand() AS STRING) AS value", "is not deterministic"),
        ("uuid() AS value", "is not deterministic"),
        ("CAST(current_timestamp() AS STRING) AS value", "depends on the time"),
        ("now() AS timestamp", "depends on the time"),
        ("CAST(unix_timestamp() AS STRING) AS value", "depends on the time"),
    ],
)
def test_sql_that_gives_other_records_each_time_is_found(
    select: str, why: str, spark: SparkSession
) -> None:
    topics = _topics(spark, "true", select)
    assert topics.has("numbers")
    assert not topics.has("others")
    found = topics.unrepeatable("numbers")
    assert found.endswith(why)
    assert bool(found) == bool(why)


def test_routed_records_are_not_compared(spark: SparkSession) -> None:
    """They may be in any partition; Spark is not even started to say so."""
    routing = TransformSettings("route", ("numbers",), "", "'x' AS topic", routes=True)
    flow = FlowSettings(*[_CLIENT] * 4, transforms=(routing,))

    def never() -> Replay:
        raise AssertionError("Spark is started")

    found = ReplayedTopics(flow, never).unrepeatable("numbers")
    assert found == "the transform route routes each record by its content"


def test_a_function_that_gives_other_records_each_time_is_found(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if what differs is a column of its own, below the last projection."""
    from pyspark.sql import functions as F  # noqa: N812

    module = ModuleType("random_values")

    def sampled(records: Any) -> Any:
        chance = records.withColumn("chance", F.rand())
        kept = chance.filter(F.col("chance") < 0.5)
        return kept.withColumn("value", F.col("chance").cast("string")).drop("chance")

    def plain(records: Any) -> Any:
        return records.withColumn("value", F.upper(F.col("value").cast("string")))

    module.sampled, module.plain = sampled, plain  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "random_values", module)
    for name, why in (
        ("sampled", "the function of the transform some is not deterministic"),
        ("plain", ""),
    ):
        one = TransformSettings("some", ("numbers",), python=f"random_values:{name}")
        flow = FlowSettings(*[_CLIENT] * 4, transforms=(one,))
        made = Replay(TransformPlan(spark, flow), flow)
        assert ReplayedTopics(flow, lambda made=made: made).unrepeatable("numbers") == why

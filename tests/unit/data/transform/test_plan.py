"""SQL of transforms in a real Spark: what it gives, and what is refused at the start."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from sparkmirror.data.rows import worker_pipes
from sparkmirror.data.transform.columns import decode_columns, message_bytes, spark_schema
from sparkmirror.data.transform.plan import TransformPlan
from sparkmirror.data.transform.spark_errors import reason_of, table_of
from sparkmirror.data.transform.unpack import Unpacker
from sparkmirror.errors import ConfigError
from sparkmirror.names.transforms import routes
from sparkmirror.records.records import Record
from sparkmirror.settings import ClusterClient, FlowSettings
from sparkmirror.transform_settings import TransformSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PAGE = Path(__file__).parents[4] / "docs/transforms.md"
_CLIENT = ClusterClient("A", ("localhost:1",), "test")


def _flow(where: str = "", select: str = "") -> FlowSettings:
    places = (("where", "file:7: key.where"), ("select", "file:8: key.select"))
    one = TransformSettings("clean", ("orders",), where, select, places, routes=routes(select))
    return FlowSettings(_CLIENT, _CLIENT, _CLIENT, _CLIENT, transforms=(one,))


def _plan(spark: SparkSession, where: str = "", select: str = "") -> TransformPlan:
    return TransformPlan(spark, _flow(where, select))


def _results(plan: TransformPlan, *values: str | None) -> list[Any]:
    """The results for records with ``values``: None for failed, else a dictionary or None."""
    columns = decode_columns(plan.columns)
    assert columns == [{"value"}]
    rows: list[tuple[Any, ...]] = [("{}", b"", None, None, None)]
    rows += [
        (None, None, 0, number, None if one is None else bytearray(one.encode()))
        for number, one in enumerate(values)
    ]
    frame = plan.session.createDataFrame(rows, spark_schema(columns))
    first, *found = plan.transformed(frame).collect()
    assert (first["__head"], first["t0"]) == ("{}", None)
    assert [one["__at"] for one in found] == list(range(len(values)))
    results = [None if one["t0"] is None else one["t0"].asDict(recursive=True) for one in found]
    return [None if one is None else {"record": one["record"]} for one in results]


def test_a_filtered_record_is_a_null_and_a_failed_one_another(spark: SparkSession) -> None:
    plan = _plan(spark, "CAST(CAST(value AS STRING) AS INT) > 5")
    assert _results(plan, "9", "1", None, "x") == [
        {"record": {"kept": True}},
        {"record": None},
        {"record": None},
        None,
    ]


_WHERE, _REPEATED = "value IS NOT NULL", "repeat(CAST(value AS STRING), 100) AS value"


@pytest.mark.parametrize("select", ["", _REPEATED, f"{_REPEATED}, array() AS headers"])
def test_messages_reach_the_sink_at_once_and_are_small(
    spark: SparkSession, tmp_path: Path, select: str
) -> None:
    """The source sends a message only when the sink has all records of the one before."""
    plan, flow = _plan(spark, _WHERE, select), _flow(_WHERE, select)
    columns = decode_columns(plan.columns)
    counts, seen = [1, 3, 5_000, 1], tmp_path / "seen"
    seen.write_text("0")

    def source(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        chain, sent = Unpacker(flow, columns, None), 0
        for count in counts:
            numbers = pa.array(range(count), pa.int32())
            made = {"__transform": pa.array([0] * count, pa.int32()), "__at": numbers}
            made["value"] = pa.array([b"x" * 100] * count, pa.binary())
            yield chain._batch(count, made)
            yield chain._flush
            worker_pipes.flush()
            sent += count
            deadline = time.monotonic() + 30
            while int(seen.read_text() or 0) < sent:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"of {sent} records, {seen.read_text()} came")
                time.sleep(0.01)

    def sink(messages: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        came = 0
        for message in messages:
            results = len(message) - message["t0"].null_count
            came += results
            seen.write_text(str(came))
            yield pa.record_batch({"results": [results], "size": [message.nbytes]})

    frame = plan.session.range(1).coalesce(1).mapInArrow(source, spark_schema(columns))
    found = plan.transformed(frame).mapInArrow(sink, "results long, size long").collect()
    assert sum(one["results"] for one in found) == sum(counts)
    assert any(one["results"] > 1_000 for one in found) == (not select)
    assert max(one["size"] for one in found) < 3 * message_bytes(flow)


def test_one_record_in_sixteen_shows_how_long_its_sql_took(spark: SparkSession) -> None:
    """Also if it is filtered. The SQL takes some time: it hashes 20,000 numbers."""
    slow = "array_max(transform(sequence(1, 20000), n -> hash(n, value))) IS NOT NULL"
    plan = _plan(spark, f"{slow} AND CAST(value AS STRING) <> '16'")
    columns = decode_columns(plan.columns)
    rows = [(None, None, 0, at, bytearray(b"%d" % at)) for at in range(40)]
    found = plan.transformed(plan.session.createDataFrame(rows, spark_schema(columns))).collect()
    took_ns = {
        at: one["t0"]["ended"] - one["t0"]["began"]
        for at, one in enumerate(found)
        if one["t0"]["ended"] is not None
    }
    assert [at for at, one in enumerate(found) if one["t0"]["began"] is not None] == [0, 16, 32]
    assert list(took_ns) == [0, 16, 32]
    assert found[16]["t0"]["record"] is None
    assert 20_000 < min(took_ns.values()) <= max(took_ns.values()) < 10_000_000_000
    began = [found[at]["t0"]["began"] for at in took_ns]
    assert began == sorted(began)


_LONG = r"""CAST(value AS STRING) RLIKE r'^(?:[^"\\]|\\.)*$'"""


@pytest.mark.parametrize("mode", ["CODEGEN_ONLY", "NO_CODEGEN"])
def test_a_regex_whose_stack_overflows_fails_on_its_record_alone(
    mode: str, spark: SparkSession
) -> None:
    """Java's matcher calls itself for each character: without a net, Spark's JVM would end."""
    plan = _plan(spark, _LONG)
    plan.session.conf.set("spark.sql.codegen.wholeStage", str(mode == "CODEGEN_ONLY"))
    plan.session.conf.set("spark.sql.codegen.factoryMode", mode)
    long = "x" * 1_000_000
    kept: dict[str, Any] = {"record": {"kept": True}}
    assert _results(plan, "short", long, '"', "z") == [kept, None, {"record": None}, kept]
    record = Record(1, 0, None, long.encode())
    reason = reason_of(plan, 0, table_of("orders", 0, [record]))
    assert reason == "java.lang.StackOverflowError; Spark gives it no error class"


def test_a_replaced_value_is_bytes_and_the_rest_is_not_sent_back(spark: SparkSession) -> None:
    plan = _plan(spark, "value IS NOT NULL", "key, topic, upper(CAST(value AS STRING)) AS value")
    assert _results(plan, "a", None) == [
        {"record": {"kept": True, "value": bytearray(b"A")}},
        {"record": None},
    ]
    assert plan.planned[0].changes == ("value",)


def test_what_is_filtered_is_not_selected(spark: SparkSession) -> None:
    """A record that ``where`` leaves out cannot fail in ``select``."""
    plan = _plan(
        spark,
        "CAST(value AS STRING) <> 'x'",
        "CAST(CAST(CAST(value AS STRING) AS INT) + 1 AS STRING) AS value",
    )
    assert _results(plan, "1", "x", "y") == [
        {"record": {"kept": True, "value": bytearray(b"2")}},
        {"record": None},
        None,
    ]


def test_a_value_can_become_a_tombstone(spark: SparkSession) -> None:
    plan = _plan(spark, "length(value) < 9", "NULL AS value, array() AS headers")
    (found,) = _results(plan, "a")
    assert found == {"record": {"kept": True, "value": None, "headers": []}}


def test_a_record_gets_a_topic_and_a_partition(spark: SparkSession) -> None:
    plan = _plan(
        spark,
        select="concat('t.', CAST(value AS STRING)) AS topic, "
        "IF(length(value) > 1, NULL, length(value)) AS partition, key, value",
    )
    assert plan.planned[0].changes == ("topic", "partition")
    assert _results(plan, "a", "bc") == [
        {"record": {"kept": True, "topic": "t.a", "partition": 1}},
        {"record": {"kept": True, "topic": "t.bc", "partition": None}},
    ]


def test_a_record_without_the_header_keeps_its_topic(spark: SparkSession) -> None:
    """The page's example: SQL that fails on such records would stop their partition."""
    (line,) = [one for one in _PAGE.read_text().splitlines() if "'tenant.', header" in one]
    plan = _plan(spark, select=line.partition(" = ")[2])
    schema = spark_schema(decode_columns(plan.columns))
    headers = [[("tenant", bytearray(b"x"))], [("other", bytearray(b"x"))], []]
    rows = [(None, None, 0, number, one) for number, one in enumerate(headers)]
    found = plan.transformed(plan.session.createDataFrame(rows, schema)).collect()
    assert [one["t0"]["record"]["topic"] for one in found] == ["tenant.x", None, None]


@pytest.mark.parametrize(
    "select", ["'clean.orders' AS topic", "NULL AS partition", "2S AS partition"]
)
def test_constants_may_route(select: str, spark: SparkSession) -> None:
    (planned,) = _plan(spark, select=select).planned
    assert planned.changes == (select.rsplit(maxsplit=1)[-1],)


@pytest.mark.parametrize(
    ("option", "sql", "said"),
    [
        ("where", "valu = 1", "`valu` cannot be resolved"),
        ("where", "value >", "Syntax error"),
        ("where", "__at = 1", "`__at` cannot be resolved"),
        ("where", "missing(value)", "`missing`"),
        ("where", "CAST(value AS STRING)", "of type string, not boolean"),
        ("where", "count(1) > 1", "operator Aggregate"),
        ("where", "EXISTS (SELECT 1)", "operator Subquery"),
        ("where", "row_number() OVER (ORDER BY offset) > 1", "operator Window"),
        ("select", "sum(offset) AS value", "operator Aggregate"),
        ("select", "explode(array(1)) AS value", "generator is not supported"),
        ("select", "length(value) AS value", "value is of type int, not binary"),
        ("select", "map('a', 1) AS headers", "headers is of type map<string,int>"),
        ("select", "'1' AS timestamp", "timestamp is of type string, not timestamp"),
        ("select", "upper(CAST(value AS STRING))", "no column col1"),
        ("select", "key, key", "key is there twice"),
        ("select", "concat('x', topic) topic", "Write … AS topic"),
        ("select", "topic AS topic", "names topic or partition, but changes neither"),
        ("select", "1 AS topic", "topic is of type int, not string"),
        ("select", "'1' AS partition", "partition is of type string, not int"),
        ("select", "offset AS partition", "partition is of type bigint, not int"),
        ("select", "-1 AS partition", "a partition has a number from 0 on"),
        ("select", "concat('a', ' b') AS topic", "topic names have only letters"),
        ("select", "'__consumer_offsets' AS topic", "an internal topic"),
        ("select", "'heartbeats' AS topic", "a heartbeats topic"),
        ("select", "1L AS offset", "it changes offset"),
    ],
)
def test_what_is_refused_with_key_and_line(
    option: str, sql: str, said: str, spark: SparkSession
) -> None:
    number = 7 if option == "where" else 8
    with pytest.raises(ConfigError) as caught:
        _plan(spark, **{option: sql})
    told = str(caught.value)
    assert told.startswith(f"file:{number}: key.{option}: the transform clean cannot be used: ")
    assert said in told
    assert caught.value.do
    assert "Project" not in told


def test_keys_in_refused_sql_are_not_told(spark: SparkSession) -> None:
    """Spark quotes the expression. A key of AES has 16 bytes or more; shorter strings help."""
    key = "planted-key-0123"
    for sql in (f"aes_encrypt(array(value), '{key}')", f'aes_encrypt(array(value), r"{key}")'):
        with pytest.raises(ConfigError) as caught:
            _plan(spark, select=f"if(topic = 'eu', {sql}, null) AS value")
        assert "planted" not in str(caught.value)
        assert "aes_encrypt" in str(caught.value)

"""Single message transforms beside Java's: names, and the SQL in a real Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from sparkmirror.config.files.properties import Entry
from sparkmirror.config.mm2.smts import OTHERS, smt_settings, smt_transforms
from sparkmirror.data.rows.rows import Chunk, build_row
from sparkmirror.data.transform.columns import (
    AT,
    COLUMNS,
    TRANSFORM,
    arrow_schema,
    arrow_type,
    decode_columns,
    spark_schema,
)
from sparkmirror.data.transform.plan import TransformPlan
from sparkmirror.data.transform.unpack import Unpacker
from sparkmirror.names.replication_policy import FlowTopics
from sparkmirror.names.transforms import Transformed, routes
from sparkmirror.records.records import Record, encode_batch
from sparkmirror.settings import ClusterClient, FlowSettings, PolicySettings, TopicSettings
from sparkmirror.transform_settings import TransformSettings
from tests.vectors import load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHAINS, TIMED = load("smts")["chains"], load("smts")["times"]
_A, _B = (ClusterClient(alias, ("localhost:1",), "test") for alias in "AB")


def _flow(config: dict[str, str]) -> FlowSettings:
    conf = {key: Entry(key, value) for key, value in config.items()}
    smts = smt_settings(conf, "A->B")
    topics = TopicSettings(smts=smts)
    transforms = smt_transforms(smts, conf, {})
    return FlowSettings(_A, _B, _A, _B, topics=topics, transforms=transforms)


def test_names_are_those_that_java_gives() -> None:
    """Also of topics that stay raw batches: then Java changes nothing else of the record."""
    raw = renamed = 0
    for case in CHAINS:
        flow = _flow(case["config"])
        names, transformed = FlowTopics(flow), Transformed(flow)
        for record, result in zip(case["records"], case["results"], strict=True):
            if result is not None:
                assert names.remote(record[0]) == result[0], case["config"]
                renamed += result[0] != f"A.{record[0]}"
            if transformed.number(record[0]) < 0:
                raw += 1
                assert result is not None
                assert result[1:] == record[1:]
    assert raw > 100
    assert renamed > 100


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode("latin-1")


@pytest.mark.long  # a mirror does these on bytes (smts/test_chain.py)
def test_the_sql_does_to_records_what_java_does(spark: SparkSession) -> None:
    """All chains in one plan: the transforms of one after those of another."""
    transforms: list[TransformSettings] = []
    rows, wanted, told = [], [], []
    for case in CHAINS:
        flow = _flow(case["config"])
        transformed, used = Transformed(flow), dict[int, int]()
        for record, result in zip(case["records"], case["results"], strict=True):
            number = transformed.number(record[0])
            if number < 0:
                continue
            if number not in used:  # each costs Spark an analysis
                used[number] = len(transforms)
                transforms.append(flow.transforms[number])
            headers = [{"key": key, "value": _bytes(value)} for key, value in record[5]]
            found = {"value": _bytes(record[4]), "headers": headers or None}
            rows.append((used[number], found))
            told.append((case["config"], record))
            after = None if result is None else [(key, _bytes(value)) for key, value in result[5]]
            wanted.append(after)
    flow = FlowSettings(_A, _B, _A, _B, transforms=tuple(transforms))
    plan = TransformPlan(spark, flow)
    columns = decode_columns(plan.columns)
    names = [name for name in COLUMNS if any(name in one for one in columns)]
    assert set(names) <= {"value", "headers"}
    frame = plan.session.createDataFrame(
        [
            (None, None, number, at, *(found[name] for name in names))
            for at, (number, found) in enumerate(rows)
        ],
        spark_schema(columns),
    )
    got = plan.transformed(frame).collect()
    assert len(got) == len(wanted) > 500
    for row, (number, found), after, about in zip(got, rows, wanted, told, strict=True):
        result: Any = row[f"t{number}"]
        assert result is not None, about
        assert (result["record"] is None) == (after is None), about
        if after is None:
            continue
        record = result["record"].asDict(recursive=True)
        headers = record.get("headers", found["headers"]) or []
        assert [(one["key"], _same(one["value"])) for one in headers] == after, about


def _same(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


@pytest.mark.more
def test_the_sql_names_topics_by_time_as_java_does(spark: SparkSession) -> None:
    transforms: list[TransformSettings] = []
    rows, told, raw = [], [], 0
    for case in TIMED:
        flow = _flow(case["config"])
        names, transformed, used = FlowTopics(flow), Transformed(flow), dict[int, int]()
        for record, result in zip(case["records"], case["results"], strict=True):
            number, remote = transformed.number(record[0]), names.remote(record[0])
            if number < 0:
                assert result[0] == remote
                raw += 1
                continue
            if number not in used:  # each costs Spark an analysis
                used[number] = len(transforms)
                transforms.append(flow.transforms[number])
            headers = [{"key": key, "value": _bytes(value)} for key, value in record[5]]
            found = {"topic": remote, "timestamp": record[2] * 1000, "value": _bytes(record[4])}
            rows.append((used[number], found | {"headers": headers or None}))
            told.append((case["config"], record, result))
    flow = FlowSettings(_A, _B, _A, _B, transforms=tuple(transforms))
    plan = TransformPlan(spark, flow)
    columns = decode_columns(plan.columns)
    made: dict[str, Any] = {
        TRANSFORM: pa.array([number for number, _ in rows], pa.int32()),
        AT: pa.array(range(len(rows)), pa.int32()),
    }
    for name in (name for name in COLUMNS if any(name in one for one in columns)):
        made[name] = pa.array([found[name] for _, found in rows], arrow_type(name))
    schema = arrow_schema(columns)
    table = pa.table(
        [made.get(one.name, pa.nulls(len(rows), one.type)) for one in schema], schema=schema
    )
    got = plan.transformed(plan.session.createDataFrame(table)).collect()
    assert len(got) == len(told) > 300
    for row, (number, found), (config, record, result) in zip(got, rows, told, strict=True):
        one: Any = row[f"t{number}"]
        assert one is not None, (config, record)
        assert (one["record"] is None) == (result is None), (config, record)
        if result is not None:
            name = one["record"].asDict().get("topic") or found["topic"]
            assert name == result[0], (config, record)


def test_smts_see_the_remote_topic_s_name() -> None:
    flow = _flow({"transforms": "a", "transforms.a.type": "TimestampRouter"})
    data = encode_batch([Record(0, 5, None, b"v")])
    chunk = Chunk("t", 0, "A.t", 0, 1, 1, 5, 0, len(data))
    row = build_row([chunk], memoryview(b""), [[data]])
    uses = [frozenset({"topic"}) for _ in flow.transforms]
    found = [
        name
        for batch in Unpacker(flow, uses, None).rows(iter([row]))
        for name in batch.column("topic").to_pylist()
        if name is not None
    ]
    assert found == ["A.t"]


def test_the_sql_that_errors_suggest_is_valid(spark: SparkSession) -> None:
    hints = tuple(
        TransformSettings(f"hint for {kind}", ("t",), "", select, routes=routes(select))
        for kind, (_, select) in OTHERS.items()
        if select
    )
    assert len(hints) >= len(_SUGGESTED)
    plan = TransformPlan(spark, FlowSettings(_A, _B, _A, _B, transforms=hints))
    assert [one.settings for one in plan.planned if not one.changes] == []


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ('{"FIELD": 7, "a": 1, "OTHER": "text"}', '{"FIELD":7,"OTHER":"text"}'),
        ('{"OTHER": {"b": [1, null]}}', '{"OTHER":{"b":[1,null]}}'),
        ("no JSON", None),
    ],
)
def test_the_sql_for_replace_field_keeps_types_and_fails_without_json(
    value: str, kept: str | None, spark: SparkSession
) -> None:
    one = TransformSettings("hint", ("t",), "", OTHERS["ReplaceField"][1])
    plan = TransformPlan(spark, FlowSettings(_A, _B, _A, _B, transforms=(one,)))
    rows = [(None, None, 0, 0, bytearray(value.encode()))]
    frame = plan.session.createDataFrame(rows, spark_schema(decode_columns(plan.columns)))
    (row,) = plan.transformed(frame).collect()
    result = row["t0"]
    assert (None if result is None else bytes(result["record"]["value"]).decode()) == kept


_SUGGESTED = {
    "Cast": ('{"FIELD": "7", "OTHER": {"b": 1.50}}', '{"FIELD":7,"OTHER":{"b":1.5}}'),
    "Flatten": ('{"A": {"B": 5, "C": 1}}', '{"A.B":5}'),
    "HoistField": ('{"a": [1, "x"]}', '{"FIELD":{"a":[1,"x"]}}'),
    "InsertField": ('{"FIELD": true, "a": 1}', '{"NEW":"t","FIELD":true}'),
    "MaskField": ('{"FIELD": "4711", "a": 1}', '{"FIELD": "", "a": 1}'),
    "ReplaceField": ('{"FIELD": 7, "a": 1}', '{"FIELD":7}'),
    "TimestampConverter": ('{"FIELD": 1764000000000}', '{"FIELD":"2025-11-24"}'),
}


@pytest.mark.parametrize("kind", sorted(_SUGGESTED))
def test_the_sql_that_errors_suggest_keeps_types_and_tombstones(
    kind: str, spark: SparkSession
) -> None:
    """Without its value, a deletion would become a document, and delete nothing."""
    one = TransformSettings("hint", ("t",), "", OTHERS[kind][1])
    plan = TransformPlan(spark, FlowSettings(_A, _B, _A, _B, transforms=(one,)))
    columns = decode_columns(plan.columns)
    before, after = _SUGGESTED[kind]
    rows = []
    for value in (bytearray(before.encode()), None):
        given = {"topic": "t", "value": value}
        names = [name for name in COLUMNS if name in columns[0]]
        rows.append((None, None, 0, len(rows), *(given[name] for name in names)))
    frame = plan.session.createDataFrame(rows, spark_schema(columns))
    changed, tombstone = (row["t0"]["record"]["value"] for row in plan.transformed(frame).collect())
    assert bytes(changed).decode() == after
    assert tombstone is None


def test_a_policy_that_keeps_names(spark: SparkSession) -> None:
    """The SMTs see the name that the policy gives; heartbeats keep it."""
    config = {
        "transforms": "a",
        "transforms.a.type": "RegexRouter",
        "transforms.a.regex": "(.*)",
        "transforms.a.replacement": "x-$1",
    }
    flow = _flow(config)
    identity = FlowSettings(
        _A, _B, _A, _B, policy=PolicySettings(kind="identity"), topics=flow.topics
    )
    for one, name in ((flow, "x-A.t"), (identity, "x-t")):
        assert FlowTopics(one).remote("t") == name
        assert FlowTopics(one).remote("heartbeats") == "A.heartbeats"
        assert one.transforms == ()

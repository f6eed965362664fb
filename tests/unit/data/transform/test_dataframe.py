"""Python functions in a real Spark: what they give, and what is refused at the start."""

from __future__ import annotations

import datetime
import inspect
import random
import sys
from collections.abc import Callable
from functools import reduce
from operator import or_
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F  # noqa: N812

from sparkmirror.data.transform.columns import COLUMNS, decode_columns, spark_schema, used
from sparkmirror.data.transform.plan import TransformPlan
from sparkmirror.errors import ConfigError
from sparkmirror.settings import ClusterClient, FlowSettings
from sparkmirror.transform_settings import TransformSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CLIENT = ClusterClient("A", ("localhost:1",), "test")
_PLACES = (("python", "file:9: key.python"),)
_MODULE = "mirror_functions_of_this_test"

Row = dict[str, Any]
Function = Callable[[Any], Any]


@pytest.fixture
def planned(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Function], TransformPlan]:
    """Plans a flow whose only transform is a function."""

    def plan(function: Function) -> TransformPlan:
        module: Any = ModuleType(_MODULE)
        module.clean = function
        monkeypatch.setitem(sys.modules, _MODULE, module)
        one = TransformSettings("clean", ("orders",), places=_PLACES, python=f"{_MODULE}:clean")
        return TransformPlan(spark, _flow(one))

    return plan


def _flow(one: TransformSettings) -> FlowSettings:
    return FlowSettings(_CLIENT, _CLIENT, _CLIENT, _CLIENT, transforms=(one,))


def _records(count: int, seed: int = 1) -> list[Row]:
    """Documents, tombstones, texts that are none, headers of every kind."""
    rng = random.Random(seed)
    made = []
    for number in range(count):
        region, n = rng.choice(["EU", "US", "é"]), rng.choice(["1", "2", "x", "null"])
        document = f'{{"region": "{region}", "n": {n}, "card": "{rng.randrange(10_000)}"}}'
        value = rng.choice([document.encode()] * 6 + [None, b"", b"\xff\x00", b"7", b"{"])
        headers = [
            {"key": rng.choice(["tenant", "secret", ""]), "value": rng.choice([None, b"", b"blue"])}
            for _ in range(rng.randrange(3))
        ]
        made.append(
            {
                "topic": rng.choice(["orders", "carts"]),
                "partition": rng.randrange(3),
                "offset": number,
                "timestamp": datetime.datetime.fromtimestamp(number * 3_600, datetime.UTC),
                "timestampType": rng.randrange(2),
                "key": rng.choice([None, b"", b"k%d" % number]),
                "value": value,
                "headers": headers,
            }
        )
    return made


def _results(plan: TransformPlan, records: list[Row]) -> list[Any]:
    """The results, as plain values: None for failed, else a dictionary with the record or None."""
    columns = decode_columns(plan.columns)
    rows = [("{}", b"", None, None, *(None for _ in used(columns)))]
    rows += [
        (None, None, 0, number, *(one[name] for name in used(columns)))
        for number, one in enumerate(records)
    ]
    frame = plan.session.createDataFrame(rows, spark_schema(columns))
    first, *found = plan.transformed(frame).collect()
    assert (first["__head"], first["t0"]) == ("{}", None)
    assert [one["__at"] for one in found] == list(range(len(records)))
    results = [None if one["t0"] is None else one["t0"].asDict(recursive=True) for one in found]
    return [None if one is None else {"record": one["record"]} for one in results]


# -- functions and the SQL that does the same ------------------------------------------------------


def _text() -> Any:
    return F.col("value").cast("string")


def _document(frame: DataFrame) -> DataFrame:
    """Parsed once, used by the condition and twice for the value."""
    document = F.from_json(_text(), "region string, card string")
    return (
        frame.withColumn("doc", document)
        .filter("doc.region <> 'EU'")
        .withColumn("value", F.concat_ws("/", "doc.region", F.sha2("doc.card", 256)))
        .drop("doc")
    )


def _steps(frame: DataFrame) -> DataFrame:
    """Conditions before, between and behind projections; columns that are renamed and come back."""
    return (
        frame.filter(F.col("offset") % 7 != 0)
        .withColumn("n", F.get_json_object(_text(), "$.n").cast("int"))
        .filter(F.col("n").isNotNull() & F.col("offset").between(3, 150))
        .withColumn("m", F.col("n") + F.col("n") * 2)
        .filter("m > 3 OR topic = 'orders'")
        .select(F.concat("key", F.col("m").cast("string")).alias("id"), "headers", "m", "n")
        .selectExpr("CAST(m + n AS STRING) AS value", "id AS key")
        .alias("named")
        .hint("broadcast")
    )


def _headers(frame: DataFrame) -> DataFrame:
    return frame.select(
        "topic",
        "headers",
        F.expr("timestamp + INTERVAL 1 HOUR").alias("timestamp"),
        F.col("key"),
    ).withColumn(
        "headers",
        F.concat(
            F.filter("headers", lambda one: one.key != "secret"),
            F.array(F.struct(F.lit("from").alias("key"), F.lit("é").alias("value"))),
        ),
    )


def _swapped(frame: DataFrame) -> DataFrame:
    return frame.withColumns({"key": F.col("value"), "value": F.col("key")})


def _view(frame: DataFrame) -> DataFrame:
    query = (
        "SELECT upper(CAST(value AS STRING)) AS value FROM {frame} WHERE nullif(topic, 'x') > 'd'"
    )
    return frame.sparkSession.sql(query, frame=frame)


def _fails(frame: DataFrame) -> DataFrame:
    """It fails for some records: those that are filtered before do not count."""
    return (
        frame.withColumn("n", F.get_json_object(_text(), "$.n").cast("int"))
        .filter(F.col("topic") == "orders")
        .filter((F.col("partition") == 1) | (F.col("n") > 0))
        .withColumn("value", F.when(F.col("offset") % 2 == 0, F.col("n")).cast("string"))
        .drop("n")
    )


_N = "CAST(get_json_object(CAST(value AS STRING), '$.n') AS INT)"
_PARSED = "from_json(CAST(value AS STRING), 'region string, card string')"


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.more) for seed in (1, 2))]
)
@pytest.mark.parametrize(
    ("function", "where", "select"),
    [
        (
            _document,
            f"{_PARSED}.region <> 'EU'",
            f"concat_ws('/', {_PARSED}.region, sha2({_PARSED}.card, 256)) AS value",
        ),
        (
            _steps,
            f"offset % 7 <> 0 AND ({_N} IS NOT NULL AND offset BETWEEN 3 AND 150) AND "
            f"({_N} + {_N} * 2 > 3 OR topic = 'orders')",
            f"CAST({_N} * 4 AS STRING) AS value, concat(key, CAST({_N} * 3 AS STRING)) AS key",
        ),
        (
            _headers,
            "",
            "timestamp + INTERVAL 1 HOUR AS timestamp, concat(filter(headers, one -> one.key <> "
            "'secret'), array(struct('from' AS key, 'é' AS value))) AS headers",
        ),
        pytest.param(_swapped, "", "value AS key, key AS value", marks=pytest.mark.more),
        pytest.param(
            _view,
            "nullif(topic, 'x') > 'd'",
            "upper(CAST(value AS STRING)) AS value",
            marks=pytest.mark.more,
        ),
        (
            _fails,
            f"topic = 'orders' AND (partition = 1 OR {_N} > 0)",
            f"CAST(CASE WHEN offset % 2 = 0 THEN {_N} END AS STRING) AS value",
        ),
        pytest.param(
            lambda frame: frame.filter("value IS NOT NULL"),
            "value IS NOT NULL",
            "",
            marks=pytest.mark.more,
        ),
        pytest.param(lambda frame: frame.select(), "true", "key", marks=pytest.mark.more),
    ],
)
def test_a_function_gives_what_the_same_sql_gives(
    function: Function,
    where: str,
    select: str,
    seed: int,
    planned: Callable[[Function], TransformPlan],
    spark: SparkSession,
) -> None:
    records = _records(200, seed)
    plan = planned(function)
    sql = TransformPlan(spark, _flow(TransformSettings("clean", ("orders",), where, select)))
    assert sorted(plan.planned[0].changes) == sorted(sql.planned[0].changes)
    assert plan.planned[0].uses <= sql.planned[0].uses
    assert _results(plan, records) == _results(sql, records)


def test_it_also_gives_what_spark_makes_of_the_frame_itself(
    planned: Callable[[Function], TransformPlan],
) -> None:
    records = [one for one in _records(200) if one["value"] is not None]
    plan = planned(_document)
    rows = [tuple(one[name] for name in COLUMNS) for one in records]
    schema = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    there = _document(plan.session.createDataFrame(rows, schema)).collect()
    here = [one["record"]["value"] for one in _results(plan, records) if one["record"]]
    assert [bytes(one) for one in here] == [one["value"].encode() for one in there]


def test_only_records_that_use_a_failed_column_fail(
    planned: Callable[[Function], TransformPlan],
) -> None:
    base = _records(1)[0]
    values = [b'{"n": "x"}', b'{"n": 1}']
    records = [
        {**base, "topic": topic, "partition": partition, "offset": offset, "value": value}
        for topic in ("orders", "carts")
        for partition in (0, 1)
        for offset in (0, 1)
        for value in values
    ]
    failed = [
        (one["topic"], one["partition"], one["offset"])
        for one, result in zip(records, _results(planned(_fails), records), strict=True)
        if result is None
    ]
    assert failed == [("orders", 0, 0), ("orders", 0, 1), ("orders", 1, 0)]


def test_a_condition_is_not_evaluated_for_what_was_filtered_before(
    planned: Callable[[Function], TransformPlan],
) -> None:
    """Also not if the condition before it is null."""

    def function(frame: DataFrame) -> DataFrame:
        fails = F.when(F.length("value") > 0, True).otherwise(F.raise_error(F.lit("empty")))
        return frame.filter(F.length("value") > 1).filter(fails)

    base = _records(1)[0]
    records = [{**base, "value": value} for value in (None, b"", b"1", b"12")]
    filtered = {"record": None}
    assert _results(planned(function), records) == [filtered] * 3 + [{"record": {"kept": True}}]


def test_what_is_not_deterministic_is_evaluated_once(
    planned: Callable[[Function], TransformPlan],
) -> None:
    """The number by which a record is chosen is the one that its key and value get."""

    def function(frame: DataFrame) -> DataFrame:
        drawn = frame.withColumn("drawn", F.rand(7)).filter("drawn < 0.5")
        text = F.col("drawn").cast("string")
        return drawn.withColumns({"key": text, "value": F.concat(F.uuid(), text)}).drop("drawn")

    found = [one["record"] for one in _results(planned(function), _records(400))]
    kept = [one for one in found if one]
    assert 100 < len(kept) < 300
    for one in kept:
        assert float(one["key"]) < 0.5
        assert one["value"][36:] == one["key"]


@pytest.mark.more
def test_a_column_that_is_used_many_times_over_is_computed_once(
    planned: Callable[[Function], TransformPlan],
) -> None:
    """Its expression would be written out 2 ** 24 times, also by an optimizer that inlines all."""

    def function(frame: DataFrame) -> DataFrame:
        frame = frame.withColumn("n", F.col("offset"))
        for _ in range(24):
            frame = frame.withColumn("n", (F.col("n") + F.col("n")) % 1_000_003)
        return frame.withColumn("value", F.col("n").cast("string")).drop("n")

    plan = planned(function)
    plan.session.conf.set("spark.sql.optimizer.collapseProjectAlwaysInline", "true")
    found = _results(plan, _records(3))
    wanted = [str(number * 2**24 % 1_000_003).encode() for number in range(3)]
    assert [bytes(one["record"]["value"]) for one in found] == wanted


@pytest.mark.more
def test_a_long_condition(planned: Callable[[Function], TransformPlan]) -> None:
    """Each part is in the one behind it, deeper than Python's calls can be here.

    More of them would prove the same; each part costs 180 calls of the JVM.
    """

    def function(frame: DataFrame) -> DataFrame:
        return frame.filter(reduce(or_, [F.col("offset") == 2 * n for n in range(160)]))

    limit, depth = sys.getrecursionlimit(), len(inspect.stack())
    try:
        sys.setrecursionlimit(depth + 150)
        plan = planned(function)
    finally:
        sys.setrecursionlimit(limit)
    found = _results(plan, _records(5))
    assert [one["record"] is not None for one in found] == [True, False] * 2 + [True]


def test_columns_that_are_nested_too_deeply_are_refused(
    planned: Callable[[Function], TransformPlan],
) -> None:
    def function(frame: DataFrame) -> DataFrame:
        for _ in range(100):
            frame = frame.withColumn("value", F.reverse("value"))
        return frame

    limit, depth = sys.getrecursionlimit(), len(inspect.stack())
    try:
        sys.setrecursionlimit(depth + 150)
        with pytest.raises(ConfigError, match="cannot be translated: maximum recursion depth"):
            planned(function)
    finally:
        sys.setrecursionlimit(limit)


def test_only_the_columns_that_are_needed_are_sent(
    planned: Callable[[Function], TransformPlan],
) -> None:
    plan = planned(
        lambda frame: frame.withColumn("x", F.col("headers")).filter("key > 'a'").drop("x")
    )
    assert decode_columns(plan.columns) == [{"key"}]
    assert plan.planned[0].changes == ()


# -- refusals --------------------------------------------------------------------------------------


def _udf(frame: DataFrame) -> DataFrame:
    def changed(value: Any) -> Any:
        return value

    return frame.withColumn("value", F.upper(F.udf(changed, "string")("value")))


def _pandas(frame: DataFrame) -> DataFrame:
    def chosen(value: Any) -> Any:
        return value

    made = F.pandas_udf(chosen, "binary", F.PandasUDFType.SCALAR)
    return frame.filter(made("value") > F.lit(b"a"))


def _raises(_: Any) -> Any:
    raise ValueError("no such region")


def _ends(_: Any) -> Any:
    sys.exit(0)


@pytest.mark.parametrize(
    ("function", "said", "do"),
    [
        (lambda frame: frame.filter("valu = 1"), "`valu` cannot be resolved", "A record has topic"),
        (lambda frame: frame.filter("value >"), "Syntax error", "Correct the function"),
        (_raises, "ValueError: no such region", "Correct the function"),
        pytest.param(_ends, "SystemExit: 0", "Correct the function", marks=pytest.mark.more),
        (lambda frame: None, "returned a NoneType, not a DataFrame", "Return the frame"),
        pytest.param(lambda: None, "TypeError", "Correct the function", marks=pytest.mark.more),
        (lambda frame: frame.count(), "streaming sources must be executed", "Correct"),
        (lambda frame: frame.sparkSession.range(3), "not made of its argument", "Return the frame"),
        (
            lambda frame: frame.withColumn("doc", _text()),
            "returns a column doc",
            "frame.drop('doc')",
        ),
        (lambda frame: frame.select("key", "key"), "returns the column key twice", "once"),
        (
            lambda frame: frame.withColumn("value", F.length("value")),
            "value is of type int, not binary",
            "CAST(… AS STRING)",
        ),
        (lambda frame: frame.withColumn("offset", F.lit(1)), "it changes offset", "Leave it out"),
        pytest.param(
            lambda frame: frame.withColumnRenamed("key", "topic"),
            "topic twice",
            "once",
            marks=pytest.mark.more,
        ),
        (_udf, "Python function changed", "pyspark.sql.functions"),
        pytest.param(
            _pandas, "Python function chosen", "one bad record would end", marks=pytest.mark.more
        ),
        (lambda frame: frame.distinct(), "operator Deduplicate", "one record at a time"),
        pytest.param(
            lambda frame: frame.dropDuplicates(["key"]),
            "operator Deduplicate",
            "one record at a time",
            marks=pytest.mark.more,
        ),
        (lambda frame: frame.limit(3), "operator GlobalLimit", "use filter"),
        pytest.param(
            lambda frame: frame.offset(3), "operator Offset", "use filter", marks=pytest.mark.more
        ),
        pytest.param(
            lambda frame: frame.sample(0.1),
            "operator Sample",
            "rand() < 0.1",
            marks=pytest.mark.more,
        ),
        (lambda frame: frame.sort("key"), "operator Sort", "keep their order"),
        pytest.param(
            lambda frame: frame.repartition(3),
            "operator Repartition",
            "keep their order",
            marks=pytest.mark.more,
        ),
        pytest.param(
            lambda frame: frame.repartition("key"),
            "operator RepartitionByExpression",
            "order",
            marks=pytest.mark.more,
        ),
        pytest.param(
            lambda frame: frame.coalesce(1),
            "operator Repartition",
            "keep their order",
            marks=pytest.mark.more,
        ),
        (lambda frame: frame.groupBy("key").count(), "operator Aggregate", "cannot aggregate"),
        (lambda frame: frame.union(frame), "operator Union", "several ones"),
        (
            lambda frame: frame.crossJoin(frame.sparkSession.range(2)),
            "operator Join",
            "cannot join",
        ),
        (
            lambda frame: frame.withColumn("value", F.explode(F.array("value"))),
            "operator Generate",
            "several ones",
        ),
        (
            lambda frame: frame.filter(F.expr("EXISTS (SELECT 1)")),
            "operator Subquery",
            "one record at a time",
        ),
        (
            lambda frame: frame.selectExpr("row_number() OVER (ORDER BY offset) AS value"),
            "operator Window",
            "no window",
        ),
        pytest.param(
            lambda frame: frame.withWatermark("timestamp", "1 minute"),
            "operator EventTimeWatermark",
            "no state",
            marks=pytest.mark.more,
        ),
        pytest.param(
            lambda frame: frame.observe("m", F.count("key")),
            "operator CollectMetrics",
            "observe()",
            marks=pytest.mark.more,
        ),
        (
            lambda frame: frame.mapInArrow(lambda batches: batches, frame.schema),
            "operator MapInArrow",
            "pyspark.sql.functions",
        ),
        pytest.param(
            lambda frame: frame.mapInPandas(lambda frames: frames, frame.schema),
            "operator MapInPandas",
            "pyspark.sql.functions",
            marks=pytest.mark.more,
        ),
    ],
)
def test_what_is_refused_with_key_line_and_remedy(
    function: Function, said: str, do: str, planned: Callable[[Function], TransformPlan]
) -> None:
    with pytest.raises(ConfigError) as caught:
        planned(function)
    told = str(caught.value)
    assert told.startswith("file:9: key.python: the transform clean cannot be used: ")
    assert said in told
    assert do in caught.value.do
    assert "~Project" not in told


def test_an_error_names_the_line_of_the_function(
    planned: Callable[[Function], TransformPlan],
) -> None:
    for function in (_raises, lambda frame: frame.filter("valu = 1")):
        with pytest.raises(ConfigError, match=rf"failed in line \d+ of {__file__}"):
            planned(function)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no_such_module:clean", "No module named 'no_such_module'"),
        ("json:no_such_function", "no attribute 'no_such_function'"),
        ("json:__name__", "neither a function nor a class"),
        ("json:JSONDecoder", "makes a JSONDecoder, which cannot be called"),
    ],
)
def test_a_function_that_cannot_be_loaded(name: str, said: str, spark: SparkSession) -> None:
    one = TransformSettings("clean", ("orders",), places=_PLACES, python=name)
    with pytest.raises(ConfigError) as caught:
        TransformPlan(spark, _flow(one))
    assert str(caught.value).startswith("file:9: key.python: ")
    assert said in str(caught.value)


def test_a_plan_that_does_not_run_is_refused(
    planned: Callable[[Function], TransformPlan],
) -> None:
    """No record can catch this one: the class is not there."""

    def function(frame: DataFrame) -> DataFrame:
        return frame.withColumn("value", F.expr("reflect('no.such.Class', 'call', 'a')"))

    with pytest.raises(ConfigError) as caught:
        planned(function)
    assert "no.such.Class" in str(caught.value)


def test_bad_records_of_the_trial_do_not_refuse_a_function(
    planned: Callable[[Function], TransformPlan],
) -> None:
    planned(lambda frame: frame.filter(_text().cast("int") > 5))


def test_a_class_with_call_is_instantiated(spark: SparkSession) -> None:
    class Drop:
        def __call__(self, frame: DataFrame) -> DataFrame:
            return frame.filter("value IS NOT NULL")

    module: Any = ModuleType(_MODULE)
    module.Drop = Drop
    sys.modules[_MODULE] = module
    try:
        one = TransformSettings("clean", ("orders",), python=f"{_MODULE}:Drop")
        assert TransformPlan(spark, _flow(one)).planned[0].uses == {"value"}
    finally:
        del sys.modules[_MODULE]

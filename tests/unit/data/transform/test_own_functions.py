"""`functions = module:register`: what users register in the flow's session, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sparkmirror.data.transform.columns import HIDDEN
from sparkmirror.data.transform.plan import TransformPlan
from sparkmirror.errors import ConfigError
from sparkmirror.settings import ClusterClient, FlowSettings
from sparkmirror.transform_settings import TransformSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CLIENT = ClusterClient("A", ("localhost:1",), "test")
_MODULE = """
def sql(spark):
    spark.sql("CREATE TEMPORARY FUNCTION shout(text STRING) RETURNS STRING RETURN upper(text)")
    spark.sql(
        "CREATE TEMPORARY FUNCTION twice(n INT) RETURNS INT RETURN CASE WHEN n > 9 THEN n + n END"
    )
    spark.sql(
        "CREATE TEMPORARY FUNCTION masked(v BINARY) RETURNS BINARY RETURN mask_json(v, '$.card')"
    )
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")

def java(spark):
    spark.udf.registerJavaFunction(
        "text_of", "org.apache.spark.sql.execution.NoSuchClass", "string"
    )

def python(spark):
    spark.udf.register("slow", lambda value: value, "binary")

def query(spark):
    spark.sql(
        "CREATE TEMPORARY FUNCTION asks(n INT) RETURNS INT "
        "RETURN (SELECT CAST(id AS INT) FROM range(1))"
    )

def fails(spark):
    raise RuntimeError("no such luck\\nand more")

def ends(spark):
    raise SystemExit(0)

nothing = None
"""


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_functions_of_a_user.py").write_text(_MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))


def _plan(spark: SparkSession, functions: str, where: str = "", select: str = "") -> TransformPlan:
    places = (("functions", "file:6: key.functions"), ("where", "file:7: key.where"))
    names = () if not functions else (f"own_functions_of_a_user:{functions}",)
    one = TransformSettings("clean", ("t",), where, select, places, functions=names)
    return TransformPlan(spark, FlowSettings(_CLIENT, _CLIENT, _CLIENT, _CLIENT, transforms=(one,)))


def _kept(plan: TransformPlan, *values: str | None) -> list[bytes | bool | None]:
    rows = [
        (None, None, 0, at, None if one is None else bytearray(one.encode()))
        for at, one in enumerate(values)
    ]
    frame = plan.transformed(plan.session.createDataFrame(rows, f"{HIDDEN}, value binary"))
    return [
        None if one["t0"] is None else one["t0"]["record"] is not None for one in frame.collect()
    ]


def test_an_sql_function_is_part_of_the_one_projection(spark: SparkSession) -> None:
    plan = _plan(spark, "sql", "shout(CAST(value AS STRING)) = 'A'")
    assert plan.planned[0].uses == {"value"}
    assert _kept(plan, "a", "b", None) == [True, False, False]
    # What the mirror needs of the session's settings stays.
    assert plan.session.conf.get("spark.sql.session.timeZone") == "UTC"
    with pytest.raises(ConfigError, match="`shout`"):
        _plan(spark, "", "shout('a') = 'A'")


@pytest.mark.parametrize("call", ["twice(CAST(CAST(value AS STRING) AS INT)) > 50"])
def test_a_record_on_which_an_argument_fails_fails_alone(call: str, spark: SparkSession) -> None:
    assert _kept(_plan(spark, "sql", call), "30", "x", "20", "1") == [True, None, False, False]


def test_functions_of_ours_within_those_of_users(spark: SparkSession) -> None:
    plan = _plan(spark, "sql", select="masked(value) AS value")
    rows = [(None, None, 0, 0, bytearray(b'{"card":1 }')), (None, None, 0, 1, bytearray(b"{"))]
    frame = plan.transformed(plan.session.createDataFrame(rows, f"{HIDDEN}, value binary"))
    good, failed = frame.collect()
    assert bytes(good["t0"]["record"]["value"]) == b'{"card":"***" }'
    assert failed["t0"] is None


def test_python_functions_are_refused_by_name(spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match=r"file:7: .* slow is a Python function") as caught:
        _plan(spark, "python", "slow(value) IS NULL")
    assert "Java function" in str(caught.value.do)
    assert _kept(_plan(spark, "python", "value IS NULL"), "1", None) == [False, True]


def test_an_sql_function_with_a_query_is_refused(spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match=r"file:7: key.where: .* it needs Spark's operator"):
        _plan(spark, "query", "asks(1) > 0")


def test_an_argument_that_stays_a_projection_of_its_own_is_refused(spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match=r"file:7: key.where: .*Project.* instead of one"):
        _plan(spark, "sql", "twice(CAST(rand() * 10 AS INT)) > 50")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("fails", "own_functions_of_a_user:fails failed (RuntimeError: no such luck)"),
        ("ends", "own_functions_of_a_user:ends failed (SystemExit: 0)"),
        ("java", "own_functions_of_a_user:java failed (AnalysisException: "),
        ("missing", "own_functions_of_a_user:missing cannot be imported"),
        ("nothing", "own_functions_of_a_user:nothing is neither a function nor a class"),
    ],
)
def test_what_cannot_be_registered(name: str, said: str, spark: SparkSession) -> None:
    with pytest.raises(ConfigError) as caught:
        _plan(spark, name, "value IS NULL")
    assert str(caught.value).startswith("file:6: key.functions: ")
    assert said in str(caught.value)
    assert "and more" not in str(caught.value)
    assert caught.value.do

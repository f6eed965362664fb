"""`lookup`: rows of static tables in a real Spark, by keys of each type; tables read again."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sparkmirror.data.transform import tables as module
from sparkmirror.data.transform.columns import HIDDEN
from sparkmirror.data.transform.plan import TransformPlan
from sparkmirror.errors import ConfigError
from sparkmirror.settings import ClusterClient, FlowSettings
from sparkmirror.transform_settings import TableSettings, TransformSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CLIENT = ClusterClient("A", ("localhost:1",), "test")
_PLACES = (
    ("where", "file:7: key.where"),
    ("select", "file:8: key.select"),
    ("python", "file:8: key.python"),
    ("tables", "file:9: key.tables"),
)
_CSV = "id,name,tier\n7,Ann,gold\n8,Bob,\n,Nobody,none\n"


def _plan(
    spark: SparkSession, *tables: TableSettings, where: str = "", select: str = "", python: str = ""
) -> TransformPlan:
    one = TransformSettings("clean", ("t",), where, select, _PLACES, python=python, tables=tables)
    return TransformPlan(spark, FlowSettings(_CLIENT, _CLIENT, _CLIENT, _CLIENT, transforms=(one,)))


def _values(plan: TransformPlan, *values: str | None) -> list[str | None]:
    """The values that a transform makes of records with these, "failed" or "filtered"."""
    rows = [
        (None, None, 0, at, None if one is None else bytearray(one.encode()))
        for at, one in enumerate(values)
    ]
    frame = plan.transformed(plan.session.createDataFrame(rows, f"{HIDDEN}, value binary"))
    found: list[str | None] = []
    for row in frame.collect():
        result = row["t0"]
        if result is None or result["record"] is None:
            found.append("failed" if result is None else "filtered")
        elif "value" in result["record"]:
            value = result["record"]["value"]
            found.append(None if value is None else bytes(value).decode())
        else:
            found.append("kept")
    return found


@pytest.fixture
def customers(tmp_path: Path) -> TableSettings:
    (tmp_path / "customers.csv").write_text(_CSV)
    return TableSettings("customers", "csv", str(tmp_path / "customers.csv"))


def test_the_row_is_a_struct_and_null_without_one(
    customers: TableSettings, spark: SparkSession
) -> None:
    """A header and types are what users expect of CSV; a row without a key is found by nothing."""
    row = "lookup('customers', 'id', CAST(CAST(value AS STRING) AS INT))"
    plan = _plan(spark, customers, select=f"to_json({row}) AS value")
    assert _values(plan, "7", "8", "9", None, "x") == [
        '{"id":7,"name":"Ann","tier":"gold"}',
        '{"id":8,"name":"Bob"}',
        None,
        None,
        "failed",
    ]
    plan = _plan(spark, customers, where=f"{row}.tier = 'gold'")
    assert _values(plan, "7", "8", "9") == ["kept", "filtered", "filtered"]
    assert plan.planned[0].uses == {"value"}
    (state,) = plan.tables.states()
    assert (state.name, state.rows, state.fault) == ("customers", 3, "")


_DAY = datetime.date(2026, 1, 2)


_KEYS = [
    ("STRING", "é7", "8", "CAST(value AS STRING)"),
    ("BINARY", bytearray(b"\xff7"), bytearray(b"8"), "unhex('ff37')"),
    ("TINYINT", 7, 8, "CAST(7 AS BIGINT)"),
    ("SMALLINT", 7, 8, "CAST(7 AS INT)"),
    ("INT", 7, 8, "length(value) + 4"),
    ("BIGINT", 7, 8, "length(value) + 4"),
    ("DECIMAL(10, 2)", Decimal("7.50"), Decimal("8"), "CAST('7.5' AS DECIMAL(4, 1))"),
    ("DECIMAL(20, 0)", Decimal(7), Decimal(8), "CAST(7 AS INT)"),
    ("BOOLEAN", True, False, "length(value) > 0"),
    ("DATE", _DAY, datetime.date(2026, 1, 3), "DATE '2026-01-02'"),
    (
        "TIMESTAMP",
        datetime.datetime(2026, 1, 2, 3, tzinfo=datetime.UTC),
        datetime.datetime(2026, 1, 3, tzinfo=datetime.UTC),
        "TIMESTAMP '2026-01-02 03:00:00'",
    ),
]


def test_keys_of_each_type(tmp_path: Path, spark: SparkSession) -> None:
    path = str(tmp_path / "keys")
    names = [f"id{number}" for number in range(len(_KEYS))]
    keys = list(zip(*((key, other, None) for _, key, other, _ in _KEYS), strict=True))
    rows = [(*key, text) for key, text in zip(keys, ("found", "other", "none"), strict=True)]
    columns = [f"{name} {kind}" for name, (kind, *_) in zip(names, _KEYS, strict=True)]
    spark.createDataFrame(rows, ", ".join([*columns, "text STRING"])).write.parquet(path)
    table = TableSettings("keys", "parquet", path)
    asked = [
        f"lookup('keys', '{name.upper()}', {sql}).text"
        for name, (*_, sql) in zip(names, _KEYS, strict=True)
    ]
    nothing = [f"lookup('keys', '{name}', NULL).text" for name in names]
    plan = _plan(spark, table, select=f"to_json(array({', '.join(asked + nothing)})) AS value")
    (found,) = _values(plan, "é7")
    assert json.loads(str(found)) == ["found"] * len(_KEYS) + [None] * len(_KEYS)


def test_generated_code_and_the_interpreter_give_the_same(
    customers: TableSettings, spark: SparkSession
) -> None:
    """On a few rows Spark interprets the SQL; a mirror's query compiles it."""
    select = "lookup('customers', 'id', CAST(CAST(value AS STRING) AS INT)).name AS value"
    plan = _plan(spark, customers, select=select)
    for name, value in (
        ("spark.sql.codegen.factoryMode", "CODEGEN_ONLY"),
        ("spark.sql.codegen.fallback", "false"),
        ("spark.sql.execution.arrow.localRelationThreshold", "0"),
        ("spark.sql.optimizer.excludedRules", _LOCAL),
    ):
        plan.session.conf.set(name, value)
    assert _values(plan, "7", "9", "x") == ["Ann", None, "failed"]


_LOCAL = "org.apache.spark.sql.catalyst.optimizer.ConvertToLocalRelation"


def test_the_plan_stays_one_projection(customers: TableSettings, spark: SparkSession) -> None:
    plan = _plan(spark, customers, where="lookup('customers', 'name', CAST(key AS STRING)).id > 1")
    schema = f"{HIDDEN}, key binary"
    frame = plan.transformed(plan.session.createDataFrame([], schema).limit(0))
    execution: Any = frame._jdf.queryExecution()
    shown = execution.optimizedPlan().toString()
    assert "Join" not in shown
    assert "Python" not in shown
    assert shown.count("Project") <= 1
    assert "Ann" not in execution.toString(), "rows are in no plan"


def test_several_tables_and_columns(
    customers: TableSettings, tmp_path: Path, spark: SparkSession
) -> None:
    (tmp_path / "limits.json").write_text('{"tier":"gold","most":{"day":5}}\n')
    limits = TableSettings("limits", "json", str(tmp_path / "limits.json"))
    by_name = "lookup('customers', 'name', CAST(value AS STRING))"
    most = f"lookup('limits', 'tier', {by_name}.tier).most.day"
    plan = _plan(spark, customers, limits, select=f"CAST({most} AS STRING) AS value")
    assert _values(plan, "Ann", "Bob", "Eve") == ["5", None, None]


def test_options_and_schema_of_a_reader(tmp_path: Path, spark: SparkSession) -> None:
    (tmp_path / "codes").write_text("007|a\n08|b\n")
    table = TableSettings(
        "codes", "csv", str(tmp_path / "codes"), "code STRING, text STRING",
        (("header", "false"), ("sep", "|")),
    )  # fmt: skip
    select = "lookup('codes', 'code', CAST(value AS STRING)).text AS value"
    assert _values(_plan(spark, table, select=select), "007", "7") == ["a", None]


def test_a_python_function_may_look_up(
    customers: TableSettings,
    tmp_path: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "looks_up_rows.py").write_text(
        "from pyspark.sql import functions as F\n\n"
        "def clean(records):\n"
        "    row = F.expr(\"lookup('customers', 'name', CAST(value AS STRING))\")\n"
        "    named = records.withColumn('row', row).filter('row.id > 0')\n"
        "    return named.withColumn('value', F.to_json('row')).drop('row')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    plan = _plan(spark, customers, python="looks_up_rows:clean")
    assert _values(plan, "Bob", "Eve") == ['{"id":8,"name":"Bob"}', "filtered"]


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("lookup('customer', 'id', 1) IS NULL", "no table 'customer' in tables, but customers"),
        ("lookup('customers', 'nr', 1) IS NULL", "no column 'nr', but id, name, tier"),
        ("lookup('customers', 'id') IS NULL", "it takes a table, one of its columns and a value"),
        (
            "lookup('customers', 'id', CAST(value AS STRING)) IS NULL",
            "its value is of type string, and customers.id is of type int; write CAST(… AS INT)",
        ),
        ("lookup('customers', 'name', key) IS NULL", "write CAST(… AS STRING)"),
        ("lookup(topic, 'id', 1) IS NULL", "its table must be a text in quotes"),
        ("lookup('customers', 'tier', 'x').nr = 1", "nr"),
        ("EXISTS (SELECT 1)", "one record at a time. Name the table in tables, and write lookup("),
        ("1 IN (SELECT id FROM customers)", "cannot be found"),
    ],
)
def test_what_is_refused(
    sql: str, said: str, customers: TableSettings, spark: SparkSession
) -> None:
    with pytest.raises(ConfigError) as caught:
        _plan(spark, customers, where=sql)
    assert str(caught.value).startswith("file:7: key.where: the transform clean cannot be used: ")
    assert said in str(caught.value)
    if "SELECT" in sql:
        assert "write lookup('TABLE', 'COLUMN', value)" in str(caught.value.do)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda one: replace(one, path=f"{one.path}.gone"), "[PATH_NOT_FOUND]"),
        (lambda one: replace(one, format="cvs"), "[DATA_SOURCE_NOT_FOUND]"),
        (lambda one: replace(one, schema="id INT name STRING"), "[PARSE_SYNTAX_ERROR]"),
        (lambda one: replace(one, schema="id INT, name INT, tier STRING"), "["),
    ],
)
def test_a_table_that_cannot_be_read(
    change: Callable[[TableSettings], TableSettings],
    said: str,
    customers: TableSettings,
    spark: SparkSession,
) -> None:
    with pytest.raises(ConfigError) as caught:
        _plan(spark, change(customers), where="lookup('customers', 'id', 1) IS NULL")
    text = str(caught.value)
    assert text.startswith("file:9: key.tables: the transform clean cannot be used: the table cust")
    assert said in text
    assert "Ann" not in text, "errors show no rows"
    assert "Check the path" in str(caught.value.do)


def test_keys_that_are_not_unique_are_refused_where_they_are_looked_up(
    customers: TableSettings, spark: SparkSession
) -> None:
    Path(customers.path).write_text(f"{_CSV}7,Cid,gold\n")
    with pytest.raises(ConfigError) as caught:
        _plan(spark, customers, where="lookup('customers', 'id', 1) IS NULL")
    assert (
        "the table customers: its column id is no key: 1 row(s) repeat the value of another row"
        in str(caught.value)
    )
    assert _values(_plan(spark, customers, where="lookup('customers', 'name', 'a') IS NULL"), "a")


@pytest.mark.parametrize(
    ("limit", "said"), [("ROWS_MAX", "more than 2 rows"), ("BYTES_MAX", "have more than 2 bytes")]
)
def test_a_table_that_is_too_large(
    limit: str,
    said: str,
    customers: TableSettings,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, limit, 2)
    with pytest.raises(ConfigError, match=said):
        _plan(spark, customers, where="lookup('customers', 'id', 1) IS NULL")


def test_floating_numbers_are_no_keys(tmp_path: Path, spark: SparkSession) -> None:
    (tmp_path / "rates").write_text("rate,text\n1.5,a\n")
    table = TableSettings("rates", "csv", str(tmp_path / "rates"))
    with pytest.raises(ConfigError, match=r"rates.rate, which is of type double"):
        _plan(spark, table, where="lookup('rates', 'rate', 1.5) IS NULL")
    decimal = replace(table, schema="rate DECIMAL(10, 3), text STRING")
    assert _values(_plan(spark, decimal, where="lookup('rates', 'rate', 1.5).text = 'a'"), "") == [
        "kept"
    ]


def test_a_table_is_read_again_and_keeps_its_rows_if_that_fails(
    customers: TableSettings, spark: SparkSession
) -> None:
    row = "lookup('customers', 'id', CAST(CAST(value AS STRING) AS INT))"
    plan = _plan(spark, customers, select=f"concat_ws(' ', {row}.name, {row}.tier) AS value")
    assert _values(plan, "7", "9") == ["Ann gold", ""]
    path = Path(customers.path)
    path.write_text("extra,id,name,tier\n1,9,Eve,silver\n")
    (state,) = plan.tables.reload("customers")
    assert (state.rows, state.fault) == (1, "")
    assert plan.tables.states() == (state,)
    assert _values(plan, "7", "9") == ["", "Eve silver"]
    for text, said in (
        ("id,name,tier\n7,A,\n7,B,\n", "its column id is no key: 1 row(s)"),
        ("id,name,tier\nx,A,\n", "its column id was int when the mirror started, and is string"),
        ("id,name\n7,A\n", "its column tier was string when the mirror started, and is not there"),
        ("", "its column id was int"),
    ):
        path.write_text(text)
        (state,) = plan.tables.reload()
        assert said in state.fault
        assert state.rows == 1
    path.unlink()
    (state,) = plan.tables.reload()
    assert state.fault.startswith("[PATH_NOT_FOUND]")
    assert _values(plan, "7", "9") == ["", "Eve silver"], "those of the last one that was good"
    path.write_text("id,name,tier\n9,Eva,gold\n")
    (state,) = plan.tables.reload()
    assert state.fault == ""
    assert _values(plan, "9") == ["Eva gold"]
    assert plan.tables.reload("other") == ()


def test_a_running_query_has_the_new_rows_from_its_next_epoch_on(
    customers: TableSettings, tmp_path: Path, spark: SparkSession
) -> None:
    """Spark plans each epoch from the same columns; tasks carry the rows that were read last."""
    select = "lookup('customers', 'id', CAST(CAST(value AS STRING) AS INT)).name AS value"
    plan = _plan(spark, customers, select=select)
    schema, source = f"{HIDDEN}, value binary", str(tmp_path / "records")

    def write(value: str) -> None:
        row = (None, None, 0, 0, bytearray(value.encode()))
        plan.session.createDataFrame([row], schema).write.mode("append").parquet(source)

    write("7")
    rows = plan.session.readStream.schema(schema).parquet(source)
    query = (
        plan.transformed(rows)
        .writeStream.format("memory")
        .queryName("named")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        query.processAllAvailable()
        Path(customers.path).write_text("id,name,tier\n7,Anna,gold\n")
        plan.tables.reload()
        write("7")
        query.processAllAvailable()
        found = plan.session.table("named").collect()
        names = {bytes(row["t0"]["record"]["value"]).decode() for row in found}
        assert (len(found), names) == (2, {"Ann", "Anna"})
    finally:
        query.stop()

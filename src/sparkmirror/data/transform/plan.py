"""The transforms' SQL as columns of the streaming query, and what is refused at the start.

Each transform is one column, which Spark computes within one projection::

    CASE WHEN __transform = 0 THEN try(struct(if(WHERE, struct(SELECT), null) AS record)) END

So Spark's optimizer and code generator work on the user's SQL, and yet no plan can lose, repeat or
reorder rows: a record that WHERE leaves out is a null in its row. ``try`` gives null if the SQL
fails on a record.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkmirror.data.transform.columns import (
    AT,
    COLUMNS,
    FLUSH_ROWS,
    HEAD,
    RECORDS,
    TRANSFORM,
    encode_columns,
)
from sparkmirror.data.transform.functions import python_functions, register_functions
from sparkmirror.errors import ConfigError
from sparkmirror.model import FlowSettings, TransformSettings

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["Planned", "TransformPlan"]

# Large records leave the JVM sooner than `FLUSH_ROWS` of them.
_MESSAGE_BYTES_MAX = 4 << 20
_KEPT = ("topic", "partition", "offset")
_BINARY = ("binary", "string", "void")
_ROWS = {"Project", "SubqueryAlias", "LocalRelation", "LogicalRDD", "OneRowRelation"}
_HINTS = {
    "Aggregate": "A transform sees one record at a time: it cannot aggregate.",
    "Window": "A transform sees one record at a time: it has no window over others.",
    "Generate": "A record cannot become several ones.",
}


@dataclass(frozen=True, slots=True)
class Planned:
    """A checked transform. ``uses``: the record's columns that its SQL reads.

    ``changes``: those that it replaces.
    """

    settings: TransformSettings
    uses: frozenset[str]
    changes: tuple[str, ...]


class TransformPlan:
    """The checked transforms of one flow. ``session``: where its query runs.

    ``columns``: the records' columns that the source must send, as an option. Raises ConfigError
    with key, line and remedy.
    """

    def __init__(self, spark: SparkSession, flow: FlowSettings) -> None:
        # Only this flow's rows travel in larger messages.
        self.session = spark.newSession()
        register_functions(self.session, flow)
        self.session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(FLUSH_ROWS))
        self.session.conf.set("spark.sql.execution.arrow.maxBytesPerBatch", str(_MESSAGE_BYTES_MAX))
        # Arguments of SQL functions are projections of their own until Spark merges them with ours:
        # only then a record on which one fails is a null, and does not end the task.
        self.session.conf.set("spark.sql.optimizer.collapseProjectAlwaysInline", "true")
        # A timestamp has no time zone of its own.
        self.session.conf.set("spark.sql.session.timeZone", "UTC")
        schema = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
        records = self.session.createDataFrame([], schema)
        self.planned = [_planned(records, one) for one in flow.transforms]
        self.columns = encode_columns([one.uses for one in self.planned])

    def transformed(self, rows: DataFrame) -> DataFrame:
        """The source's ``rows``, with a column per transform instead of the record's columns."""
        from pyspark.sql import functions as F  # noqa: N812, PLC0415

        results = [
            F.when(F.col(TRANSFORM) == number, _tried(_result(one))).alias(f"t{number}")
            for number, one in enumerate(self.planned)
        ]
        # The SQL may also name columns that it does not need, as in a list of what is kept.
        unused = [
            F.lit(None).cast(kind).alias(name)
            for name, kind in COLUMNS.items()
            if name not in rows.columns
        ]
        return rows.select("*", *unused).select(HEAD, RECORDS, AT, *results)


def _result(one: Planned) -> Column:
    """A struct with the ``record``: null if it is filtered, else a struct of what is replaced."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    fields = [F.lit(True).alias("kept")]
    if one.changes:
        chosen = _selected(one.settings)
        fields += [_field(chosen, name).alias(name) for name in one.changes]
    record = F.struct(*fields)
    if one.settings.where:
        record = F.when(F.expr(one.settings.where), record)
    return F.struct(record.alias("record"))


def _selected(one: TransformSettings) -> Column:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    return F.expr(f"struct({one.select})")


def _field(chosen: Column, name: str) -> Column:
    field = chosen.getField(name)
    return field if name == "timestamp" else field.cast(COLUMNS[name])


def _tried(column: Column) -> Column:
    """``column``, but null instead of an exception. Spark's Python API has no name for it."""
    from pyspark import SparkContext  # noqa: PLC0415
    from pyspark.sql.classic.column import Column as Classic  # noqa: PLC0415

    jvm: Any = SparkContext._active_spark_context._jvm  # type: ignore[union-attr]
    helper = jvm.org.apache.spark.sql.classic.ExpressionUtils
    node: Any = column._jc
    tried = jvm.org.apache.spark.sql.catalyst.expressions.TryEval(helper.expression(node))
    return Classic(helper.column(tried))


# -- checks ----------------------------------------------------------------------------------------


def _planned(records: DataFrame, one: TransformSettings) -> Planned:
    changes: tuple[str, ...] = ()
    if one.where:
        frame = _analyzed(records, one.where, one, "where")
        kind = frame.schema[0].dataType.simpleString()
        if kind != "boolean":
            raise _refused(one, "where", f"it is of type {kind}, not boolean", "Write a condition.")
    if one.select:
        frame = _analyzed(records, f"struct({one.select})", one, "select")
        changes = _changes(frame, one)
    planned = Planned(one, frozenset(), changes)
    # Together, as in the query: the record's columns that Spark needs.
    whole = records.select(_tried(_result(planned)).alias("result"))
    operators = list(_operators(whole._jdf.queryExecution().optimizedPlan()))
    if operators.count("Project") > 1 or not _ROWS.issuperset(operators):
        what = f"it needs Spark's operators {', '.join(operators)} instead of one projection"
        hint = "Call functions of your own without rand() and other functions of no fixed result."
        raise _refused(one, "select" if one.select else "where", what, hint)
    return Planned(one, _references(whole), changes)


def _analyzed(records: DataFrame, sql: str, one: TransformSettings, option: str) -> DataFrame:
    """A frame of the column ``sql``.

    Raises ConfigError if Spark refuses it, or if it is no projection.
    """
    from pyspark.errors import PySparkException  # noqa: PLC0415
    from pyspark.logger import PySparkLogger  # noqa: PLC0415
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    # It prints what the error says, with Java's stack trace.
    logger = PySparkLogger.getLogger("SQLQueryContextLogger")
    before, logger.disabled = logger.disabled, True
    try:
        frame = records.select(F.expr(sql).alias("made"))
    except PySparkException as error:
        raise _refused(one, option, _words(str(error)), "Correct the SQL.") from None
    finally:
        logger.disabled = before
    for name in _operators(frame._jdf.queryExecution().analyzed()):
        if name not in _ROWS:
            hint = _HINTS.get(name, "Write conditions and functions of one record.")
            raise _refused(one, option, f"it needs Spark's operator {name}", hint)
    for name in python_functions(frame):
        what = f"{name} is a Python function: Spark would send each record to one more process"
        raise _refused(one, option, what, "Write it in SQL, or register a Java function.")
    return frame


def _operators(plan: Any) -> Iterator[str]:
    """The names of the plan's operators, and "Subquery" for each query within an expression."""
    waiting = [plan]
    while waiting:
        node = waiting.pop()
        yield node.nodeName()
        children, inner = node.children(), node.subqueries()
        waiting += [children.apply(index) for index in range(children.size())]
        if inner.size():
            yield "Subquery"


def _references(frame: DataFrame) -> frozenset[str]:
    plan: Any = frame._jdf.queryExecution().optimizedPlan()
    names = {each.name() for each in _sequence(plan.references().toSeq())}
    return frozenset(names) & COLUMNS.keys()


def _sequence(values: Any) -> list[Any]:
    return [values.apply(index) for index in range(values.size())]


def _changes(frame: DataFrame, one: TransformSettings) -> tuple[str, ...]:
    """The columns that ``select`` replaces. Raises ConfigError for what a record cannot have."""
    fields = {field.name: field.dataType for field in frame.schema[0].dataType.fields}  # type: ignore[attr-defined]
    names = [field.name for field in frame.schema[0].dataType.fields]  # type: ignore[attr-defined]
    kept = _columns_as_they_are(frame)
    changes: list[str] = []
    for name in names:
        kind = fields[name].simpleString()
        if names.count(name) > 1:
            raise _refused(one, "select", f"{name} is there twice", "Write each column once.")
        if name in kept:
            continue
        if name in _KEPT:
            do = "Leave it out."
            if name == "topic":
                do = "Name topics with sparkmirror.topics.map."
            raise _refused(one, "select", f"it changes {name}, which cannot be changed", do)
        if name not in COLUMNS:
            do = f"Name it: … AS value. A record has {', '.join(COLUMNS)}."
            raise _refused(one, "select", f"a record has no column {name}", do)
        fits = {
            "key": kind in _BINARY,
            "value": kind in _BINARY,
            "timestamp": kind == "timestamp",
            "headers": bool(_HEADERS.fullmatch(kind)),
        }[name]
        if not fits:
            do = f"Cast it: CAST(… AS {'STRING' if name in ('key', 'value') else COLUMNS[name]})."
            raise _refused(one, "select", f"{name} is of type {kind}, not {COLUMNS[name]}", do)
        changes.append(name)
    return tuple(changes)


_HEADERS = re.compile(r"array<struct<key:string,value:(binary|string)>>|array<void>")


def _columns_as_they_are(frame: DataFrame) -> set[str]:
    plan: Any = frame._jdf.queryExecution().analyzed()
    struct = plan.expressions().apply(0).child()
    if struct.nodeName() == "Alias":
        struct = struct.child()
    names, values = struct.names(), struct.valExprs()
    kept = set()
    for index in range(values.size()):
        value, name = values.apply(index), str(names.apply(index))
        if value.getClass().getSimpleName() == "AttributeReference" and value.name() == name:
            kept.add(name)
    return kept


def _words(text: str) -> str:
    """Spark's message without the plan and the place in the SQL that we made."""
    lines = [line.strip() for line in re.split(r"\n\n|;\s*line \d+|;?\s*\n'", text)[0].splitlines()]
    return " ".join(line for line in lines if line).strip(" ;.")


def _refused(one: TransformSettings, option: str, what: str, do: str) -> ConfigError:
    return ConfigError(
        f"the transform {one.name} cannot be used: {what}.",
        where=one.place(option),
        do=do,
    )

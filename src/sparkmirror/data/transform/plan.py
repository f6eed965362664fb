"""The transforms' SQL as columns of the streaming query, and what is refused at the start.

Each transform is one column, which Spark computes within one projection::

    CASE WHEN __transform = 0
        THEN try(struct(CLOCK AS began, if(WHERE, struct(SELECT), null) AS record, CLOCK AS ended))
    END

So Spark's optimizer and code generator work on the user's SQL, and yet no plan can lose, repeat or
reorder rows: a record that WHERE leaves out is a null in its row. ``try`` gives null if the SQL
fails on a record. A Python function becomes the same form (`data.transform.dataframe`). CLOCK is
``System.nanoTime()`` for some records, and null for the others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkmirror.data.transform.columns import (
    AT,
    COLUMNS,
    HEAD,
    MEASURED_EVERY,
    MESSAGE_ROWS,
    RECORDS,
    TRANSFORM,
    encode_columns,
    message_bytes,
    set_sql,
)
from sparkmirror.data.transform.dataframe import Translated, run_trial, translate
from sparkmirror.data.transform.functions import (
    TRIED,
    class_loader,
    python_functions,
    register_functions,
)
from sparkmirror.data.transform.record_handler import RecordHandler
from sparkmirror.data.transform.refusals import HINTS, LOOKUP, refused, words
from sparkmirror.data.transform.tables import Tables
from sparkmirror.names.routed_names import RoutedNames
from sparkmirror.names.transforms import smts_on_bytes
from sparkmirror.settings import FlowSettings
from sparkmirror.transform_settings import TransformSettings

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["Planned", "TransformPlan"]

_ROUTING = ("topic", "partition")
_NUMBERS = ("int", "smallint", "tinyint", "void")
_KEPT = ("offset", "timestampType")
_BINARY = ("binary", "string", "void")
_ROWS = {"Project", "SubqueryAlias", "LocalRelation", "LogicalRDD", "OneRowRelation"}


@dataclass(frozen=True, slots=True)
class Planned:
    """A checked transform. ``uses``: the record's columns that its SQL reads.

    ``changes``: those that it replaces. ``function``: a Python function as columns.
    """

    settings: TransformSettings
    uses: frozenset[str]
    changes: tuple[str, ...]
    function: Translated | None = None


class TransformPlan:
    """The checked transforms of one flow. ``session``: where its query runs.

    ``columns``: the records' columns that the source must send, as an option. ``tables``: its
    static tables. Raises ConfigError with key, line and remedy.
    """

    def __init__(self, spark: SparkSession, flow: FlowSettings) -> None:
        # Only this flow's rows travel in larger messages.
        self.session = spark.newSession()
        self.tables = Tables(self.session, flow)
        set_sql(self.session)
        register_functions(self.session, flow, self.tables.java)
        set_sql(self.session)  # functions of users may have changed it
        self.session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(MESSAGE_ROWS))
        self.session.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "false")
        # Arguments of SQL functions are projections of their own until Spark merges them with ours:
        # only then a record on which one fails is a null, and does not end the task.
        self.session.conf.set("spark.sql.optimizer.collapseProjectAlwaysInline", "true")
        schema = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
        records = self.session.createDataFrame([], schema)
        names = RoutedNames(flow)
        self.planned = [_planned(records, one, names) for one in flow.transforms]
        size = str(message_bytes(flow))
        self.session.conf.set("spark.sql.execution.arrow.maxBytesPerBatch", size)
        self._on_bytes = smts_on_bytes(flow)
        uses = [
            frozenset() if smts else one.uses
            for one, smts in zip(self.planned, self._on_bytes, strict=True)
        ]
        self.columns = encode_columns(uses)
        for number, one in enumerate(self.planned):
            if one.function is not None:
                run_trial(self.session, self.transformed, uses, number, one.settings)

    def transformed(self, rows: DataFrame) -> DataFrame:
        """The source's ``rows``, with a column per transform instead of the record's columns."""
        from pyspark.sql import functions as F  # noqa: N812, PLC0415

        # The SQL may also name columns that it does not need, as in a list of what is kept.
        unused = [
            F.lit(None).cast(kind).alias(name)
            for name, kind in COLUMNS.items()
            if name not in rows.columns
        ]
        rows, results = rows.select("*", *unused), []
        for number, one in enumerate(self.planned):
            # The sink does it (`data.transform.record_handler`, `data.transform.smts`).
            if one.settings.handler or self._on_bytes[number]:
                results.append(F.lit(None).cast("boolean").alias(f"t{number}"))
                continue
            applies = F.col(TRANSFORM) == number
            rows, result = _result(rows, one, applies, measured=True)
            results.append(F.when(applies, _tried(result)).alias(f"t{number}"))
        return rows.select(HEAD, RECORDS, AT, *results)

    def untried(self, records: DataFrame, number: int) -> DataFrame:
        """The results of transform ``number`` for ``records``, which have all columns.

        It raises the errors for which `transformed` gives null.
        """
        from pyspark.sql import functions as F  # noqa: N812, PLC0415

        rows, result = _result(records, self.planned[number], F.lit(True), guard=_as_it_is)
        return rows.select(result)


Guard = Callable[["Column"], "Column"]
"""Makes a null of a column that fails."""


def _as_it_is(column: Column) -> Column:
    return column


def _result(
    rows: DataFrame,
    one: Planned,
    applies: Column,
    guard: Guard | None = None,
    *,
    measured: bool = False,
) -> tuple[DataFrame, Column]:
    """A struct with the ``record``: null if it is filtered, else a struct of what is replaced.

    ``rows``: with further columns that it needs, which are null unless the transform ``applies``,
    and if they fail. ``guard``: instead of `_tried`. ``measured``: with ``began`` and ``ended``.
    """
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    rows, where, chosen = _columns(rows, one, applies, guard or _tried)
    fields = [F.lit(True).alias("kept")]
    if chosen is not None:
        fields += [_field(chosen, name).alias(name) for name in one.changes]
    record = F.struct(*fields)
    if where is not None:
        record = F.when(where, record)
    parts = [record.alias("record")]
    if measured:
        # Generated code evaluates the fields of a struct in their order.
        parts = [_clock().alias("began"), *parts, _clock().alias("ended")]
    return rows, F.struct(*parts)


def _columns(
    rows: DataFrame, one: Planned, applies: Column, guard: Guard
) -> tuple[DataFrame, Column | None, Column | None]:
    """``rows``, ``where`` and the struct of ``select``, from SQL or from a function."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    if one.function is not None:
        return one.function.bound(rows, lambda column: F.when(applies, guard(column)))
    sql = one.settings
    where = F.expr(sql.where) if sql.where else None
    return rows, where, F.expr(f"struct({sql.select})") if sql.select else None


def _field(chosen: Column, name: str) -> Column:
    field = chosen.getField(name)
    return field if name == "timestamp" else field.cast(COLUMNS[name])


def _clock() -> Column:
    """Java's ``System.nanoTime()``, for one record of `MEASURED_EVERY`."""
    from pyspark import SparkContext  # noqa: PLC0415
    from pyspark.sql import functions as F  # noqa: N812, PLC0415
    from pyspark.sql.classic.column import Column as Classic  # noqa: PLC0415

    jvm: Any = SparkContext._active_spark_context._jvm  # type: ignore[union-attr]
    helper = jvm.org.apache.spark.sql.classic.ExpressionUtils
    nothing = jvm.PythonUtils.toSeq(jvm.java.util.ArrayList())
    call = jvm.org.apache.spark.sql.catalyst.expressions.objects.StaticInvoke(
        jvm.java.lang.Class.forName("java.lang.System"),
        jvm.org.apache.spark.sql.types.DataTypes.LongType,
        "nanoTime",
        *(nothing, nothing),
        # Arguments may not be null, it never is, and it differs from record to record.
        *(True, False, False),
        jvm.scala.Option.empty(),
    )
    return F.when(F.col(AT) % MEASURED_EVERY == 0, Classic(helper.column(call)))


def _tried(column: Column) -> Column:
    """``column``, but null instead of an exception or a stack that overflows."""
    from pyspark import SparkContext  # noqa: PLC0415
    from pyspark.sql.classic.column import Column as Classic  # noqa: PLC0415

    context: Any = SparkContext._active_spark_context
    helper = context._jvm.org.apache.spark.sql.classic.ExpressionUtils
    node: Any = column._jc
    arguments = context._gateway.new_array(context._jvm.java.lang.Object, 1)
    arguments[0] = helper.expression(node)
    kind = class_loader(context, TRIED).loadClass("sparkmirror.TryRecord")
    return Classic(helper.column(kind.getConstructors()[0].newInstance(arguments)))


# -- checks ----------------------------------------------------------------------------------------


def _planned(records: DataFrame, one: TransformSettings, names: RoutedNames) -> Planned:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    changes: tuple[str, ...] = ()
    if one.handler:
        RecordHandler(one, lambda: None)
        return Planned(one, frozenset(), changes)
    function = translate(records.sparkSession, one) if one.python else None
    if function is not None:
        rows, _, chosen = function.bound(records, _tried)
        changes = _changes(rows.select(chosen.alias("made")), one)
        for name in (name for name in _ROUTING if name in changes):
            do = f"Leave it out, or route records in SQL: select = … AS {name}."
            raise refused(one, "python", f"it changes {name}, which a function cannot", do)
    if one.where:
        frame = _analyzed(records, one.where, one, "where")
        kind = frame.schema[0].dataType.simpleString()
        if kind != "boolean":
            raise refused(one, "where", f"it is of type {kind}, not boolean", "Write a condition.")
    if one.select:
        frame = _analyzed(records, f"struct({one.select})", one, "select")
        changes = _changes(frame, one)
        _check_routing(frame, one, changes, names)
    planned = Planned(one, frozenset(), changes, function)
    # Together, as in the query: the record's columns that Spark needs.
    rows, result = _result(records, planned, F.lit(True))
    whole = rows.select(_tried(result).alias("result"))
    operators = list(_operators(whole._jdf.queryExecution().optimizedPlan()))
    if function is None and (operators.count("Project") > 1 or not _ROWS.issuperset(operators)):
        what = f"it needs Spark's operators {', '.join(operators)} instead of one projection"
        hint = "Call functions of your own without rand() and other functions of no fixed result."
        raise refused(one, "select" if one.select else "where", what, hint)
    return Planned(one, _references(whole), changes, function)


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
        said = words(str(error), sql)
        do = LOOKUP if said.startswith("[TABLE_OR_VIEW_NOT_FOUND]") else "Correct the SQL."
        raise refused(one, option, said, do) from None
    finally:
        logger.disabled = before
    for name in _operators(frame._jdf.queryExecution().analyzed()):
        if name not in _ROWS:
            hint = HINTS.get(name, "Write conditions and functions of one record.")
            raise refused(one, option, f"it needs Spark's operator {name}", hint)
    for name in python_functions(frame):
        what = f"{name} is a Python function: Spark would send each record to one more process"
        raise refused(one, option, what, "Write it in SQL, or register a Java function.")
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
    names = set[str]()
    while plan.children().size():
        names |= {each.name() for each in _sequence(plan.references().toSeq())}
        plan = plan.children().apply(0)
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
            raise refused(one, "select", f"{name} is there twice", "Write each column once.")
        if name in kept:
            continue
        if name in _KEPT:
            what = f"it changes {name}, which cannot be changed"
            raise refused(one, "select", what, "Leave it out.")
        if name not in COLUMNS:
            do = f"Name it: … AS value. A record has {', '.join(COLUMNS)}."
            raise refused(one, "select", f"a record has no column {name}", do)
        fits = {
            "topic": kind == "string",
            "partition": kind in _NUMBERS,
            "key": kind in _BINARY,
            "value": kind in _BINARY,
            "timestamp": kind == "timestamp",
            "headers": bool(_HEADERS.fullmatch(kind)),
        }[name]
        if not fits:
            do = f"Cast it: CAST(… AS {'STRING' if name in ('key', 'value') else COLUMNS[name]})."
            raise refused(one, "select", f"{name} is of type {kind}, not {COLUMNS[name]}", do)
        changes.append(name)
    return tuple(changes)


_HEADERS = re.compile(r"array<struct<key:string,value:(binary|string)>>|array<void>")


def _check_routing(
    frame: DataFrame, one: TransformSettings, changes: Sequence[str], names: RoutedNames
) -> None:
    """Raise ConfigError for columns that the control plane does not see, and for wrong constants.

    A constant would be wrong for each record.
    """
    routing = [name for name in _ROUTING if name in changes]
    if one.routes and not routing:
        do = "Write topic and partition without AS, or leave them out."
        raise refused(one, "select", "it names topic or partition, but changes neither", do)
    if routing and not one.routes:
        do = f"Write … AS {routing[0]}."
        raise refused(one, "select", f"it changes {routing[0]} without saying so", do)
    for name, value in _values(frame):
        if name not in routing or not value.foldable():
            continue
        constant = value.eval(None)
        if constant is None:
            continue
        fault = names.fault(str(constant)) if name == "topic" else ""
        if name == "partition" and int(constant) < 0:
            fault = "a partition has a number from 0 on"
        if fault:
            what = f"no record can have {name} {str(constant)!r}: {fault}"
            raise refused(one, "select", what, f"Give another {name}.")


def _values(frame: DataFrame) -> list[tuple[str, Any]]:
    """The names of the columns of ``select``, and Spark's expressions."""
    plan: Any = frame._jdf.queryExecution().analyzed()
    struct = plan.expressions().apply(0).child()
    if struct.nodeName() == "Alias":
        struct = struct.child()
    names, values = struct.names(), struct.valExprs()
    return [(str(names.apply(index)), values.apply(index)) for index in range(values.size())]


def _columns_as_they_are(frame: DataFrame) -> set[str]:
    kept = set()
    for name, value in _values(frame):
        if value.getClass().getSimpleName() == "AttributeReference" and value.name() == name:
            kept.add(name)
    return kept

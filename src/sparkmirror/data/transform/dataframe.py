"""Python functions from DataFrame to DataFrame, translated into columns of the streaming query.

The function is called once, at the start. It gets a frame with a record's columns and without
records. What it returns is a logical plan, which may consist of Project and Filter only. The
conditions of the filters become the transform's ``where``, and the projections become the columns
of its ``select``: attributes are replaced by the expressions that made them. So
`data.transform.plan` treats a function as SQL, with the same guarantees.

An expression that is used several times becomes a column in front of the others: it is evaluated
once per record. This matters for a document that is parsed, and decides for expressions that are
not deterministic. If it fails, only records that use it fail.
"""

from __future__ import annotations

import datetime
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkmirror.config.callables import USERS_ERRORS, load_callable
from sparkmirror.data.transform.columns import COLUMNS, spark_schema
from sparkmirror.data.transform.columns import used as columns_used
from sparkmirror.data.transform.refusals import HINTS, LOOKUP, refused, words
from sparkmirror.transform_settings import TransformSettings

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["Translated", "run_trial", "translate"]

_ONE_RECORD = "A transform sees one record at a time: use select, filter and withColumn."
_ORDER = "Records keep their order and partition: remove it."
_ALL = "A transform cannot choose among records by their number: use filter."
_HINTS = {
    **HINTS,
    "Deduplicate": "A transform sees one record at a time: it does not know what came before.",
    "Distinct": "A transform sees one record at a time: it does not know what came before.",
    "Join": f"A transform sees one record at a time: it cannot join. {LOOKUP}",
    "Union": "A record cannot become several ones.",
    "Expand": "A record cannot become several ones.",
    "GlobalLimit": _ALL,
    "LocalLimit": _ALL,
    "Offset": _ALL,
    "Tail": _ALL,
    "Sample": "Write filter(rand() < 0.1), or filter('pmod(hash(key), 100) < 10').",
    "Sort": _ORDER,
    "Repartition": _ORDER,
    "RepartitionByExpression": _ORDER,
    "RebalancePartitions": _ORDER,
    "EventTimeWatermark": "A transform has no state: remove the watermark.",
    "CollectMetrics": "A transform cannot aggregate: remove observe().",
    "MapInPandas": "Write the function with columns and pyspark.sql.functions.",
    "MapInArrow": "Write the function with columns and pyspark.sql.functions.",
}
# Apart from the first two they change neither rows nor columns.
_OPERATORS = {"Project", "Filter", "SubqueryAlias", "View", "ResolvedHint"}
_PYTHON = {"PythonUDF", "PythonUDAF", "PythonUDTF"}
_NO_PYTHON = (
    "Write it with pyspark.sql.functions. In a Python function, one bad record would end the task "
    "instead of following sparkmirror.on.bad.record, and records would wait for full batches."
)
# Cheaper than a column of their own.
_CHEAP = {"AttributeReference", "Literal", "GetStructField"}


@dataclass(slots=True, eq=False)
class _Made:
    """A column that a projection makes, or a filter's condition.

    Without an ``expression`` it is the record's column ``name``. ``uses``: the columns that the
    expression's attributes stand for, as often as they are there. ``filters``: how many conditions
    hold for the records that it is evaluated for.
    """

    name: str
    expression: Any = None
    uses: tuple[tuple[int, _Made], ...] = ()
    filters: int = 0


@dataclass(frozen=True, slots=True)
class Translated:
    """What a function does to a record: ``conditions``, and the columns that it ``replaced``.

    ``several``: the columns and conditions that are used more than once.
    """

    settings: TransformSettings
    conditions: Sequence[_Made]
    replaced: Mapping[str, _Made]
    several: frozenset[_Made]

    def bound(
        self, rows: DataFrame, guard: Callable[[Column], Column]
    ) -> tuple[DataFrame, Column | None, Column]:
        """``rows``, the condition or None, and a struct of the replaced columns (or of the key).

        What is used several times are further columns of ``rows``. ``guard`` must make null of them
        if they fail. Raises ConfigError.
        """
        from py4j.protocol import Py4JError  # noqa: PLC0415
        from pyspark.errors import PySparkException  # noqa: PLC0415

        try:
            return _Binding(self, rows, guard).columns()
        except (RecursionError, PySparkException, Py4JError) as error:
            one = self.settings
            what = f"the columns of {one.python} cannot be translated: {words(str(error))}"
            do = "Write fewer steps: one select instead of many withColumn."
            raise refused(one, "python", what, do) from error


def translate(session: SparkSession, one: TransformSettings) -> Translated:
    """Call the function of ``one`` with a frame of ``session``, and translate what it returns.

    Raises ConfigError.
    """
    function = load_callable(one.python, None, where=one.place("python"))
    if not callable(function):
        what = f"{one.python} makes a {type(function).__name__}, which cannot be called"
        raise refused(one, "python", what, "Name a function, or a class with __call__.")
    records = _no_records(session)
    return _Translation(records, _called(function, records, one), one).translated()


def _no_records(session: SparkSession) -> DataFrame:
    """A frame with a record's columns.

    It is a streaming one, so Spark itself refuses count() and other actions, whose results would
    be those of no records at all.
    """
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    columns = [F.lit(None).cast(kind).alias(name) for name, kind in COLUMNS.items()]
    return session.readStream.format("rate").load().select(*columns)


def _called(function: Callable[..., Any], records: DataFrame, one: TransformSettings) -> DataFrame:
    from pyspark.errors import PySparkException  # noqa: PLC0415
    from pyspark.logger import PySparkLogger  # noqa: PLC0415
    from pyspark.sql import DataFrame  # noqa: PLC0415

    # It prints what the error says, with Java's stack trace.
    logger = PySparkLogger.getLogger("SQLQueryContextLogger")
    before, logger.disabled = logger.disabled, True
    try:
        made = function(records)
    except PySparkException as error:
        what = f"{one.python} failed{_line(error)}: {words(str(error))}"
        do = f"Correct the function. A record has {', '.join(COLUMNS)}."
        raise refused(one, "python", what, do) from error
    except USERS_ERRORS as error:
        what = f"{one.python} failed{_line(error)}: {type(error).__name__}: {error}"
        raise refused(one, "python", what, "Correct the function.") from error
    finally:
        logger.disabled = before
    if not isinstance(made, DataFrame):
        what = f"{one.python} returned a {type(made).__name__}, not a DataFrame"
        raise refused(one, "python", what, "Return the frame that it made of its argument.")
    return made


def _line(error: BaseException) -> str:
    """The last line of the user's code: Spark's own code is of no help."""
    frames = [
        each
        for each in traceback.extract_tb(error.__traceback__)[1:]
        if "/pyspark/" not in each.filename and "/py4j/" not in each.filename
    ]
    return f" in line {frames[-1].lineno} of {frames[-1].filename}" if frames else ""


# -- translation -----------------------------------------------------------------------------------


class _Translation:
    """Of ``made``, which a function returned for ``records``."""

    def __init__(self, records: DataFrame, made: DataFrame, one: TransformSettings) -> None:
        self._one = one
        self._base: Any = records._jdf.queryExecution().analyzed()
        self._plan: Any = made._jdf.queryExecution().analyzed()
        self._conditions: list[_Made] = []

    def translated(self) -> Translated:
        columns, output = self._columns(), _each(self._plan.output())
        names = [str(each.name()) for each in output]
        self._check(names)
        found = [columns[_number(each)] for each in output]
        replaced = {
            name: made
            for name, made in zip(names, found, strict=True)
            if made.expression is not None or made.name != name
        }
        several = _used_several_times([*self._conditions, *replaced.values()])
        for made in tuple(several):  # it is evaluated only if its conditions hold
            several.update(self._conditions[: made.filters])
        return Translated(self._one, self._conditions, replaced, frozenset(several))

    def _check(self, names: list[str]) -> None:
        for name in names:
            if names.count(name) > 1:
                what = f"{self._one.python} returns the column {name} twice"
                raise self._refused(what, "Return each column once.")
            if name not in COLUMNS:
                what = f"{self._one.python} returns a column {name}, which a record does not have"
                do = f"Drop it: frame.drop('{name}'). A record has {', '.join(COLUMNS)}."
                raise self._refused(what, do)

    def _columns(self) -> dict[int, _Made]:
        """The columns that the plan returns, by number. Raises ConfigError for other operators."""
        nodes, node = [], self._plan
        while not node.equals(self._base):
            self._check_operator(node)
            nodes.append(node)
            node = node.children().apply(0)
        columns = {_number(each): _Made(str(each.name())) for each in _each(node.output())}
        for node in reversed(nodes):
            if node.nodeName() == "Filter":
                self._conditions.append(self._made("a condition", node.condition(), columns))
            elif node.nodeName() == "Project":
                columns = dict(self._projected(each, columns) for each in _each(node.projectList()))
        return columns

    def _check_operator(self, node: Any) -> None:
        name = node.nodeName()
        if not node.children().size():
            what = f"{self._one.python} returns a frame that is not made of its argument"
            raise self._refused(what, "Return the frame that it gets, with select and filter.")
        if name not in _OPERATORS:
            what = f"{self._one.python} needs Spark's operator {name}"
            raise self._refused(what, _HINTS.get(name, _ONE_RECORD))
        if node.subqueries().size():
            what = f"{self._one.python} needs Spark's operator Subquery"
            raise self._refused(what, _HINTS["Subquery"])

    def _projected(self, named: Any, columns: dict[int, _Made]) -> tuple[int, _Made]:
        number = _number(named)
        if _kind(named) == "Alias":
            return number, self._made(str(named.name()), named.child(), columns)
        return number, columns[number]

    def _made(self, name: str, expression: Any, columns: dict[int, _Made]) -> _Made:
        uses = []
        for node in _nodes(expression):
            kind = _kind(node)
            if kind in _PYTHON:
                what = f"{self._one.python} calls the Python function {node.name()} per record"
                raise self._refused(what, _NO_PYTHON)
            if kind == "AttributeReference":
                uses.append((_number(node), columns[_number(node)]))
        return _Made(name, expression, tuple(uses), len(self._conditions))

    def _refused(self, what: str, do: str) -> Exception:
        return refused(self._one, "python", what, do)


class _Binding:
    """Makes columns of ``rows`` of a `Translated` function. All of their attributes are resolved.

    Some of Spark's expressions cannot be made of parts that are not.
    """

    def __init__(
        self, function: Translated, rows: DataFrame, guard: Callable[[Column], Column]
    ) -> None:
        from pyspark import SparkContext  # noqa: PLC0415

        self._function = function
        self._rows = rows
        self._guard = guard
        self._jvm: Any = SparkContext._active_spark_context._jvm  # type: ignore[union-attr]
        output = rows._jdf.queryExecution().analyzed().output()
        self._attributes = {str(each.name()): each for each in _each(output)}
        self._shared: dict[_Made, Any] = {}

    def columns(self) -> tuple[DataFrame, Column | None, Column]:
        """See `Translated.bound`."""
        from pyspark.sql import functions as F  # noqa: N812, PLC0415

        where: Column | None = None
        for condition in self._function.conditions:
            column = self._column(self._stand_in(condition))
            # Not a conjunction: that evaluates its second part also if the first one is null.
            where = column if where is None else F.when(where, column)
        fields = [
            self._column(self._stand_in(made)).alias(name)
            for name, made in self._function.replaced.items()
        ]
        select = F.struct(*(fields or [F.col("key")]))  # a struct has a field at least
        return self._rows, where, select

    def _stand_in(self, made: _Made) -> Any:
        """The expression for a use of ``made``."""
        if made.expression is None:
            return self._attributes[made.name]
        if made not in self._function.several:
            return self._rewritten(made.expression, dict(made.uses))
        if made not in self._shared:
            self._shared[made] = self._share(made)
        return self._shared[made]

    def _share(self, made: _Made) -> Any:
        """Add a column for ``made``; returns the expression that reads it."""
        from pyspark.sql import functions as F  # noqa: N812, PLC0415

        column = self._column(self._rewritten(made.expression, dict(made.uses)))
        for condition in reversed(self._function.conditions[: made.filters]):
            column = F.when(self._column(self._stand_in(condition)), column)
        name = f"__{self._function.settings.name}_{len(self._shared)}"
        # The struct is there if the column was evaluated, also if its value is a null.
        # It depends on the partition's number, so Spark takes it for not deterministic: else the
        # optimizer may write it out at each use again.
        struct = F.when(F.spark_partition_id() >= 0, F.struct(column.alias("shared")))
        guarded = self._guard(struct)
        self._rows = self._rows.select("*", guarded.alias(name))
        found = F.col(f"`{name}`")
        failed = F.raise_error(F.lit(f"{made.name} failed"))
        read = F.when(found.isNull(), failed).otherwise(found.getField("shared"))
        analyzed: Any = self._rows.select(read.alias(name))._jdf.queryExecution().analyzed()
        return analyzed.expressions().apply(0).child()

    def _rewritten(self, node: Any, uses: dict[int, _Made]) -> Any:
        """``node`` with what stands for its attributes. Not recursive: conditions may be deep."""
        waiting: list[tuple[Any, list[Any] | None]] = [(node, None)]
        made: list[Any] = []
        while waiting:
            one, before = waiting.pop()
            if before is not None:
                after = made[len(made) - len(before) :]
                del made[len(made) - len(before) :]
                if any(new is not old for new, old in zip(after, before, strict=True)):
                    one = one.withNewChildren(self._jvm.PythonUtils.toSeq(after))
                made.append(one)
            elif _kind(one) == "AttributeReference":
                made.append(self._stand_in(uses[_number(one)]))
            else:
                before = _each(one.children())
                waiting += [(one, before), *((each, None) for each in reversed(before))]
        return made[0]

    def _column(self, expression: Any) -> Column:
        from pyspark.sql.classic.column import Column as Classic  # noqa: PLC0415

        return Classic(self._jvm.org.apache.spark.sql.classic.ExpressionUtils.column(expression))


def _used_several_times(roots: Sequence[_Made]) -> set[_Made]:
    """What ``roots``, and all that they use, evaluate more than once and at a cost."""
    counts = Counter(roots)
    waiting = list(counts)
    while waiting:
        for _, used in waiting.pop().uses:
            if used not in counts:
                waiting.append(used)
            counts[used] += 1
    return {
        made
        for made, count in counts.items()
        if count > 1 and made.expression is not None and _kind(made.expression) not in _CHEAP
    }


def _nodes(expression: Any) -> Iterator[Any]:
    waiting = [expression]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += _each(node.children())


def _each(values: Any) -> list[Any]:
    return [values.apply(index) for index in range(values.size())]


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _number(named: Any) -> int:
    return int(named.exprId().id())


# -- the trial -------------------------------------------------------------------------------------


def run_trial(
    session: SparkSession,
    transformed: Callable[[DataFrame], DataFrame],
    uses: Sequence[Iterable[str]],
    number: int,
    one: TransformSettings,
) -> None:
    """Run the projection ``transformed`` of the query on a few records of transform ``number``.

    ``uses``: the columns that each transform reads. A record on which it fails is a bad record, as
    it will be in the query; this finds plans that cannot run. Raises ConfigError.
    """
    from py4j.protocol import Py4JError  # noqa: PLC0415
    from pyspark.errors import PySparkException  # noqa: PLC0415

    names = columns_used(uses)
    rows = [
        (None, None, number, at, *(record[name] for name in names))
        for at, record in enumerate(_TRIAL)
    ]
    try:
        transformed(session.createDataFrame(rows, spark_schema(uses))).collect()
    except (PySparkException, Py4JError) as error:
        what = f"the plan of {one.python} does not run: {words(str(error))}"
        raise refused(one, "python", what, "Correct the function.") from error


_HEADERS = [{"key": "h", "value": bytearray(b"1")}, {"key": "h", "value": None}]
_TRIAL: tuple[dict[str, Any], ...] = tuple(
    {
        "topic": "trial",
        "partition": at,
        "offset": at,
        "timestamp": datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
        "timestampType": at % 2,
        "key": key,
        "value": value,
        "headers": headers,
    }
    for at, (key, value, headers) in enumerate(
        (
            (bytearray(b"key"), bytearray(b'{"a": {"b": 1}}'), _HEADERS),
            (bytearray(b"tombstone"), None, []),
            (None, bytearray(b""), _HEADERS[1:]),
            (bytearray(b"\x00\xff"), bytearray(b"\x00\xfe\xff"), []),
        )
    )
)
"""Records made up for the trial: text, a tombstone, no key, bytes that are no text."""

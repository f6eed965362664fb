"""Why the SQL of a transform fails on a record: Spark's message without the record's data.

The query of a mirror turns an error of the SQL into a null (``try``), because an exception would
end its task. So the driver runs the same SQL once more without ``try``, for that one record.

Spark's messages quote values: ``The value '4711' of the type "STRING" cannot be cast to …``. Gap
records, headers and logs outlive a record and have other readers, so only what Spark says of the
SQL stays: names of types, functions, operators and settings. All else is an ellipsis.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sparkmirror.data.transform.columns import COLUMNS, TIME_MS_MAX, arrow_type
from sparkmirror.data.transform.refusals import LITERAL

if TYPE_CHECKING:
    from sparkmirror.data.transform.plan import TransformPlan
    from sparkmirror.records.records import Record

__all__ = ["message_of", "reason_of", "table_of"]

# The parameters of Spark's messages that name parts of the SQL. All others may hold data.
_OF_THE_SQL = frozenset(
    {
        "ansiConfig", "config", "dataType", "expectedType", "fromType", "func", "funcName",
        "functionName", "inputType", "operator", "parameter", "sourceType", "srcType",
        "targetType", "toType", "typeName",
    }
)  # fmt: skip
_HIDDEN = "…"
_MESSAGE_CHARS_MAX = 400
_SQL_CHARS_MAX = 120
_CAUSES_MAX = 20
# Its messages are ours, and have no data.
_OURS = "sparkmirror.RegistryException"
# So has what mask_json, hash_json and drop_json say (``JsonFunction.java``).
_NO_JSON = re.compile(r"the value is no JSON: at byte \d+")


def table_of(topic: str, partition: int, records: Sequence[Record]) -> pa.Table:
    """Records of one partition with all the columns that SQL may read."""
    made: dict[str, list[Any]] = {
        "topic": [topic] * len(records),
        "partition": [partition] * len(records),
        "offset": [one.offset for one in records],
        "timestamp": [max(-TIME_MS_MAX, min(one.timestamp, TIME_MS_MAX)) * 1000 for one in records],
        # A record does not say which it has; no error depends on that.
        "timestampType": [0] * len(records),
        "key": [one.key for one in records],
        "value": [one.value for one in records],
        "headers": [
            [
                {"key": name.decode("utf-8", "replace"), "value": value}
                for name, value in one.headers
            ]
            for one in records
        ],
    }
    return pa.table({name: pa.array(made[name], arrow_type(name)) for name in COLUMNS})


def reason_of(plan: TransformPlan, number: int, record: pa.Table) -> str:
    """Why transform ``number`` fails on the ``record``, in one line, without its data.

    ``record``: one row of `table_of`.
    """
    from pyspark.logger import PySparkLogger  # noqa: PLC0415

    # It prints errors with the values in them.
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True
    frame = plan.session.createDataFrame(record)
    try:
        plan.untried(frame, number).collect()
    except Exception as error:  # any function of any library may have raised it
        return message_of(error)
    return "the SQL succeeded on this record when it ran again"


def message_of(error: Exception) -> str:
    """What Spark says, without data: the innermost error that has one of Spark's error classes.

    What our own functions say needs nothing of that.
    """
    thrown = _thrown(error)
    if thrown and thrown[-1].getClass().getName() == _OURS:
        return _cut(str(thrown[-1].getMessage()))
    if thrown and _NO_JSON.fullmatch(str(thrown[-1].getMessage())):
        return str(thrown[-1].getMessage())
    found = [each for each in thrown if _instance(each, "org.apache.spark.SparkThrowable")]
    found = [each for each in found if each.getCondition() is not None]
    if not found:
        name = thrown[-1].getClass().getName() if thrown else type(error).__name__
        return f"{name}; Spark gives it no error class"
    message = _message(found[-1])
    sql = " ".join(_fragment(found[-1]).split())
    return f"{message} In: {_cut(sql, _SQL_CHARS_MAX)}" if sql else message


def _thrown(error: Exception) -> list[Any]:
    """Java's exceptions behind ``error``, each with the cause of the one before it."""
    found: list[Any] = []
    each = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    while each is not None and len(found) < _CAUSES_MAX:
        found.append(each)
        each = each.getCause()
    return found


def _instance(thrown: Any, name: str) -> bool:
    from py4j.java_gateway import is_instance_of  # noqa: PLC0415
    from pyspark import SparkContext  # noqa: PLC0415

    return bool(is_instance_of(SparkContext._gateway, thrown, name))


def _message(thrown: Any) -> str:
    from pyspark import SparkContext  # noqa: PLC0415

    jvm: Any = SparkContext._jvm
    shown = jvm.java.util.HashMap()
    for name, value in dict(thrown.getMessageParameters()).items():
        shown.put(name, value if name in _OF_THE_SQL else _HIDDEN)
    helper = jvm.org.apache.spark.SparkThrowableHelper
    return _cut(" ".join(helper.getMessage(thrown.getCondition(), shown).split()))


def _fragment(thrown: Any) -> str:
    """The part of the SQL that failed, without the strings in it, which may be keys.

    Empty if unknown.
    """
    for context in thrown.getQueryContext():
        fragment = str(context.fragment())
        if fragment:
            return LITERAL.sub(f"'{_HIDDEN}'", fragment)
    return ""


def _cut(text: str, most: int = _MESSAGE_CHARS_MAX) -> str:
    return text if len(text) <= most else text[:most] + _HIDDEN

"""Static tables of a flow: read when the driver starts, and again when an operator asks.

The driver reads a table with Spark, and keeps its rows in Java (``Table.java``). Each column that
SQL looks values up in has an index there, which executors get as a broadcast (``Lookup.java``). An
epoch's tasks carry the newest broadcast. So a reload is: read, swap, end the epoch. The query, its
plan and its one projection stay as they are, and all records of an epoch see the same rows.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sparkmirror.data.transform.columns import set_sql
from sparkmirror.data.transform.functions import class_loader
from sparkmirror.data.transform.spark_errors import message_of
from sparkmirror.errors import ConfigError
from sparkmirror.internal_topics.tables import TableState
from sparkmirror.settings import FlowSettings
from sparkmirror.transform_settings import TableSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["BYTES_MAX", "ROWS_MAX", "Tables"]

log = logging.getLogger(__name__)

ROWS_MAX, BYTES_MAX = 500_000, 64 << 20
"""A larger table is refused: driver and executors have it in memory, twice after a reload."""

# What users expect of files with a header, and rows that cannot be read are not left out.
_FAIL = {"mode": "FAILFAST"}
_DEFAULTS = {
    "csv": {"header": "true", "inferSchema": "true", "enforceSchema": "false", **_FAIL},
    "json": _FAIL,
}


class Tables:
    """The tables of one flow. Any thread may call any method.

    ``java``: Java's map from a name to its ``Table``. The constructor reads all of them. Raises
    ConfigError for one that cannot be read.
    """

    def __init__(self, session: SparkSession, flow: FlowSettings) -> None:
        from pyspark import SparkContext  # noqa: PLC0415

        # Not the flow's own: functions of users may have changed that one.
        self._session = session.newSession()
        set_sql(self._session)
        self._reading = threading.Lock()
        self._settings: dict[str, TableSettings] = {}
        self._states: dict[str, TableState] = {}
        jvm: Any = SparkContext._jvm
        self.java: Any = jvm.java.util.HashMap()
        for one in flow.transforms:
            for table in one.tables:
                if table.name not in self._settings:
                    self._settings[table.name] = table
                    state = self._read(table)
                    if state.fault:
                        raise ConfigError(
                            f"the transform {one.name} cannot be used: the table {table.name} "
                            f"cannot be read from {table.place}: {state.fault}.",
                            where=one.place("tables"),
                            do="Check the path, the format and the options of Spark's reader. "
                            f"A table has at most {ROWS_MAX:,} rows and {BYTES_MAX >> 20} MiB.",
                        )
                    self._states[table.name] = state
                    log.info("flow %s: read the table %s", flow.name, _told(state))

    def states(self) -> tuple[TableState, ...]:
        """The tables as they are looked up now."""
        return tuple(self._states.values())

    def reload(self, name: str = "") -> tuple[TableState, ...]:
        """Read the table ``name`` again, or all of them; returns those.

        One that cannot be read keeps its rows, and has a ``fault``.
        """
        with self._reading:
            found = []
            for table in self._settings.values():
                if name in ("", table.name):
                    state = self._read(table)
                    if state.fault:
                        state = replace(self._states[table.name], fault=state.fault)
                    self._states[table.name] = state
                    found.append(state)
            return tuple(found)

    def _read(self, one: TableSettings) -> TableState:
        """Read a table; without its rows and with a fault if that is impossible."""
        from py4j.protocol import Py4JError  # noqa: PLC0415
        from pyspark.errors import PySparkException  # noqa: PLC0415
        from pyspark.logger import PySparkLogger  # noqa: PLC0415

        # It prints errors with the values in them.
        logger = PySparkLogger.getLogger("SQLQueryContextLogger")
        before, logger.disabled = logger.disabled, True
        began = time.monotonic()
        try:
            fault = self._take(one)
        except (PySparkException, Py4JError) as error:
            fault = message_of(error)
        finally:
            logger.disabled = before
        rows = 0 if fault else int(self.java[one.name].size())
        took_ms = round((time.monotonic() - began) * 1000)
        return TableState(one.name, rows, int(time.time() * 1000), took_ms, fault.rstrip("."))

    def _take(self, one: TableSettings) -> str:
        """Read a table into Java; why that is refused, or an empty text."""
        frame = self._frame(one)
        table = self.java[one.name] if one.name in self._states else None
        if table is None:
            table = self._new(one.name, frame)
        else:
            fields = {field.name: field.dataType for field in frame.schema.fields}
            for field in table.schema().fields():
                # Java's simpleString leaves out fields of large structs.
                name, kind = str(field.name()), str(field.dataType().catalogString())
                now = fields[name].simpleString() if name in fields else "not there"
                if now != kind:
                    return (
                        f"its column {name} was {kind} when the mirror started, and is {now}: set "
                        "its schema, or start the mirror again"
                    )
            names = (str(name).replace("`", "``") for name in table.schema().fieldNames())
            frame = frame.select(*(f"`{name}`" for name in names))
        plan = frame._jdf.queryExecution().executedPlan()
        fault = table.read(plan.executeToIterator(), ROWS_MAX, BYTES_MAX)
        if fault is None:
            self.java[one.name] = table
        return fault or ""

    def _frame(self, one: TableSettings) -> DataFrame:
        options = {**_DEFAULTS.get(one.format.lower(), {}), **dict(one.options)}
        reader = self._session.read.format(one.format).options(**options)
        if one.schema:
            reader = reader.schema(one.schema)
        return reader.load(one.path) if one.path else reader.load()

    def _new(self, name: str, frame: DataFrame) -> Any:
        context: Any = self._session.sparkContext
        arguments = context._gateway.new_array(context._jvm.java.lang.Object, 3)
        arguments[0], arguments[1], arguments[2] = context._jsc, name, frame._jdf.schema()
        kind = class_loader(context).loadClass("sparkmirror.Table")
        return kind.getConstructors()[0].newInstance(arguments)


def _told(state: TableState) -> str:
    return f"{state.name}: {state.rows:,} rows in {state.took_ms:,} ms"

"""Columns of the rows of a flow with transforms.

=================  ======  ====================================================================
column             type    what
=================  ======  ====================================================================
__head, __records  …       a row of `data.rows.rows`; its chunks of transformed topics wait for
                           the results of their records, which follow row by row
__transform        int     the number of the transform that processes the record, else null
__at               int     the record's number in its portion, else null
topic … headers    …       the record, as in Spark's Kafka source; only columns that the SQL uses
=================  ======  ====================================================================

Behind the plan, a column ``t0``, ``t1`` … per transform stands for the record
(`data.transform.plan`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from sparkmirror.settings import FlowSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "AT",
    "COLUMNS",
    "HEAD",
    "HIDDEN",
    "MEASURED_EVERY",
    "MESSAGE_ROWS",
    "RECORDS",
    "TIME_MS_MAX",
    "TRANSFORM",
    "arrow_schema",
    "arrow_type",
    "decode_columns",
    "encode_columns",
    "message_bytes",
    "set_sql",
    "spark_schema",
]

HEAD, RECORDS, TRANSFORM, AT = "__head", "__records", "__transform", "__at"
HIDDEN = f"{HEAD} string, {RECORDS} binary, {TRANSFORM} int, {AT} int"

MESSAGE_ROWS = 4096
"""Rows in a message from the JVM to the sink, at most; see `message_bytes`."""

MEASURED_EVERY = 16
"""Of a portion, each record of so many shows when Spark began and ended to evaluate the SQL."""

TIME_MS_MAX = ((1 << 63) - 1) // 1000
"""Spark's timestamps are microseconds: SQL sees this one for a record with a later one.

Such records exist: their producers write nanoseconds.
"""

COLUMNS = {
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "key": "binary",
    "value": "binary",
    "headers": "array<struct<key:string,value:binary>>",
}
"""A record's columns, with Spark's types."""

# How Spark understands the SQL and the tables, whatever a user's spark-defaults.conf says.
_SQL_SETTINGS = {
    # A cast that fails is an error. A null would leave out records, or empty them, in silence.
    "spark.sql.ansi.enabled": "true",
    "spark.sql.ansi.enforceReservedKeywords": "false",  # `offset` is such a word
    "spark.sql.timestampType": "TIMESTAMP_LTZ",  # what TIMESTAMP means, above and in SQL
    "spark.sql.session.timeZone": "UTC",  # a timestamp has no time zone of its own
}

_ARROW = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
}
_HIDDEN_ARROW = [
    (HEAD, pa.string()),
    (RECORDS, pa.binary()),
    (TRANSFORM, pa.int32()),
    (AT, pa.int32()),
]


def message_bytes(flow: FlowSettings) -> int:
    """How large a message from the JVM to the sink gets: a row of so many bytes ends it.

    Large ones cost less for each record, small ones are pushed through Spark sooner. Where records
    are only left out, some two thousand results fit into a small one.
    """
    return 256 << 10 if any(one.select or one.python for one in flow.transforms) else 64 << 10


def used(columns: Sequence[Iterable[str]]) -> list[str]:
    """The columns that any of the transforms uses, in the order of `COLUMNS`."""
    together = {name for one in columns for name in one}
    return [name for name in COLUMNS if name in together]


def set_sql(session: SparkSession) -> None:
    """Have ``session`` understand SQL and tables in one way, whatever else was set."""
    for name, value in _SQL_SETTINGS.items():
        session.conf.set(name, value)


def spark_schema(columns: Sequence[Iterable[str]]) -> str:
    """The source's schema if the transforms use ``columns``."""
    return ", ".join([HIDDEN, *(f"{name} {COLUMNS[name]}" for name in used(columns))])


def arrow_schema(columns: Sequence[Iterable[str]]) -> pa.Schema:
    """The same for Arrow."""
    return pa.schema([*_HIDDEN_ARROW, *((name, _ARROW[name]) for name in used(columns))])


def arrow_type(name: str) -> pa.DataType:
    """Arrow's type of a record's column ``name``."""
    return _ARROW[name]


def encode_columns(columns: Sequence[Iterable[str]]) -> str:
    """``columns``, by transform, as a Spark option."""
    return json.dumps([sorted(one) for one in columns])


def decode_columns(text: str | None) -> list[frozenset[str]]:
    """The columns in an option of `encode_columns`; empty without one."""
    return [frozenset(one) for one in json.loads(text)] if text else []

"""Transforms whose records go one by one through a Python callable: ``….transform.NAME.handler``.

The sink calls it, between the raw batches and the new ones, so neither raw topics nor SQL wait for
one more process. Its results have the form of those of SQL (`data.transform.plan`): a null for a
record on which it failed, and a struct with the ``record``, which is null if it is left out.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from sparkmirror.config.callables import load_callable
from sparkmirror.data.rows.rows import Chunk
from sparkmirror.data.transform.columns import TIME_MS_MAX, arrow_type
from sparkmirror.model import SourceRecord, TargetRecord
from sparkmirror.records.records import Record
from sparkmirror.transform_settings import TransformSettings

__all__ = ["RecordHandler"]

_ROUND_S = 0.1
_FIELDS = ("key", "value", "headers", "timestamp")


class Refusal(Exception):
    """A result that a transform cannot have. Its text has no data."""


class RecordHandler:
    """The callable of one transform. One owner, no threads.

    ``come_round`` is called now and then while it works. ``reasons``: why the last `results` have
    nulls, by source offset. Raises ConfigError.
    """

    def __init__(self, one: TransformSettings, come_round: Callable[[], None]) -> None:
        self._call = load_callable(one.handler, one.handler_args, where=one.place("handler"))
        self._args = one.handler_args
        # The text goes to the constructor of a class.
        self._plain = self._args is None or not hasattr(self._call, "__code__")
        self._come_round = come_round
        self.reasons: Mapping[int, str] = {}

    def results(self, chunk: Chunk, records: tuple[Record, ...]) -> pa.Array:
        """The results for ``records`` of ``chunk``."""
        reasons: dict[int, str] = {}
        made: list[dict[str, Any] | None] = []
        changed: set[str] = set()
        due_s = time.monotonic() + _ROUND_S
        for record in records:
            if time.monotonic() > due_s:
                self._come_round()
                due_s = time.monotonic() + _ROUND_S
            source = SourceRecord(
                *(chunk.topic, chunk.partition, record.offset, record.timestamp),
                *(record.key, record.value),
                tuple((name.decode("utf-8", "replace"), value) for name, value in record.headers),
            )
            try:
                found = self._called(chunk, source)
                made.append(None if found is None else _fields(source, found, changed))
            except Refusal as error:
                made.append(None)
                reasons[record.offset] = str(error)
            except Exception as error:  # whatever the user's code raises
                made.append(None)
                reasons[record.offset] = _told(error)
        self.reasons = reasons
        return _array(made, changed, [one.offset in reasons for one in records])

    def _called(self, chunk: Chunk, source: SourceRecord) -> TargetRecord | None:
        found: Any = self._call(source) if self._plain else self._call(source, self._args)
        if isinstance(found, list | tuple):
            if len(found) > 1:
                raise Refusal(f"it returned {len(found)} records: one cannot become several")
            found = found[0] if found else None
        if found is None:
            return None
        if not isinstance(found, TargetRecord):
            raise Refusal(f"it returned a {type(found).__name__}, not a TargetRecord")
        if found.topic not in (chunk.topic, chunk.remote_topic):
            raise Refusal("it returned another topic: route records in SQL (select = … AS topic)")
        if found.partition not in (None, chunk.partition):
            raise Refusal("it returned another partition: route records in SQL")
        return found


def _fields(source: SourceRecord, found: TargetRecord, changed: set[str]) -> dict[str, Any]:
    """The fields of a record; adds the names of those that are not the source's to ``changed``."""
    for name, one in (("key", found.key), ("value", found.value)):
        if not isinstance(one, bytes | None):
            raise Refusal(f"it returned a {name} of type {type(one).__name__}, not bytes")
    time_ms = found.timestamp_ms
    if not isinstance(time_ms, int | None):
        raise Refusal(f"it returned a timestamp of type {type(time_ms).__name__}, not int")
    if time_ms is None or (time_ms < 0 and time_ms != source.timestamp_ms):
        time_ms = int(time.time() * 1000)
    if time_ms > TIME_MS_MAX:
        raise Refusal("it returned a timestamp that is too large for milliseconds")
    headers = tuple(found.headers)
    if headers != source.headers and not all(
        isinstance(name, str) and isinstance(value, bytes | None) for name, value in headers
    ):
        raise Refusal("it returned headers that are not pairs of text and bytes")
    for name, _ in headers:
        name.encode()  # half a surrogate pair is no name: UnicodeEncodeError
    fields = {
        "key": found.key,
        "value": found.value,
        "headers": headers,
        "timestamp": time_ms,
    }
    before = source.key, source.value, source.headers, source.timestamp_ms
    changed |= {name for name, old in zip(_FIELDS, before, strict=True) if fields[name] != old}
    return fields


def _array(made: list[dict[str, Any] | None], changed: set[str], failed: list[bool]) -> pa.Array:
    names = [name for name in _FIELDS if name in changed]
    arrays = [pa.array([True] * len(made), pa.bool_())]
    for name in names:
        values: list[Any] = [None if one is None else one[name] for one in made]
        if name == "headers":
            values = [
                None if one is None else [{"key": key, "value": value} for key, value in one]
                for one in values
            ]
        elif name == "timestamp":
            values = [None if one is None else one * 1000 for one in values]
        arrays.append(pa.array(values, arrow_type(name)))
    gone = pa.array(np.array([one is None for one in made], np.bool_))
    record = pa.StructArray.from_arrays(arrays, ["kept", *names], mask=gone)
    mask = pa.array(np.array(failed, np.bool_))
    return pa.StructArray.from_arrays([record], ["record"], mask=mask)


def _told(error: Exception) -> str:
    """The type of ``error`` and where it was raised; its text may have the record's data."""
    frames = traceback.extract_tb(error.__traceback__)[2:]
    place = f" in line {frames[-1].lineno} of {frames[-1].name}" if frames else ""
    return f"{type(error).__name__}{place}"

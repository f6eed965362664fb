"""Transforms whose records go one by one through a Python callable: ``….transform.NAME.handler``.

The sink calls it, between the raw batches and the new ones, so neither raw topics nor SQL wait for
one more process. Its results have the form of those of SQL (`data.transform.plan`): a null for a
record on which it failed, and a struct with the ``record``, which is null if it is left out.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from sparkmirror.config.callables import USERS_ERRORS, load_callable
from sparkmirror.data.rows.rows import Chunk
from sparkmirror.data.transform.columns import TIME_MS_MAX
from sparkmirror.data.transform.results import HEADERS
from sparkmirror.model import SourceRecord, TargetRecord
from sparkmirror.records.records import Record
from sparkmirror.transform_settings import TransformSettings

__all__ = ["RecordHandler"]

_ROUND_S = 0.1
# Milliseconds, because microseconds of a time in nanoseconds do not fit.
_TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": HEADERS,
    "timestamp": pa.timestamp("ms", tz="UTC"),
}
_SEQUENCES = (list, tuple)
_Headers = tuple[tuple[bytes, bytes | None], ...]


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
        made: list[tuple[Any, ...] | None] = []
        changed: set[str] = set()
        due_s = time.monotonic() + _ROUND_S
        for record in records:
            if time.monotonic() > due_s:
                self._come_round()
                due_s = time.monotonic() + _ROUND_S
            source = SourceRecord(
                chunk.topic,
                chunk.partition,
                record.offset,
                record.timestamp,
                record.key,
                record.value,
                _named(record.headers) if record.headers else (),
            )
            fields: tuple[Any, ...] | None = None
            try:
                found = self._called(chunk, source)
                if found is not None:
                    fields = _fields(record, source, found, changed)
            except Refusal as error:
                reasons[record.offset] = str(error)
            except USERS_ERRORS as error:
                reasons[record.offset] = _told(error)
            made.append(fields)
        self.reasons = reasons
        return _array(made, changed, [one.offset in reasons for one in records])

    def _called(self, chunk: Chunk, source: SourceRecord) -> TargetRecord | None:
        found: Any = self._call(source) if self._plain else self._call(source, self._args)
        if isinstance(found, _SEQUENCES):
            if len(found) > 1:
                raise Refusal(f"it returned {len(found)} records: one cannot become several")
            found = found[0] if found else None
        if found is None:
            return None
        if not isinstance(found, TargetRecord):
            raise Refusal(f"it returned a {type(found).__name__}, not a TargetRecord")
        if found.topic not in (chunk.topic, chunk.remote_topic):
            raise Refusal("it returned another topic: route records in SQL (select = … AS topic)")
        if found.partition is not None and found.partition != chunk.partition:
            raise Refusal("it returned another partition: route records in SQL")
        return found


def _named(headers: Iterable[tuple[bytes, bytes | None]]) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((name.decode("utf-8", "replace"), value) for name, value in headers)


def _fields(
    record: Record, source: SourceRecord, found: TargetRecord, changed: set[str]
) -> tuple[bytes | None, bytes | None, _Headers, int]:
    """The fields of a record, in the order of `_TYPES`.

    ``source``: ``record`` as the handler got it. ``changed``: gets the names of those that are not
    the source's.
    """
    key, value, headers, time_ms = found.key, found.value, record.headers, record.timestamp
    # Most handlers leave most fields as they are, and this runs for each record.
    if key is not record.key and _checked("key", key) != record.key:
        changed.add("key")
    if value is not record.value and _checked("value", value) != record.value:
        changed.add("value")
    if found.headers is not source.headers:
        headers = _headers(record, source, tuple(found.headers))
        if headers != record.headers:
            changed.add("headers")
    if found.timestamp_ms != time_ms:  # a source's time may be none, or in nanoseconds
        time_ms = _time_ms(found.timestamp_ms)
        changed.add("timestamp")
    return key, value, headers, time_ms


def _checked(name: str, value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    raise Refusal(f"it returned a {name} of type {type(value).__name__}, not bytes")


def _headers(record: Record, source: SourceRecord, headers: tuple[Any, ...]) -> _Headers:
    """``headers`` with names as bytes. Those that ``record`` has keep theirs."""
    if headers == source.headers:
        return record.headers
    if not all(isinstance(name, str) and isinstance(one, bytes | None) for name, one in headers):
        raise Refusal("it returned headers that are not pairs of text and bytes")
    kept = dict(zip(source.headers, record.headers, strict=True))
    # Half a surrogate pair is no name: UnicodeEncodeError.
    return tuple(kept.get((name, one)) or (name.encode(), one) for name, one in headers)


def _time_ms(time_ms: Any) -> int:
    if not isinstance(time_ms, int | None):
        raise Refusal(f"it returned a timestamp of type {type(time_ms).__name__}, not int")
    if time_ms is None or time_ms < 0:
        return int(time.time() * 1000)
    if time_ms > TIME_MS_MAX:
        raise Refusal("it returned a timestamp that is too large for milliseconds")
    return time_ms


def _array(
    made: list[tuple[Any, ...] | None], changed: set[str], failed: list[bool]
) -> pa.StructArray:
    arrays = [pa.array([True] * len(made), pa.bool_())]
    names = []
    for number, (name, kind) in enumerate(_TYPES.items()):
        if name not in changed:
            continue
        names.append(name)
        values: list[Any] = [None if one is None else one[number] for one in made]
        if name == "headers":
            values = [
                None if one is None else [{"key": key, "value": value} for key, value in one]
                for one in values
            ]
        arrays.append(pa.array(values, kind))
    gone = pa.array(np.array([one is None for one in made], np.bool_))
    record = pa.StructArray.from_arrays(arrays, ["kept", *names], mask=gone)
    mask = pa.array(np.array(failed, np.bool_))
    return pa.StructArray.from_arrays([record], ["record"], mask=mask)


def _told(error: BaseException) -> str:
    """The type of ``error`` and where it was raised; its text may have the record's data."""
    frames = traceback.extract_tb(error.__traceback__)[2:]
    place = f" in line {frames[-1].lineno} of {frames[-1].name}" if frames else ""
    return f"{type(error).__name__}{place}"

"""What ``transform try`` prints: records before and after, side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING

from sparkmirror.cli.shared.tables import Columns, Report, Table

if TYPE_CHECKING:
    from sparkmirror.data.transform.trial import Cost, Tried
    from sparkmirror.records.records import Record

_SHOWN_CHARS = 60
_COLUMNS: Columns = {
    "RECORD": itemgetter(0),
    "FIELD": itemgetter(1),
    "BEFORE": itemgetter(2),
    "AFTER": itemgetter(3),
}
_AFTER = {"filtered": "(left out)", "failed": "(failed)"}


def report(
    flow: str,
    transforms: Mapping[str, str],
    records: Sequence[Tried],
    spark_plan: str,
    cost: Cost,
) -> Report:
    """``transforms``: the transform of each topic. ``spark_plan``: as Spark prints it, if any."""
    counts = {
        outcome: sum(one.outcome == outcome for one in records)
        for outcome in ("kept", "filtered", "failed")
    }
    topics = "; ".join(f"{name} by {one}" for name, one in transforms.items())
    body: list[str | Table] = [
        f"{flow}: {len(records)} records read ({topics}): {counts['kept']} kept,"
        f" {counts['filtered']} filtered, {counts['failed']} failed",
        Table(_COLUMNS, [row for one in records for row in _rows(one)], most=_SHOWN_CHARS),
    ]
    body += [f"{_place(one)} failed: {one.reason}" for one in records if one.outcome == "failed"]
    body += [
        "",
        f"cost: {cost.transform_records_s:,.0f} records/s with the transform,"
        f" {cost.raw_records_s:,.0f} records/s as raw batches. Measured here on one core with"
        f" {cost.records:,} records (the sample {cost.repeats} times), without network.",
        "",
    ]
    if spark_plan:
        body += ["Spark's plan:", *spark_plan.splitlines()]
    else:
        body.append("Spark's plan: none. The sink applies these SMTs to the bytes of the batches.")
    document = {
        "flow": flow,
        "transforms": dict(transforms),
        "read": len(records),
        **counts,
        "records": [_document(one) for one in records],
        "cost": {
            "records": cost.records,
            "repeats": cost.repeats,
            "raw_records_per_s": round(cost.raw_records_s),
            "transform_records_per_s": round(cost.transform_records_s),
        },
        "spark_plan": spark_plan,
    }
    # Names and values must be those of the records: nothing in them is masked.
    return Report(document, body, one_line=True)


def _place(one: Tried) -> str:
    return f"{one.topic}-{one.partition}@{one.before.offset}"


def _rows(one: Tried) -> Iterator[tuple[str, str, str, str]]:
    after = {} if one.after is None else _fields(one.after)
    nothing = _AFTER.get(one.outcome, "")
    for name, text in _fields(one.before).items():
        yield _place(one), name, text, after.get(name, nothing)
    if one.target is not None:
        yield _place(one), "target", "", str(one.target)


def _fields(record: Record) -> dict[str, str]:
    headers = [f"{text_of(name)}={_shown(value)}" for name, value in record.headers]
    return {
        "key": _shown(record.key),
        "value": _shown(record.value),
        "headers": _cut(", ".join(headers)) if headers else "(none)",
        "timestamp": str(record.timestamp),
    }


def _shown(data: bytes | None) -> str:
    return "null" if data is None else _cut(text_of(data))


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 1]}…"


def text_of(data: bytes) -> str:
    """``data`` as text if it is readable UTF-8, else as hex digits after 0x."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f"0x{data.hex()}"
    return text if text.replace("\n", " ").replace("\t", " ").isprintable() else f"0x{data.hex()}"


def _document(one: Tried) -> dict[str, object]:
    return {
        "topic": one.topic,
        "partition": one.partition,
        "offset": one.before.offset,
        "outcome": one.outcome,
        "reason": one.reason or None,
        "before": _record(one.before),
        "after": None if one.after is None else _record(one.after),
        "target": None if one.target is None else [*one.target],
    }


def _record(record: Record) -> dict[str, object]:
    return {
        "key": _data(record.key),
        "value": _data(record.value),
        "headers": [
            {"key": name.decode("utf-8", "replace"), "value": _data(value)}
            for name, value in record.headers
        ],
        "timestamp_ms": record.timestamp,
    }


def _data(data: bytes | None) -> dict[str, str] | None:
    """``{"text": …}`` for UTF-8, ``{"hex": …}`` for anything else."""
    if data is None:
        return None
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError:
        return {"hex": data.hex()}

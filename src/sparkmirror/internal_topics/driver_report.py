"""The driver's report in the control topic: for other processes, and for ``status``."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sparkmirror.internal_topics.codec import MALFORMED, pack, text, unpack
from sparkmirror.internal_topics.tables import TableState, read_table, table_row
from sparkmirror.internal_topics.throttles import read_rule, rule_row
from sparkmirror.model import TopicPartition
from sparkmirror.progress import Halt, SlotLoad
from sparkmirror.settings import ThrottleRule

__all__ = ["DriverReport", "ThrottleState", "decode_driver_report", "encode_driver_report"]

_KEY = re.compile(r"(.+)/driver")
# More than any cluster has cores.
_SLOTS_MAX = 1 << 16


@dataclass(frozen=True, slots=True)
class ThrottleState:
    """One limit of a flow as its driver applies it. ``rule.bytes_s`` 0: an order switched it off.

    ``order_id``: of the order that set it; empty if the file did. ``applies``: whether it is within
    its daily window.
    """

    rule: ThrottleRule
    order_id: str = ""
    applies: bool = True


@dataclass(frozen=True, slots=True)
class DriverReport:
    """Report of one driver about one flow.

    ``ended``: the run has ended; this is its last report. ``partitions``: number of assigned
    partitions. ``halts``: partitions that no slot gets, and why. ``orders``: the driver reads the
    orders topic. ``to_go_s``: seconds until the flow has caught up; None if unknown, and in reports
    of earlier releases. ``throttles``: the flow's limits; None in such reports. ``resets``: ids of
    the orders after which the settings apply again. ``tables``: the static tables of its
    transforms; None in reports of earlier releases. ``reloads``: ids of the newest orders to read
    tables again that all slots follow. ``slots``: the load of each slot; None while it is unknown,
    and in reports of earlier releases. ``slot_count``: how many slots the flow should have now;
    None in such reports. ``started_ms``, ``time_ms``: epoch ms, by the driver's clock.
    """

    flow: str
    run_id: str
    host: str
    version: str
    started_ms: int
    time_ms: int
    ended: bool = False
    partitions: int = 0
    halts: Mapping[TopicPartition, Halt] = field(default_factory=dict)
    orders: bool = False
    to_go_s: float | None = None
    throttles: tuple[ThrottleState, ...] | None = None
    resets: tuple[str, ...] = ()
    tables: tuple[TableState, ...] | None = None
    reloads: tuple[str, ...] = ()
    slots: tuple[SlotLoad, ...] | None = None
    slot_count: int | None = None


def encode_driver_report(report: DriverReport) -> tuple[bytes, bytes]:
    """Key and value of ``report``."""
    halts = [
        [tp.topic, tp.partition, halt.code, halt.reason, halt.retriable]
        for tp, halt in sorted(report.halts.items())
    ]
    document: dict[str, object] = {
        "run_id": report.run_id,
        "host": report.host,
        "version": report.version,
        "started_ms": report.started_ms,
        "time_ms": report.time_ms,
        "ended": report.ended,
        "partitions": report.partitions,
        "halts": halts,
        "orders": report.orders,
        "to_go_s": report.to_go_s,
    }
    if report.throttles is not None:
        document["throttles"] = [
            [rule_row(one.rule), one.order_id, one.applies] for one in report.throttles
        ]
        document["resets"] = list(report.resets)
    if report.tables is not None:
        document["tables"] = [table_row(one) for one in report.tables]
        document["reloads"] = list(report.reloads)
    if report.slots is not None:
        document["slots"] = [_slot_load_row(one) for one in report.slots]
    if report.slot_count is not None:
        document["slot_count"] = report.slot_count
    return f"{report.flow}/driver".encode(), pack(document)


def decode_driver_report(key: bytes | None, value: bytes | None) -> DriverReport | None:
    """The report in a record; None if it holds none."""
    match = _KEY.fullmatch(text(key))
    document = unpack(value)
    if match is None or document is None:
        return None
    try:
        return DriverReport(
            flow=match[1],
            run_id=str(document["run_id"]),
            host=str(document["host"]),
            version=str(document["version"]),
            started_ms=int(document["started_ms"]),
            time_ms=int(document["time_ms"]),
            ended=bool(document["ended"]),
            partitions=int(document["partitions"]),
            halts={
                TopicPartition(str(topic), int(number)): Halt(str(code), str(why), bool(again))
                for topic, number, code, why, again in document["halts"]
            },
            orders=bool(document.get("orders")),
            to_go_s=_seconds(document.get("to_go_s")),
            throttles=_throttles(document.get("throttles")),
            resets=tuple(map(str, document.get("resets", ()))),
            tables=_tables(document.get("tables")),
            reloads=tuple(map(str, document.get("reloads", ()))),
            slots=_slots(document.get("slots")),
            slot_count=_count(document.get("slot_count")),
        )
    except MALFORMED:
        return None


def _throttles(rows: Sequence[Any] | None) -> tuple[ThrottleState, ...] | None:
    if rows is None:
        return None
    return tuple(
        ThrottleState(read_rule(rule), str(order_id), bool(applies))
        for rule, order_id, applies in rows
    )


def _tables(rows: Sequence[Any] | None) -> tuple[TableState, ...] | None:
    return None if rows is None else tuple(map(read_table, rows))


def _slots(rows: Sequence[Any] | None) -> tuple[SlotLoad, ...] | None:
    return None if rows is None else tuple(map(_read_slot_load, rows))


def _count(value: Any) -> int | None:
    """``value`` if it may be a number of slots, else None."""
    return int(value) if value is not None and 0 <= int(value) <= _SLOTS_MAX else None


def _seconds(value: object) -> float | None:
    """``value`` if it is a finite number of at least 0, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value < math.inf else None


def _slot_load_row(load: SlotLoad) -> list[object]:
    """``load`` as a JSON list."""
    row: list[object] = [load.weight, load.bytes_s, load.backlog_bytes, list(load.leaders)]
    return [*row, round(load.speed, 2), load.apart]


def _read_slot_load(row: Sequence[Any]) -> SlotLoad:
    """The load of `_slot_load_row`. Raises an error of `MALFORMED`."""
    weight, bytes_s, backlog_bytes, leaders, speed, apart = row[:6]
    return SlotLoad(
        *(int(weight), int(bytes_s), int(backlog_bytes), tuple(map(int, leaders))),
        *(float(speed), bool(apart)),
    )

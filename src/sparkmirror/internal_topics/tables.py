"""Records about static tables of transforms: orders to read them again, and their state.

In the orders topic, ``<flow>/reload`` is the newest order to read tables again. The driver obeys
it, and its report says which rows the flow's transforms look up (`internal_topics.driver_report`).

The codecs are pure, and return None for any other record.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sparkmirror.internal_topics.codec import MALFORMED, pack, text, unpack

__all__ = [
    "ReloadOrder",
    "TableState",
    "decode_reload",
    "encode_reload",
    "read_table",
    "table_row",
]

_KIND = "reload"
_ID_CHARS_MAX = 64
_NAME_CHARS_MAX = 200
_FAULT_CHARS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class ReloadOrder:
    """An order to read ``table`` of ``flow`` again; empty: all its tables. ``order_id`` is unique.

    ``time_ms``: epoch ms, by the operator's clock.
    """

    flow: str
    table: str
    time_ms: int
    order_id: str = field(default_factory=lambda: secrets.token_hex(8))


@dataclass(frozen=True, slots=True)
class TableState:
    """One static table of a flow.

    ``rows``: how many it has. ``read_ms``: when they were read (epoch ms, by the driver's clock);
    ``took_ms``: how long that took. ``fault``: why it could not be read again since then; empty if
    it could, or if nobody asked.
    """

    name: str
    rows: int
    read_ms: int
    took_ms: int = 0
    fault: str = ""


def encode_reload(order: ReloadOrder) -> tuple[bytes, bytes]:
    """Key and value of ``order``, for the orders topic."""
    document: dict[str, object] = {
        "order": _KIND,
        "id": order.order_id,
        "time_ms": order.time_ms,
        "table": order.table,
    }
    return f"{order.flow}/{_KIND}".encode(), pack(document)


def decode_reload(flow: str, key: bytes | None, value: bytes | None) -> ReloadOrder | None:
    """The order to ``flow`` in a record; None if it holds none."""
    if text(key) != f"{flow}/{_KIND}":
        return None
    document = unpack(value)
    try:
        if document is None or document["order"] != _KIND:
            return None
        order_id, table = str(document["id"]), str(document["table"])
        if not 0 < len(order_id) <= _ID_CHARS_MAX or len(table) > _NAME_CHARS_MAX:
            return None
        return ReloadOrder(flow, table, int(document["time_ms"]), order_id)
    except MALFORMED:
        return None


def table_row(state: TableState) -> list[object]:
    """``state`` as a JSON list."""
    fault = state.fault[:_FAULT_CHARS_MAX]
    return [state.name, state.rows, state.read_ms, state.took_ms, fault]


def read_table(row: Sequence[Any]) -> TableState:
    """The state of `table_row`. Raises an error of `MALFORMED`."""
    name, rows, read_ms, took_ms, fault = row[:5]
    return TableState(str(name), int(rows), int(read_ms), int(took_ms), str(fault))

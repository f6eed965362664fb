"""The orders topic: operators' orders to a flow (pause, resume, drain, throttle, reload).

The target has one compacted topic per source, ``mm2-sparkmirror-orders.<source>.internal``, with
one partition. It is separate because Kafka's ACLs are per topic: a principal that may write to it
can give these orders and nothing else. Drivers and ``status`` read it. A driver passes orders
on to the control topic, which planner and slots read (`control.coordination.orders`).

==================  ===============================================================
key                 value (JSON)
==================  ===============================================================
``<flow>/pause``    the newest pause or resume; it outlives runs
``<flow>/drain``    the newest drain, with the runs that it is for
``<flow>/throttle`` the newest limit (`internal_topics.throttles`); it outlives runs
``<flow>/reload``   the newest order to read static tables again (`internal_topics.tables`)
==================  ===============================================================

The codecs are pure, and return None for any other record.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field

from sparkmirror.internal_topics.codec import MALFORMED, pack, text, unpack
from sparkmirror.internal_topics.commands import CommandKind, topic_beside
from sparkmirror.internal_topics.tables import ReloadOrder, decode_reload, encode_reload
from sparkmirror.internal_topics.throttles import (
    ThrottleOrder,
    decode_throttle,
    encode_throttle,
)
from sparkmirror.settings import FlowSettings
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.admin.topic_reader import TopicTail

__all__ = [
    "ORDERS_PARTITIONS",
    "Order",
    "OrdersReader",
    "decode_order",
    "encode_order",
    "give_order",
    "give_reload",
    "give_throttle",
    "orders_topic",
]

ORDERS_PARTITIONS = 1

# Suffix of the key, by kind.
_SUFFIXES = {
    CommandKind.PAUSE: "/pause",
    CommandKind.RESUME: "/pause",
    CommandKind.DRAIN: "/drain",
}
_RUNS_MAX = 1_000
_ID_CHARS_MAX = 64


@dataclass(frozen=True, slots=True)
class Order:
    """One order to ``flow``. ``runs``: the runs that a drain is for. ``order_id`` is unique."""

    flow: str
    kind: CommandKind
    time_ms: int
    runs: tuple[str, ...] = ()
    order_id: str = field(default_factory=lambda: secrets.token_hex(8))


def orders_topic(flow: FlowSettings) -> str:
    """Name of the orders topic of ``flow``; it is on the cluster of the control topic."""
    return topic_beside(flow, "orders")


def encode_order(order: Order) -> tuple[bytes, bytes]:
    """Key and value of ``order``, for partition 0. The kind must be pause, resume or drain."""
    document: dict[str, object] = {
        "order": order.kind.value,
        "id": order.order_id,
        "time_ms": order.time_ms,
    }
    if order.kind is CommandKind.DRAIN:
        document["runs"] = list(order.runs)
    return f"{order.flow}{_SUFFIXES[order.kind]}".encode(), pack(document)


def decode_order(key: bytes | None, value: bytes | None) -> Order | None:
    """The order in a record; None if it holds none. Other commands are not orders."""
    name, document = text(key), unpack(value)
    if document is None:
        return None
    try:
        kind = CommandKind(document["order"])
        suffix = _SUFFIXES.get(kind)
        if suffix is None or not name.endswith(suffix) or name == suffix:
            return None
        order_id = str(document["id"])
        if not 0 < len(order_id) <= _ID_CHARS_MAX:
            return None
        runs = document.get("runs", []) if kind is CommandKind.DRAIN else []
        return Order(
            flow=name.removesuffix(suffix),
            kind=kind,
            time_ms=int(document["time_ms"]),
            runs=tuple(map(str, runs[:_RUNS_MAX])),
            order_id=order_id,
        )
    except MALFORMED:
        return None


def give_order(target: Cluster, flow: FlowSettings, order: Order) -> None:
    """Write ``order``; it is acknowledged on return. Raises `MirrorError`."""
    target.produce_many(orders_topic(flow), [(0, *encode_order(order))])


def give_throttle(target: Cluster, flow: FlowSettings, *orders: ThrottleOrder) -> None:
    """Write orders about limits; they are acknowledged on return. Raises `MirrorError`."""
    records = [(0, *encode_throttle(order)) for order in orders]
    target.produce_many(orders_topic(flow), records)


def give_reload(target: Cluster, flow: FlowSettings, order: ReloadOrder) -> None:
    """Write an order to read tables again; it is acknowledged on return. Raises `MirrorError`."""
    target.produce_many(orders_topic(flow), [(0, *encode_reload(order))])


class OrdersReader:
    """Follows the orders of one flow, from the start of the log. For one thread.

    ``throttles``: the newest order about each limit, by its topics; not among the others.
    ``reloads``: the orders to read tables again that the last call has read. The topic must exist.
    Raises `MirrorError`.
    """

    def __init__(self, target: Cluster, flow: FlowSettings) -> None:
        self._flow = flow.name
        self.throttles: dict[str, ThrottleOrder] = {}
        self.reloads: list[ReloadOrder] = []
        self._tail: TopicTail = target.tail(orders_topic(flow), partitions=[0], passes=True)

    def read_to_end(self) -> list[Order]:
        """Orders up to the end at the time this reader was created. Raises `MirrorError`."""
        return self._read(self._tail.read_to_end())

    def poll(self, timeout_ms: int = 500) -> list[Order]:
        """Orders since the last call. Raises `MirrorError` when the cluster is unavailable."""
        return self._read(self._tail.poll(timeout_ms))

    def _read(self, records: Iterable[tuple[int, bytes | None, bytes | None]]) -> list[Order]:
        found: list[Order] = []
        self.reloads = []
        for _, key, value in records:
            reload = decode_reload(self._flow, key, value)
            if reload is not None:
                self.reloads.append(reload)
                continue
            throttle = decode_throttle(self._flow, key, value)
            if throttle is not None:
                self.throttles[throttle.rule.topics] = throttle
            order = decode_order(key, value) if throttle is None else None
            if order is not None and order.flow == self._flow:
                found.append(order)
        return found

    def close(self) -> None:
        """Close the connection. Raises `MirrorError` if that fails."""
        self._tail.close()

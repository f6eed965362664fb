"""Tables of the lag of flows and groups, including those of Kafka's own tools, old and new."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sparkmirror.cli.shared.tables import UNLIMITED, Columns, Table

if TYPE_CHECKING:
    from sparkmirror.control.positions.lag import LagView, PartitionLag

# A row of all these tables: the group's name, and one of its partitions.
_Row = tuple[str, "PartitionLag"]

_FLOW: Columns = {
    "GROUP": lambda of: of[0],
    "TOPIC": lambda of: of[1].topic,
    "PARTITION": lambda of: of[1].partition,
    "CURRENT-OFFSET": lambda of: of[1].position,
    "LOG-END-OFFSET": lambda of: of[1].end,
    "LAG": lambda of: of[1].records,
    "SECONDS": lambda of: None if of[1].seconds is None else f"{of[1].seconds:.1f}",
    "BYTES": lambda of: of[1].bytes,
    "": lambda of: of[1].remark,
}
_FLOW_WIDTHS = (15, 15, 10, 15, 15, 15, 10, 10, 0)

# kafka.tools.ConsumerOffsetChecker (0.8 to 0.11): "%-15s %-30s %-3s %-15s %-15s %-15s %s".
_CLASSIC: Columns = {
    "Group": lambda of: of[0],
    "Topic": lambda of: of[1].topic,
    "Pid": lambda of: of[1].partition,
    "Offset": lambda of: -1 if of[1].position is None else of[1].position,
    "logSize": lambda of: "unknown" if of[1].end is None else of[1].end,
    "Lag": lambda of: "unknown" if _lag(of[1]) is None else _lag(of[1]),
    "Owner": lambda of: of[1].owner or "none",
}
_CLASSIC_WIDTHS = (15, 30, 3, 15, 15, 15, 0)

# kafka-consumer-groups --describe, 2.3 to 4.3: at least this wide.
_GROUPS: Columns = {
    **{name: _FLOW[name] for name in list(_FLOW)[:5]},
    "LAG": lambda of: _lag(of[1]),
    "CONSUMER-ID": lambda of: of[1].owner and of[1].owner.member,
    "HOST": lambda of: of[1].owner and of[1].owner.host and f"/{of[1].owner.host}",
    "CLIENT-ID": lambda of: of[1].owner and of[1].owner.client_id,
}
_GROUPS_WIDTHS = (15, 15, 10, 15, 15, 15, 15, 15, 0)


def flow_tables(views: Sequence[LagView]) -> list[str | Table]:
    """Our own tables, one per view: ``kafka-consumer-groups``'s columns, then age and bytes."""
    body: list[str | Table] = []
    for view in views:
        flow = f"{view.flow}: " if view.flow else ""
        body += [""] if body else []
        body.append(f"{flow}group {view.group} on {view.cluster}")
        rows = _rows([view])
        table = Table(_FLOW, rows, gap=1, least=_FLOW_WIDTHS, most=UNLIMITED)
        body.append(table if rows else "no partitions")
    return body


def classic_table(views: Sequence[LagView]) -> list[str | Table]:
    """ConsumerOffsetChecker's table, which has fixed widths.

    ``-1``: no offset; ``none``: no owner; ``unknown``: another value is unknown.
    """
    return [Table(_CLASSIC, _rows(views), gap=1, least=_CLASSIC_WIDTHS, most=0)]


def groups_table(views: Sequence[LagView]) -> list[str | Table]:
    """kafka-consumer-groups's table; ``-`` means unknown."""
    return [Table(_GROUPS, _rows(views), gap=1, least=_GROUPS_WIDTHS, most=UNLIMITED)]


def broker_lines(views: Sequence[LagView]) -> list[str]:
    """The lines that ``--broker-info`` adds: the brokers of the groups' clusters."""
    brokers = {broker.node: broker for view in views for broker in view.brokers}
    return ["BROKER INFO", *(f"{node} -> {one.host}:{one.port}" for node, one in brokers.items())]


def _rows(views: Sequence[LagView]) -> list[_Row]:
    return [(view.group, row) for view in views for row in view.partitions]


def _lag(row: PartitionLag) -> int | None:
    """The lag as Kafka's tools compute it: negative if the topic was recreated."""
    return None if row.position is None or row.end is None else row.end - row.position

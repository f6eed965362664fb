"""The lag of a group as Kafka's own tools print it, old and new."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparkmirror.control.positions.lag import LagView, PartitionLag

__all__ = ["broker_lines", "classic_table", "groups_table"]

# kafka.tools.ConsumerOffsetChecker (0.8 to 0.11): "%-15s %-30s %-3s %-15s %-15s %-15s %s".
_CLASSIC = ("Group", "Topic", "Pid", "Offset", "logSize", "Lag", "Owner")
_CLASSIC_WIDTHS = (15, 30, 3, 15, 15, 15, 0)
# kafka-consumer-groups --describe, 2.3 to 4.3: at least this wide.
_GROUPS = (
    "GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CONSUMER-ID", "HOST",
    "CLIENT-ID",
)  # fmt: skip
_GROUPS_WIDTHS = (15, 15, 10, 15, 15, 15, 15, 15, 0)


def classic_table(views: Sequence[LagView]) -> str:
    """ConsumerOffsetChecker's table.

    ``-1`` is no offset; ``unknown`` what else is not known, ``none`` no owner.
    """
    rows = [_CLASSIC]
    for view in views:
        rows += [
            (
                view.group, row.topic, str(row.partition), _text(row.position, "-1"),
                _text(row.end, "unknown"), _text(_lag(row), "unknown"), str(row.owner or "none"),
            )
            for row in view.partitions
        ]  # fmt: skip
    return "\n".join(
        " ".join(cell.ljust(width) for cell, width in zip(row, _CLASSIC_WIDTHS, strict=True))
        for row in rows
    )


def groups_table(views: Sequence[LagView]) -> str:
    """kafka-consumer-groups's columns: ``-`` for what is not known."""
    rows = [_GROUPS]
    for view in views:
        for row in view.partitions:
            owner = row.owner
            member, client, host = "-", "-", "-"
            if owner is not None:
                member, client = owner.member, owner.client_id or "-"
                host = f"/{owner.host}" if owner.host else "-"
            rows.append(
                (
                    view.group, row.topic, str(row.partition), _text(row.position, "-"),
                    _text(row.end, "-"), _text(_lag(row), "-"), member, host, client,
                )
            )  # fmt: skip
    widths = [
        max(least, *(len(row[column]) for row in rows))
        for column, least in enumerate(_GROUPS_WIDTHS)
    ]
    return "\n".join(
        " ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def broker_lines(views: Sequence[LagView]) -> str:
    """What ``--broker-info`` adds: the brokers of the groups' clusters."""
    brokers = {broker.node: broker for view in views for broker in view.brokers}
    return "\n".join(
        ["BROKER INFO", *(f"{node} -> {one.host}:{one.port}" for node, one in brokers.items())]
    )


def _lag(row: PartitionLag) -> int | None:
    """As Kafka's tools count: negative where the log was made anew."""
    return None if row.position is None or row.end is None else row.end - row.position


def _text(number: int | None, unknown: str) -> str:
    return unknown if number is None else str(number)

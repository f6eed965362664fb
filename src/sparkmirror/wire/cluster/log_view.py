"""Start, end and epoch ends of partitions' logs, as their leaders report them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sparkmirror.model import TopicPartition
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.cluster.log_queries import query_logs, tells_epochs, tells_unsettled
from sparkmirror.wire.net.connection import Connection

__all__ = ["EndView", "LogView", "describe_ends", "describe_logs"]


@dataclass(frozen=True, slots=True)
class LogView:
    """One partition's log, as its leader reports it.

    ``start``: first offset that exists. ``end``: the high watermark. ``epoch`` and ``epoch_end``:
    the largest leader epoch up to the requested one, and its end offset; -1 when none was
    requested or the broker does not know. ``leader_epoch``: the leader's own, -1 unknown.
    ``settled``: whether ``end`` cannot be one that a new leader has not raised yet. ``latest``: the
    latest leader epoch of the log, if ``epoch`` is unknown because it is below the requested one.
    """

    start: int
    end: int
    epoch: int = -1
    epoch_end: int = -1
    leader_epoch: int = -1
    settled: bool = True
    latest: int = -1


def describe_logs(
    connections: ClusterConnections,
    epochs: Mapping[TopicPartition, int],
    *,
    patience_s: float | None = None,
    refused: dict[TopicPartition, int] | None = None,
) -> dict[TopicPartition, LogView]:
    """The log of each partition. ``epochs``: the leader epoch to look up for each (-1: none).

    A partition is missing if its leader does not respond, returns an error, or is no longer the
    leader that ``connections`` knows. ``patience_s``: as in `ClusterConnections.query_leaders`.
    ``refused`` gets the code where that was an error.
    """
    leading = {tp: connections.leaders[tp] for tp in epochs if tp in connections.leaders}
    fencing = {tp: leader.fencing for tp, leader in leading.items()}

    def query(connection: Connection, led: list[TopicPartition]) -> dict[TopicPartition, LogView]:
        asked = {tp: epochs[tp] for tp in led if epochs[tp] >= 0}
        starts, ends, (told,) = query_logs(connection, led, fencing, asked, refused=refused)
        # A leader of another epoch than that in the request would have refused it.
        latest = {
            tp: fencing[tp]
            for tp, wanted in asked.items()
            if tells_epochs(connection) and told.get(tp) == (-1, -1) and fencing[tp] < wanted
        }
        return {
            tp: LogView(
                *(starts[tp], ends[tp], *told.get(tp, (-1, -1)), leading[tp].epoch),
                settled=tells_unsettled(connection),
                latest=latest.get(tp, -1),
            )
            for tp in led
            if tp in starts and tp in ends and (tp not in asked or tp in told)
        }

    return connections.query_leaders(leading, query, patience_s=patience_s)


@dataclass(frozen=True, slots=True)
class EndView:
    """Start and end of one partition's log, as its leader reports it.

    ``high_watermark``: the replicated end; it lags for a while after an election. ``end``: of the
    leader's own log, -1 when the broker cannot tell (before 2.3). ``epoch_end``: end offset of the
    requested leader epoch, -1 when none was requested or the broker does not know.
    ``leader_epoch``: the leader's own, -1 unknown.
    """

    start: int
    high_watermark: int
    end: int = -1
    epoch_end: int = -1
    leader_epoch: int = -1

    @property
    def last(self) -> int:
        """The largest known end of the log."""
        return max(self.end, self.high_watermark)


def describe_ends(
    connections: ClusterConnections, epochs: Mapping[TopicPartition, int]
) -> dict[TopicPartition, EndView]:
    """The ends of each partition's log; ``epochs`` and missing ones are as in `describe_logs`."""
    # Also where the epochs are not sure: a leader with another one had better say nothing than
    # have its ends taken for those of an epoch that is not its own.
    leading = {tp: connections.leaders[tp].epoch for tp in epochs if tp in connections.leaders}

    def query(connection: Connection, led: list[TopicPartition]) -> dict[TopicPartition, EndView]:
        # For its own epoch a leader returns the end of its log, replicated or not.
        own = {tp: leading[tp] for tp in led if leading[tp] >= 0}
        asked = {tp: epochs[tp] for tp in led if epochs[tp] >= 0}
        starts, marks, (ends, told) = query_logs(connection, led, leading, own, asked)
        return {
            tp: EndView(
                starts[tp],
                marks[tp],
                ends.get(tp, (-1, -1))[1],
                told.get(tp, (-1, -1))[1],
                leading[tp],
            )
            for tp in led
            if tp in starts
            and tp in marks
            and (tp not in own or tp in ends)
            and (tp not in asked or tp in told)
        }

    return connections.query_leaders(leading, query)

"""What the leaders of partitions say about their logs: where each starts, ends and diverges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sparkmirror.model import TopicPartition
from sparkmirror.wire.cluster.coordinator import Routes
from sparkmirror.wire.cluster.log_queries import ask_logs
from sparkmirror.wire.net.connection import Connection

__all__ = ["EndView", "LogView", "look_at_ends", "look_at_logs"]


@dataclass(frozen=True, slots=True)
class LogView:
    """One partition's log, as its leader sees it.

    ``start``: first offset that exists. ``end``: the high watermark. ``epoch`` and ``epoch_end``:
    the largest leader epoch up to the one asked for, and where its records end; -1 when nothing
    was asked or the broker does not know. ``leader_epoch``: the leader's own, -1 unknown.
    """

    start: int
    end: int
    epoch: int = -1
    epoch_end: int = -1
    leader_epoch: int = -1


def look_at_logs(
    routes: Routes, epochs: Mapping[TopicPartition, int]
) -> dict[TopicPartition, LogView]:
    """The log of each partition in ``epochs``, with the leader epoch to ask about (-1: none).

    Partitions are missing whose leader does not answer, answers with an error, or is no longer
    the leader that ``routes`` knows.
    """
    leading = {tp: routes.leaders[tp].epoch for tp in epochs if tp in routes.leaders}

    def ask(connection: Connection, led: list[TopicPartition]) -> dict[TopicPartition, LogView]:
        asked = {tp: epochs[tp] for tp in led if epochs[tp] >= 0}
        starts, ends, (told,) = ask_logs(connection, led, leading, asked)
        return {
            tp: LogView(starts[tp], ends[tp], *told.get(tp, (-1, -1)), leading[tp])
            for tp in led
            if tp in starts and tp in ends and (tp not in asked or tp in told)
        }

    return routes.ask_leaders(leading, ask)


@dataclass(frozen=True, slots=True)
class EndView:
    """Where one partition's log starts and ends, as its leader sees it.

    ``high_watermark``: what followers have, too; it lags behind for a while after an election.
    ``end``: of the leader's own log, -1 when the broker cannot tell (before 2.3). ``epoch_end``:
    where the records of the leader epoch end that was asked for, -1 when nothing was asked or the
    broker does not know. ``leader_epoch``: the leader's own, -1 unknown.
    """

    start: int
    high_watermark: int
    end: int = -1
    epoch_end: int = -1
    leader_epoch: int = -1

    @property
    def last(self) -> int:
        """The best that is known of the log's end."""
        return max(self.end, self.high_watermark)


def look_at_ends(
    routes: Routes, epochs: Mapping[TopicPartition, int]
) -> dict[TopicPartition, EndView]:
    """The end of each partition's log in ``epochs``; what is missing, as in `look_at_logs`."""
    leading = {tp: routes.leaders[tp].epoch for tp in epochs if tp in routes.leaders}

    def ask(connection: Connection, led: list[TopicPartition]) -> dict[TopicPartition, EndView]:
        # Of its own epoch a leader tells the end of its log, whatever its followers have.
        own = {tp: leading[tp] for tp in led if leading[tp] >= 0}
        asked = {tp: epochs[tp] for tp in led if epochs[tp] >= 0}
        starts, marks, (ends, told) = ask_logs(connection, led, leading, own, asked)
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

    return routes.ask_leaders(leading, ask)

"""``sparkmirror lag``: the lag of each partition, once or repeatedly."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from sparkmirror.cli.shared import tables
from sparkmirror.cli.shared.cluster_session import query_each, show_failures
from sparkmirror.cli.shared.connections import Connections
from sparkmirror.cli.shared.errors import EXIT_INTERRUPTED, EXIT_START_FAILED
from sparkmirror.cli.shared.settings_options import Clusters, Flows
from sparkmirror.cli.shared.tables import Report, Table
from sparkmirror.cli.verbs.lag_queries import (
    GroupOptions,
    LagReader,
    flow_readers,
    group_readers,
    named,
)
from sparkmirror.cli.verbs.lag_tables import broker_lines, classic_table, flow_tables, groups_table
from sparkmirror.errors import ConfigError, MirrorError
from sparkmirror.observe.display.units import seconds_text
from sparkmirror.observe.figures.catch_up import CATCHING_UP_S, CatchUp

if TYPE_CHECKING:
    from sparkmirror.control.positions.lag import LagView, PartitionLag

_CLEAR = "\x1b[H\x1b[2J"


class Format(StrEnum):
    """How lag is printed."""

    TABLE = "table"
    CLASSIC = "classic"
    GROUPS = "groups"
    JSON = "json"


File = Annotated[
    Path | None,
    typer.Argument(
        metavar="[FILE]",
        help="MirrorMaker 2 file, or MirrorMaker 1's consumer file.",
        show_default=False,
    ),
]
ConsumerFile = Annotated[
    Path | None,
    typer.Option(
        "--consumer.config",
        metavar="FILE",
        help="MirrorMaker 1's consumer file; the same as the argument.",
        show_default=False,
    ),
]
Include = Annotated[
    str | None,
    typer.Option(
        "--include",
        "--whitelist",
        metavar="REGEX",
        help="MirrorMaker 1: topics with these names, with or without committed offsets. Default:"
        " topics that the group has offsets of, with all their partitions.",
        show_default=False,
    ),
]
Group = Annotated[
    str | None,
    typer.Option(
        "--group",
        metavar="G",
        help="Any consumer group, instead of a file's.",
        show_default=False,
        rich_help_panel="Any group",
    ),
]
ZkConnect = Annotated[
    str | None,
    typer.Option(
        "--zkconnect",
        "--zookeeper",
        metavar="HOST:PORT/CHROOT",
        help="ZooKeeper with the offsets and owners of old consumers; brokers are found there."
        " Default, if no option names the cluster: localhost:2181.",
        show_default=False,
        rich_help_panel="Any group",
    ),
]
BootstrapServer = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-server",
        metavar="HOST:PORT",
        help="Brokers of the group's cluster.",
        show_default=False,
        rich_help_panel="Any group",
    ),
]
CommandConfig = Annotated[
    Path | None,
    typer.Option(
        "--command-config",
        metavar="FILE",
        help="Client properties for --bootstrap-server, such as security.protocol.",
        show_default=False,
        rich_help_panel="Any group",
    ),
]
Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        metavar="T,U",
        help="Only these topics of the group, with all their partitions.",
        show_default=False,
        rich_help_panel="Any group",
    ),
]
BrokerInfo = Annotated[
    bool,
    typer.Option("--broker-info", help="Also print the brokers.", rich_help_panel="Any group"),
]
SocketTimeout = Annotated[
    int | None,
    typer.Option(
        "--socket.timeout.ms",
        metavar="MS",
        min=1,
        help="Time limit of one request. Default: 30000.",
        show_default=False,
        rich_help_panel="Any group",
    ),
]
RetryBackoff = Annotated[
    int | None,
    typer.Option(
        "--retry.backoff.ms",
        metavar="MS",
        min=0,
        help="Pause before a request is retried. Default: 100.",
        show_default=False,
        rich_help_panel="Any group",
    ),
]
Output = Annotated[
    Format | None,
    typer.Option(
        "--format",
        help="table: with seconds. classic: as ConsumerOffsetChecker prints a group. groups:"
        " as kafka-consumer-groups --describe does. json: one object per round, on one line.",
        show_default="table; classic with --group",
    ),
]
Interval = Annotated[
    float,
    typer.Option(metavar="SECONDS", min=0.2, max=86_400, help="Time between two rounds."),
]
MaxLag = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=0,
        help="Exit with 1 if a partition's lag is above N records or unknown, or if a flow or group"
        " shows no partition.",
        show_default=False,
    ),
]
MaxLagSeconds = Annotated[
    float | None,
    typer.Option(
        metavar="S",
        min=0,
        help="Exit with 1 if a record older than S seconds is not mirrored, or if that is unknown,"
        " also because a flow or group shows no partition.",
        show_default=False,
    ),
]


def lag(
    file: File = None,
    consumer_config: ConsumerFile = None,
    flows: Flows = None,
    clusters: Clusters = None,
    include: Include = None,
    group: Group = None,
    zkconnect: ZkConnect = None,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
    topic: Topics = None,
    broker_info: BrokerInfo = False,
    socket_timeout_ms: SocketTimeout = None,
    retry_backoff_ms: RetryBackoff = None,
    output: Output = None,
    json_output: Annotated[bool, typer.Option("--json", help="--format json.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Repeat until Ctrl+C.")] = False,
    interval: Interval = 5.0,
    max_lag: MaxLag = None,
    max_lag_seconds: MaxLagSeconds = None,
) -> None:
    """Show the position and the lag of each source partition.

    For a MirrorMaker 2 file, positions are those of the group __mirror.A->B on the target; for a
    MirrorMaker 1 consumer file, those of its group.id on the source. To show any other group, as
    Kafka's ConsumerOffsetChecker did, use --group G with --zkconnect or --bootstrap-server. Offsets
    are read from Kafka, and from ZooKeeper if one is named. Nothing is changed.

    Without --include, a partition of which MirrorMaker 1 has no offset has a lag of 0 if
    auto.offset.reset is latest: Java commits only partitions from which a record has come.

    SECONDS is the age of the oldest record that is not mirrored yet; BYTES is an estimate. --watch
    also shows the time until the lag is zero, while the lag shrinks.

    Exit codes: 0 no limit exceeded, 1 a limit exceeded or nothing to check it on, 2 wrong usage or
    file, 3 a cluster is unavailable or has no such group.
    """
    if watch and (max_lag is not None or max_lag_seconds is not None):
        raise ConfigError(
            "a limit is checked once, but --watch repeats until Ctrl+C.",
            where="--watch",
            do="Leave out one of the two.",
        )
    if file is not None and consumer_config is not None:
        raise ConfigError(
            "two files are named.", where="--consumer.config", do="Name only one of them."
        )
    file = file or consumer_config
    if json_output:
        output = Format.JSON
    topics = tuple(name.strip() for text in topic or () for name in text.split(",") if name.strip())
    wanted = GroupOptions(
        *(group, zkconnect, bootstrap_server, command_config, topics),
        socket_timeout_ms,
        retry_backoff_ms,
    )
    about_group = wanted.given or broker_info or output in (Format.CLASSIC, Format.GROUPS)
    if output is None:
        output = Format.CLASSIC if about_group else Format.TABLE
    with Connections() as connections:
        if about_group:
            readers = group_readers(file, wanted, include, clusters or flows or (), connections)
        else:
            readers = flow_readers(named(file), clusters or (), flows or (), include, connections)
        if watch:
            _watch(readers, connections, output, interval, brokers=broker_info)
        views, failures = _round(readers, output, brokers=broker_info)
    if failures:
        raise typer.Exit(EXIT_START_FAILED)
    if any_over_limit(views, max_lag, max_lag_seconds):
        raise typer.Exit(1)


def any_over_limit(views: Iterable[LagView], records: int | None, seconds: float | None) -> bool:
    """Whether a lag of ``views`` exceeds a limit; that of a view without partitions is unknown."""
    if records is None and seconds is None:
        return False
    return any(
        not view.partitions or any(over_limit(row, records, seconds) for row in view.partitions)
        for view in views
    )


def over_limit(row: PartitionLag, records: int | None, seconds: float | None) -> bool:
    """Whether the lag of ``row`` exceeds a limit; an unknown lag does."""
    if records is not None and (row.records is None or row.records > records):
        return True
    return seconds is not None and (row.seconds is None or row.seconds > seconds)


def _watch(
    readers: Sequence[LagReader],
    connections: Connections,
    output: Format,
    interval_s: float,
    *,
    brokers: bool,
) -> NoReturn:
    """Repeat rounds until Ctrl+C ends the command."""
    head = _CLEAR if sys.stdout.isatty() else ""
    pace = LagTrend()
    while True:
        _round(readers, output, brokers=brokers, head=head + "%Y-%m-%d %H:%M:%S", pace=pace)
        try:
            time.sleep(interval_s)
        except KeyboardInterrupt:
            raise typer.Exit(EXIT_INTERRUPTED) from None
        connections.again()


def _round(
    readers: Iterable[LagReader],
    output: Format,
    *,
    brokers: bool,
    head: str = "",
    pace: LagTrend | None = None,
) -> tuple[list[LagView], list[MirrorError]]:
    """Read all lags once and print them; ``head``: time format of the line above a table."""
    views, failures = query_each(readers, lambda read: read())
    to_go_s = {} if pace is None else pace.note(views, int(time.monotonic() * 1000))
    _show(views, output, brokers=brokers, head=head, to_go_s=to_go_s)
    show_failures(failures, _kind(output))
    return views, failures


class LagTrend:
    """How fast the lag of each group shrinks from round to round."""

    def __init__(self) -> None:
        self._known: dict[str, CatchUp] = {}

    def note(self, views: Iterable[LagView], now_ms: int) -> dict[str, float]:
        """Add a round; returns seconds until the lag is zero, by group, of groups that catch up."""
        to_go_s: dict[str, float] = {}
        for view in views:
            if view.records is None:
                continue
            pace = self._known.setdefault(view.group, CatchUp())
            pace.note(now_ms, view.records)
            left_s = pace.to_go_s()
            if left_s is not None and (view.seconds or 0.0) >= CATCHING_UP_S:
                to_go_s[view.group] = left_s
        return to_go_s


def _show(
    views: Sequence[LagView],
    output: Format,
    *,
    brokers: bool,
    head: str,
    to_go_s: Mapping[str, float],
) -> None:
    if head and output is not Format.JSON:
        print(time.strftime(head))
    report(views, output, brokers=brokers, to_go_s=to_go_s).show(_kind(output))


def _kind(output: Format) -> tables.Format:
    return tables.Format.JSON if output is Format.JSON else tables.Format.TABLE


def report(
    views: Sequence[LagView],
    output: Format = Format.TABLE,
    *,
    brokers: bool = False,
    to_go_s: Mapping[str, float] | None = None,
) -> Report:
    """The flows or groups with their partitions and totals, one JSON document per round.

    ``to_go_s``: seconds until the lag is zero, by group.
    """
    to_go_s = to_go_s or {}
    body: list[str | Table] = []
    if views and output is not Format.JSON:
        body += _TABLES[output](views)
        body += [
            f"group {group}: caught up in {seconds_text(left_s)}"
            for group, left_s in to_go_s.items()
        ]
        body += broker_lines(views) if brokers else []
    flows = [
        {
            "flow": view.flow,
            "group": view.group,
            "cluster": view.cluster,
            "lag_records": view.records,
            "lag_bytes": view.bytes,
            "lag_seconds_max": view.seconds,
            "to_go_seconds": to_go_s.get(view.group),
            "partitions": [asdict(row) for row in view.partitions],
            "brokers": [asdict(broker) for broker in view.brokers],
        }
        for view in views
    ]
    return Report({"time_ms": int(time.time() * 1000), "flows": flows}, body, one_line=True)


_TABLES: Mapping[Format, Callable[[Sequence[LagView]], Sequence[str | Table]]] = {
    Format.TABLE: flow_tables,
    Format.CLASSIC: classic_table,
    Format.GROUPS: groups_table,
}

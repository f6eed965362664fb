"""``sparkmirror lag``: how far each partition is behind, once or again and again."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparkmirror.cli.errors import EXIT_INTERRUPTED, EXIT_START_FAILED, show_error
from sparkmirror.cli.files import Clusters
from sparkmirror.errors import ConfigError, MirrorError

if TYPE_CHECKING:
    from sparkmirror.control.lag import LagView, PartitionLag

__all__ = ["lag", "over_limit", "table"]

_HEADINGS = ("GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "SECONDS")
# As in kafka-consumer-groups: at least this wide, numbers included.
_WIDTHS = (15, 15, 10, 15, 15, 15, 10)
_CLEAR = "\x1b[H\x1b[2J"

Look = Callable[[], "LagView"]


def lag(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="MirrorMaker 2 file, or MirrorMaker 1's consumer file.",
            show_default=False,
        ),
    ],
    clusters: Clusters = None,
    include: Annotated[
        str | None,
        typer.Option(
            "--include",
            "--whitelist",
            metavar="REGEX",
            help="MirrorMaker 1: the topics of these names, committed or not. Default: what the"
            " group has offsets of.",
            show_default=False,
        ),
    ] = None,
    json_output: Annotated[
        bool, typer.Option("--json", help="One JSON object per round, in one line.")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Look again until Ctrl+C.")] = False,
    interval: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=0.2, max=86_400, help="Time between two looks."),
    ] = 5.0,
    max_lag: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="End with 1 if a partition is more than N records behind, or if nobody knows.",
            show_default=False,
        ),
    ] = None,
    max_lag_seconds: Annotated[
        float | None,
        typer.Option(
            metavar="S",
            min=0,
            help="End with 1 if a record older than S seconds is not mirrored, or if nobody knows.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Show the position of each source partition and how far it is behind.

    For a MirrorMaker 2 file the positions are those of the group __mirror.A->B on the target; for a
    MirrorMaker 1 consumer file those of its group.id on the source. Nothing is changed anywhere.

    SECONDS is the age of the oldest record that is not mirrored yet.

    Exit codes: 0 fine, 1 a limit is passed, 2 wrong usage or file, 3 a cluster could not be asked.
    """
    if watch and (max_lag is not None or max_lag_seconds is not None):
        raise ConfigError(
            "a limit is checked once, --watch goes on for ever.",
            where="--watch",
            do="Leave one of the two out.",
        )
    with ExitStack() as stack:
        looks = _looks(file, clusters or (), include, stack)
        while True:
            views, failures = _round(looks)
            _show(views, json_lines=json_output, watch=watch)
            for failure in failures:
                show_error(failure, json_lines=json_output)
            if not watch:
                break
            try:
                time.sleep(interval)
            except KeyboardInterrupt:
                raise typer.Exit(EXIT_INTERRUPTED) from None
    if failures:
        raise typer.Exit(EXIT_START_FAILED)
    rows = [row for view in views for row in view.partitions]
    if any(over_limit(row, max_lag, max_lag_seconds) for row in rows):
        raise typer.Exit(1)


def over_limit(row: PartitionLag, records: int | None, seconds: float | None) -> bool:
    """Whether ``row`` is behind by more than a limit allows; what is not known is."""
    if records is not None and (row.records is None or row.records > records):
        return True
    return seconds is not None and (row.seconds is None or row.seconds > seconds)


def _looks(
    path: Path, clusters: Sequence[str], include: str | None, stack: ExitStack
) -> list[Look]:
    """One function per flow that asks the clusters; connections close with ``stack``."""
    from sparkmirror.cli.main import split_clusters  # noqa: PLC0415
    from sparkmirror.cli.run import hide_secrets  # noqa: PLC0415
    from sparkmirror.config.mm1 import load_mm1_consumer  # noqa: PLC0415
    from sparkmirror.config.mm2 import load_mm2  # noqa: PLC0415
    from sparkmirror.config.properties import load_properties  # noqa: PLC0415
    from sparkmirror.control.lag import observe_flow, observe_group  # noqa: PLC0415
    from sparkmirror.model import MirrorMode  # noqa: PLC0415
    from sparkmirror.wire.client import Cluster  # noqa: PLC0415

    if "clusters" in load_properties(path):
        if include is not None:
            raise ConfigError(
                "a MirrorMaker 2 file says itself which topics are mirrored.",
                where="--include",
                do="Leave it out; it is for MirrorMaker 1's consumer files.",
            )
        settings = load_mm2(path, clusters=split_clusters(clusters))
    else:
        from sparkmirror.wire.zookeeper import find_brokers  # noqa: PLC0415

        settings = load_mm1_consumer(path, include=include, find_brokers=find_brokers)
    hide_secrets(settings)
    looks: list[Look] = []
    for flow in settings.flows:
        source = Cluster(flow.source)
        stack.callback(source.close)
        if flow.mode is MirrorMode.MM1 and include is None:
            looks.append(partial(observe_group, source, flow))
            continue
        target = source
        if flow.mode is MirrorMode.MM2:
            target = Cluster(flow.target_admin)
            stack.callback(target.close)
        looks.append(partial(observe_flow, source, target, flow))
    return looks


def _round(looks: Iterable[Look]) -> tuple[list[LagView], list[MirrorError]]:
    views, failures = [], []
    for look in looks:
        try:
            views.append(look())
        except MirrorError as error:
            failures.append(error)
    return views, failures


def _show(views: Sequence[LagView], *, json_lines: bool, watch: bool) -> None:
    if json_lines:
        print(json.dumps(document(views, int(time.time() * 1000))), flush=True)
        return
    if watch:
        head = _CLEAR if sys.stdout.isatty() else ""
        print(head + time.strftime("%Y-%m-%d %H:%M:%S"))
    print(table(views), flush=True)


def document(views: Sequence[LagView], time_ms: int) -> dict[str, object]:
    """What ``--json`` prints: the flows with their partitions and totals."""
    flows = []
    for view in views:
        known = [row.records for row in view.partitions if row.records is not None]
        ages = [row.seconds for row in view.partitions if row.seconds is not None]
        flows.append(
            {
                "flow": view.flow,
                "group": view.group,
                "cluster": view.cluster,
                "lag_records": sum(known) if len(known) == len(view.partitions) else None,
                "lag_seconds_max": max(ages, default=None),
                "partitions": [asdict(row) for row in view.partitions],
            }
        )
    return {"time_ms": time_ms, "flows": flows}


def table(views: Sequence[LagView]) -> str:
    """The lines for people, in ``kafka-consumer-groups``'s columns; ``-`` for what is unknown."""
    lines = []
    for view in views:
        rows = [
            (
                view.group, row.topic, str(row.partition), _text(row.position), _text(row.end),
                _text(row.records), "-" if row.seconds is None else f"{row.seconds:.1f}",
            )
            for row in view.partitions
        ]  # fmt: skip
        widths = [
            max(least, *(len(row[column]) for row in [_HEADINGS, *rows]))
            for column, least in enumerate(_WIDTHS)
        ]
        flow = f"{view.flow}: " if view.flow else ""
        lines.append(f"{flow}group {view.group} on {view.cluster}")
        if rows:
            for row, remark in zip(
                [_HEADINGS, *rows], ["", *(one.remark for one in view.partitions)], strict=True
            ):
                cells = [text.ljust(width) for text, width in zip(row, widths, strict=True)]
                lines.append(" ".join([*cells, remark]).rstrip())
        else:
            lines.append("no partitions")
        lines.append("")
    return "\n".join(lines[:-1])


def _text(number: int | None) -> str:
    return "-" if number is None else str(number)

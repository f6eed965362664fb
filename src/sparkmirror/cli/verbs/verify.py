"""``sparkmirror verify``: whether the target holds what the source holds, record by record."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from sparkmirror.cli.shared.connections import Connections
from sparkmirror.cli.shared.errors import EXIT_START_FAILED, show_error
from sparkmirror.cli.shared.settings_options import (
    Clusters,
    Flows,
    TopicFiles,
    load_settings,
    with_files,
)
from sparkmirror.cli.shared.tables import Format, Output
from sparkmirror.errors import ConfigError, MirrorError
from sparkmirror.text import printable, say

if TYPE_CHECKING:
    from sparkmirror.control.verify.scope import Bound, Progress, Scope
    from sparkmirror.model import MirrorSettings
    from sparkmirror.observe.figures.comparison_result import PartitionResult

__all__ = ["bound", "document", "table", "verify"]

_HEADINGS = ("TOPIC", "PARTITION", "SOURCE-RECORDS", "TARGET-RECORDS", "SHA-256", "RESULT")
_DIGEST_SHOWN = 12
_PROGRESS_S = 1.0


@with_files
def verify(
    files: TopicFiles,
    flows: Flows = None,
    clusters: Clusters = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            metavar="REGEX", help="Only these source topics; may be repeated.", show_default=False
        ),
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option(
            metavar="N", min=0, help="Only this partition; may be repeated.", show_default=False
        ),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="WHEN",
            help="Begin at this source offset, or at this time of the records"
            " (2026-01-31T12:00:00Z).",
            show_default=False,
        ),
    ] = None,
    end: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="WHEN",
            help="End before this source offset or time. Default: the present end.",
            show_default=False,
        ),
    ] = None,
    sample: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="Compare N stretches of 1,000 records of each partition instead of everything.",
        ),
    ] = 0,
    wait: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="How long a running mirror may take to reach the present end.",
        ),
    ] = 10.0,
    output: Output = Format.TABLE,
) -> None:
    """Compare each source partition with its copy, record by record.

    Key, value, headers and timestamp must be equal, and the order.

    It works while the mirror runs: the source's end is taken at the start, and what is mirrored
    up to there must be equal. Of compacted topics the last value of each key is compared. Nothing
    is changed anywhere.

    Exit codes: 0 all is equal, 1 a difference (the first differing offset is named) or something
    not mirrored yet, 2 wrong usage or file, 3 a cluster could not be read.
    """
    from sparkmirror.control.verify.scope import Scope  # noqa: PLC0415
    from sparkmirror.names.java_regex import compile_list  # noqa: PLC0415

    compile_list(topic or (), where="--topic")
    scope = Scope(
        topics=tuple(topic or ()),
        partitions=tuple(partition or ()),
        start=None if start is None else bound(start, "--from"),
        end=None if end is None else bound(end, "--to"),
        sample=sample,
        wait_s=wait,
    )
    settings = load_settings(files, clusters or (), flows=flows or ())
    json_lines = output is Format.JSON
    results, failures = _compare(settings, scope)
    if json_lines:
        print(json.dumps(document(results)), flush=True)
    else:
        say(*table(results).split("\n"))
    for failure in failures:
        show_error(failure, json_lines=json_lines)
    if failures:
        raise typer.Exit(EXIT_START_FAILED)
    if not all(one.equal for rows in results.values() for one in rows):
        raise typer.Exit(1)


def bound(text: str, where: str) -> Bound:
    """``--from`` and ``--to``: digits are an offset, the rest a time. Raises ConfigError."""
    from sparkmirror.control.verify.scope import Bound  # noqa: PLC0415

    if text.isascii() and text.isdigit():
        return Bound(offset=int(text))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(
            f"'{text}' is neither an offset nor a time.",
            where=where,
            do="Write an offset (4711) or an ISO 8601 time (2026-01-31T12:00:00Z; without a zone"
            " it is the local time).",
        ) from error
    return Bound(time_ms=int(moment.timestamp() * 1000))


def _compare(
    settings: MirrorSettings, scope: Scope
) -> tuple[dict[str, list[PartitionResult]], list[MirrorError]]:
    from sparkmirror.control.verify.scope import Progress  # noqa: PLC0415
    from sparkmirror.control.verify.verify import verify_flow  # noqa: PLC0415

    results: dict[str, list[PartitionResult]] = {}
    failures: list[MirrorError] = []
    progress = Progress()
    with Connections() as connections:
        for flow in settings.flows:
            connections.expect((flow.source, flow.target_admin))
        for flow in settings.flows:
            try:
                source = connections.cluster(flow.source)
                target = connections.cluster(flow.target_admin)
                with _shown(progress):
                    results[flow.name] = verify_flow(source, target, flow, scope, progress)
            except ConfigError:
                raise
            except MirrorError as error:
                failures.append(error)
    return results, failures


@contextmanager
def _shown(progress: Progress) -> Iterator[None]:
    """A line on a terminal's stderr that is written anew each second, and gone at the end."""
    stream = sys.stderr
    if not stream.isatty():
        yield
        return
    over = threading.Event()

    def show() -> None:
        while not over.wait(_PROGRESS_S):
            stream.write(f"\r\x1b[K{printable(progress_line(progress))}")
            stream.flush()

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        stream.write("\r\x1b[K")
        stream.flush()


def progress_line(progress: Progress) -> str:
    """``1.20 M of about 4.80 M records, 3 of 12 partitions``."""
    from sparkmirror.observe.display.units import count_text  # noqa: PLC0415

    return (
        f"{count_text(progress.taken)} of about {count_text(progress.total)} records, "
        f"{progress.done} of {progress.partitions} partitions"
    )


def document(results: Mapping[str, Sequence[PartitionResult]]) -> dict[str, object]:
    """What ``--format json`` prints."""
    flows = []
    for flow, rows in results.items():
        partitions = [
            {
                "topic": one.topic,
                "partition": one.partition,
                "equal": one.equal,
                "by_key": one.by_key,
                "source": {"records": one.source.records, "sha256": one.source.digest},
                "target": None
                if one.target is None
                else {"records": one.target.records, "sha256": one.target.digest},
                "difference": None
                if one.difference is None
                else {
                    "kind": one.difference.kind,
                    "source_offset": one.difference.source_offset,
                    "target_offset": one.difference.target_offset,
                    "what": one.difference.what,
                },
                "remark": one.remark,
            }
            for one in rows
        ]
        equal = all(one.equal for one in rows)
        flows.append({"flow": flow, "equal": equal, "partitions": partitions})
    return {"flows": flows}


def table(results: Mapping[str, Sequence[PartitionResult]]) -> str:
    """The lines for people."""
    lines = []
    for flow, results_of_flow in results.items():
        rows = [_HEADINGS, *(_row(one) for one in results_of_flow)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS) - 1)]
        lines.append(flow)
        for row in rows:
            cells = [text.ljust(width) for text, width in zip(row, widths, strict=False)]
            lines.append("  ".join([*cells, row[-1]]))
        different = sum(not one.equal for one in results_of_flow)
        records = sum(one.source.records for one in results_of_flow)
        verdict = f"{different} of them differ" if different else "all equal"
        lines.append(f"{len(results_of_flow)} partitions, {records:,} records: {verdict}")
        lines.append("")
    return "\n".join(lines[:-1])


def _row(one: PartitionResult) -> tuple[str, ...]:
    result = "equal" if one.equal else "DIFFERENT"
    if one.difference is not None:
        result = f"{one.difference.kind.upper()}: {one.difference.what}"
    if one.remark:
        result += f" ({one.remark})"
    target = "-" if one.target is None else str(one.target.records)
    digest = one.source.digest[:_DIGEST_SHOWN]
    return (one.topic, str(one.partition), str(one.source.records), target, digest, result)

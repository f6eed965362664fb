"""``sparkmirror verify``: compares source and target record by record."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from sparkmirror.cli.shared.cluster_session import finish
from sparkmirror.cli.shared.connections import Connections
from sparkmirror.cli.shared.errors import EXIT_START_FAILED
from sparkmirror.cli.shared.settings_options import (
    Clusters,
    Flows,
    TopicFiles,
    load_settings,
    with_files,
)
from sparkmirror.cli.shared.tables import UNLIMITED, Columns, Format, Output, Report, Table
from sparkmirror.config.table.setting import java_int
from sparkmirror.errors import ConfigError, MirrorError
from sparkmirror.text import printable

if TYPE_CHECKING:
    from sparkmirror.control.verify.scope import Bound, Progress, Scope
    from sparkmirror.data.transform.compared import ReplayedTopics
    from sparkmirror.observe.figures.comparison_result import PartitionResult, Reading
    from sparkmirror.settings import FlowSettings, MirrorSettings

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
            help="Start at this source offset, or at this record time (2026-01-31T12:00:00Z).",
            show_default=False,
        ),
    ] = None,
    end: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="WHEN",
            help="End before this source offset or record time. Default: the current end.",
            show_default=False,
        ),
    ] = None,
    sample: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="Compare N ranges of 1,000 records of each partition instead of everything.",
        ),
    ] = 0,
    wait: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="How long a running mirror may take to reach the current end.",
        ),
    ] = 10.0,
    output: Output = Format.TABLE,
) -> None:
    """Compare each source partition with its copy, record by record.

    Keys, values, headers, timestamps and order must be equal.

    It works while the mirror runs: it reads the source's end offsets at the start, and all records
    before them must be equal. For compacted topics it compares the last value of each key. Topics
    with a transform are compared with what the SQL makes of the source's records. Nothing is
    changed.

    Exit codes: 0 everything is equal, 1 a difference (the first differing offset is shown), records
    not mirrored yet, or a sample of which nothing could be compared, 2 wrong usage or file, 3 a
    cluster or a partition could not be read.
    """
    from sparkmirror.control.verify.scope import Scope  # noqa: PLC0415
    from sparkmirror.names.java_regex import compile_list  # noqa: PLC0415

    if not math.isfinite(wait):
        raise ConfigError(
            f"'{wait}' is no time to wait for.", where="--wait", do="Write a number of seconds."
        )
    compile_list(topic or (), where="--topic")
    scope = Scope(
        topics=tuple(topic or ()),
        partitions=tuple(partition or ()),
        start=None if start is None else bound(start, "--from"),
        end=None if end is None else bound(end, "--to"),
        sample=sample,
        wait_s=wait,
    )
    _check_order(scope)
    settings = load_settings(files, clusters or (), flows=flows or ())
    results, failures = _compare(settings, scope)
    finish(report(results), output, failures)
    rows = [one for each in results.values() for one in each]
    if any(one.unread for one in rows):
        raise typer.Exit(EXIT_START_FAILED)
    if not all(one.equal for one in rows):
        raise typer.Exit(1)


def _check_order(scope: Scope) -> None:
    """Raise ConfigError if nothing can lie between ``--from`` and ``--to``."""
    start, end = scope.start, scope.end
    if start is None or end is None:
        return
    for first, last in ((start.offset, end.offset), (start.time_ms, end.time_ms)):
        if first is not None and last is not None and first >= last:
            raise ConfigError(
                "it is not before --to, so there is nothing to compare.",
                where="--from",
                do="Write the earlier one as --from.",
            )


def bound(text: str, where: str) -> Bound:
    """Parse ``--from`` or ``--to``: digits are an offset, else a time. Raises ConfigError."""
    from sparkmirror.control.verify.scope import Bound  # noqa: PLC0415

    if text.isascii() and text.isdigit():
        try:
            return Bound(offset=java_int(text, 64))
        except ValueError as error:
            raise ConfigError(
                f"the number is no offset: it {error}.", where=where, do="Write an offset (4711)."
            ) from None
    try:
        time_ms = int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        raise ConfigError(
            f"'{text}' is neither an offset nor a time.",
            where=where,
            do="Write an offset (4711) or an ISO 8601 time (2026-01-31T12:00:00Z; without a zone"
            " it is the local time).",
        ) from error
    return Bound(time_ms=max(0, time_ms))  # below 0, brokers mean the first or the last offset


def _compare(
    settings: MirrorSettings, scope: Scope
) -> tuple[dict[str, list[PartitionResult]], list[MirrorError]]:
    from sparkmirror.control.verify.comparison import verify_flow  # noqa: PLC0415
    from sparkmirror.control.verify.scope import NothingToCompare, Progress  # noqa: PLC0415

    results: dict[str, list[PartitionResult]] = {}
    failures: list[MirrorError] = []
    nothing: list[NothingToCompare] = []
    progress = Progress()
    with Connections() as connections:
        for flow in settings.flows:
            connections.expect((flow.source, flow.target_admin))
        for flow in settings.flows:
            try:
                source = connections.cluster(flow.source)
                target = connections.cluster(flow.target_admin)
                with _transformed(settings, flow) as made, _shown(progress):
                    results[flow.name] = verify_flow(source, target, flow, scope, progress, made)
            except NothingToCompare as error:
                nothing.append(error)
            except ConfigError:
                raise
            except MirrorError as error:
                failures.append(error)
    if nothing and not (results or failures):
        raise nothing[0]
    for one in nothing:
        print(f"{one.where}: nothing is compared: {one.what}", file=sys.stderr)
    return results, failures


@contextmanager
def _transformed(settings: MirrorSettings, flow: FlowSettings) -> Iterator[ReplayedTopics | None]:
    """The flow's transforms; Spark starts when the first of them is needed."""
    if not flow.transforms:
        yield None
        return
    from sparkmirror.data.transform.compared import ReplayedTopics  # noqa: PLC0415
    from sparkmirror.data.transform.replay import open_replay  # noqa: PLC0415

    with ExitStack() as opened:
        yield ReplayedTopics(flow, lambda: opened.enter_context(open_replay(settings, flow)))


@contextmanager
def _shown(progress: Progress) -> Iterator[None]:
    """Show ``progress`` on stderr, if that is a terminal: one line, updated every second."""
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
    """The progress as ``1.20 M of about 4.80 M records, 3 of 12 partitions``."""
    from sparkmirror.observe.display.units import count_text  # noqa: PLC0415

    return (
        f"{count_text(progress.taken)} of about {count_text(progress.total)} records, "
        f"{progress.done} of {progress.partitions} partitions"
    )


def _result(one: PartitionResult) -> str:
    result = "equal" if one.equal else "DIFFERENT"
    if one.difference is not None:
        result = f"{one.difference.kind.upper()}: {one.difference.what}"
    return f"{result} ({one.remark})" if one.remark else result


_COLUMNS: Columns = {
    "TOPIC": "topic",
    "PARTITION": "partition",
    "SOURCE-RECORDS": "source.records",
    "TARGET-RECORDS": lambda one: one.target and one.target.records,
    "SHA-256": lambda one: one.source.digest[:_DIGEST_SHOWN],
    "RESULT": _result,
}


def report(results: Mapping[str, Sequence[PartitionResult]]) -> Report:
    """The partitions of each flow."""
    body: list[str | Table] = []
    flows = []
    for flow, rows in results.items():
        unread = sum(one.unread for one in rows)
        different = sum(not one.equal for one in rows) - unread
        records = sum(one.source.records for one in rows)
        told = [f"{different} of them differ"] if different else []
        told += [f"{unread} could not be read"] if unread else []
        verdict = ", ".join(told) or "all equal"
        body += ["", flow] if body else [flow]
        body.append(Table(_COLUMNS, rows, most=UNLIMITED))
        body.append(f"{len(rows)} partitions, {records:,} records: {verdict}")
        partitions = [_document(one) for one in rows]
        flows.append({"flow": flow, "equal": not told, "partitions": partitions})
    return Report({"flows": flows}, body, one_line=True)


def _document(one: PartitionResult) -> dict[str, object]:
    def side(of: Reading | None) -> dict[str, object] | None:
        return None if of is None else {"records": of.records, "sha256": of.digest}

    return {
        "topic": one.topic,
        "partition": one.partition,
        "equal": one.equal,
        "by_key": one.by_key,
        "source": side(one.source),
        "target": side(one.target),
        "difference": None if one.difference is None else asdict(one.difference),
        "remark": one.remark,
    }

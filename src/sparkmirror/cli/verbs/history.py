"""``sparkmirror history``: what happened to the flows, and when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from sparkmirror.cli.shared.cluster_session import finish, query_targets
from sparkmirror.cli.shared.settings_options import (
    Clusters,
    Files,
    Flows,
    Since,
    since_ms,
    with_files,
)
from sparkmirror.cli.shared.tables import Columns, Format, Output, Report, Table, utc

if TYPE_CHECKING:
    from sparkmirror.internal_topics.history import Event
    from sparkmirror.settings import FlowSettings
    from sparkmirror.wire.admin.cluster import Cluster

_COLUMNS: Columns = {
    "TIME": lambda event: utc(event.time_ms),
    "FLOW": "flow",
    "EVENT": "kind.value",
    "HOST": "host",
    "RUN": "run_id",
    "CODE": "code",
    "WHAT": "text",
}


@with_files
def history(
    files: Files,
    flows: Flows = None,
    clusters: Clusters = None,
    since: Since = "",
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="Only the newest N events.")] = 100,
    output: Output = Format.TABLE,
) -> None:
    """List events: starts, stops, takeovers, partitions that were halted or resumed, gaps.

    Drivers write them to the control topic on the target, with the time of their own clocks. About
    the newest 1,000 events of each flow are kept. Nothing is changed.

    Exit codes: 0 listed (also if there are none), 2 wrong usage or file, 3 a cluster is
    unavailable, or its control topic may not be read.
    """
    import heapq  # noqa: PLC0415

    from sparkmirror.control.report.history import read_history  # noqa: PLC0415

    def query(target: Cluster, flow: FlowSettings) -> tuple[str, list[Event] | None]:
        return flow.name, read_history(target, flow)

    earliest_ms = since_ms(since)
    found, failures = query_targets(files, clusters, flows, query)
    # Of one flow each event stays behind those before it, whatever its host's clock said.
    events = list(heapq.merge(*(of or () for _, of in found), key=lambda one: one.time_ms))
    kept = [one for one in events if one.time_ms >= earliest_ms][-limit:]
    body: list[str | Table] = []
    if kept:
        body.append(Table(_COLUMNS, kept))
    elif not failures:
        body.append("no events since then" if events else "no history")
    report = Report({"events": [_document(one) for one in kept]}, [*body, *_missing(found)])
    finish(report, output, failures)


def _missing(found: Sequence[tuple[str, list[Event] | None]]) -> list[str]:
    """Why some flows have no events."""
    lines = []
    for name, events in found:
        if events is None:
            lines.append(f"{name}: never ran: it has no control topic")
        elif not events:
            lines.append(f"{name}: its control topic is from a release without history")
    return lines


def _document(event: Event) -> dict[str, object]:
    return {
        "time_ms": event.time_ms,
        "flow": event.flow,
        "kind": event.kind.value,
        "text": event.text,
        "code": event.code,
        "run_id": event.run_id,
        "host": event.host,
    }

"""``sparkmirror history``: what happened to the flows, and when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from sparkmirror.cli.shared.cluster_session import ask_each
from sparkmirror.cli.shared.connections import Connections
from sparkmirror.cli.shared.errors import EXIT_START_FAILED, show_error
from sparkmirror.cli.shared.settings_options import (
    Clusters,
    Files,
    Flows,
    Since,
    load_settings,
    since_ms,
    with_files,
)
from sparkmirror.cli.shared.tables import Format, Output, print_json, table_lines, utc
from sparkmirror.text import say

if TYPE_CHECKING:
    from sparkmirror.internal_topics.history import Event
    from sparkmirror.model import FlowSettings

__all__ = ["history"]

_HEADINGS = ("TIME", "FLOW", "EVENT", "HOST", "RUN", "CODE", "WHAT")


@with_files
def history(
    files: Files,
    flows: Flows = None,
    clusters: Clusters = None,
    since: Since = "",
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="Only the newest N events.")] = 100,
    output: Output = Format.TABLE,
) -> None:
    """List what happened: starts, stops, takeovers, partitions that stopped and went on, gaps.

    The drivers keep it in the control topic on the target, about the newest 1,000 events of each
    flow, with their own clocks' times. Nothing is changed anywhere.

    Exit codes: 0 listed (also when there is nothing), 2 wrong usage or file, 3 a cluster could not
    be asked.
    """
    earliest_ms = since_ms(since)
    settings = load_settings(files, clusters or (), listed=False, flows=flows or ())
    with Connections() as connections:
        connections.expect(flow.target_admin for flow in settings.flows)

        def look(flow: FlowSettings) -> tuple[str, list[Event] | None]:
            from sparkmirror.control.report.history import read_history  # noqa: PLC0415

            return flow.name, read_history(connections.cluster(flow.target_admin), flow)

        found, failures = ask_each(settings.flows, look)
    events = sorted((one for _, of in found for one in of or ()), key=lambda one: one.time_ms)
    kept = [one for one in events if one.time_ms >= earliest_ms][-limit:]
    if output is Format.JSON:
        print_json({"events": [_document(one) for one in kept]})
    elif kept:
        say(*table_lines(_HEADINGS, [_row(one) for one in kept]))
    elif not failures:
        say("nothing happened in that time" if events else "no history")
    for failure in failures:
        show_error(failure, json_lines=output is Format.JSON)
    missing = _missing(found)
    if missing and output is not Format.JSON:
        say(*missing)
    if failures:
        raise typer.Exit(EXIT_START_FAILED)


def _missing(found: Sequence[tuple[str, list[Event] | None]]) -> list[str]:
    """Why there is nothing of some flows."""
    lines = []
    for name, events in found:
        if events is None:
            lines.append(f"{name}: never ran: there is no control topic")
        elif not events:
            lines.append(f"{name}: its control topic is of a release that kept no history")
    return lines


def _row(event: Event) -> tuple[str, ...]:
    at = utc(event.time_ms)
    return at, event.flow, event.kind.value, event.host, event.run_id, event.code, event.text


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

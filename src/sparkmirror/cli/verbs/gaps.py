"""``sparkmirror gaps``: the source offsets that did not reach the target, and why."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

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
from sparkmirror.cli.shared.tables import Format, Output, table_lines, utc
from sparkmirror.errors import MirrorError
from sparkmirror.text import say

if TYPE_CHECKING:
    from sparkmirror.internal_topics.gaps import Gap
    from sparkmirror.model import MirrorSettings

__all__ = ["gaps", "table"]

_HEADINGS = (
    "TIME", "FLOW", "TOPIC", "PARTITION", "KIND", "ACTION", "FIRST", "LAST", "COUNT", "RESUMED-AT",
    "REASON",
)  # fmt: skip


@with_files
def gaps(
    files: Files,
    flows: Flows = None,
    clusters: Clusters = None,
    since: Since = "",
    output: Output = Format.TABLE,
) -> None:
    """List the gap records: source offsets that did not reach the target as they were.

    Each one says what happened (deleted before it was mirrored, topic made anew, log truncated,
    cluster replaced, record refused by the target), which offsets of which partition it hit, and
    what the mirror did. They are kept on the target. Nothing is changed anywhere.

    Exit codes: 0 listed (also when there are none), 2 wrong usage or file, 3 a cluster could not
    be asked.
    """
    earliest_ms = since_ms(since)
    settings = load_settings(files, clusters or (), listed=False, flows=flows or ())
    found, failures = _read(settings)
    kept = [gap for gap in found if gap.time_ms >= earliest_ms]
    if output is Format.JSON:
        from sparkmirror.internal_topics.gaps import gap_document  # noqa: PLC0415

        print(json.dumps({"gaps": [gap_document(gap) for gap in kept]}))
    elif kept or not failures:
        say(*table(kept).split("\n"))
    for failure in failures:
        show_error(failure, json_lines=output is Format.JSON)
    if failures:
        raise typer.Exit(EXIT_START_FAILED)


def _read(settings: MirrorSettings) -> tuple[list[Gap], list[MirrorError]]:
    from sparkmirror.control.report.gaps import read_gaps  # noqa: PLC0415

    with Connections() as connections:
        connections.expect(flow.target_admin for flow in settings.flows)
        found, failures = ask_each(
            settings.flows,
            lambda flow: read_gaps(connections.cluster(flow.target_admin), flow),
        )
    gaps = [gap for of_flow in found for gap in of_flow]
    return sorted(gaps, key=lambda gap: gap.time_ms), failures


def table(found: Sequence[Gap]) -> str:
    """The lines for people; ``-`` for what is unknown."""
    if not found:
        return "no gaps"
    rows = [
        (
            utc(gap.time_ms), gap.flow, gap.source.topic, gap.source.partition,
            gap.kind.value, gap.action.value, gap.first, gap.last, gap.count,
            gap.resumed_at, gap.reason,
        )
        for gap in found
    ]  # fmt: skip
    return "\n".join(table_lines(_HEADINGS, rows))

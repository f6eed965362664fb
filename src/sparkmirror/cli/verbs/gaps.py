"""``sparkmirror gaps``: the source offsets that did not reach the target, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

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
    from sparkmirror.internal_topics.gaps import Gap

_COLUMNS: Columns = {
    "TIME": lambda gap: utc(gap.time_ms),
    "FLOW": "flow",
    "TOPIC": "source.topic",
    "PARTITION": "source.partition",
    "KIND": "kind.value",
    "ACTION": "action.value",
    "FIRST": "first",
    "LAST": "last",
    "COUNT": "count",
    "RESUMED-AT": "resumed_at",
    "REASON": "reason",
}


@with_files
def gaps(
    files: Files,
    flows: Flows = None,
    clusters: Clusters = None,
    since: Since = "",
    output: Output = Format.TABLE,
) -> None:
    """List the gap records: source offsets that did not reach the target unchanged.

    Each record says what happened (deleted before it was mirrored, topic recreated, log truncated,
    cluster replaced, record refused by the target), which offsets of which partition it concerns,
    and what the mirror did. Gap records are kept on the target. Nothing is changed.

    Exit codes: 0 listed (also if there are none), 2 wrong usage or file, 3 a cluster is
    unavailable, or its gap records may not be read.
    """
    from sparkmirror.control.report.gaps import read_gaps  # noqa: PLC0415

    earliest_ms = since_ms(since)
    found, failures = query_targets(files, clusters, flows, read_gaps)
    kept = [gap for of_flow in found for gap in of_flow if gap.time_ms >= earliest_ms]
    finish(report(kept, complete=not failures), output, failures)


def report(gaps: Sequence[Gap], *, complete: bool = True) -> Report:
    """``gaps`` in order of time. ``complete``: no flow's gaps are missing."""
    from sparkmirror.internal_topics.gaps import gap_document  # noqa: PLC0415

    rows = sorted(gaps, key=lambda gap: gap.time_ms)
    nothing = ["no gaps"] if complete else []
    document = {"gaps": [gap_document(gap) for gap in rows]}
    return Report(document, [Table(_COLUMNS, rows)] if rows else nothing, one_line=True)

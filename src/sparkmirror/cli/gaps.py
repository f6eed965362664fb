"""``sparkmirror gaps``: the source offsets that did not reach the target, and why."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from sparkmirror.cli.asking import ask_each
from sparkmirror.cli.connections import Connections
from sparkmirror.cli.errors import EXIT_START_FAILED, show_error
from sparkmirror.cli.files import Clusters, Files, Flows, load_settings, with_files
from sparkmirror.cli.tables import Format, Output
from sparkmirror.errors import ConfigError, MirrorError
from sparkmirror.text import say

if TYPE_CHECKING:
    from sparkmirror.model import MirrorSettings
    from sparkmirror.wire.gaps import Gap

__all__ = ["gaps", "since_ms", "table"]

_HEADINGS = (
    "TIME", "FLOW", "TOPIC", "PARTITION", "KIND", "ACTION", "FIRST", "LAST", "COUNT", "RESUMED-AT",
    "REASON",
)  # fmt: skip
_DURATION = re.compile(r"(\d{1,9})\s*([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


@with_files
def gaps(
    files: Files,
    flows: Flows = None,
    clusters: Clusters = None,
    since: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="Only what happened since then: a duration before now (90s, 15m, 2h, 7d), or a"
            " date with or without time in ISO 8601 (of this machine's zone where it names none).",
            show_default=False,
        ),
    ] = "",
    output: Output = Format.TABLE,
) -> None:
    """List the gap records: source offsets that did not reach the target as they were.

    Each one says what happened (deleted before it was mirrored, topic made anew, log truncated,
    cluster replaced, record refused by the target), which offsets of which partition it hit, and
    what the mirror did. They are kept on the target. Nothing is changed anywhere.

    Exit codes: 0 listed (also when there are none), 2 wrong usage or file, 3 a cluster could not
    be asked.
    """
    earliest_ms = since_ms(since, time.time()) if since else 0
    settings = load_settings(files, clusters or (), listed=False, flows=flows or ())
    found, failures = _read(settings)
    kept = [gap for gap in found if gap.time_ms >= earliest_ms]
    if output is Format.JSON:
        from sparkmirror.wire.gaps import gap_document  # noqa: PLC0415

        print(json.dumps({"gaps": [gap_document(gap) for gap in kept]}))
    elif kept or not failures:
        say(*table(kept).split("\n"))
    for failure in failures:
        show_error(failure, json_lines=output is Format.JSON)
    if failures:
        raise typer.Exit(EXIT_START_FAILED)


def since_ms(text: str, now_s: float) -> int:
    """Epoch milliseconds that ``--since`` means. Raises `ConfigError`."""
    match = _DURATION.fullmatch(text.strip())
    if match is not None:
        return int((now_s - int(match[1]) * _SECONDS[match[2]]) * 1000)
    try:
        return int(datetime.fromisoformat(text.strip()).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise ConfigError(
            f"'{text}' is neither a duration nor a date.",
            where="--since",
            do="Write 15m, 2h or 7d, or a date like 2026-01-31 or 2026-01-31T12:00:00Z.",
        ) from None


def _read(settings: MirrorSettings) -> tuple[list[Gap], list[MirrorError]]:
    from sparkmirror.control.gaps import read_gaps  # noqa: PLC0415

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
            _time(gap.time_ms), gap.flow, gap.source.topic, str(gap.source.partition),
            gap.kind.value, gap.action.value, str(gap.first), _text(gap.last), _text(gap.count),
            _text(gap.resumed_at), gap.reason,
        )
        for gap in found
    ]  # fmt: skip
    lines = [_HEADINGS, *rows]
    widths = [max(len(row[column]) for row in lines) for column in range(len(_HEADINGS))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in lines
    )


def _time(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _text(number: int | None) -> str:
    return "-" if number is None else str(number)

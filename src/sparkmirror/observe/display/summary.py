"""The summary table at the end of a run, per flow and topic."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from sparkmirror.observe.display.units import clock_text, count_text, plural, size_text
from sparkmirror.observe.figures.meter import FlowView

__all__ = ["halt_lines", "summary_table"]

TOPIC_ROWS_MAX = 40
HALT_LINES_MAX = 20


def summary_table(views: Sequence[FlowView], run_s: float) -> Table:
    """One row per flow, followed by its topics: records, bytes, mean rate of the run, halted."""
    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"mirrored in {clock_text(run_s)}",
        title_justify="left",
        title_style="bold",
        pad_edge=False,
        show_edge=False,
    )
    table.add_column("flow / topic", overflow="fold")
    for heading in ("partitions", "records", "data", "seconds", "records/s", "halted"):
        table.add_column(heading, justify="right", no_wrap=True)
    for view in views:
        table.add_row(
            Text(view.flow, style="bold"),
            f"{view.partitions:,}",
            f"{view.records:,}",
            size_text(view.bytes),
            f"{run_s:,.1f}",
            _mean_rate(view.records, run_s),
            _halted_text(len(view.halted)),
        )
        busiest = sorted(view.topics, key=lambda row: (-row.records, row.topic))
        for row in busiest[:TOPIC_ROWS_MAX]:
            table.add_row(
                Text(f"  {row.topic}"),
                f"{row.partitions:,}",
                f"{row.records:,}",
                size_text(row.bytes),
                "",
                _mean_rate(row.records, run_s),
                _halted_text(row.halted),
            )
        hidden = len(busiest) - TOPIC_ROWS_MAX
        if hidden > 0:
            table.add_row(Text(f"  … and {plural(hidden, 'topic')} more", style="dim"))
    return table


def halt_lines(view: FlowView, limit: int = HALT_LINES_MAX) -> list[str]:
    """``topic-partition: CODE: reason`` for at most ``limit`` halted partitions, and a count."""
    lines = [f"{key}: {halt.code}: {halt.reason}" for key, halt in view.halted.items()]
    if len(lines) > limit:
        hidden = len(lines) - limit
        lines = [*lines[:limit], f"… and {plural(hidden, 'partition')} more"]
    return lines


def _mean_rate(records: int, run_s: float) -> str:
    return count_text(records / run_s) if run_s > 0 else "–"


def _halted_text(n: int) -> Text:
    return Text(f"{n:,}", style="bold red" if n else "")

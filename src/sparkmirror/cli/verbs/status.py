"""``sparkmirror status``: what runs, where it stands, what stands still; from any machine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import typer

from sparkmirror.cli.shared.cluster_session import ask_each
from sparkmirror.cli.shared.connections import Connections
from sparkmirror.cli.shared.errors import EXIT_START_FAILED, show_error
from sparkmirror.cli.shared.settings_options import (
    Clusters,
    Files,
    Flows,
    load_settings,
    with_files,
)
from sparkmirror.cli.shared.tables import Format, Output, print_json, table_lines
from sparkmirror.errors import MirrorError
from sparkmirror.model import FlowSettings, MirrorMode
from sparkmirror.observe.display.units import seconds_text
from sparkmirror.text import say

if TYPE_CHECKING:
    from sparkmirror.control.coordination.status import FlowStatus
    from sparkmirror.control.positions.lag import LagView

__all__ = ["status"]

_FLOW = (
    "FLOW", "STATE", "SLOTS", "PARTITIONS", "HALTED", "LAG", "SECONDS", "BYTES", "TO-GO",
    "LAST-REPORT", "HOST",
)  # fmt: skip
_SLOT = ("FLOW", "SLOT", "EPOCH", "PARTITIONS", "RECORDS", "ERRORS", "LAST-REPORT", "WORKER")

_STANDBY = ("FLOW", "STANDBY", "RUN", "FILE", "LAST-REPORT")


@dataclass(frozen=True, slots=True)
class _Row:
    flow: FlowStatus
    lag: LagView | None
    looked_ms: int


@with_files
def status(
    files: Files,
    flows: Flows = None,
    clusters: Clusters = None,
    output: Output = Format.TABLE,
) -> None:
    """Show the flows of FILE: state, slots, lag, partitions that stand still, last report.

    It reads the control topic on the target clusters and, for the lag, the source's end offsets;
    nothing is changed. The mirror may run on any machine.

    Exit codes: 0 every flow is served and nothing stands still, 1 otherwise, 2 wrong usage or file,
    3 a cluster does not answer.
    """
    settings = load_settings(files, clusters or (), listed=False, flows=flows or ())
    with Connections() as connections:
        for flow in settings.flows:
            connections.expect((flow.target_admin, flow.source))
        rows, failures = ask_each(settings.flows, partial(_look, connections))
    for failure in {str(one): one for one in failures}.values():
        show_error(failure, json_lines=output is Format.JSON)
    if output is Format.JSON:
        print_json({"flows": [_document(row) for row in rows]})
    else:
        say(*_text(rows).split("\n"))
    if failures:
        raise typer.Exit(EXIT_START_FAILED)
    if any(not row.flow.state.alive or row.flow.halts for row in rows):
        raise typer.Exit(1)


def _look(connections: Connections, flow: FlowSettings) -> _Row:
    """What the target says; the lag only if the source answers, too. Raises `MirrorError`."""
    from sparkmirror.control.coordination.status import observe_status  # noqa: PLC0415
    from sparkmirror.control.positions.lag import observe_flow, observe_group  # noqa: PLC0415

    target = connections.cluster(flow.target_admin)
    now_ms = int(time.time() * 1_000)
    found = observe_status(target, flow, now_ms)
    lag = None
    try:
        source = connections.cluster(flow.source)
        if flow.mode is MirrorMode.MM1:
            lag = observe_group(source, flow)
        else:
            lag = observe_flow(source, target, flow)
    except MirrorError as error:
        show_error(error)
    return _Row(found, lag, now_ms)


def _document(row: _Row) -> dict[str, object]:
    flow = row.flow
    positions = {} if row.lag is None else {(p.topic, p.partition): p for p in row.lag.partitions}
    return {
        "flow": flow.flow,
        "state": flow.state.value,
        "alive": flow.state.alive,
        "paused": flow.paused,
        "run_id": flow.run_id,
        "host": flow.host,
        "version": flow.version,
        "standbys": [
            {
                "run_id": one.run_id,
                "host": one.host,
                "version": one.version,
                "file": one.file,
                "report_age_s": max(0.0, (row.looked_ms - one.time_ms) / 1_000),
            }
            for one in flow.standbys
        ],
        "started_ms": flow.started_ms or None,
        "report_age_s": flow.report_age_s,
        "partitions": flow.partitions,
        "lag_records": None if row.lag is None else row.lag.records,
        "lag_bytes": None if row.lag is None else row.lag.bytes,
        "lag_seconds": None if row.lag is None else row.lag.seconds,
        "to_go_seconds": flow.to_go_s,
        "slots": [
            {
                "slot": slot.slot,
                "epoch": slot.epoch,
                "worker": slot.worker,
                "report_age_s": max(0.0, (row.looked_ms - slot.time_ms) / 1_000),
                "records": slot.records,
                "bytes": slot.bytes,
                "errors": dict(sorted(slot.errors.items())),
                "partitions": [
                    {
                        "topic": p.topic,
                        "partition": p.partition,
                        "position": p.position if p.position >= 0 else None,
                        "lag_records": _lag_of(positions.get((p.topic, p.partition))),
                    }
                    for p in slot.partitions
                ],
            }
            for slot in flow.slots
        ],
        "halted": [
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "code": halt.code,
                "reason": halt.reason,
                "retriable": halt.retriable,
            }
            for tp, halt in flow.halts.items()
        ],
    }


def _lag_cells(lag: LagView | None) -> tuple[object, object, object]:
    """Records, seconds, bytes."""
    if lag is None:
        return None, None, None
    return lag.records, None if lag.seconds is None else round(lag.seconds, 1), lag.bytes


def _lag_of(position: object) -> int | None:
    return getattr(position, "records", None)


def _text(rows: Sequence[_Row]) -> str:
    flows = [
        (
            row.flow.flow,
            row.flow.told,
            str(len(row.flow.slots) if row.flow.state.alive else 0),
            str(row.flow.partitions),
            str(len(row.flow.halts)),
            *_lag_cells(row.lag),
            None if row.flow.to_go_s is None else seconds_text(row.flow.to_go_s),
            _ago(row.flow.report_age_s),
            row.flow.host,
        )
        for row in rows
    ]
    lines = table_lines(_FLOW, flows)
    standbys = [
        (
            row.flow.flow,
            one.host,
            one.run_id,
            one.file,
            _ago(max(0.0, (row.looked_ms - one.time_ms) / 1_000)),
        )
        for row in rows
        for one in row.flow.standbys
    ]
    if standbys:
        lines += ["", *table_lines(_STANDBY, standbys)]
    slots = [
        (
            row.flow.flow,
            str(slot.slot),
            str(slot.epoch),
            str(len(slot.partitions)),
            str(slot.records),
            str(sum(slot.errors.values())),
            _ago(max(0.0, (row.looked_ms - slot.time_ms) / 1_000)),
            slot.worker,
        )
        for row in rows
        if row.flow.state.alive
        for slot in row.flow.slots
    ]
    if slots:
        lines += ["", *table_lines(_SLOT, slots)]
    for row in rows:
        for tp, halt in row.flow.halts.items():
            again = " (tried again)" if halt.retriable else ""
            lines += ["", f"{row.flow.flow} {tp} stands still: {halt.code}: {halt.reason}{again}"]
    return "\n".join(lines)


def _ago(seconds: float | None) -> str | None:
    return None if seconds is None else f"{seconds:.0f} s ago"

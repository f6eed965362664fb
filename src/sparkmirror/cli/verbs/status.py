"""``sparkmirror status``: state, slots, lag and halted partitions of each flow."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparkmirror.cli.shared.cluster_session import query_each, show_failures
from sparkmirror.cli.shared.connections import Connections
from sparkmirror.cli.shared.errors import EXIT_START_FAILED
from sparkmirror.cli.shared.settings_options import (
    Clusters,
    Files,
    Flows,
    load_settings,
    with_files,
)
from sparkmirror.cli.shared.tables import Columns, Format, Output, Report, Table
from sparkmirror.cli.shared.throttling import THROTTLES, throttle_document
from sparkmirror.errors import Denied, MirrorError
from sparkmirror.model import MirrorMode
from sparkmirror.observe.display.units import seconds_text
from sparkmirror.progress import SlotLoad, SlotProgress
from sparkmirror.settings import FlowSettings

if TYPE_CHECKING:
    from sparkmirror.control.coordination.status import FlowStatus
    from sparkmirror.control.positions.lag import LagView
    from sparkmirror.internal_topics.deals.record import DealRecord


@dataclass(frozen=True, slots=True)
class _Row:
    flow: FlowStatus
    lag: LagView | None
    observed_ms: int
    unread: MirrorError | None = None
    """Why there is no lag."""
    failed: bool = False
    """Whether that is more than a right that `status` can do without."""

    @property
    def slots(self) -> tuple[SlotProgress, ...]:
        """The slots that report now."""
        return self.flow.slots if self.flow.state.alive else ()

    @property
    def shown(self) -> tuple[SlotProgress, ...]:
        """The slots that report now, then those that should."""
        return (*self.slots, *self.flow.silent)

    def load(self, slot: SlotProgress) -> SlotLoad | None:
        """The load of ``slot`` by its driver; None if it has not reported it."""
        return self.flow.loads.get((slot.run_id, slot.slot))

    def age_s(self, time_ms: int) -> float:
        """Age of ``time_ms`` when the status was read."""
        return max(0.0, (self.observed_ms - time_ms) / 1_000)


# Columns of flows (a row), of standbys (row, standby), tables (row, table) and slots (row, slot).
_FLOW: Columns = {
    "FLOW": "flow.flow",
    "STATE": "flow.description",
    "SLOTS": lambda row: len(row.slots),
    "PARTITIONS": "flow.partitions",
    "HALTED": lambda row: len(row.flow.halts),
    "LAG": lambda row: row.lag and row.lag.records,
    "SECONDS": lambda row: row.lag and _rounded(row.lag.seconds),
    "BYTES": lambda row: row.lag and row.lag.bytes,
    "TO-GO": lambda row: None if row.flow.to_go_s is None else seconds_text(row.flow.to_go_s),
    "LAST-REPORT": lambda row: _ago(row.flow.report_age_s),
    "HOST": "flow.host",
}
_STANDBY: Columns = {
    "FLOW": lambda of: of[0].flow.flow,
    "STANDBY": lambda of: of[1].host,
    "RUN": lambda of: of[1].run_id,
    "FILE": lambda of: of[1].file,
    "LAST-REPORT": lambda of: _ago(of[0].age_s(of[1].time_ms)),
}
_TABLE: Columns = {
    "FLOW": lambda of: of[0].flow.flow,
    "TABLE": lambda of: of[1].name,
    "ROWS": lambda of: of[1].rows,
    "READ": lambda of: _ago(of[0].age_s(of[1].read_ms)),
    "FAULT": lambda of: of[1].fault,
}
_SLOT: Columns = {
    "FLOW": lambda of: of[0].flow.flow,
    "SLOT": lambda of: of[1].slot,
    "EPOCH": lambda of: of[1].epoch,
    "PARTITIONS": lambda of: len(of[1].partitions),
    "RECORDS": lambda of: of[1].records,
    "ERRORS": lambda of: sum(of[1].errors.values()),
    "LAST-REPORT": lambda of: _ago(of[0].age_s(of[1].time_ms)),
    "WORKER": lambda of: of[1].worker,
}
# With --slots: of slots (row, slot) and of moves (row, deal, move).
_DEALT_SLOT: Columns = {
    "FLOW": lambda of: of[0].flow.flow,
    "SLOT": lambda of: of[1].slot,
    "HOST": lambda of: _host(of[1]),
    "PARTITIONS": lambda of: len(of[1].partitions),
    "BYTES/S": lambda of: _of_load(of, "bytes_s"),
    "BACKLOG": lambda of: _of_load(of, "backlog_bytes"),
    "WEIGHT": lambda of: _of_load(of, "weight"),
    "APART": lambda of: "far behind" if _of_load(of, "apart") else None,
    "LEADERS": lambda of: ",".join(map(str, _of_load(of, "leaders") or ())) or None,
}
_MOVE: Columns = {
    "FLOW": lambda of: of[0].flow.flow,
    "MOVED": lambda of: _ago(of[0].age_s(of[1].time_ms)),
    "PARTITION": lambda of: str(of[2].tp),
    "FROM": lambda of: of[2].before,
    "TO": lambda of: of[2].after,
    "REASON": lambda of: of[2].reason,
}


def _host(slot: SlotProgress) -> str:
    return slot.worker.partition(":")[0]


def _of_load(of: tuple[_Row, SlotProgress], name: str) -> Any:
    row, slot = of
    return getattr(row.load(slot), name, None)


@with_files
def status(
    files: Files,
    flows: Flows = None,
    clusters: Clusters = None,
    slots: Annotated[
        bool,
        typer.Option("--slots", help="What each slot has to do, and what the last deal moved."),
    ] = False,
    output: Output = Format.TABLE,
) -> None:
    """Show the flows of FILE: state, slots, lag, halted partitions, last report.

    It reads the control topic on the target clusters and, for the lag, the source's end offsets.
    Nothing is changed. The mirror may run on any machine. JSON always has what --slots shows.

    Exit codes: 0 every flow runs, each of its slots reports and no partition is halted, 1
    otherwise, 2 wrong usage or file, 3 a cluster does not respond, or refuses this client.
    """
    settings = load_settings(files, clusters or (), listed=False, flows=flows or ())
    with Connections() as connections:
        for flow in settings.flows:
            connections.expect((flow.target_admin, flow.source))
        rows, failures = query_each(settings.flows, partial(_observe, connections))
    unread = [row.unread for row in rows if row.unread is not None]
    show_failures([*failures, *unread], output)
    _report(rows, deals=slots).show(output)
    if failures or any(row.failed for row in rows):
        raise typer.Exit(EXIT_START_FAILED)
    if any(
        not row.flow.state.alive or row.flow.halts or row.flow.silent or row.flow.not_begun
        for row in rows
    ):
        raise typer.Exit(1)


def _observe(connections: Connections, flow: FlowSettings) -> _Row:
    """The flow's status from the target; lag only if it can be read. Raises `MirrorError`."""
    from sparkmirror.control.coordination.status import observe_status  # noqa: PLC0415
    from sparkmirror.control.positions.lag import observe_flow, observe_group  # noqa: PLC0415

    target = connections.cluster(flow.target_admin)
    now_ms = int(time.time() * 1_000)
    found = observe_status(target, flow, now_ms)
    lag = unread = None
    failed = False
    try:
        source = connections.cluster(flow.source)
        if flow.mode is MirrorMode.MM1:
            group = observe_group(source, flow)
            lag = group if group.partitions else None  # nothing of what is there is committed
        else:
            lag = observe_flow(source, target, flow)
    except MirrorError as error:
        unread = error
        # An operator needs only Read on the control topic, and no right on the flow's group.
        at_target = error.where == f"cluster {flow.target_admin.alias}"
        failed = not (isinstance(error, Denied) and at_target)
    return _Row(found, lag, now_ms, unread, failed)


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
                "report_age_s": row.age_s(one.time_ms),
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
        "throttles": [throttle_document(state) for state in flow.throttles or ()],
        "tables": [
            {
                "table": one.name,
                "rows": one.rows,
                "read_ms": one.read_ms,
                "took_ms": one.took_ms,
                "fault": one.fault or None,
            }
            for one in flow.tables or ()
        ],
        "slots": [
            {
                "slot": slot.slot,
                "epoch": slot.epoch,
                "worker": slot.worker,
                **_dealt(row, slot),
                "report_age_s": row.age_s(slot.time_ms),
                "silent": slot in flow.silent,
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
            for slot in (*flow.slots, *flow.silent)
        ],
        "slots_not_begun": list(flow.not_begun),
        "deals": [_deal_document(deal) for deal in flow.deals],
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


def _lag_of(position: object) -> int | None:
    return getattr(position, "records", None)


def _dealt(row: _Row, slot: SlotProgress) -> dict[str, object]:
    load = row.load(slot)
    if load is None:
        return {"host": _host(slot), "weight": None}
    return {
        "host": _host(slot),
        "weight": load.weight,
        "bytes_per_second": load.bytes_s,
        "backlog_bytes": load.backlog_bytes,
        "apart": load.apart,
        "leaders": list(load.leaders),
        "speed": load.speed,
    }


def _deal_document(deal: DealRecord) -> dict[str, object]:
    return {
        "run_id": deal.run_id,
        "number": deal.number,
        "time_ms": deal.time_ms,
        "moved": deal.moved,
        "moves": [
            {
                "topic": move.tp.topic,
                "partition": move.tp.partition,
                "from_slot": move.before,
                "to_slot": move.after,
                "reason": move.reason,
            }
            for move in deal.deal.moves
        ],
    }


def _report(rows: Sequence[_Row], *, deals: bool = False) -> Report:
    body: list[str | Table] = [Table(_FLOW, rows)]
    standbys = [(row, one) for row in rows for one in row.flow.standbys]
    slots = [(row, slot) for row in rows for slot in row.shown]
    made = [(row, deal) for row in rows if deals for deal in row.flow.deals]
    moves = [(row, deal, move) for row, deal in made for move in deal.deal.moves]
    limits = [
        (row.flow.flow, state)
        for row in rows
        if row.flow.state.alive
        for state in row.flow.throttles or ()
    ]
    found_tables = [
        (row, one) for row in rows if row.flow.state.alive for one in row.flow.tables or ()
    ]
    tables = (
        (_STANDBY, standbys), (THROTTLES, limits), (_TABLE, found_tables),
        (_DEALT_SLOT if deals else _SLOT, slots), (_MOVE, moves),
    )  # fmt: skip
    columns: Columns
    found: Sequence[object]
    for columns, found in tables:
        if found:
            body += ["", Table(columns, found)]
    for row in rows:
        for slot in row.flow.silent:
            since = f"not reported for {row.age_s(slot.time_ms):.0f} s"
            if slot.ended_ms:
                since = f"not begun epoch {slot.epoch + 1}, and {since}"
            where = f"check its Spark executor on {_host(slot)}"
            body += ["", f"{row.flow.flow} slot {slot.slot} has {since}: {where}"]
        if row.flow.not_begun:
            numbers = ", ".join(map(str, row.flow.not_begun))
            slots_of = f"{row.flow.flow} slot{'s' if len(row.flow.not_begun) > 1 else ''} {numbers}"
            where = f"see the log of the run on {row.flow.host}, and Spark's executors"
            body += ["", f"{slots_of} should have begun more than 2 minutes ago: {where}"]
        for tp, halt in row.flow.halts.items():
            again = " (retrying)" if halt.retriable else ""
            body += ["", f"{row.flow.flow} {tp} is halted: {halt.code}: {halt.reason}{again}"]
    return Report({"flows": [_document(row) for row in rows]}, body)


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)


def _ago(seconds: float | None) -> str | None:
    return None if seconds is None else f"{seconds:.0f} s ago"

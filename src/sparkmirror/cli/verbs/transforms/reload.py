"""``sparkmirror transform reload``: orders a running mirror to read its static tables again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from sparkmirror.cli.shared.connections import Connections
from sparkmirror.cli.shared.errors import EXIT_START_FAILED, show_error
from sparkmirror.cli.shared.settings_options import (
    Files,
    Flows,
    Mm2File,
    choose_flows,
    load_settings,
)
from sparkmirror.cli.shared.tables import utc
from sparkmirror.cli.shared.throttling import await_order, check_orders_topic, unconfirmed
from sparkmirror.errors import ConfigError, MirrorError
from sparkmirror.text import echo

if TYPE_CHECKING:
    from sparkmirror.internal_topics.tables import TableState
    from sparkmirror.settings import FlowSettings
    from sparkmirror.wire.admin.cluster import Cluster


def reload(
    file: Mm2File,
    flows: Flows = None,
    table: Annotated[
        str,
        typer.Option(metavar="NAME", help="Only this table.", show_default="all of the flow"),
    ] = "",
    wait_s: Annotated[
        float,
        typer.Option(
            "--wait",
            metavar="SECONDS",
            min=0,
            help="Wait at most this long until it is done; 0 does not wait.",
        ),
    ] = 60.0,
) -> None:
    """Order the mirror of FILE to read the static tables of its transforms again.

    When the command has ended with 0, all records that are read from then on see the new rows. A
    table that cannot be read, or has other columns than before, keeps its old rows. The command
    works on any machine that can connect to the target clusters; the mirror reads the files.

    Exit codes: 0 done, 1 not done in time or a table kept its old rows, 2 wrong usage or file,
    3 a cluster does not respond.
    """
    chosen = with_table(choose_flows(load_settings(Files(file)), flows or ()), table)
    good, away = True, False
    with Connections() as connections:
        connections.expect(flow.target_admin for flow in chosen)
        for flow in chosen:
            try:
                said, done = _give(connections.cluster(flow.target_admin), flow, table, wait_s)
            except MirrorError as error:
                show_error(error)
                away = True
                continue
            good &= done
            for line in said:
                echo(f"{flow.name}: {line}")
    raise typer.Exit(EXIT_START_FAILED if away else 0 if good else 1)


def with_table(flows: Sequence[FlowSettings], table: str) -> list[FlowSettings]:
    """Those of ``flows`` that have ``table``; empty: that have any. Raises ConfigError for none."""
    names = {flow.name: _tables(flow) for flow in flows}
    found = [flow for flow in flows if names[flow.name] and table in {"", *names[flow.name]}]
    if found:
        return found
    known = sorted({name for each in names.values() for name in each})
    if not known:
        raise ConfigError(
            f"no transform of {', '.join(names)} has a table.",
            where="FILE",
            do="Set sparkmirror.transform.NAME.tables in the file.",
        )
    raise ConfigError(
        f"no transform of {', '.join(names)} has a table {table}.",
        where="--table",
        do=f"Choose from: {', '.join(known)}.",
    )


def _tables(flow: FlowSettings) -> list[str]:
    return [table.name for one in flow.transforms for table in one.tables]


def _give(target: Cluster, flow: FlowSettings, table: str, wait_s: float) -> tuple[list[str], bool]:
    """Give the order; returns (lines to print, whether it was obeyed). Raises `MirrorError`."""
    from sparkmirror.control.coordination.orders_topic import give_reload  # noqa: PLC0415
    from sparkmirror.control.coordination.status import FlowState, observe_status  # noqa: PLC0415
    from sparkmirror.internal_topics.tables import ReloadOrder  # noqa: PLC0415

    check_orders_topic(target, flow)
    status = observe_status(target, flow, _now_ms())
    if not status.state.alive:
        return ["no mirror runs now; the next run reads its tables when it starts"], True
    if status.tables is None and status.state is not FlowState.STARTING:
        version = f" (version {status.version})" if status.version else ""
        return [f"not done: the mirror{version} does not know tables; start this version"], False
    order = ReloadOrder(flow.name, table, _now_ms())
    give_reload(target, flow, order)
    # A standby may take the flow over meanwhile.
    status = await_order(target, flow, order.order_id, wait_s, next_run=True)
    if order.order_id not in status.order_ids:
        return [unconfirmed(status)], wait_s == 0
    read = [one for one in status.tables or () if table in ("", one.name)]
    if not read:
        return [f"not done: the mirror has no table {table}; start it with this file"], False
    return [told(one) for one in read], not any(one.fault for one in read)


def told(state: TableState) -> str:
    """What became of a table, in a line."""
    if not state.fault:
        return f"{state.name}: {state.rows:,} rows, read in {state.took_ms:,} ms"
    return f"{state.name} keeps its {state.rows:,} rows of {utc(state.read_ms)}: {state.fault}"


def _now_ms() -> int:
    return int(time.time() * 1_000)

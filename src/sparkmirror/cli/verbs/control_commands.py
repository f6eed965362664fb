"""Commands that write an order per flow and wait for its effect: pause, resume, drain, throttle.

Orders have their own topic (`control.coordination.orders_topic`). A mirror of an older version does
not read it. Then the order is written into the control topic, which needs more permissions.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Annotated

import typer

from sparkmirror.cli.shared.connections import Connections
from sparkmirror.cli.shared.errors import EXIT_START_FAILED, show_error
from sparkmirror.cli.shared.settings_options import (
    Files,
    Flows,
    choose_flows,
    load_settings,
    with_files,
)
from sparkmirror.cli.shared.tables import Format, Output
from sparkmirror.control.coordination.control_topic import ControlTopicWriter
from sparkmirror.control.coordination.orders_topic import Order, give_order, orders_topic
from sparkmirror.control.coordination.status import FlowState, FlowStatus, observe_status
from sparkmirror.errors import Denied, MirrorError, TopicError
from sparkmirror.internal_topics.commands import Command, CommandKind, channel, control_topic
from sparkmirror.settings import FlowSettings
from sparkmirror.text import echo
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.cluster.acl_advice import Right, grant

_LOOK_S = 0.5

Named = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FLOW]...",
        help='Flows such as "A->B". Default: all flows of the file.',
        show_default=False,
    ),
]
Wait = Annotated[
    float,
    typer.Option(
        "--wait",
        metavar="SECONDS",
        min=0,
        help="Wait at most this long until it is done; 0 does not wait.",
    ),
]


@dataclass(frozen=True, slots=True)
class _Order:
    flow: FlowSettings
    target: Cluster


def _give_orders(
    kind: CommandKind, files: Files, named: Named, option: Flows, wait_s: float
) -> None:
    """Write the order for each flow and print its result; ends with `typer.Exit`.

    Flows are named by arguments (``named``) and by ``--flow`` (``option``).
    """
    flows = [*(named or ()), *(option or ())]
    if files.consumer_config and files.file is not None and "->" in files.file.name:
        # If options name the files, the first argument is a flow.
        flows.insert(0, str(files.file))
        files = replace(files, file=None)
    settings = load_settings(files, listed=False)
    failed = away = False
    chosen = choose_flows(settings, flows)
    with Connections() as connections:
        connections.expect(flow.target_admin for flow in chosen)
        for flow in chosen:
            try:
                order = _Order(flow, connections.cluster(flow.target_admin))
                said, good = _give(kind, order, wait_s)
            except MirrorError as error:
                show_error(error)
                away = True
                continue
            failed |= not good
            echo(f"{flow.name}: {said}")
    raise typer.Exit(EXIT_START_FAILED if away else 1 if failed else 0)


def _give(kind: CommandKind, order: _Order, wait_s: float) -> tuple[str, bool]:
    """Give one order; returns (result to print, whether it succeeded). Raises `MirrorError`."""
    flow, target = order.flow, order.target
    topic = control_topic(flow)
    present = target.topics([topic, orders_topic(flow)])
    if topic not in present:
        raise TopicError(
            f"topic {topic} does not exist: this flow never ran here.",
            where=f"cluster {target.alias}",
            do="Check the file, or start the mirror first.",
        )
    status = observe_status(target, flow, _now_ms())
    if kind is CommandKind.DRAIN and not status.state.alive:
        return "nothing to drain: the flow is not running", False
    _write(kind, order, status, has_topic=orders_topic(flow) in present)
    return _await(kind, order, wait_s, status)


def _write(kind: CommandKind, order: _Order, status: FlowStatus, *, has_topic: bool) -> None:
    """Write the order into a topic that the flow's mirrors read. Raises `MirrorError`."""
    flow, target = order.flow, order.target
    denied: Denied | None = None
    if has_topic:
        runs = tuple(sorted(status.runs))
        try:
            give_order(target, flow, Order(flow.name, kind, _now_ms(), runs))
        except Denied as error:
            denied = error
    if not has_topic or denied is not None or not status.orders:
        # Write permission on the control topic is more than an order needs; it still works.
        try:
            _write_as_before(kind, order, status)
        except Denied as error:
            raise denied or _denied(order, status, error) from error


def _write_as_before(kind: CommandKind, order: _Order, status: FlowStatus) -> None:
    """Write it into the control topic, which every version reads. Raises `MirrorError`."""
    flow = order.flow
    commands = (
        # Pause and resume are for every process of a MirrorMaker 1 group and outlive runs.
        [Command(flow.name, kind, status.run_id, _now_ms())]
        if kind.pauses
        else [Command(channel(flow, run), kind, run, _now_ms()) for run in sorted(status.runs)]
    )
    ControlTopicWriter(order.target, control_topic(flow)).command(*commands)


def _denied(order: _Order, status: FlowStatus, error: Denied) -> Denied:
    topic = orders_topic(order.flow)
    if status.orders:
        return Denied(
            f"this principal sees no topic {topic} (the mirror creates it when it starts), and "
            f"{error.what}",
            where=error.where,
            do=grant(order.target.client, Right("Write", "Topic", topic)),
        )
    version = f" (version {status.version})" if status.version else ""
    return Denied(
        f"the mirror{version} does not read {topic}, and {error.what}",
        where=error.where,
        do=f"Start it with this version, and with Create and Read on that topic. {error.do}",
    )


def _await(kind: CommandKind, order: _Order, wait_s: float, before: FlowStatus) -> tuple[str, bool]:
    deadline_s = time.monotonic() + wait_s
    heard = before.orders
    runs = frozenset(before.runs)
    while True:
        status = observe_status(order.target, order.flow, _now_ms())
        if heard and status.state.alive and not status.orders:
            # It was starting when the order was given; its first report says its version.
            _write_as_before(kind, order, status)
            heard = False
        done = _done(kind, status, runs)
        if done:
            return done, True
        if time.monotonic() >= deadline_s:
            return f"{kind.value} was ordered, state is {status.state.value}", wait_s == 0
        time.sleep(_LOOK_S)


def _done(kind: CommandKind, status: FlowStatus, runs: frozenset[str]) -> str:
    if kind is CommandKind.DRAIN:
        # One whose reports have stopped was killed: nobody has drained it.
        gone = status.state is not FlowState.DEAD and not runs & set(status.runs)
        return f"drained{_and_then(status)}" if gone else ""
    state = status.state
    if not state.alive:
        return f"{kind.value}d for the next run; no mirror runs now"
    if kind is CommandKind.PAUSE:
        return "paused" if state is FlowState.PAUSED else ""
    return "resumed" if state is not FlowState.PAUSED else ""


def _and_then(status: FlowStatus) -> str:
    """Which process continues a flow that was drained."""
    if status.state.alive:
        return f"; {f'host {status.host}' if status.host else 'another process'} mirrors it now"
    hosts = ", ".join(one.host for one in status.standbys)
    return f"; standby on host {hosts} takes it over" if hosts else ""


def _now_ms() -> int:
    return int(time.time() * 1_000)


@with_files
def pause(files: Files, named: Named = None, flows: Flows = None, wait_s: Wait = 15.0) -> None:
    """Pause the flows of FILE: nothing is fetched, positions stay.

    Records that were fetched before are still written. A pause outlives the run: a mirror that is
    started later stays paused until `sparkmirror resume`. The command works on any machine that
    can connect to the target clusters.

    Exit codes: 0 done, 1 not done in time, 2 wrong usage or file, 3 a cluster does not respond.
    """
    _give_orders(CommandKind.PAUSE, files, named, flows, wait_s)


@with_files
def resume(files: Files, named: Named = None, flows: Flows = None, wait_s: Wait = 15.0) -> None:
    """Resume paused flows of FILE at their positions.

    Exit codes: 0 done, 1 not done in time, 2 wrong usage or file, 3 a cluster does not respond.
    """
    _give_orders(CommandKind.RESUME, files, named, flows, wait_s)


@with_files
def drain(files: Files, named: Named = None, flows: Flows = None, wait_s: Wait = 30.0) -> None:
    """Drain the flows of FILE: write all records that were read, commit positions, end.

    A mirror ends with exit code 0 when all its flows are drained; otherwise it continues with the
    rest. The next run, or a standby of the file, mirrors a drained flow again.

    Exit codes: 0 done, 1 not done in time or nothing ran, 2 wrong usage or file, 3 a cluster does
    not respond.
    """
    _give_orders(CommandKind.DRAIN, files, named, flows, wait_s)


Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FLOW]... [RATE]",
        help='Flows such as "A->B" (default: all of the file), and a rate: 50MB/s, 50MiB/s,'
        " 400Mbit/s; off: no limit; reset: the file's setting applies again.",
        show_default=False,
    ),
]
LimitedTopics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        metavar="REGEX",
        help="Limit only the source topics whose whole name this Java regex matches, besides the"
        " limit of the flow; may be repeated: all of them share the rate.",
        show_default=False,
    ),
]
Between = Annotated[
    str,
    typer.Option(
        metavar="HH:MM-HH:MM",
        help="Apply the limit only in this daily window, in the time zone of the process that runs"
        " the mirror; 22:00-06:00 is over midnight.",
        show_default="always",
    ),
]


@with_files
def throttle(
    files: Files,
    words: Words = None,
    flows: Flows = None,
    topic: LimitedTopics = None,
    between: Between = "",
    wait_s: Wait = 15.0,
    output: Output = Format.TABLE,
) -> None:
    """Limit how many bytes per second flows of FILE read; without a rate, show the limits.

    Partitions that are far behind are slowed first: those that keep up stay current, as long as
    they need less than the rate. A limit outlives the run, until another order replaces it. The
    command works on any machine that can connect to the target clusters.

    Exit codes: 0 done, 1 not done in time, 2 wrong usage or file, 3 a cluster does not respond.
    """
    from sparkmirror.cli.shared.throttling import read_wish, run_throttle  # noqa: PLC0415

    named = [*(words or ()), *(flows or ())]
    if files.consumer_config and files.file is not None:
        # If options name the files, the first argument is a flow or the rate.
        named.insert(0, str(files.file))
        files = replace(files, file=None)
    run_throttle(files, read_wish(named, topic or (), between), wait_s, output)

"""``sparkmirror throttle``: shows the limits of flows, or gives orders about them.

Orders go to the orders topic, as those of ``pause`` do (`internal_topics.throttles`).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from sparkmirror.cli.shared.cluster_session import show_failures
from sparkmirror.cli.shared.connections import Connections
from sparkmirror.cli.shared.errors import EXIT_START_FAILED
from sparkmirror.cli.shared.settings_options import Files, choose_flows, load_settings
from sparkmirror.cli.shared.tables import Columns, Format, Report, Table
from sparkmirror.config.files.throttle import (
    RULES_MAX,
    check_rule,
    parse_rate,
    rate_text,
    rule_text,
)
from sparkmirror.errors import ConfigError, Denied, MirrorError, TopicError
from sparkmirror.settings import FlowSettings, ThrottleRule
from sparkmirror.text import echo

if TYPE_CHECKING:
    from sparkmirror.control.coordination.status import FlowStatus
    from sparkmirror.internal_topics.driver_report import ThrottleState
    from sparkmirror.internal_topics.throttles import ThrottleOrder
    from sparkmirror.wire.admin.cluster import Cluster

_LOOK_S = 0.5
_RESET = "reset"

THROTTLES: Columns = {
    "FLOW": lambda of: of[0],
    "TOPICS": lambda of: of[1].rule.topics or "all",
    "LIMIT": lambda of: rate_text(of[1].rule.bytes_s),
    "BETWEEN": lambda of: of[1].rule.between or "always",
    "APPLIES": lambda of: bool(of[1].applies and of[1].rule.bytes_s),
    "BY": lambda of: "order" if of[1].order_id else "file",
}
"""Columns of limits: pairs of a flow's name and a `ThrottleState`."""


def throttle_document(state: ThrottleState) -> dict[str, object]:
    """A limit in JSON. ``bytes_per_second`` is null if an order switched it off."""
    return {
        "topics": state.rule.topics or None,
        "bytes_per_second": state.rule.bytes_s or None,
        "between": state.rule.between or None,
        "applies": bool(state.applies and state.rule.bytes_s),
        "by": "order" if state.order_id else "file",
    }


@dataclass(frozen=True, slots=True)
class Wish:
    """What a command line asks for. ``rule``: None to show the limits."""

    flows: tuple[str, ...] = ()
    rule: ThrottleRule | None = None
    reset: bool = False


def read_wish(words: Sequence[str], topics: Sequence[str], between: str) -> Wish:
    """The flows and the rule in the arguments and options. Raises ConfigError."""
    from sparkmirror.names.java_regex import compile_list  # noqa: PLC0415

    flows = [word for word in words if "->" in word]
    rates = [word for word in words if "->" not in word]
    if len(rates) > 1:
        raise ConfigError(
            f"{' and '.join(map(repr, rates))} cannot both be the rate.",
            where="RATE",
            do="Name flows as 'A->B', in quotes, and one rate such as 50MB/s.",
        )
    compile_list(tuple(topics), where="--topic")
    if not rates:
        if topics or between:
            raise ConfigError(
                "there is no rate.",
                where="--topic" if topics else "--between",
                do="Add one, such as 50MB/s; without --topic and --between, the command shows the"
                " limits that apply.",
            )
        return Wish(tuple(flows))
    reset = rates[0].strip().lower() == _RESET
    bytes_s = 0 if reset else parse_rate(rates[0], where="RATE")
    if between and not bytes_s:
        raise ConfigError(
            f"{rates[0]} has no daily window.", where="--between", do="Leave one of them out."
        )
    rule = check_rule(ThrottleRule("|".join(topics), bytes_s, between), where="--between")
    return Wish(tuple(flows), rule, reset)


def run_throttle(files: Files, wish: Wish, wait_s: float, output: Format) -> None:
    """Show the limits of the flows, or give the orders; ends with `typer.Exit`."""
    settings = load_settings(files, listed=False)
    chosen = choose_flows(settings, wish.flows)
    shown, given = [], []
    failures: list[MirrorError] = []
    with Connections() as connections:
        connections.expect(flow.target_admin for flow in chosen)
        for flow in chosen:
            try:
                target = connections.cluster(flow.target_admin)
                if wish.rule is None:
                    shown.append((flow, *_observe(target, flow)))
                    continue
                said, done = _give(target, flow, wish.rule, reset=wish.reset, wait_s=wait_s)
            except MirrorError as error:
                failures.append(error)
                continue
            given.append({"flow": flow.name, "done": done, "text": said})
            if output is Format.TABLE:
                echo(f"{flow.name}: {said}")  # at once: each flow may have to be waited for
    if wish.rule is None:
        _report(shown).show(output)
    else:
        Report({"flows": given}, []).show(output)
    show_failures(failures, output)
    good = all(one["done"] for one in given)
    raise typer.Exit(EXIT_START_FAILED if failures else 0 if good else 1)


def _report(
    shown: Sequence[tuple[FlowSettings, FlowStatus, tuple[ThrottleState, ...]]],
) -> Report:
    document = {
        "flows": [
            {
                "flow": flow.name,
                "alive": status.state.alive,
                "throttles": [throttle_document(state) for state in states],
            }
            for flow, status, states in shown
        ]
    }
    body: list[str | Table] = []
    rows = [(flow.name, state) for flow, _, states in shown for state in states]
    if rows:
        body.append(Table(THROTTLES, rows))
    for flow, status, states in shown:
        if not states:
            body.append(f"{flow.name}: no limit")
        if not status.state.alive:
            body.append(f"{flow.name}: {status.state.value}; this is for its next run")
    return Report(document, body)


def _observe(target: Cluster, flow: FlowSettings) -> tuple[FlowStatus, tuple[ThrottleState, ...]]:
    """The flow's status, and the limits that its mirror reports, or that its next run will have."""
    from sparkmirror.control.coordination.status import observe_status  # noqa: PLC0415

    status = observe_status(target, flow, _now_ms())
    if status.state.alive and status.throttles is not None:
        return status, status.throttles
    return status, _next_limits(flow, _standing(target, flow))


def _next_limits(flow: FlowSettings, orders: dict[str, ThrottleOrder]) -> tuple[ThrottleState, ...]:
    from sparkmirror.control.flows.throttling import effective  # noqa: PLC0415

    return effective(flow.throttles, orders.values(), time.localtime())


def _standing(target: Cluster, flow: FlowSettings) -> dict[str, ThrottleOrder]:
    """The newest order about each limit. Raises `MirrorError`.

    Operators need no Read on the topic of orders: without it, none is known, and the driver counts.
    """
    from sparkmirror.control.coordination.orders_topic import OrdersReader, orders_topic  # noqa: PLC0415

    if orders_topic(flow) not in target.topics([orders_topic(flow)]):
        return {}
    with contextlib.closing(OrdersReader(target, flow)) as reader, contextlib.suppress(Denied):
        reader.read_to_end()
        return reader.throttles
    return {}


def _give(
    target: Cluster, flow: FlowSettings, rule: ThrottleRule, *, reset: bool, wait_s: float
) -> tuple[str, bool]:
    """Give one order; returns (result to print, whether it succeeded). Raises `MirrorError`."""
    from sparkmirror.control.coordination.orders_topic import give_throttle  # noqa: PLC0415
    from sparkmirror.control.coordination.status import FlowState, observe_status  # noqa: PLC0415
    from sparkmirror.internal_topics.throttles import ThrottleOrder  # noqa: PLC0415

    check_orders_topic(target, flow)
    status = observe_status(target, flow, _now_ms())
    if status.state.alive and status.throttles is None and status.state is not FlowState.STARTING:
        version = f" (version {status.version})" if status.version else ""
        return f"not limited: the mirror{version} does not know limits; start this version", False
    order = ThrottleOrder(flow.name, rule, _now_ms(), reset)
    standing = _standing(target, flow) | {rule.topics: order}
    if rule.bytes_s and _count(flow, status, standing) > RULES_MAX:
        return f"not limited: the flow has {RULES_MAX} limits already; remove one first", False
    give_throttle(target, flow, order)
    return _await(target, flow, order, wait_s)


def _count(flow: FlowSettings, status: FlowStatus, standing: dict[str, ThrottleOrder]) -> int:
    """The number of limits with the orders ``standing``, and with those that only ``status`` has.

    What the mirror reports is newer than the file, and an order is newer than that.
    """
    reported = (status.throttles or ()) if status.state.alive else ()
    limits = {one.rule.topics: one for one in _next_limits(flow, standing)}
    limits |= {one.rule.topics: one for one in reported if one.rule.topics not in standing}
    return sum(bool(one.rule.bytes_s) for one in limits.values())


def check_orders_topic(target: Cluster, flow: FlowSettings) -> None:
    """Raises TopicError unless the flow ran here, with a version that reads orders."""
    from sparkmirror.control.coordination.orders_topic import orders_topic  # noqa: PLC0415
    from sparkmirror.internal_topics.commands import control_topic  # noqa: PLC0415
    from sparkmirror.wire.cluster.acl_advice import Right, grant  # noqa: PLC0415

    topic, orders = control_topic(flow), orders_topic(flow)
    present = target.topics([topic, orders])
    if topic not in present:
        raise TopicError(
            f"topic {topic} does not exist: this flow never ran here.",
            where=f"cluster {target.alias}",
            do="Check the file, or start the mirror first.",
        )
    if orders not in present:
        raise TopicError(
            f"this principal sees no topic {orders}; the mirror creates it when it starts.",
            where=f"cluster {target.alias}",
            do=grant(target.client, Right("Write", "Topic", orders)),
        )


def _await(
    target: Cluster, flow: FlowSettings, order: ThrottleOrder, wait_s: float
) -> tuple[str, bool]:
    """Wait until the mirror reports that it applies ``order``."""
    status = await_order(target, flow, order.order_id, wait_s)
    if not status.state.alive:
        return f"{_said(flow, order, None)} for the next run; no mirror runs now", True
    if order.order_id in status.order_ids:
        return _said(flow, order, status), True
    return unconfirmed(status), wait_s == 0


def await_order(
    target: Cluster, flow: FlowSettings, order_id: str, wait_s: float, *, next_run: bool = False
) -> FlowStatus:
    """Wait until the mirror confirms an order, until none runs, or for ``wait_s``; its status.

    ``next_run``: if none runs, wait for the next one.
    """
    from sparkmirror.control.coordination.status import observe_status  # noqa: PLC0415

    deadline = time.monotonic() + wait_s
    while True:
        status = observe_status(target, flow, _now_ms())
        if order_id in status.order_ids or not (status.state.alive or next_run):
            return status
        if time.monotonic() >= deadline:
            return status
        time.sleep(_LOOK_S)


def unconfirmed(status: FlowStatus) -> str:
    """The line for an order that the mirror has not confirmed in time."""
    return f"ordered, but the mirror has not confirmed it yet ({status.state.value})"


def _said(flow: FlowSettings, order: ThrottleOrder, status: FlowStatus | None) -> str:
    """What holds now for the limit of ``order``."""
    topics = order.rule.topics
    if order.rule.bytes_s:
        state = None if status is None else _find(status.throttles, topics)
        rest = "" if state is None or state.applies else ", which is not now"
        return f"limited to {rule_text(order.rule)}{rest}"
    which = f" for topics {topics}" if topics else ""
    if not order.reset:
        return f"no limit{which}"
    state = _find(_next_limits(flow, {}) if status is None else status.throttles, topics)
    file_says = "no limit" if state is None else f"limit of {rule_text(state.rule)}"
    return f"the file applies again: {file_says}{which if state is None else ''}"


def _find(states: Sequence[ThrottleState] | None, topics: str) -> ThrottleState | None:
    return next((state for state in states or () if state.rule.topics == topics), None)


def _now_ms() -> int:
    return int(time.time() * 1_000)

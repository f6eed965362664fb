"""State of each flow, from the target's control topic: for anyone who may read that topic."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from sparkmirror.control.coordination.control_topic import (
    ControlSignals,
    ControlTopicReader,
    ControlTopicWriter,
)
from sparkmirror.control.coordination.orders import newest_pause, pending_pause
from sparkmirror.control.coordination.orders_topic import OrdersReader, orders_topic
from sparkmirror.errors import Denied
from sparkmirror.internal_topics.commands import Command, CommandKind, control_topic, run_of
from sparkmirror.internal_topics.deals.record import DealRecord
from sparkmirror.internal_topics.driver_report import DriverReport, ThrottleState
from sparkmirror.internal_topics.flow_claims import Standby
from sparkmirror.internal_topics.tables import TableState
from sparkmirror.model import MirrorMode, TopicPartition
from sparkmirror.progress import Halt, SlotLoad, SlotProgress
from sparkmirror.settings import FlowSettings
from sparkmirror.wire.admin.cluster import Cluster

__all__ = [
    "FlowState",
    "FlowStatus",
    "forget_ended_runs",
    "is_paused",
    "judge",
    "judge_group",
    "observe_status",
    "read_signals",
]

REPORT_AGE_MS_MAX = 30_000
"""Drivers and slots report at least every ten seconds."""
STARTING_MS_MAX = 60_000
# A slot reports once it has its positions: a slow broker may take a few requests for them.
_BEGINNING_MS_MAX = 2 * STARTING_MS_MAX
# Clocks of two hosts may be an hour apart, and records of a live process must be kept.
_SILENT_MS_MAX = 2 * 3_600_000


class FlowState(Enum):
    """What a flow is doing. ``STOPPED``: it ended cleanly. ``DEAD``: its reports stopped."""

    NEVER_RAN = "never ran"
    STARTING = "starting"
    WAITING = "waiting for a topic"
    RUNNING = "running"
    PAUSED = "paused"
    DRAINING = "draining"
    STOPPED = "stopped"
    DEAD = "not running"

    @property
    def alive(self) -> bool:
        """Whether a process mirrors the flow."""
        return self not in (FlowState.NEVER_RAN, FlowState.STOPPED, FlowState.DEAD)


# The states in which each slot should report.
_MIRRORING = (FlowState.STARTING, FlowState.RUNNING)
# Of several processes of a group, the state that comes first here is shown.
_URGENT = (
    FlowState.RUNNING,
    FlowState.PAUSED,
    FlowState.DRAINING,
    FlowState.STARTING,
    FlowState.WAITING,
    FlowState.DEAD,
    FlowState.STOPPED,
    FlowState.NEVER_RAN,
)


@dataclass(frozen=True, slots=True)
class FlowStatus:
    """State of one flow.

    ``slots``: newest report of each slot of this run that still reports. ``silent``: last reports
    of slots that should, but no longer do. ``not_begun``: numbers of slots that should have
    reported in this run, and have not yet. ``report_age_s``: age of the newest report of the driver
    or of any slot. ``runs``: ids of the runs that mirror it now; a MirrorMaker 1 group
    may have several. ``paused``: it was ordered to pause; a pause outlives runs, so a flow that is
    not running may be paused too. ``orders``: whether all its drivers read the orders topic; true
    for a driver that has not reported yet. ``to_go_s``: seconds until the flow has caught up, as
    its drivers report it; None if unknown, or while nothing is mirrored. ``throttles``: its limits
    as a driver reports them; None before that, or if a driver is of a version without them.
    ``order_ids``: ids of the orders about limits and tables that all its drivers obey. ``tables``:
    its static tables; None as for the limits. ``loads``: by run id and slot, as drivers report
    them. ``deals``: the newest deal of each run.
    """

    flow: str
    state: FlowState
    paused: bool = False
    orders: bool = True
    run_id: str = ""
    runs: tuple[str, ...] = ()
    host: str = ""
    version: str = ""
    started_ms: int = 0
    report_age_s: float | None = None
    partitions: int = 0
    slots: tuple[SlotProgress, ...] = ()
    silent: tuple[SlotProgress, ...] = ()
    not_begun: tuple[int, ...] = ()
    halts: Mapping[TopicPartition, Halt] = field(default_factory=dict)
    to_go_s: float | None = None
    standbys: tuple[Standby, ...] = ()
    throttles: tuple[ThrottleState, ...] | None = None
    order_ids: frozenset[str] = frozenset()
    tables: tuple[TableState, ...] | None = None
    loads: Mapping[tuple[str, int], SlotLoad] = field(default_factory=dict)
    deals: tuple[DealRecord, ...] = ()

    @property
    def description(self) -> str:
        """The state for people; a flow that is not running may be paused too."""
        kept = self.paused and not self.state.alive
        return f"{self.state.value}, paused" if kept else self.state.value


def observe_status(target: Cluster, flow: FlowSettings, now_ms: int) -> FlowStatus:
    """Read the control topic of ``flow`` to its end. Raises `MirrorError`."""
    signals = read_signals(target, flow)
    look = judge_group if flow.mode is MirrorMode.MM1 else judge
    found = look(signals, flow.name, now_ms)
    return (
        found if found.state.alive else replace(found, paused=_next_paused(target, flow, signals))
    )


def _next_paused(target: Cluster, flow: FlowSettings, signals: ControlSignals) -> bool:
    """Whether the next run starts paused. An order that no driver has passed on yet counts too."""
    standing = _newest_pause(signals, flow.name)
    paused = standing is not None and standing.kind is CommandKind.PAUSE
    if orders_topic(flow) not in target.topics([orders_topic(flow)]):
        return paused
    try:
        with contextlib.closing(OrdersReader(target, flow)) as reader:
            order = newest_pause(reader.read_to_end())
    except Denied:
        return paused  # without permission on the orders topic, the control topic must do
    if order is None or not pending_pause(order, standing):
        return paused
    return order.kind is CommandKind.PAUSE


def is_paused(target: Cluster, flow: FlowSettings) -> bool:
    """Whether the flow is paused, or its next run starts paused. Raises `MirrorError`."""
    return _next_paused(target, flow, read_signals(target, flow))


def read_signals(target: Cluster, flow: FlowSettings) -> ControlSignals:
    """The control topic's signals; empty if there is no topic. Raises `MirrorError`."""
    topic = control_topic(flow)
    if topic not in target.topics([topic]):
        return ControlSignals()
    reader = ControlTopicReader(target, topic)
    try:
        return reader.read_to_end()
    finally:
        reader.close()


def forget_ended_runs(
    target: Cluster, writer: ControlTopicWriter, flow: FlowSettings, now_ms: int
) -> None:
    """Delete the records of ended runs of a MirrorMaker 1 flow: each run has keys of its own.

    A run that did not say that it ended counts as ended when its newest report is hours old.
    Raises `MirrorError`.
    """
    signals = read_signals(target, flow)
    for each in dict.fromkeys(one.flow for one in signals.commands if run_of(one.flow, flow.name)):
        if not judge(signals, each, now_ms - _SILENT_MS_MAX).state.alive:
            writer.forget(each, [one for one in signals.progress if one.flow == each])


def judge_group(signals: ControlSignals, flow: str, now_ms: int) -> FlowStatus:
    """The runs of one MirrorMaker 1 group, each judged alone, combined into one status. Pure."""
    channels = dict.fromkeys(one.flow for one in signals.commands if run_of(one.flow, flow))
    standing = _newest_pause(signals, flow)
    paused = standing is not None and standing.kind is CommandKind.PAUSE
    found = [judge(signals, each, now_ms, group=flow) for each in channels]
    alive = [one for one in found if one.state.alive]
    if not found:
        return FlowStatus(flow, FlowState.NEVER_RAN, paused)
    shown = alive or [max(found, key=lambda one: one.started_ms)]
    ages = [one.report_age_s for one in shown if one.report_age_s is not None]
    first = min(shown, key=lambda one: _URGENT.index(one.state))
    return replace(
        first,
        flow=flow,
        paused=all(one.paused for one in alive) if alive else paused,
        orders=all(one.orders for one in shown),
        runs=tuple(run for one in alive for run in one.runs),
        host=", ".join(one.host for one in shown if one.host),
        started_ms=min(one.started_ms for one in shown),
        report_age_s=max(ages) if ages else None,
        partitions=sum(one.partitions for one in shown),
        slots=tuple(replace(slot, flow=flow) for one in shown for slot in one.slots),
        silent=tuple(replace(slot, flow=flow) for one in shown for slot in one.silent),
        not_begun=tuple(slot for one in shown for slot in one.not_begun),
        halts={tp: halt for one in shown for tp, halt in one.halts.items()},
        to_go_s=max((one.to_go_s for one in shown if one.to_go_s is not None), default=None),
        throttles=None if any(one.throttles is None for one in shown) else first.throttles,
        order_ids=frozenset.intersection(*(one.order_ids for one in shown)),
        loads={key: load for one in shown for key, load in one.loads.items()},
        deals=tuple(deal for one in shown for deal in one.deals),
    )


def judge(signals: ControlSignals, flow: str, now_ms: int, *, group: str = "") -> FlowStatus:
    """The status of ``flow`` at ``now_ms``, by the records of its control topic. Pure.

    ``group``: a flow whose pauses apply to this run too.
    """
    command = _newest_command(signals, flow)
    standing = _newest_pause(signals, flow, group)
    paused = standing is not None and standing.kind is CommandKind.PAUSE
    if command is None:
        return FlowStatus(flow, FlowState.NEVER_RAN, paused)
    driver = _newest_driver(signals, flow, command.run_id)
    started_ms = driver.started_ms if driver is not None else 0
    slots = _slots(signals, flow, command.run_id, started_ms)
    # A new number of slots, or the end of a pause, gives them time, too.
    since_ms = max(started_ms, command.time_ms, 0 if standing is None else standing.time_ms)
    fresh = [slot for slot in slots if now_ms - slot.time_ms <= REPORT_AGE_MS_MAX]
    state = _state(command, driver, fresh, paused=paused, now_ms=now_ms)
    silent = _silent(driver, slots, now_ms) if state in _MIRRORING else []
    reports = [slot.time_ms for slot in slots]
    halts: dict[TopicPartition, Halt] = {}
    if driver is not None:
        reports.append(driver.time_ms)
        halts.update(driver.halts)
    # A partition may have left a silent slot since: what reports now counts more.
    found = {
        TopicPartition(p.topic, p.partition): p.halt
        for slot in (*silent, *fresh)
        for p in slot.partitions
    }
    halts.update({tp: halt for tp, halt in found.items() if halt is not None})
    return FlowStatus(
        flow=flow,
        state=state,
        paused=paused,
        orders=driver is None or driver.orders or not state.alive,
        run_id=command.run_id,
        runs=(command.run_id,) if state.alive else (),
        host=driver.host if driver is not None else "",
        version=driver.version if driver is not None else "",
        started_ms=started_ms,
        report_age_s=max(0.0, (now_ms - max(reports)) / 1_000) if reports else None,
        partitions=driver.partitions if driver is not None else 0,
        slots=tuple(fresh if state.alive else slots),
        silent=tuple(silent),
        not_begun=_not_begun(driver, slots, since_ms, now_ms) if state in _MIRRORING else (),
        halts=dict(sorted(halts.items())),
        to_go_s=_to_go_s(driver, state, now_ms),
        standbys=_standbys(signals, flow, now_ms),
        throttles=None if driver is None else driver.throttles,
        order_ids=_order_ids(driver),
        tables=None if driver is None else driver.tables,
        loads=_loads(driver),
        deals=tuple(
            one for one in signals.deals if (one.flow, one.run_id) == (flow, command.run_id)
        )[-1:],
    )


def _loads(driver: DriverReport | None) -> dict[tuple[str, int], SlotLoad]:
    if driver is None or driver.slots is None:
        return {}
    return {(driver.run_id, slot): load for slot, load in enumerate(driver.slots)}


def _order_ids(driver: DriverReport | None) -> frozenset[str]:
    if driver is None or driver.throttles is None:
        return frozenset()
    limits = (one.order_id for one in driver.throttles)
    return frozenset((*limits, *driver.resets, *driver.reloads))


def _newest_command(signals: ControlSignals, flow: str) -> Command | None:
    """The last command of a run, in the topic's order."""
    ours = [one for one in signals.commands if one.flow == flow and not one.kind.pauses]
    return ours[-1] if ours else None


def _newest_pause(signals: ControlSignals, *flows: str) -> Command | None:
    """The last pause or resume of one of ``flows``, in the topic's order."""
    ours = [one for one in signals.commands if one.flow in flows and one.kind.pauses]
    return ours[-1] if ours else None


def _newest_driver(signals: ControlSignals, flow: str, run_id: str) -> DriverReport | None:
    """The last report of the run's driver; a former owner's may come after it."""
    ours = [one for one in signals.drivers if (one.flow, one.run_id) == (flow, run_id)]
    return ours[-1] if ours else None


def _to_go_s(driver: DriverReport | None, state: FlowState, now_ms: int) -> float | None:
    """The driver's estimate, if it still reports and the flow is running or draining."""
    if driver is None or state not in (FlowState.RUNNING, FlowState.DRAINING):
        return None
    return driver.to_go_s if now_ms - driver.time_ms <= REPORT_AGE_MS_MAX else None


def _standbys(signals: ControlSignals, flow: str, now_ms: int) -> tuple[Standby, ...]:
    """The standbys that have reported recently, by host."""
    found = [
        one
        for one in signals.standbys
        if one.flow == flow and now_ms - one.time_ms <= REPORT_AGE_MS_MAX
    ]
    return tuple(sorted(found, key=lambda one: (one.host, one.run_id)))


def _slots(signals: ControlSignals, flow: str, run_id: str, since_ms: int) -> list[SlotProgress]:
    """The newest report of each slot of the run.

    Old releases write no run id into reports. Such a report counts, unless another report of the
    slot names this run.
    """
    newest: dict[int, SlotProgress] = {}
    for report in signals.progress:
        ours = report.flow == flow and report.run_id in ("", run_id)
        if ours and report.time_ms >= since_ms and report.replaces(newest.get(report.slot)):
            newest[report.slot] = report
    return [newest[slot] for slot in sorted(newest)]


def _silent(
    driver: DriverReport | None, slots: Sequence[SlotProgress], now_ms: int
) -> list[SlotProgress]:
    """The slots that have stopped reporting while their driver has not.

    One whose task has ended is done, or waits for the others; when they are in a later epoch, it
    has some time to begin it.
    """
    if driver is None or now_ms - driver.time_ms > REPORT_AGE_MS_MAX:
        return []
    expected = _expected(driver)
    return [
        slot
        for slot in slots
        if now_ms - slot.time_ms > REPORT_AGE_MS_MAX
        and slot.slot in expected
        and not (slot.ended_ms and _may_wait(slot, slots, now_ms))
    ]


def _expected(driver: DriverReport) -> frozenset[int]:
    """Numbers of the slots that the run should have, as far as its driver says."""
    if driver.slot_count is not None:
        return frozenset(range(driver.slot_count))
    # A run whose partitions have become fewer may have fewer slots than when loads were measured.
    loads = (driver.slots or ())[: driver.partitions]
    return frozenset(slot for slot, load in enumerate(loads) if load.weight > 0)


def _not_begun(
    driver: DriverReport | None, slots: Sequence[SlotProgress], since_ms: int, now_ms: int
) -> tuple[int, ...]:
    """Numbers of the slots that should have begun since ``since_ms``, and have not.

    Drivers of earlier releases do not say how many there are: one of a flow with partitions.
    """
    if driver is None or now_ms - driver.time_ms > REPORT_AGE_MS_MAX:
        return ()
    if now_ms - since_ms <= _BEGINNING_MS_MAX:
        return ()
    expected = _expected(driver) or range(min(1, driver.partitions))
    return tuple(sorted(set(expected) - {slot.slot for slot in slots}))


def _may_wait(ended: SlotProgress, slots: Sequence[SlotProgress], now_ms: int) -> bool:
    """Whether ``ended`` need not have begun a later epoch yet."""
    later = [slot for slot in slots if slot.epoch > ended.epoch]
    begun = min((slot.began_ms for slot in later if slot.began_ms), default=ended.ended_ms)
    return not later or now_ms - begun <= _BEGINNING_MS_MAX


def _state(
    command: Command,
    driver: DriverReport | None,
    fresh: Sequence[SlotProgress],
    *,
    paused: bool,
    now_ms: int,
) -> FlowState:
    if driver is not None and driver.ended:
        return FlowState.STOPPED
    heard = driver is not None and now_ms - driver.time_ms <= REPORT_AGE_MS_MAX
    if command.kind is CommandKind.DRAIN:
        return FlowState.DRAINING if heard else FlowState.DEAD  # it was killed meanwhile
    if not heard and not fresh:
        begun = driver is None and now_ms - command.time_ms <= STARTING_MS_MAX
        return FlowState.STARTING if begun else FlowState.DEAD
    if fresh:
        # What the slots report counts, not what they were ordered to do.
        return FlowState.PAUSED if all(slot.paused for slot in fresh) else FlowState.RUNNING
    if paused:
        return FlowState.PAUSED
    empty = driver is not None and not driver.partitions
    return FlowState.WAITING if empty else FlowState.STARTING

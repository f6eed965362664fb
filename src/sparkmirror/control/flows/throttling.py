"""The limits of one flow: from settings and orders to what its slots obey."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping

from sparkmirror.config.files.throttle import RULES_MAX, check_rule, in_window, rate_text, rule_text
from sparkmirror.control.flows.throttle_shares import Needs, differ, divide
from sparkmirror.control.report.history import History
from sparkmirror.errors import ConfigError
from sparkmirror.internal_topics.driver_report import ThrottleState
from sparkmirror.internal_topics.history import EventKind
from sparkmirror.internal_topics.throttles import Limits, SharedLimit, ThrottleOrder
from sparkmirror.observe.figures.throttling import ThrottleFigures
from sparkmirror.progress import SlotProgress
from sparkmirror.settings import FlowSettings, ThrottleRule

__all__ = ["Throttling", "effective"]

_BY_ORDER, _BY_FILE = "an order", "the file"


def effective(
    settings: Iterable[ThrottleRule],
    orders: Iterable[ThrottleOrder],
    now: time.struct_time,
) -> tuple[ThrottleState, ...]:
    """The limits of a flow at local time ``now``: the file's, replaced by orders. Pure.

    That of the whole flow is first. An order of `off` stays in the result, so that users see it.
    """
    rules = {rule.topics: (rule, "") for rule in settings}
    for order in orders:
        if not order.reset:
            rules[order.rule.topics] = (order.rule, order.order_id)
    return tuple(
        ThrottleState(rule, order_id, in_window(rule.between, now))
        for _, (rule, order_id) in sorted(rules.items())
    )


def _too_many(
    settings: Iterable[ThrottleRule], orders: Iterable[ThrottleOrder]
) -> list[ThrottleOrder]:
    """Those of ``orders`` for which a flow with these settings has no room; the first get it."""
    orders = list(orders)
    off = {one.rule.topics for one in orders if not (one.rule.bytes_s or one.reset)}
    limits = {rule.topics for rule in settings if rule.bytes_s} - off
    refused = []
    for order in orders:
        if order.reset or not order.rule.bytes_s:
            continue
        if order.rule.topics in limits or len(limits) < RULES_MAX:
            limits.add(order.rule.topics)
        else:
            refused.append(order)
    return refused


class Throttling:
    """Publishes the limits of one flow. Any thread may call any method.

    ``publish`` writes limits for the slots and may raise `MirrorError`; ``slots`` returns how many
    slots the flow has now. ``channel``: see `internal_topics.commands.channel`.
    """

    def __init__(
        self,
        settings: FlowSettings,
        run_id: str,
        channel: str,
        *,
        publish: Callable[[Limits], None],
        slots: Callable[[], int],
        history: History,
        notify: Callable[[str], None],
        clock_s: Callable[[], float] = time.time,
        ticks_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._run_id, self._channel = run_id, channel
        self._publish = publish
        self._slots = slots
        self._history = history
        self._notify = notify
        self._clock_s, self._ticks_s = clock_s, ticks_s
        self._lock = threading.Lock()
        self._publishing = threading.Lock()
        self._orders: dict[str, ThrottleOrder] = {}
        self._refused: set[str] = set()
        self._needs = Needs()
        self._published: Limits | None = None
        self._unsure = False
        """Whether slots may obey a record of this run that is not ``_published``."""
        self._told: tuple[ThrottleState, ...] = ()
        self._waits: dict[int, tuple[int, int, int]] = {}
        self._waited_ms = [0, 0]

    def take_orders(self, orders: Mapping[str, ThrottleOrder]) -> None:
        """Take the newest order of each limit, by its topics.

        Invalid ones, and those for more limits than a flow may have, are reported once.
        """
        found: dict[str, ThrottleOrder] = {}
        for topics, order in orders.items():
            try:
                check_rule(order.rule, where=f"an order to {self._settings.name}")
            except ConfigError as error:
                self._refuse(order, str(error))
                continue
            found[topics] = order
        with self._lock:
            known = {topics for topics, one in self._orders.items() if one.rule.bytes_s}
        # One limit too many takes the place of none that slots obey.
        ordered = sorted(found.values(), key=lambda one: one.rule.topics not in known)
        for order in _too_many(self._settings.throttles, ordered):
            del found[order.rule.topics]
            text = f"limited to {rule_text(order.rule)}"
            self._refuse(order, f"{text}: the flow has {RULES_MAX} limits already")
        with self._lock:
            self._orders = found

    def _refuse(self, order: ThrottleOrder, why: str) -> None:
        """Report once that ``order`` is ignored."""
        if order.order_id not in self._refused:
            self._refused.add(order.order_id)
            self._notify(f"{self._settings.name}: an order is ignored: {why}")

    def observe(self, reports: Iterable[SlotProgress]) -> None:
        """Take new reports of this run's slots."""
        reports = list(reports)
        with self._lock:
            self._needs.observe(reports, self._ticks_s())
            for report in reports:
                self._count_waits(report)

    def _count_waits(self, report: SlotProgress) -> None:
        current = max((one.current_wait_ms for one in report.throttles), default=0)
        backfill = max((one.backfill_wait_ms for one in report.throttles), default=0)
        attempt, *before = self._waits.get(report.slot, (-1, 0, 0))
        if attempt != report.attempt:
            before = [0, 0]
        self._waited_ms[0] += max(0, current - before[0])
        self._waited_ms[1] += max(0, backfill - before[1])
        self._waits[report.slot] = (report.attempt, current, backfill)

    def begin(self) -> None:
        """Publish the limits of a run that begins to own the flow. Raises `MirrorError`."""
        with self._lock:
            self._unsure = self._unsure or self._published is not None
            self._published = None  # another run's record may have replaced it
        self.step()

    def step(self) -> None:
        """Publish what has changed: limits, windows, shares. Raises `MirrorError`."""
        with self._publishing:
            with self._lock:
                states = self._states()
                limits = self._limits(states)
                news = self._unsure or self._is_news(limits)
                self._unsure = news  # a record whose writing fails may arrive all the same
            if news:
                self._publish(limits)  # may take long: nobody else may wait for it
            with self._lock:
                if news:
                    self._published, self._unsure = limits, False
                before, self._told = self._told, states
        if states != before:
            self._tell(before, states)

    def _states(self) -> tuple[ThrottleState, ...]:
        now = time.localtime(self._clock_s())
        return effective(self._settings.throttles, self._orders.values(), now)

    def _limits(self, states: Iterable[ThrottleState]) -> Limits:
        count, now_s = self._slots(), self._ticks_s()
        found = []
        for state in states:
            rate = state.rule.bytes_s
            if rate and state.applies:
                needs = self._needs.of(state.rule.topics, count, now_s)
                # An even division has no list: it holds for any number of slots.
                shares = divide(rate, needs) if any(needs) else []
                found.append(SharedLimit(state.rule.topics, rate, tuple(shares)))
        return Limits(self._channel, self._run_id, tuple(found))

    def _is_news(self, limits: Limits) -> bool:
        known = () if self._published is None else self._published.limits
        rates = [(one.topics, one.bytes_s) for one in limits.limits]
        if rates != [(one.topics, one.bytes_s) for one in known]:
            return True
        return any(
            differ(new.bytes_s, new.slots, old.slots)
            for new, old in zip(limits.limits, known, strict=True)
        )

    def _tell(self, before: Iterable[ThrottleState], states: Iterable[ThrottleState]) -> None:
        """Report changes to the user and the history."""
        known = {state.rule.topics: state for state in before}
        found = {state.rule.topics: state for state in states}
        for topics in sorted(known.keys() | found.keys()):
            old, new = known.get(topics), found.get(topics)
            if old != new:
                line = change_text(old, new)
                self._notify(f"{self._settings.name}: {line}")
                self._history.note(EventKind.THROTTLE, line)

    def states(self) -> tuple[ThrottleState, ...]:
        """The flow's limits as they were published last."""
        with self._lock:
            return self._told

    def resets(self) -> tuple[str, ...]:
        """Ids of the orders after which the settings apply again."""
        with self._lock:
            return tuple(one.order_id for one in self._orders.values() if one.reset)

    def figures(self) -> ThrottleFigures:
        """What metrics show."""
        with self._lock:
            limits = () if self._published is None else self._published.limits
            waited_s = (ms / 1000 for ms in self._waited_ms)
            return ThrottleFigures({one.topics: one.bytes_s for one in limits}, *waited_s)


def change_text(old: ThrottleState | None, new: ThrottleState | None) -> str:
    """What a change of one limit means, in a few words. Pure."""
    which = new or old
    topics = f" for topics {which.rule.topics}" if which is not None and which.rule.topics else ""
    if new is None:
        return f"limit{topics} removed: an order reset it"
    if not new.rule.bytes_s:
        return f"limit{topics} off, by an order"
    same = old is not None and (old.rule, old.order_id) == (new.rule, new.order_id)
    if same:
        edge = "begins" if new.applies else "ends"
        return f"limit of {rate_text(new.rule.bytes_s)}{topics}: its daily window {edge}"
    by = _BY_ORDER if new.order_id else _BY_FILE
    rest = "" if new.applies else "; it is outside of its daily window now"
    return f"limited to {rule_text(new.rule)}, by {by}{rest}"

"""Static tables of one flow: obeys orders to read them again.

The pipeline reads them (`TablesPart`). A slot has for the whole of an epoch the rows with which its
epoch began. So after a reload the slots' epochs are ended, as for a new assignment: nothing is lost
or written twice. An order is confirmed when all slots are in a later epoch.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from sparkmirror.control.report.history import History
from sparkmirror.errors import TopicError
from sparkmirror.internal_topics.history import EventKind
from sparkmirror.internal_topics.tables import ReloadOrder, TableState
from sparkmirror.progress import SlotProgress
from sparkmirror.settings import FlowSettings

_CONFIRMED_MAX = 20
_LOOK_S = 0.1
# Slots report once a second, idle ones every ten.
_REPORT_S = 12.0
# The end of an epoch writes what was read.
_SWITCH_S = 60.0


class TablesPart(Protocol):
    """What reads tables; ``data.query.FlowRunner`` implements it."""

    def tables(self, flow: str) -> tuple[TableState, ...]:
        """The tables of ``flow`` as epochs that begin now have them."""

    def reload_tables(self, flow: str, table: str = "") -> tuple[TableState, ...]:
        """Read ``table`` of ``flow`` again, or all of them; returns those."""


class NoTables:
    """A pipeline without tables."""

    def tables(self, flow: str) -> tuple[TableState, ...]:
        """None."""
        return ()

    def reload_tables(self, flow: str, table: str = "") -> tuple[TableState, ...]:
        """Nothing to read."""
        return ()


class Tables:
    """The tables of one flow. Any thread may call any method; `step` is a job's round.

    ``replan`` ends the slots' epochs, ``report`` writes the driver's report; both may raise
    `MirrorError`. ``slots`` returns how many slots the flow has now, ``progress`` their newest
    reports. ``once``: the run copies up to frozen ends,
    in a single epoch.
    """

    def __init__(
        self,
        settings: FlowSettings,
        part: TablesPart,
        history: History,
        *,
        replan: Callable[[], None],
        report: Callable[[], None],
        slots: Callable[[], int],
        progress: Callable[[], Sequence[SlotProgress]],
        notify: Callable[[str], None],
        once: bool,
        now_ms: Callable[[], int],
        pause: Callable[[float], None] = time.sleep,
        ticks_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.stood_by = False
        """Whether this process was a standby before it has taken the flow over."""
        self._name = settings.name
        self._part = part
        self._replan = replan
        self._report = report
        self._slots = slots
        self._progress = progress
        self._history = history
        self._notify = notify
        self._once = once
        self._pause = pause
        self._ticks_s = ticks_s
        self._since_ms = now_ms()
        self._lock = threading.Lock()
        self._looked = False
        self._known: set[str] = set()
        self._waiting: deque[ReloadOrder] = deque()
        self._confirmed: deque[str] = deque(maxlen=_CONFIRMED_MAX)

    def states(self) -> tuple[TableState, ...]:
        """The tables as epochs that begin now have them."""
        return self._part.tables(self._name)

    def confirmed(self) -> tuple[str, ...]:
        """Ids of the newest orders that all slots follow."""
        with self._lock:
            return tuple(self._confirmed)

    def take_orders(self, orders: Sequence[ReloadOrder]) -> None:
        """Keep new orders for `step`.

        Of those that are there at the start, the ones from before it are done: tables were read.
        """
        with self._lock:
            first, self._looked = not self._looked, True
            for order in orders:
                if order.order_id not in self._known:
                    self._known.add(order.order_id)
                    if not first or order.time_ms >= self._since_ms:
                        self._waiting.append(order)

    def begin(self) -> None:
        """The flow begins: a standby, which has read the tables long ago, reads them again.

        Raises TopicError if one cannot be read: its rows may be older than those with which the
        process before has mirrored.
        """
        if not self.stood_by or not self.states():
            return
        with self._lock:
            orders = list(self._waiting)
        read = self._part.reload_tables(self._name)
        self._tell(read)
        for one in read:
            if one.fault:
                raise TopicError(
                    f"the table {one.name} cannot be read again: {one.fault}.",
                    where=f"flow {self._name}",
                    do="Until it can be, this process does not take the flow over.",
                )
        with self._lock:
            for order in orders:
                self._waiting.remove(order)
            self._confirmed += [order.order_id for order in orders]

    def step(self) -> None:
        """Obey the oldest order. Raises `MirrorError`; the next call then does it again."""
        with self._lock:
            order = self._waiting[0] if self._waiting else None
        if order is None or not (self._once or self.states()):  # they are not read yet
            return
        confirmed = True
        if self._once:
            self._notify(f"{self._name}: a run with --once reads its tables at the start only")
            confirmed = False
        else:
            read = self._part.reload_tables(self._name, order.table)
            self._tell(read)
            if any(not one.fault for one in read):
                confirmed = self._switch()
        with self._lock:
            self._waiting.popleft()
            if confirmed:
                self._confirmed.append(order.order_id)
        self._report()

    def _tell(self, read: Sequence[TableState]) -> None:
        for one in read:
            line = f"table {one.name}: read again, {one.rows:,} rows in {one.took_ms:,} ms"
            if one.fault:
                line = f"table {one.name}: not read again, its {one.rows:,} rows stay: {one.fault}"
            self._notify(f"{self._name}: {line}")
            self._history.note(EventKind.TABLES, line)

    def _switch(self) -> bool:
        """End the epochs with the old rows; whether all slots are known to be in later ones."""
        before = {one.slot: one.time_ms for one in self._reports()}
        # What is known may be a second old, and an epoch may have begun since then.
        self._await(
            lambda: (
                len(self._reports()) >= self._slots()
                and all(one.time_ms != before.get(one.slot) for one in self._reports())
            ),
            _REPORT_S,
        )
        epoch = max((one.epoch for one in self._reports()), default=-1)
        self._replan()
        if self._await(lambda: self._all_after(epoch), _SWITCH_S):
            return True
        self._notify(f"{self._name}: not all slots have begun an epoch with the new tables yet")
        return False

    def _reports(self) -> list[SlotProgress]:
        count = self._slots()
        return [one for one in self._progress() if one.slot < count]

    def _all_after(self, epoch: int) -> bool:
        return sum(one.epoch > epoch for one in self._reports()) >= self._slots()

    def _await(self, done: Callable[[], bool], timeout_s: float) -> bool:
        deadline_s = self._ticks_s() + timeout_s
        while not done():
            if self._ticks_s() >= deadline_s:
                return False
            self._pause(_LOOK_S)
        return True

"""Writes the driver's reports about one flow to the control topic."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from sparkmirror.control.coordination.control_topic import ControlTopicWriter
from sparkmirror.control.coordination.orders import OrderFollower
from sparkmirror.control.coordination.place import own_host
from sparkmirror.control.flows.publication import Publication
from sparkmirror.control.flows.tables import Tables
from sparkmirror.control.flows.throttling import Throttling
from sparkmirror.internal_topics.driver_report import DriverReport
from sparkmirror.progress import SlotLoad


class DriverReports:
    """The reports of one run about one flow. Any thread may call `write`.

    ``over`` is set when this process has finished with the flow: only a last report follows.
    ``slots`` returns the load of each slot, None while it is unknown. ``slots_max``: how many the
    flow has at most.
    """

    def __init__(
        self,
        writer: ControlTopicWriter,
        published: Publication,
        orders: OrderFollower,
        throttling: Throttling,
        tables: Tables,
        *,
        slots: Callable[[], Sequence[SlotLoad] | None] = lambda: None,
        slots_max: int,
        channel: str,
        run_id: str,
        release: str,
        over: threading.Event,
        now_ms: Callable[[], int],
    ) -> None:
        self.started_ms = now_ms()
        self.to_go_s: float | None = None
        """Seconds until the flow has caught up, by the run's meters; None if unknown."""
        self._writer = writer
        self._published = published
        self._orders = orders
        self._throttling = throttling
        self._tables = tables
        self._slots = slots
        self._slots_max = slots_max
        self._channel = channel
        self._run_id = run_id
        self._release = release
        self._over = over
        self._now_ms = now_ms
        self._writing = threading.Lock()

    def write(self, *, ended: bool = False, starting: bool = False) -> None:
        """Write a report. Raises `MirrorError`.

        ``starting``: the orders topic is not read yet, but will be before anything is mirrored.
        """
        assignment, slots = self._published.assignment(), self._slots()
        frozen = self._published.frozen
        # As the planner does: it leaves out partitions without an end.
        planned = [p for p in assignment.partitions if frozen is None or p.source in frozen]
        report = DriverReport(
            flow=self._channel,
            run_id=self._run_id,
            host=own_host(),
            version=self._release,
            started_ms=self.started_ms,
            time_ms=self._now_ms(),
            ended=ended,
            partitions=len(assignment.partitions),
            halts=assignment.halted,
            orders=starting or self._orders.readable,
            to_go_s=self.to_go_s,
            throttles=self._throttling.states(),
            resets=self._throttling.resets(),
            tables=self._tables.states(),
            reloads=self._tables.confirmed(),
            slots=None if slots is None else tuple(slots),
            slot_count=min(max(1, self._slots_max), len(planned)),
        )
        with self._writing:
            if ended or not self._over.is_set():  # no report may follow the last one
                self._writer.report(report)

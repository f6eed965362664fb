"""The driver's side of the orders topic: it passes operators' orders on to the control topic.

So the order of records in the control topic alone decides what planner and slots do, and operators
need no permission on the control topic. Orders that older releases of the commands write directly
to the control topic still work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from sparkmirror.control.coordination.orders_topic import Order, OrdersReader
from sparkmirror.internal_topics.commands import (
    COMMAND_PARTITION,
    Command,
    channel,
    control_topic,
    decode_command,
)
from sparkmirror.internal_topics.tables import ReloadOrder
from sparkmirror.internal_topics.throttles import ThrottleOrder
from sparkmirror.settings import FlowSettings
from sparkmirror.wire.admin.cluster import Cluster


def standing_pause(target: Cluster, flow: FlowSettings) -> Command | None:
    """The newest pause or resume in the control topic; None if none. Raises `MirrorError`."""
    records = target.read_compacted(
        control_topic(flow), partitions=[COMMAND_PARTITION], passes=True
    )
    found = None
    for _, key, value in records:
        command = decode_command(key, value)
        if command is not None and command.flow == flow.name and command.kind.pauses:
            found = command
    return found


def newest_pause(orders: Iterable[Order]) -> Order | None:
    """The last pause or resume in ``orders``; None if there is none. Pure."""
    pauses = [order for order in orders if order.kind.pauses]
    return pauses[-1] if pauses else None


def pending_pause(order: Order | None, standing: Command | None) -> bool:
    """Whether ``order`` is newer than ``standing``, the newest in the control topic. Pure.

    If ``standing`` has an order id, a driver passed it on, and a newest order with another id is
    newer. Without an id, an older release of the commands wrote it, and the timestamps decide.
    """
    if order is None:
        return False
    if standing is None:
        return True
    if standing.order_id:
        return standing.order_id != order.order_id
    return order.time_ms > standing.time_ms


class OrderFollower:
    """Reads the orders of one flow for the run ``run_id``. For one thread.

    ``pass_on`` writes a command to the control topic, ``drain`` drains this run, ``throttle`` takes
    the newest orders about limits; all may raise `MirrorError`. ``reload`` takes orders to read
    tables again, in their order; one that is read again comes again. ``readable``: whether the last
    read of the orders topic succeeded.
    """

    def __init__(
        self,
        target: Cluster,
        flow: FlowSettings,
        run_id: str,
        *,
        pass_on: Callable[[Command], None],
        drain: Callable[[], None],
        throttle: Callable[[Mapping[str, ThrottleOrder]], None] = lambda _: None,
        reload: Callable[[Sequence[ReloadOrder]], None] = lambda _: None,
    ) -> None:
        self._target = target
        self._flow = flow
        self._run_id = run_id
        self._pass_on = pass_on
        self._drain = drain
        self._throttle = throttle
        self._reload = reload
        self._throttles: Mapping[str, ThrottleOrder] = {}
        self._reader: OrdersReader | None = None
        self._applied = ""
        self.readable = False

    def poll(self, timeout_ms: int = 500) -> None:
        """Apply the orders since the last call; the first call reads all orders in the topic.

        Raises `MirrorError`: the topic is missing or may not be read, or the target is unavailable.
        """
        if self._reader is None:
            self._reader = OrdersReader(self._target, self._flow)
            orders = self._reader.read_to_end()
        else:
            orders = self._reader.poll(timeout_ms)
        pause = newest_pause(orders)
        if pause is not None and pause.order_id != self._applied:
            if self._applied or pending_pause(pause, standing_pause(self._target, self._flow)):
                self._pass_on(self._command(pause))
            self._applied = pause.order_id
        if any(self._run_id in order.runs for order in orders):
            self._drain()
        if self._reader.throttles != self._throttles:
            self._throttle(self._reader.throttles)
            self._throttles = dict(self._reader.throttles)
        self._reload(self._reader.reloads)
        self.readable = True

    def _command(self, order: Order) -> Command:
        flow = channel(self._flow, self._run_id)
        return Command(flow, order.kind, self._run_id, order.time_ms, order_id=order.order_id)

    def forget(self) -> None:
        """Drop the reader after a failure; `poll` opens a new one. Raises `MirrorError`."""
        self.readable = False
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

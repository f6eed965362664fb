"""The driver's side of the orders topic: what operators ask for is said in the control topic.

So the control topic's order alone decides what planner and slots do, and who may write orders
needs no right there. Orders that older commands wrote to the control topic are obeyed as before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sparkmirror.control.coordination.orders_topic import Order, OrdersReader
from sparkmirror.internal_topics.commands import (
    COMMAND_PARTITION,
    Command,
    channel,
    control_topic,
    decode_command,
)
from sparkmirror.model import FlowSettings
from sparkmirror.wire.admin.cluster import Cluster


def standing_pause(target: Cluster, flow: FlowSettings) -> Command | None:
    """The newest of pause and resume in the control topic. Raises `MirrorError`."""
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
    """The last of ``orders`` that is about pausing, None when none is. Pure."""
    pauses = [order for order in orders if order.kind.pauses]
    return pauses[-1] if pauses else None


def pending_pause(order: Order | None, standing: Command | None) -> bool:
    """Whether ``order`` is newer than what stands in the control topic. Pure.

    A command that was said there for an order came after all older orders; only of one that an
    older version wrote there itself the clocks have to tell.
    """
    if order is None:
        return False
    if standing is None:
        return True
    if standing.order_id:
        return standing.order_id != order.order_id
    return order.time_ms > standing.time_ms


class OrderFollower:
    """Hears the orders of one flow for the run ``run_id``; one owner thread.

    ``say_again`` writes a command to the control topic, ``drain`` drains this run; both raise
    `MirrorError`.
    """

    def __init__(
        self,
        target: Cluster,
        flow: FlowSettings,
        run_id: str,
        *,
        say_again: Callable[[Command], None],
        drain: Callable[[], None],
    ) -> None:
        self._target = target
        self._flow = flow
        self._run_id = run_id
        self._say_again = say_again
        self._drain = drain
        self._reader: OrdersReader | None = None
        self._obeyed = ""
        self.hears = False

    def look(self, timeout_ms: int = 500) -> None:
        """Obey what has come since the last call; at the first one, all that stands there.

        Raises `MirrorError`: the topic is missing or may not be read, or the target is away.
        """
        if self._reader is None:
            self._reader = OrdersReader(self._target, self._flow)
            orders = self._reader.read_to_end()
        else:
            orders = self._reader.poll(timeout_ms)
        pause = newest_pause(orders)
        if pause is not None and pause.order_id != self._obeyed:
            if self._obeyed or pending_pause(pause, standing_pause(self._target, self._flow)):
                self._say_again(self._command(pause))
            self._obeyed = pause.order_id
        if any(self._run_id in order.runs for order in orders):
            self._drain()
        self.hears = True

    def _command(self, order: Order) -> Command:
        flow = channel(self._flow, self._run_id)
        return Command(flow, order.kind, self._run_id, order.time_ms, order_id=order.order_id)

    def forget(self) -> None:
        """Drop the reader after a failure; the next look opens a new one. Raises `MirrorError`."""
        self.hears = False
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

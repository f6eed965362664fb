"""Fences all slots of a flow, several at a time.

`transactions.Transactions.fence` fences one.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from sparkmirror.internal_topics.flow_claims import transactional_id
from sparkmirror.settings import FlowSettings
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.produce.partition_queue import Identity
from sparkmirror.wire.produce.transactions import Transactions

__all__ = ["fence_slots"]

_FENCED_AT_ONCE = 8


class _GivenUp(Exception):
    """Another slot cannot be fenced."""


def fence_slots(
    flow: FlowSettings, slots: int, *, patience_s: float = float("inf")
) -> list[Identity]:
    """Fence earlier writers of the flow's slots and abort their open transactions.

    Several at a time, because each takes round trips, and an open transaction takes time to end.
    Returns the identity of each slot. Raises `Denied`, `TransactionError`, `Unreachable`: the error
    of the first slot that has one. The other slots are then given up.
    """
    lanes = min(slots, _FENCED_AT_ONCE)
    failed = threading.Event()

    def rest(seconds: float) -> None:
        if failed.wait(seconds):
            raise _GivenUp

    def fence(first: int) -> list[Identity]:
        connections = ClusterConnections(flow.target)
        identities = []
        try:
            for slot in range(first, slots, lanes):
                if failed.is_set():
                    break
                transactions = Transactions(
                    connections,
                    transactional_id(flow, slot),
                    timeout_ms=flow.transaction_timeout_ms,
                    patience_s=patience_s,
                    sleep=rest,
                )
                try:
                    identities.append(transactions.fence())
                    transactions.release()  # the next slot's coordinator may be the same broker
                except _GivenUp:
                    transactions.close()
                except BaseException:
                    failed.set()
                    transactions.close()
                    raise
        finally:
            connections.close()
        return identities

    with ThreadPoolExecutor(max(1, lanes), thread_name_prefix="fence") as pool:
        found = [one.result() for one in [pool.submit(fence, first) for first in range(lanes)]]
    return [found[slot % lanes][slot // lanes] for slot in range(slots)]

"""The demo's transactional producer, because Kafka's console tools cannot abort."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

from sparkmirror.demo.scenario import Payment
from sparkmirror.errors import ClusterError, MirrorError
from sparkmirror.model import TopicPartition
from sparkmirror.records.records import Record, encode_batch
from sparkmirror.settings import ClusterClient, ProduceSettings
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.net.framing import ConnectionLost
from sparkmirror.wire.produce.producer import Producer
from sparkmirror.wire.produce.transactions import Transactions

__all__ = ["send_payments"]

_TIMEOUT_S = 30.0
_TRANSACTION_TIMEOUT_MS = 60_000


def send_payments(
    bootstrap_servers: str,
    topic: str,
    payments: Iterable[Payment],
    *,
    transactional_id: str,
    pause_s: float = 0.0,
    stop: threading.Event | None = None,
    timeout_s: float = _TIMEOUT_S,
) -> tuple[int, int]:
    """Send each payment in its own transaction; returns the (committed, aborted) record counts.

    ``pause_s``: pause between two transactions; ``stop``: ends early, between two transactions.
    Records of an aborted transaction are acknowledged before the abort, so that the log contains
    them. ``timeout_s``: of each step. Raises ClusterError if the broker refuses a transaction or
    does not respond.
    """
    counts = {True: 0, False: 0}
    client = ClusterClient("demo", tuple(bootstrap_servers.split(",")), transactional_id)
    connections = ClusterConnections(client)
    transactions = Transactions(
        connections, transactional_id, timeout_ms=_TRANSACTION_TIMEOUT_MS, patience_s=timeout_s
    )
    try:
        transactions.fence()
        producer = Producer(connections, ProduceSettings(), transactions=transactions)
        for payment in payments:
            if stop is not None and stop.is_set():
                break
            _send(producer, topic, payment, timeout_s)
            if payment.committed:
                transactions.commit()
            else:
                transactions.abort()
            counts[payment.committed] += len(payment.records)
            if pause_s:
                (stop or threading.Event()).wait(pause_s)
    except (MirrorError, ConnectionLost) as error:
        raise ClusterError(
            f"A transaction failed: {error}",
            where=f"{bootstrap_servers}, topic {topic}",
            do="Look at the broker's log, then start the demo again.",
        ) from error
    finally:
        transactions.close()
        connections.close()
    return counts[True], counts[False]


def _send(producer: Producer, topic: str, payment: Payment, timeout_s: float) -> None:
    """Write the records of ``payment``, one batch per partition, until they are acknowledged."""
    fate = ((b"fate", b"commit" if payment.committed else b"abort"),)
    now_ms = time.time_ns() // 1_000_000
    batches: dict[TopicPartition, list[Record]] = {}
    for partition, key, value in payment.records:
        rows = batches.setdefault(TopicPartition(topic, partition), [])
        rows.append(Record(len(rows), now_ms, key, value, fate))
    for tp, rows in batches.items():
        producer.backlog.append(tp, memoryview(encode_batch(rows)))
    deadline = time.monotonic() + timeout_s
    while not producer.backlog.idle:
        producer.pump(0.1)
        for tp, halt in producer.backlog.halts.items():
            raise ClusterError(f"{tp} accepts no batch: {halt.reason}.")
        if time.monotonic() > deadline:
            raise ClusterError(f"the batches are not acknowledged within {timeout_s:.0f} s.")

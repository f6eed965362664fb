"""The demo's transactional producer, because Kafka's console tools cannot abort."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable

import kafka.errors

import kafka
from sparkmirror.demo.scenario import Payment
from sparkmirror.errors import ClusterError

__all__ = ["send_payments"]

_TIMEOUT_S = 30.0


def send_payments(
    bootstrap_servers: str,
    topic: str,
    payments: Iterable[Payment],
    *,
    transactional_id: str,
    pause_s: float = 0.0,
    stop: threading.Event | None = None,
) -> tuple[int, int]:
    """Send each payment in its own transaction; returns the (committed, aborted) record counts.

    ``pause_s``: pause between two transactions; ``stop``: ends early, between two transactions.
    Records of an aborted transaction are acknowledged before the abort, so that the log contains
    them. Raises ClusterError if the broker refuses a transaction or does not respond.
    """
    logging.getLogger("kafka").setLevel(logging.ERROR)
    counts = {True: 0, False: 0}
    try:
        producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap_servers,
            transactional_id=transactional_id,
            acks="all",
            request_timeout_ms=int(_TIMEOUT_S * 1000),
            # Short, because each transaction waits for the markers of the previous one.
            retry_backoff_ms=10,
        )
        try:
            producer.init_transactions()
            for payment in payments:
                if stop is not None and stop.is_set():
                    break
                _send(producer, topic, payment)
                counts[payment.committed] += len(payment.records)
                if pause_s:
                    (stop or threading.Event()).wait(pause_s)
        finally:
            producer.close(timeout=_TIMEOUT_S)
    except kafka.errors.KafkaError as error:
        raise ClusterError(
            f"A transaction failed: {error}",
            where=f"{bootstrap_servers}, topic {topic}",
            do="Look at the broker's log, then start the demo again.",
        ) from error
    return counts[True], counts[False]


def _send(producer: kafka.KafkaProducer, topic: str, payment: Payment) -> None:
    producer.begin_transaction()
    kind = b"commit" if payment.committed else b"abort"
    futures = [
        producer.send(topic, value, key=key, partition=partition, headers=[("fate", kind)])
        for partition, key, value in payment.records
    ]
    producer.flush(timeout=_TIMEOUT_S)
    for future in futures:
        future.get(timeout=_TIMEOUT_S)
    if payment.committed:
        producer.commit_transaction()
    else:
        producer.abort_transaction()

"""What is written at the source of a mirror that is killed: numbers, also in transactions."""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException, Producer

from sparkmirror.testing.clusters import KafkaCluster
from tests.kafka.harness.background import Background
from tests.kafka.harness.support import TIMEOUT_S, transactional_producer

__all__ = ["ABORTED", "NUMBER", "InTransactions", "Numbered"]

NUMBER = struct.Struct(">q")
_PADDING = b"x" * 92
# Ends the records of transactions that are aborted: their numbers are written again.
ABORTED = b"a" * 92
_ABORTED_SHARE = 0.2
# A second of a partition's records, with the 12,000 in four partitions of `tests.faults`: a
# transaction holds readers up for as long as it is open.
_RECORDS_MAX = 3_000
_LINGER_MS = 20


class Numbered(Background):
    """Writes ``per_s`` numbered records a second, dealt to the partitions in turn.

    Without end, until `finish` says how many there shall be at least. ``sent``: how many each
    partition has that count.
    """

    def __init__(self, cluster: KafkaCluster, topic: str, partitions: int, *, per_s: float) -> None:
        super().__init__()
        self.sent = [0] * partitions
        self.failures: list[str] = []
        self._next = [0] * partitions  # the next record's number
        self._topic = topic
        self._records, self._per_s = float("inf"), per_s
        self._producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "enable.idempotence": True,
                "linger.ms": _LINGER_MS,
                "queue.buffering.max.messages": 1_000_000,
                "log_level": 0,
            }
        )

    @property
    def count(self) -> int:
        """Records written so far."""
        return sum(self.sent)

    @property
    def due(self) -> int:
        """How many of these the target must have."""
        return self.count

    def finish(self, records: int = 0) -> int:
        """Write what is missing to ``records`` as fast as it goes; how many there are in all."""
        self._records, self._per_s = records, float("inf")
        self._thread.join()
        assert not self.failures, self.failures
        return self.count

    def _run(self) -> None:
        began = time.monotonic()
        while self.count < self._records and not self._stopping.is_set():
            begun = sum(self._next)
            due = min(self._records, (time.monotonic() - began) * self._per_s + 1)
            for _ in range(min(5_000, int(due - begun)) if due > begun else 0):
                try:
                    self._write_to(self._next.index(min(self._next)))
                except BufferError:
                    self._producer.poll(0.1)
            if begun >= self._records:
                self._end_all()
            self._producer.poll(0.005)
        self._end_all()
        self._producer.flush(120)

    def _write_to(self, partition: int) -> None:
        """Write the next record of ``partition``."""
        self._produce(self._producer, partition, _PADDING)
        self.sent[partition] = self._next[partition]

    def _end_all(self) -> None:
        """End what is open."""

    def _produce(self, producer: Producer, partition: int, padding: bytes) -> None:
        producer.produce(
            self._topic,
            value=NUMBER.pack(self._next[partition]) + padding,
            partition=partition,
            on_delivery=self._delivered,
        )
        self._next[partition] += 1

    def _delivered(self, error: KafkaError | None, _message: object) -> None:
        if error is not None:
            self.failures.append(str(error))


@dataclass
class _Transaction:
    """One that is open: how many records it still gets, and how it ends."""

    left: int
    aborted: bool


class InTransactions(Numbered):
    """`Numbered`, where every second partition is written in transactions of random size.

    Each of these partitions has a producer of its own. A fifth of the transactions are aborted:
    the partition's next one has the same numbers again. ``committed`` and ``aborted`` count
    transactions, ``dropped`` the records of the aborted ones.
    """

    def __init__(
        self, cluster: KafkaCluster, topic: str, partitions: int, *, per_s: float, seed: int
    ) -> None:
        super().__init__(cluster, topic, partitions, per_s=per_s)
        self.committed = self.aborted = self.dropped = 0
        self._random = random.Random(seed)
        self._open: dict[int, _Transaction] = {}
        config = {"linger.ms": _LINGER_MS, "log_level": 0}
        self._producers = {
            number: transactional_producer(cluster, f"{topic}-{number}", config=config)
            for number in range(1, partitions, 2)
        }

    def __str__(self) -> str:
        return (
            f"every second partition in {self.committed:,} transactions and {self.aborted:,} "
            f"aborted ones with {self.dropped:,} records"
        )

    def _run(self) -> None:
        try:
            super()._run()
        except KafkaException as error:  # told by `finish`
            self.failures.append(str(error))

    def _write_to(self, partition: int) -> None:
        producer = self._producers.get(partition)
        if producer is None:
            super()._write_to(partition)
            return
        if partition not in self._open:
            producer.begin_transaction()
            # As many of one record to ten as of ten to a hundred, and so on.
            records = int(_RECORDS_MAX ** self._random.random())
            aborted = self._random.random() < _ABORTED_SHARE
            self._open[partition] = _Transaction(records, aborted)
        one = self._open[partition]
        self._produce(producer, partition, ABORTED if one.aborted else _PADDING)
        one.left -= 1
        if one.left == 0:
            self._end(partition)

    def _end_all(self) -> None:
        for partition in list(self._open):
            self._end(partition)

    def _end(self, partition: int) -> None:
        producer, one = self._producers[partition], self._open.pop(partition)
        # An abort would drop what is still queued here, and the source would not have it.
        producer.flush(TIMEOUT_S)
        if one.aborted:
            self._until_done(producer.abort_transaction)
            self.aborted += 1
            self.dropped += self._next[partition] - self.sent[partition]
            self._next[partition] = self.sent[partition]
        else:
            self._until_done(producer.commit_transaction)
            self.committed += 1
            self.sent[partition] = self._next[partition]

    def _until_done(self, end: Callable[[float], None]) -> None:
        """End a transaction; librdkafka wants to be asked again while its coordinator is away."""
        while True:
            try:
                end(TIMEOUT_S)
                return
            except KafkaException as error:
                if self._stopping.is_set() or not error.args[0].retriable():
                    raise

"""What a producer has open in a partition, and whether it was decided before.

A transaction ends with a marker in each of its partitions. Kafka 4.3 leaves it out for a partition
that has no leader at that moment (KAFKA-20734), whether the end is a commit or an abort. Its
records stay open there, under whatever epoch the producer id goes on, until the next marker of that
producer id decides about them, together with what was written since.

So a writer looks before it writes (`look`), and tells what it finds by what its position says of
the last records that count (`Written`). Asking takes brokers of 2.8 and Read on the topic
(KIP-664). Older brokers, to 3.9, keep the marker until the partition has a leader.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kafka.protocol.admin import DescribeProducersRequest

from sparkmirror.model import TopicPartition
from sparkmirror.wire.cluster.coordinator import Routes
from sparkmirror.wire.cluster.error_codes import RETRIABLE
from sparkmirror.wire.net.connection import Connection
from sparkmirror.wire.produce.partition_queue import SEQUENCE_MODULO

__all__ = ["OpenEnd", "Written", "look"]


class Written(NamedTuple):
    """The newest committed records of a partition: how many there were under which identity."""

    producer_id: int
    epoch: int
    records: int


class OpenEnd(NamedTuple):
    """What a producer has open in a partition: target offset of its first record, epoch and
    sequence of its last one.
    """

    offset: int
    producer_id: int
    epoch: int
    last_sequence: int

    def counts(self, written: Written | None) -> bool:
        """Whether the records are those that ``written`` tells of: they are to be committed."""
        if written is None or (self.producer_id, self.epoch) != written[:2]:
            return False
        return self.last_sequence == (written.records - 1) % SEQUENCE_MODULO


def look(
    routes: Routes, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, tuple[OpenEnd, ...]]:
    """What producers have open, by partition; those that nobody answers for are missing.

    A broker that is too old to say, or may not, is taken for one where nothing is open.
    """

    def ask(
        connection: Connection, led: list[TopicPartition]
    ) -> dict[TopicPartition, tuple[OpenEnd, ...]]:
        if DescribeProducersRequest.API_KEY not in connection.api_versions:
            return dict.fromkeys(led, ())
        by_topic: dict[str, list[int]] = {}
        for tp in led:
            by_topic.setdefault(tp.topic, []).append(tp.partition)
        rows = DescribeProducersRequest.TopicRequest
        topics = [rows(name=name, partition_indexes=numbers) for name, numbers in by_topic.items()]
        response = connection.request(DescribeProducersRequest(topics=topics), highest=0)
        return {
            TopicPartition(topic.name, part.partition_index): tuple(
                OpenEnd(
                    one.current_txn_start_offset,
                    one.producer_id,
                    one.producer_epoch,
                    one.last_sequence,
                )
                for one in part.active_producers or ()
                if one.current_txn_start_offset >= 0
            )
            for topic in response.topics
            for part in topic.partitions
            if part.error_code not in RETRIABLE
        }

    return routes.ask_leaders(partitions, ask)

"""Finds hanging transactions, and whether their records are committed by the writer's position.

A transaction ends with a marker in each of its partitions. Kafka 4.3 omits the commit or abort
marker for a partition that has no leader at that moment (KAFKA-20734). The records there stay open,
even if the producer id continues with another epoch. The next marker of that producer id then
commits or aborts them, together with everything written since.

So a writer checks before it writes (`find_open_transactions`). It compares what it finds with the
newest committed records that its position names (`CommittedRecords`). This needs brokers from 2.8
on and Read on the topic (KIP-664). Older brokers, to 3.9, keep the marker until the partition has a
leader.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kafka.protocol.admin import DescribeProducersRequest

from sparkmirror.model import TopicPartition
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.cluster.error_codes import RETRIABLE
from sparkmirror.wire.net.connection import Connection
from sparkmirror.wire.produce.partition_queue import SEQUENCE_MODULO

__all__ = ["CommittedRecords", "OpenTransaction", "find_open_transactions"]


class CommittedRecords(NamedTuple):
    """The committed records of a partition: their number under a producer id and epoch."""

    producer_id: int
    epoch: int
    records: int


class OpenTransaction(NamedTuple):
    """An open transaction in a partition: ``offset`` of its first record at the target.

    ``last_sequence``: of its last record.
    """

    offset: int
    producer_id: int
    epoch: int
    last_sequence: int

    def counts(self, written: CommittedRecords | None) -> bool:
        """Whether the records are those of ``written``: then they must be committed."""
        if written is None or (self.producer_id, self.epoch) != written[:2]:
            return False
        return self.last_sequence == (written.records - 1) % SEQUENCE_MODULO


def find_open_transactions(
    connections: ClusterConnections, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, tuple[OpenTransaction, ...]]:
    """The open transactions of each partition; partitions whose leader fails are missing.

    A broker that lacks DescribeProducers, or denies it, counts as one without open transactions.
    """

    def query(
        connection: Connection, led: list[TopicPartition]
    ) -> dict[TopicPartition, tuple[OpenTransaction, ...]]:
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
                OpenTransaction(
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

    return connections.query_leaders(partitions, query)

"""Finds out whether a batch in doubt was written, if sending it again cannot show that.

A broker checks for a duplicate only after it has checked size and records. So a batch that was
written, but whose acknowledgement was lost, is refused if the topic's limits were lowered
meanwhile. The partition's leader knows the last sequence of each producer and returns it in
DescribeProducers (KIP-664), which needs brokers from 2.8 on and Read on the topic.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from kafka.protocol.admin import DescribeProducersRequest

from sparkmirror.model import TopicPartition
from sparkmirror.offset_reset import LATEST
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.cluster.error_codes import RETRIABLE
from sparkmirror.wire.cluster.log_queries import query_epoch_ends, query_offsets
from sparkmirror.wire.net.connection import Connection

__all__ = ["InDoubtBatch", "WasWritten", "WrittenCheck", "was_written"]

_SEQUENCE_MODULO = 1 << 31


class WasWritten(Enum):
    """Whether a batch was written.

    ``YES``: all in-sync replicas have it. ``LATER``: not known yet, ask again. ``UNKNOWN``: the
    broker cannot tell.
    """

    YES = "yes"
    NO = "no"
    LATER = "later"
    UNKNOWN = "unknown"


class InDoubtBatch(NamedTuple):
    """A batch that may have been written, by its producer and last sequence.

    ``first``: nothing of the partition is acknowledged under this producer id yet.
    """

    tp: TopicPartition
    producer_id: int
    epoch: int
    last_sequence: int
    first: bool


WrittenCheck = Callable[[ClusterConnections, InDoubtBatch], WasWritten]


def was_written(connections: ClusterConnections, doubt: InDoubtBatch) -> WasWritten:
    """Ask the partition's leader whether the batch was written; changes nothing."""
    leader = connections.leaders.get(doubt.tp)
    if leader is None:
        return WasWritten.LATER

    def query(connection: Connection, _: list[TopicPartition]) -> dict[TopicPartition, WasWritten]:
        return {doubt.tp: _query(connection, doubt, leader.epoch)}

    return connections.query_leaders([doubt.tp], query).get(doubt.tp, WasWritten.LATER)


def _query(connection: Connection, doubt: InDoubtBatch, leader_epoch: int) -> WasWritten:
    tp = doubt.tp
    if DescribeProducersRequest.API_KEY not in connection.api_versions or leader_epoch < 0:
        return WasWritten.UNKNOWN
    rows = DescribeProducersRequest.TopicRequest
    topics = [rows(name=tp.topic, partition_indexes=[tp.partition])]
    message = DescribeProducersRequest(topics=topics)
    response = connection.request(message, highest=0)
    part = response.topics[0].partitions[0]
    if part.error_code:
        return WasWritten.LATER if part.error_code in RETRIABLE else WasWritten.UNKNOWN
    last = [
        one.last_sequence
        for one in part.active_producers
        if (one.producer_id, one.producer_epoch) == (doubt.producer_id, doubt.epoch)
    ]
    if not last:
        return WasWritten.NO if doubt.first else WasWritten.UNKNOWN
    if (last[0] - doubt.last_sequence) % _SEQUENCE_MODULO >= _SEQUENCE_MODULO // 2:
        return WasWritten.NO
    # It counts only if a new leader would have it, too.
    leading = {tp: leader_epoch}
    end = query_epoch_ends(connection, leading, leading).get(tp)
    replicated = query_offsets(connection, [tp], LATEST, read_committed=False, leading=leading)
    if end is None or end[0] != leader_epoch or replicated.get(tp, -1) < end[1]:
        return WasWritten.LATER
    return WasWritten.YES

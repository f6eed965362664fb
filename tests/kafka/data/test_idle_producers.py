"""A target that forgets producers which write nothing for a second: slots go on all the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kafka.protocol.admin import DescribeProducersRequest

from sparkmirror.settings import ClusterClient
from sparkmirror.testing.clusters import KafkaCluster
from sparkmirror.wire.net.connection import Connection
from tests.kafka.clusters.faults import Direct, SlotRun, check_mirrored
from tests.kafka.harness.mirror_process import wait_until
from tests.kafka.harness.support import Sent, create_topic, produce

# A day and ten minutes by default.
_FORGETS = {"producer.id.expiration.ms": "1000", "producer.id.expiration.check.interval.ms": "200"}
_ROUNDS, _RECORDS = 3, 300


def _known(cluster: KafkaCluster, topic: str, partitions: int) -> set[tuple[int, int]]:
    """(partition, producer id) of the producers that the broker knows of ``topic``."""
    host, _, port = cluster.bootstrap_servers.partition(":")
    client = ClusterClient("T", (cluster.bootstrap_servers,), "test")
    rows = DescribeProducersRequest.TopicRequest
    asked = [rows(name=topic, partition_indexes=list(range(partitions)))]
    connection = Connection(host, int(port), client)
    try:
        response = connection.request(DescribeProducersRequest(topics=asked), highest=0)
    finally:
        connection.close()
    parts = response.topics[0].partitions
    assert [part.error_code for part in parts] == [0] * partitions
    return {(part.partition_index, one.producer_id)
            for part in parts for one in part.active_producers}  # fmt: skip


@pytest.mark.long
def test_an_idle_partition_goes_on_after_its_producer_was_forgotten(
    cluster_a: KafkaCluster, new_cluster: Callable[..., KafkaCluster], topic_name: str
) -> None:
    """Records once and in order, without an error, at-least-once as well as exactly-once."""
    target = new_cluster("forgetful", config=_FORGETS, heap="256m")
    for exactly_once in (False, True):
        topic = f"{topic_name}-{exactly_once}"
        create_topic(cluster_a, topic, 2)
        ends = Direct(cluster_a), Direct(target)
        with SlotRun(*ends, topic, 2, proxied=False, exactly_once=exactly_once) as run:
            for number in range(_ROUNDS):
                _one_round(run, cluster_a, target, number)
        assert not run.failures
        assert not run.halts()
        # A broker that cannot ask its coordinator in time whether a partition is in the transaction
        # answers so (ReplicaManager.handleProduceAppend), and is asked again.
        assert not run.errors().keys() - ({"NOT_ENOUGH_REPLICAS"} if exactly_once else set())


def _one_round(run: SlotRun, source: KafkaCluster, target: KafkaCluster, number: int) -> None:
    """Both partitions have records, then none until the target has forgotten who wrote them."""
    # More than one answer holds: several batches are under way.
    values = [b"%d-%d" % (number, n) + bytes(20_000) for n in range(_RECORDS)]
    produce(source, run.topic, [Sent(v, partition=n % 2) for n, v in enumerate(values)])
    assert check_mirrored(source, run.topic, target, run.remote) == _RECORDS * (number + 1)
    wait_until(lambda: not _known(target, run.remote, 2), "the producers are forgotten")

"""An attempt of a slot that is over still reports, on real brokers: nothing goes back for it."""

from __future__ import annotations

import itertools
import json
import time
from dataclasses import replace

import pytest

from sparkmirror.internal_topics.commands import PROGRESS_PARTITION, control_topic
from sparkmirror.internal_topics.reports import encode_progress
from sparkmirror.model import TopicPartition
from sparkmirror.progress import Halt, PartitionProgress, SlotProgress
from sparkmirror.testing.clusters import KafkaCluster
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.cluster.coordinators import Coordinators
from tests.kafka.clusters.faults import Direct, SlotRun
from tests.kafka.harness.support import Sent, consume_all, create_topic, produce
from tests.patience import patience

HALT = Halt("INVALID_RECORD", "the target refuses it", retriable=True, attempt=0)


def _zombie(slot: SlotRun, run_id: str, attempt: int) -> Sent:
    """What an attempt says that was given up with its partition halted, at the very beginning."""
    row = PartitionProgress(slot.topic, 0, 0, halt=HALT)
    now_ms = int(time.time() * 1000)
    told = SlotProgress(slot.flow.name, 0, "w", 0, now_ms, 0, 0, 0, partitions=(row,))
    key, value = encode_progress(replace(told, run_id=run_id, attempt=attempt))
    return Sent(value, key, partition=PROGRESS_PARTITION)


def _unnamed(sent: Sent) -> Sent:
    document = json.loads(sent.value or b"")
    del document["run_id"], document["attempt"]
    return sent._replace(value=json.dumps(document, separators=(",", ":")).encode())


def _committed(slot: SlotRun) -> int:
    coordinators, tp = (
        Coordinators(ClusterConnections(slot.flow.target)),
        TopicPartition(slot.remote, 0),
    )
    try:
        return coordinators.committed(slot.flow.position_group, [tp], stable=True)[tp][0]
    finally:
        coordinators.close()


@pytest.mark.parametrize("exactly_once", [False, True], ids=["at-least-once", "exactly-once"])
def test_a_halted_zombie_sends_no_slot_back(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, topic_name: str, *, exactly_once: bool
) -> None:
    create_topic(cluster_a, topic_name)
    source, target = Direct(cluster_a), Direct(cluster_b)
    sent = 0
    with SlotRun(source, target, topic_name, exactly_once=exactly_once) as slot:
        zombies = [
            _zombie(slot, slot.run_id, 99),
            _zombie(slot, "another", 0),
            _unnamed(_zombie(slot, "", 0)),
        ]
        heard = 0
        deadline = time.monotonic() + patience()
        for number in itertools.count():
            produce(cluster_a, topic_name, [Sent(b"%d" % number, b"k", partition=0)])
            sent += 1
            own = sum(one.attempt == 0 and one.run_id == slot.run_id for one in slot.reports())
            if own > heard + 3:  # it has heard all that stood before its own reports
                if heard:
                    break
                heard = own
                produce(cluster_b, control_topic(slot.flow), zombies)
            assert time.monotonic() < deadline, slot.failures
            time.sleep(0.1)
        slot.drain()
        assert slot.failures == []
    values = [record.value for record in consume_all(cluster_b, slot.remote)]
    assert values == [b"%d" % number for number in range(sent)]
    assert _committed(slot) == sent

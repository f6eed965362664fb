"""Whether groups that have read some of a transformed topic go on at the very next record."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from confluent_kafka import Consumer, TopicPartition

from sparkmirror.testing.clusters import KafkaCluster
from tests.faults.transforms.orders import keeps
from tests.kafka.harness.support import TIMEOUT_S, commit

__all__ = ["GROUP_SETTINGS", "TAIL", "Translated", "translated"]

TAIL = 90
"""How many of a partition's newest orders have exact runs: a slot publishes the last 64 runs of a
transaction, and of 90 orders 27 are left out."""

GROUP_SETTINGS: Mapping[str, str] = {
    "refresh.groups.interval.seconds": "2",
    "emit.checkpoints.interval.seconds": "1",
    "sync.group.offsets.enabled": "true",
    "sync.group.offsets.interval.seconds": "1",
}
"""The lines of a file that bring groups over soon."""

_GROUPS = 5
_MOVED_S = 90.0


@dataclass
class Translated:
    """``offsets``: how many were looked at. ``wrong``: those that are not at the next record."""

    offsets: int = 0
    wrong: list[str] = field(default_factory=list)


def translated(
    source: KafkaCluster,
    target: KafkaCluster,
    topics: tuple[str, str],
    begins: Sequence[int],
    chooser: random.Random,
) -> Translated:
    """Commit offsets of some groups at the source, and look where they are at the target.

    ``topics``: at the source and at the target. ``begins``: where the partitions' last `TAIL`
    records begin, all of which the target has.
    """
    topic, remote = topics
    found = Translated()
    groups = {
        f"readers-{number}-{uuid.uuid4().hex[:8]}": [
            # Some order behind it must be there to go on at.
            first + chooser.randrange(TAIL - 3)
            for first in begins
        ]
        for number in range(_GROUPS)
    }
    for group, offsets in groups.items():
        consumer = _consumer(source, group)
        commit(consumer, [TopicPartition(topic, n, offset) for n, offset in enumerate(offsets)])
        consumer.close()
    for group, offsets in groups.items():
        found.offsets += len(offsets)
        found.wrong += _wrong(target, group, remote, offsets)
    return found


def _wrong(cluster: KafkaCluster, group: str, topic: str, read: Sequence[int]) -> list[str]:
    """Where the group is elsewhere than it must be, after it had time to move.

    ``read``: its offsets at the source. A checkpoint may be older than the newest runs, and then a
    group has some way to go. It never goes back.
    """
    wanted = [TopicPartition(topic, number) for number in range(len(read))]
    deadline = time.monotonic() + _MOVED_S
    seen: list[int] = []
    wrong = [f"{group} has not moved"]
    consumer = _consumer(cluster, group)
    try:
        while wrong and time.monotonic() < deadline:
            there = [one.offset for one in consumer.committed(wanted, timeout=TIMEOUT_S)]
            if there != seen:
                seen = there
                wrong = [
                    f"{group}, partition {partition}: {first} became {offset}: {text}"
                    for partition, (first, offset) in enumerate(zip(read, there, strict=True))
                    if (text := _complaint(cluster, topic, partition, first, offset))
                ]
            time.sleep(0.5)
    finally:
        consumer.close()
    return wrong


def _complaint(cluster: KafkaCluster, topic: str, partition: int, read: int, there: int) -> str:
    if there < 0:
        return "not translated"
    wanted = next(number for number in range(read, read + TAIL) if keeps(number))
    number = _next(cluster, topic, partition, there)
    return "" if number == wanted else f"order {number} is next instead of {wanted}"


def _next(cluster: KafkaCluster, topic: str, partition: int, offset: int) -> int:
    """The number of the first order from ``offset`` on."""
    consumer = _consumer(cluster, f"look-{uuid.uuid4().hex[:8]}")
    try:
        consumer.assign([TopicPartition(topic, partition, offset)])
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            message = consumer.poll(0.5)
            if message is not None and message.error() is None:
                return int(message.key() or -1)
        return -1
    finally:
        consumer.close()


def _consumer(cluster: KafkaCluster, group: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "log_level": 0,
        }
    )

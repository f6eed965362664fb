"""What the two ends of a slot ask of healthy brokers: how much at once, how often.

Read from the frames that pass a proxy; real brokers, no Spark.
"""

from __future__ import annotations

import re
import time
from collections import Counter

import pytest

from sparkmirror.settings import ProduceSettings
from tests.kafka.clusters.faults import FETCH, NODES, PRODUCE, SlotRun, ThrottleTap, check_mirrored
from tests.kafka.harness.mirror_process import wait_until
from tests.kafka.harness.support import Sent, create_topic, produce

PARTITIONS = 4 * NODES
_OFFSET_FOR_LEADER_EPOCH = 23
# Whom to ask (two requests), then each leader its versions, two ends and two leader epochs.
_LOOK_REQUESTS_MAX = 2 + NODES * 5
_MARK = re.compile(rb"of partition (\d+)\.")


class Requests(ThrottleTap):
    """Counts requests by kind, those under way on a connection, and partitions in one."""

    def __init__(self) -> None:
        super().__init__()
        self.by_key: Counter[int] = Counter()
        self.produce_under_way_max = 0
        self.partitions_max = 0

    def _request(self, number: int, frame: bytes, now: float) -> None:
        super()._request(number, frame, now)
        key = int.from_bytes(frame[:2])
        self.by_key[key] += 1
        if key == PRODUCE:
            under_way = sum(
                asked == PRODUCE and of == number for (of, _), (asked, _) in self._asked.items()
            )
            self.produce_under_way_max = max(self.produce_under_way_max, under_way)
            self.partitions_max = max(self.partitions_max, len(set(_MARK.findall(frame))))


def _records(count: int, first: int = 0) -> list[Sent]:
    return [
        Sent(b"%d of partition %d." % (n, n % PARTITIONS) + b"x" * 500, partition=n % PARTITIONS)
        for n in range(first, first + count)
    ]


@pytest.mark.more
def test_produce_requests_hold_several_partitions_and_at_most_five_are_under_way(
    source, target, topic_name
):
    create_topic(source.kafka, topic_name, PARTITIONS, replication=NODES)
    produce(source.kafka, topic_name, _records(PARTITIONS))
    small = ProduceSettings(request_bytes_max=40_000, join_bytes=0)
    with SlotRun(source, target, topic_name, PARTITIONS, produce=small) as slot:
        ends = source.kafka, topic_name, target.kafka, slot.remote
        check_mirrored(*ends, None)
        taps = {number: Requests() for number in target.proxies}
        for number, tap in taps.items():
            # Answers take their time, so that requests have the chance to pile up.
            target.proxies[number].delay_s = 0.02
            target.proxies[number].tap = tap
        more = _records(8_000, first=PARTITIONS)
        produce(source.kafka, topic_name, more, config={"batch.num.messages": 10})
        check_mirrored(*ends, None)
        assert slot.failures == []
    assert max(tap.partitions_max for tap in taps.values()) > 1
    assert 1 < max(tap.produce_under_way_max for tap in taps.values()) <= 5


def test_a_slot_without_work_waits_at_the_brokers(source, target, topic_name):
    """Long polls, one per broker and half a second; nothing is written meanwhile.

    Every 30 seconds it looks where the target's logs end, which may be within ours.
    """
    create_topic(source.kafka, topic_name, PARTITIONS, replication=NODES)
    produce(source.kafka, topic_name, _records(PARTITIONS))
    with SlotRun(source, target, topic_name, PARTITIONS) as slot:
        check_mirrored(*(source.kafka, topic_name, target.kafka, slot.remote), None)
        time.sleep(2)  # the last positions and reports
        taps = [Requests() for _ in range(2 * NODES)]
        for proxy, tap in zip(
            [*source.proxies.values(), *target.proxies.values()], taps, strict=True
        ):
            proxy.tap = tap
        time.sleep(5)
        seen = sum((tap.by_key for tap in taps), Counter())
    # Ten rounds at three sources and at the target's control topic; twice that is generous.
    assert 0 < seen[FETCH] <= 2 * 10 * (NODES + 2)
    assert seen[PRODUCE] <= 2
    looks = _LOOK_REQUESTS_MAX if seen[_OFFSET_FOR_LEADER_EPOCH] else 0
    assert sum(seen.values()) - seen[FETCH] - seen[PRODUCE] <= 10 + looks, seen


def test_one_fetch_asks_for_all_partitions_that_a_broker_leads(source, target, topic_name):
    create_topic(source.kafka, topic_name, PARTITIONS, replication=NODES)
    produce(source.kafka, topic_name, _records(PARTITIONS))
    with SlotRun(source, target, topic_name, PARTITIONS) as slot:
        check_mirrored(*(source.kafka, topic_name, target.kafka, slot.remote), None)
        taps = {number: _FetchCount() for number in source.proxies}
        for number, tap in taps.items():
            source.proxies[number].tap = tap
        wait_until(
            lambda: sum(tap.connections for tap in taps.values()) == NODES, "a Fetch to each broker"
        )
        time.sleep(1)
    assert all(tap.connections <= 1 for tap in taps.values()), "one connection per broker"
    assert sum(tap.connections for tap in taps.values()) == NODES


class _FetchCount(Requests):
    """Also on how many connections Fetch requests came."""

    @property
    def connections(self) -> int:
        with self._lock:
            return len({number for number, key in self._sent if key == FETCH})

"""Slots that begin late, beside those of a newer epoch. No Spark, real brokers."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from sparkmirror.data.coordination.slot_plan import SlotPlan, encode_flow
from sparkmirror.data.read.slot_reader import SlotReader
from sparkmirror.data.spark_source import _Planner
from sparkmirror.data.write.slot_sink import SlotSink
from sparkmirror.internal_topics.commands import (
    AssignmentDocument,
    Command,
    CommandKind,
    SourcePartition,
    channel,
    encode_assignment,
    encode_command,
)
from sparkmirror.internal_topics.epochs.shares import slot_of
from sparkmirror.model import TopicPartition
from sparkmirror.settings import FlowSettings
from sparkmirror.testing.clusters import KafkaCluster
from tests.kafka.clusters.faults import Direct, SlotRun, tell
from tests.kafka.harness.support import Sent, consume_all, create_topic, produce
from tests.patience import patience

SLOTS = 2


class _Flow:
    """An exactly-once flow: what its driver publishes, and the planner of its epochs."""

    def __init__(self, source: KafkaCluster, target: KafkaCluster, topic: str) -> None:
        ends = Direct(source), Direct(target)
        run = SlotRun(*ends, topic, 3, exactly_once=True, tasks_max=SLOTS)
        self.flow: FlowSettings = run.flow
        self.partitions, self.run_id = run.partitions, run.run_id
        self._alias, self._source, self._target = run.alias, source, target
        self._version = 0
        self._epoch = 0
        self.planner = self.new_planner()

    def new_planner(self) -> _Planner:
        options = {"flow": encode_flow(self.flow), "run_id": self.run_id, "once": "false"}
        return _Planner(options)

    def publish(
        self,
        kind: CommandKind,
        partitions: Sequence[SourcePartition],
        since: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """Publish an assignment as the driver does; the first one is the base of all others."""
        self._version += 1
        to = channel(self.flow, self.run_id)
        document = AssignmentDocument(
            *(to, self.run_id, self._version, tuple(partitions)), since=since or {}, base=1
        )
        extends = kind is CommandKind.EXTEND
        base = 1 if extends else 0
        command = Command(to, kind, self.run_id, 1, version=self._version, base=base)
        tell(self._target, self.flow, *encode_assignment(document), encode_command(command))

    def add_topic(self, prefix: str, slot: int) -> tuple[str, SourcePartition]:
        """Create a topic on both clusters; one that ``slot`` gets while an epoch runs."""
        names = (f"{prefix}-{number}" for number in itertools.count())
        topic = next(one for one in names if slot_of(TopicPartition(one, 0), SLOTS) == slot)
        remote = f"{self._alias}.{topic}"
        create_topic(self._source, topic, 1)
        create_topic(self._target, remote, 1)
        return remote, SourcePartition(topic, 0, remote)

    def epoch(self, planner: _Planner | None = None) -> list[SlotPlan]:
        """Plan the next epoch."""
        planner = planner or self.planner
        start = {"epoch": self._epoch}
        end = planner.latestOffset(start, cast(Any, None))
        assert end != start
        self._epoch = end["epoch"]
        return [slot.value for slot in planner.partitions(start, end)]

    def drain(self) -> None:
        to = channel(self.flow, self.run_id)
        command = Command(to, CommandKind.DRAIN, self.run_id, 1)
        tell(self._target, self.flow, encode_command(command))


class _Task(threading.Thread):
    """One attempt of a slot, as Spark runs it. ``error``: what it has failed with."""

    def __init__(self, flow: FlowSettings, plan: SlotPlan) -> None:
        super().__init__(daemon=True)
        self.error: Exception | None = None
        self.records = 0
        self._flow, self._plan = flow, plan
        self.start()

    def run(self) -> None:
        try:
            rows = SlotReader(self._flow, self._plan).rows()
            self.records = SlotSink(self._flow).run(rows).records
        except Exception as error:
            self.error = error


@pytest.fixture
def flow(cluster_a: KafkaCluster, cluster_b: KafkaCluster, topic_name: str):
    create_topic(cluster_a, topic_name, 3)
    made = _Flow(cluster_a, cluster_b, topic_name)
    yield made
    made.planner.stop()


def _some(first: int, count: int = 20) -> list[Sent]:
    return [Sent(b"%d" % number) for number in range(first, first + count)]


def _values(cluster: KafkaCluster, topic: str) -> list[int]:
    return [int(one.value or b"") for one in consume_all(cluster, topic)]


def _wait(condition) -> None:
    deadline = time.monotonic() + patience()
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _moved(flow: _Flow, topic: str) -> tuple[str, SourcePartition, SlotPlan]:
    """A topic that slot 0 gets within the first epoch. Returns it, and slot 0's plan of that."""
    flow.publish(CommandKind.RUN, flow.partitions)
    early = flow.epoch()[0]
    remote, added = flow.add_topic(f"{topic}-new", 0)
    flow.publish(CommandKind.EXTEND, [*flow.partitions, added], {added.source: 2})
    return remote, added, early


@pytest.mark.parametrize(
    "restarted",
    [pytest.param(False, marks=pytest.mark.more), True],
    ids=["same-planner", "new-planner"],
)
def test_a_slot_of_an_earlier_epoch_that_begins_late_writes_nothing(
    flow: _Flow, cluster_a: KafkaCluster, cluster_b: KafkaCluster, topic_name: str, *,
    restarted: bool,
) -> None:  # fmt: skip
    """The partition was slot 0's in the first epoch, and is slot 1's in the second one."""
    remote, added, early = _moved(flow, topic_name)
    planner = flow.new_planner() if restarted else flow.planner
    plans = flow.epoch(planner)
    assert added in plans[1].partitions
    newer = _Task(flow.flow, plans[1])
    try:
        produce(cluster_a, added.topic, _some(0))
        _wait(lambda: _values(cluster_b, remote) == list(range(20)))
        late = _Task(flow.flow, early)
        late.join(patience())
        produce(cluster_a, added.topic, _some(20))
        _wait(lambda: len(_values(cluster_b, remote)) >= 40)
        time.sleep(1.0)  # for what comes twice
        assert _values(cluster_b, remote) == list(range(40))
        assert not late.is_alive()
        assert (late.records, late.error) == (0, None)
    finally:
        flow.drain()
        if restarted:
            planner.stop()
        newer.join(patience())
    assert newer.error is None

"""Whatever brokers do: every batch is in the target's log, in order, exactly once."""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import cast

from hypothesis import example, given, settings
from hypothesis import strategies as st

from sparkmirror.model import ProduceSettings, TopicPartition
from sparkmirror.wire.produce import Producer
from sparkmirror.wire.records import Record, encode_batch
from sparkmirror.wire.routes import Routes
from sparkmirror.wire.transactions import Transactions
from tests.property.simulated_target import SimTarget

NODES = 3
PARTITIONS = [TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)]

_nodes = st.integers(0, NODES - 1)
_tps = st.sampled_from(PARTITIONS)
steps = st.one_of(
    st.tuples(st.just("append"), _tps, st.integers(1, 4)),
    st.tuples(st.just("pump")),
    st.tuples(st.just("take"), _nodes),
    st.tuples(st.just("replicate"), _tps),
    st.tuples(st.just("move"), _tps, _nodes, st.integers(0, 4)),
    st.tuples(st.just("cut"), _nodes),
    st.tuples(st.just("refresh")),
    st.tuples(st.just("shrink"), st.integers(1, 4)),
)
Step = tuple[object, ...]

A, B = PARTITIONS[0], PARTITIONS[1]


class Run:
    """A producer before a simulated target; ``appended`` and ``acknowledged`` values."""

    def __init__(self, transactions: Transactions | None = None) -> None:
        self.target = SimTarget(NODES, PARTITIONS)
        self.now = 0.0
        self.producer = Producer(
            cast(Routes, self.target),
            ProduceSettings(),
            transactions=transactions,
            arrival=self.target.arrival,
            clock=lambda: self.now,
        )
        self.appended: dict[TopicPartition, list[int]] = defaultdict(list)
        self.acknowledged: dict[TopicPartition, int] = defaultdict(int)
        self._numbers = itertools.count()

    def append(self, tp: TopicPartition, records: int) -> None:
        numbers = [next(self._numbers) for _ in range(records)]
        self.appended[tp] += numbers
        content = [Record(index, 1, None, b"%d" % n) for index, n in enumerate(numbers)]
        self.producer.append(tp, memoryview(encode_batch(content)), numbers[-1])

    def pump(self) -> None:
        self.now += 0.3
        for ack in self.producer.pump(0.0):
            self.acknowledged[ack.tp] += ack.records
            if ack.token is not None and ack.offset >= 0:
                values = self.target.partitions[ack.tp].values
                assert values[ack.offset + ack.records - 1] == ack.token

    def step(self, step: Step) -> None:
        name, *arguments = step
        target = self.target
        if name == "shrink":
            # What was refused could still arrive if it were taken again a moment later.
            records = cast(int, arguments[0])
            if self.producer.idle or records < target.batches_max_records:
                target.batches_max_records = records
        elif name in ("append", "pump"):
            getattr(self, cast(str, name))(*arguments)
        else:
            getattr(target, cast(str, name))(*arguments)

    def settle(self) -> None:
        """Nothing fails any more, until everything is acknowledged."""
        for _ in range(500):
            self.pump()
            for node in range(NODES):
                while self.target.take(node):
                    pass
            for tp in PARTITIONS:
                self.target.replicate(tp)
            if self.producer.idle:
                return
        raise AssertionError("the producer does not come to an end")


@settings(max_examples=400, deadline=None)
@given(st.lists(steps, max_size=60))
@example(
    # The next batch finds the new leader while the answer of the old one is under way.
    [
        ("append", A, 1),
        ("pump",),
        ("take", 0),
        ("replicate", A),
        ("pump",),
        ("append", A, 1),
        ("pump",),
        ("take", 0),
        ("move", A, 1, 1),
        ("refresh",),
        ("append", A, 1),
        ("pump",),
        ("take", 1),
        ("pump",),
    ]
)
@example(
    # A batch arrives, its acknowledgement does not, and then the topic no longer takes it.
    [
        ("append", A, 4),
        ("append", A, 1),
        ("pump",),
        ("take", 0),
        ("replicate", A),
        ("cut", 0),
        ("shrink", 2),
    ]
)
@example(
    # One partition's log forgets its producer while another partition's batch is in doubt.
    [
        ("append", B, 1),
        ("pump",),
        ("take", 1),
        ("move", B, 2, 1),
        ("append", A, 1),
        ("pump",),
        ("take", 0),
        ("move", A, 1, 0),
        ("pump",),
    ]
)
@example(
    # A broker no longer leads when the first batch comes, and leads again when the second one does.
    [
        ("append", A, 1),
        ("pump",),
        ("append", A, 1),
        ("pump",),
        ("move", A, 1, 0),
        ("take", 0),
        ("move", A, 0, 0),
        ("take", 0),
        ("replicate", A),
    ]
)
def test_every_batch_arrives_once_and_in_order(script: list[Step]) -> None:
    run = Run()
    try:
        for step in script:
            run.step(step)
        run.settle()
        for tp in PARTITIONS:
            assert run.target.partitions[tp].values == run.appended[tp]
            assert run.acknowledged[tp] == len(run.appended[tp])
        assert run.producer.bytes_waiting == 0
        assert not run.producer.halts
    finally:
        run.target.close()


def test_partitions_that_lose_their_leaders_together_are_given_up_together() -> None:
    """Each of them leaves the queue while the producer goes through it."""
    run = Run()
    run.target.refresh = run.target.leaders.clear  # type: ignore[method-assign]
    run.target.refresh()
    for tp in PARTITIONS:
        run.append(tp, 1)
    run.pump()
    run.now += run.producer.settings.delivery_timeout_ms / 1000
    run.pump()
    assert run.producer.halts.keys() == set(PARTITIONS)
    assert run.producer.idle

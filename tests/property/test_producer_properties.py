"""Whatever brokers do: every batch is in the target's log, in order, exactly once."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sparkmirror.errors import Fenced, TransactionError
from sparkmirror.model import TopicPartition
from sparkmirror.records.records import Record, encode_batch
from sparkmirror.settings import ProduceSettings
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.produce.producer import Producer
from sparkmirror.wire.produce.topic_limits import TopicLimits
from sparkmirror.wire.produce.transactions import Transactions
from tests.property.simulated_target import Brokers, SimTarget

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
    st.tuples(st.sampled_from(["forget", "outdate"]), _tps),
)
brokers = st.builds(Brokers, st.booleans(), st.booleans())
Step = tuple[object, ...]
# Those that answer with errors where today's acknowledge or take a batch.
OLD = Brokers(refuse_unknown=True, name_repeats=True)
# After this time without a batch, brokers from 2.5 on forget a producer; earlier ones may at once.
_EXPIRATION_S = 86_400.0

# As batches pass by default without a delay, and as they do where all that wait are joined.
JOININGS = ("off", "always")
# The second does all that the first does, and joins.
JOINED = (pytest.param("off", marks=pytest.mark.more), "always")

A, B = PARTITIONS[0], PARTITIONS[1]


class Run:
    """A producer before a simulated target; ``appended`` and ``acknowledged`` values.

    ``ruthless``: these steps happen also while batches wait for their acknowledgement. ``joining``
    and ``compression``: those of the link in `ProduceSettings`.
    """

    def __init__(
        self,
        transactions: Transactions | None = None,
        brokers: Brokers | None = None,
        *,
        ruthless: Collection[str] = (),
        joining: str = "off",
        compression: str = "",
    ) -> None:
        self.target = SimTarget(NODES, PARTITIONS, brokers)
        self._ruthless = ruthless
        self.now = 0.0
        self.limits = TopicLimits()
        self.producer = Producer(
            cast(ClusterConnections, self.target),
            ProduceSettings(link_joining=joining, link_compression=compression),
            transactions=transactions,
            arrival=self.target.arrival,
            limits=self.limits,
            clock=lambda: self.now,
        )
        self.appended: dict[TopicPartition, list[int]] = defaultdict(list)
        self.acknowledged: dict[TopicPartition, int] = defaultdict(int)
        self.named_repeats = 0
        self._numbers = itertools.count()

    def append(self, tp: TopicPartition, records: int) -> None:
        numbers = [next(self._numbers) for _ in range(records)]
        self.appended[tp] += numbers
        content = [Record(index, 1, None, b"%d" % n) for index, n in enumerate(numbers)]
        self.producer.backlog.append(tp, memoryview(encode_batch(content)), numbers[-1])

    def pump(self) -> None:
        self.now += 0.3
        for ack in self.producer.pump(0.0):
            self.acknowledged[ack.tp] += ack.records
            self.named_repeats += ack.offset < 0
            if ack.token is not None and ack.offset >= 0:
                values = self.target.partitions[ack.tp].values
                assert values[ack.offset + ack.records - 1] == ack.token

    def step(self, step: Step) -> None:
        name, *arguments = step
        target = self.target
        if name == "shrink":
            # What was refused could still arrive if it were taken again a moment later.
            records = cast(int, arguments[0])
            if self.producer.backlog.idle or records < target.batches_max_records:
                target.batches_max_records = records
        elif name in ("forget", "outdate"):
            tp, backlog = cast(TopicPartition, arguments[0]), self.producer.backlog
            if name in self._ruthless or not backlog.waiting(tp):
                if name == "forget" and not target.brokers.refuse_unknown:
                    if not backlog.idle:
                        return  # time would pass for the others, too
                    self.now += _EXPIRATION_S
                getattr(target, cast(str, name))(tp)
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
            if self.producer.backlog.idle:
                return
        raise AssertionError("the producer does not come to an end")


@pytest.mark.parametrize("joining", JOININGS)
@settings(max_examples=400, deadline=None)
@given(st.lists(steps, max_size=60), brokers)
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
    ],
    Brokers(),
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
    ],
    Brokers(),
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
    ],
    Brokers(),
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
    ],
    Brokers(),
)
@example(
    # The same after a pause, in which the broker has forgotten the producer.
    [
        ("append", A, 1),
        ("pump",),
        ("take", 0),
        ("replicate", A),
        ("pump",),
        ("forget", A),
        ("append", A, 1),
        ("pump",),
        ("append", A, 1),
        ("pump",),
        ("move", A, 1, 0),
        ("take", 0),
        ("move", A, 0, 0),
        ("take", 0),
        ("replicate", A),
    ],
    Brokers(),
)
@example(
    # A partition is idle until its producer is forgotten, then has several batches at once.
    [
        ("append", A, 1),
        ("pump",),
        ("take", 0),
        ("replicate", A),
        ("pump",),
        ("forget", A),
        ("append", A, 2),
        ("append", A, 1),
        ("append", A, 1),
        ("pump",),
    ],
    OLD,
)
@example(
    # The same, where another writer has begun an epoch.
    [
        ("append", A, 1),
        ("pump",),
        ("take", 0),
        ("replicate", A),
        ("pump",),
        ("outdate", A),
        ("append", A, 2),
        ("append", A, 1),
        ("pump",),
    ],
    Brokers(),
)
@example(
    # Batches arrive, their acknowledgements do not, and the target says that they are repeats.
    [
        ("append", A, 1),
        ("pump",),
        ("take", 0),
        ("replicate", A),
        ("pump",),
        ("append", A, 1),
        ("append", A, 2),
        ("pump",),
        ("take", 0),
        ("take", 0),
        ("replicate", A),
        ("cut", 0),
    ],
    OLD,
)
def test_every_batch_arrives_once_and_in_order(
    joining: str, script: list[Step], kind: Brokers
) -> None:
    run = Run(brokers=kind, joining=joining)
    try:
        for step in script:
            run.step(step)
        run.settle()
        for tp in PARTITIONS:
            assert run.target.partitions[tp].values == run.appended[tp]
            assert run.acknowledged[tp] == len(run.appended[tp])
        assert run.producer.backlog.bytes_waiting == 0
        assert not run.producer.backlog.halts
    finally:
        run.target.close()


@pytest.mark.parametrize("joining", JOINED)
@settings(max_examples=200, deadline=None)
@given(st.lists(steps, max_size=60), brokers)
@example(
    # Two batches arrive, and their producer is forgotten before they are sent again.
    [
        ("append", A, 1),
        ("pump",),
        ("take", 0),
        ("replicate", A),
        ("pump",),
        ("append", A, 1),
        ("append", A, 2),
        ("pump",),
        ("take", 0),
        ("take", 0),
        ("forget", A),
        ("cut", 0),
    ],
    OLD,
)
def test_what_a_target_forgets_while_it_is_in_doubt_comes_again_in_order(
    joining: str, script: list[Step], kind: Brokers
) -> None:
    """Whether it is there cannot be known: it comes twice, as at-least-once says, never not."""
    run = Run(
        brokers=replace(kind, refuse_unknown=True), ruthless=("forget", "outdate"), joining=joining
    )
    try:
        for step in script:
            run.step(step)
        run.settle()
        for tp in PARTITIONS:
            values = run.target.partitions[tp].values
            assert list(dict.fromkeys(values)) == run.appended[tp]
            assert run.acknowledged[tp] == len(run.appended[tp])
            # What comes again goes on from there without a gap.
            for before, value in itertools.pairwise(values):
                follower = run.appended[tp].index(before) + 1
                assert run.appended[tp].index(value) <= follower
        if not {"forget", "outdate"} & {step[0] for step in script}:
            assert run.target.partitions[A].values == run.appended[A]
        assert not run.producer.backlog.halts
    finally:
        run.target.close()


class Open(SimpleNamespace):
    """A transaction that every partition may join and that nobody ends."""

    def __init__(self) -> None:
        super().__init__(
            identity=(7, 0), transactional_id="id", timeout_ms=60_000, members=set(), began=False
        )

    def add(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        self.members |= set(partitions)
        return {}

    def ended(self, what: str, _code: int) -> Fenced:
        return Fenced(f"{what}.")


@pytest.mark.parametrize("joining", JOINED)
@settings(max_examples=200, deadline=None)
@given(st.lists(steps, max_size=60), brokers)
@example(
    # Another writer takes over between two batches.
    [
        ("append", A, 1),
        ("pump",),
        ("take", 0),
        ("replicate", A),
        ("pump",),
        ("outdate", A),
        ("append", A, 1),
    ],
    Brokers(),
)
@example(
    [
        ("append", A, 1),
        ("pump",),
        ("take", 0),
        ("replicate", A),
        ("pump",),
        ("forget", A),
        ("append", A, 1),
    ],
    OLD,
)
def test_a_transaction_whose_writer_is_not_known_any_more_ends_with_an_error(
    joining: str, script: list[Step], kind: Brokers
) -> None:
    """No batch of it is written under another producer id: its owner has to abort it."""
    script = [step for step in script if step[0] != "shrink"]
    # No broker forgets a producer while a transaction of it is open; a batch in doubt opened it.
    kind = replace(kind, refuse_unknown=True)
    run = Run(cast(Transactions, Open()), kind, ruthless=("outdate",), joining=joining)
    ended: Fenced | TransactionError | None = None
    try:
        try:
            for step in script:
                run.step(step)
            run.settle()
        except (Fenced, TransactionError) as error:
            ended = error
        for tp in PARTITIONS:
            log = run.target.partitions[tp]
            assert {(batch.producer_id, batch.epoch) for batch in log.log} <= {(7, 0)}
            assert log.values == run.appended[tp][: len(log.values)]
            assert ended is not None or log.values == run.appended[tp]
        if ended is not None:
            told = {"forget": "UNKNOWN_PRODUCER_ID", "outdate": "INVALID_PRODUCER_EPOCH"}
            assert any(name in str(ended) for name in told.values())
            assert {step[0] for step in script} & set(told)
            assert isinstance(ended, Fenced) == ("INVALID_PRODUCER_EPOCH" in str(ended))
    finally:
        run.target.close()


def test_each_answer_about_a_producer_is_met() -> None:
    """The scripts above do bring about the answers that they are about."""
    idle: list[Step] = [("append", A, 1), ("pump",), ("take", 0), ("replicate", A), ("pump",)]
    for trouble, code in (("forget", "UNKNOWN_PRODUCER_ID"), ("outdate", "INVALID_PRODUCER_EPOCH")):
        run = Run(brokers=OLD)
        for step in [*idle, (trouble, A), ("append", A, 1)]:
            run.step(step)
        run.settle()
        assert run.producer.backlog.errors == {code: 1}
        ids = [batch.producer_id for batch in run.target.partitions[A].log]
        assert len(set(ids)) == 2, "it goes on under a new producer id"
        run.target.close()
    run = Run(brokers=OLD)
    for step in [*idle, ("append", A, 1), ("pump",), ("take", 0), ("cut", 0), ("pump",)]:
        run.step(step)
    run.target.replicate(A)
    run.settle()
    assert run.named_repeats == 1
    assert run.target.partitions[A].values == run.appended[A]
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
    assert run.producer.backlog.halts.keys() == set(PARTITIONS)
    assert run.producer.backlog.idle

"""What stays open of a decided transaction is closed the way it was decided, before any write."""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sparkmirror.data.coordination import hanging_transactions
from sparkmirror.data.coordination.hanging_transactions import HangingTransactions, written_before
from sparkmirror.model import TopicPartition
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.cluster.metadata import Leader
from sparkmirror.wire.produce.hanging_transactions import (
    CommittedRecords,
    OpenTransaction,
    find_open_transactions,
)
from sparkmirror.wire.produce.partition_queue import PartitionQueue, QueuedBatch
from sparkmirror.wire.produce.transactions import Transactions

P0, P1, P2 = (TopicPartition("t", number) for number in range(3))
NEWEST = CommittedRecords(7, 3, 10)
COMMITTED, ABORTED = OpenTransaction(90, 7, 3, 9), OpenTransaction(90, 7, 3, 12)


class Target:
    """Partitions with what producer 7 has open there, and one transaction at a time."""

    def __init__(self, **options: Any) -> None:
        self.open: dict[TopicPartition, OpenTransaction] = options.get("open", {})
        self.leaders = {tp: Leader(1, 5) for tp in (P0, P1, P2)}
        self.leaderless: dict[TopicPartition, int] = {}
        self.reachable = True
        self.client = SimpleNamespace(alias="B")
        self.identity = (7, 4)
        self.ended: list[tuple[str, set[TopicPartition]]] = []
        self.others: list[OpenTransaction] = []
        self.skips = 0
        """Markers that are left out before one gets through."""
        self.members: set[TopicPartition] = set()

    def ask(self, _: object, partitions: Collection[TopicPartition]) -> Any:
        return {tp: (*self.others, *filter(None, [self.open.get(tp)])) for tp in partitions}

    @property
    def began(self) -> bool:
        return bool(self.members)

    def add(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        self.members |= set(partitions)
        return {}

    def _end(self, how: str) -> None:
        self.ended.append((how, self.members))
        if self.skips:
            self.skips -= 1
        else:
            for tp in self.members:
                self.open.pop(tp, None)
        self.members = set()

    def commit(self) -> None:
        self._end("commit")

    def abort(self) -> None:
        self._end("abort")

    def add_topics(self, _: object) -> None:
        pass

    def mark_stale(self, _tp: TopicPartition | None = None) -> None:
        pass

    def refresh_if_due(self) -> bool:
        return True

    def ends(self) -> HangingTransactions:
        return HangingTransactions(
            cast(ClusterConnections, self), cast(Transactions, self), self.ask
        )


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(100_000))
    clock = SimpleNamespace(monotonic=lambda: next(now) / 10, sleep=lambda _: None)
    monkeypatch.setattr(hanging_transactions, "time", clock)


def test_nothing_open_costs_no_transaction() -> None:
    target = Target()
    ends = target.ends()
    assert ends.unsure(P0)
    assert ends.close({P0: NEWEST, P1: None}) == set()
    assert target.ended == []
    assert not ends.unsure(P0)
    assert ends.unsure(P2)


def test_each_is_closed_the_way_its_transaction_ended() -> None:
    target = Target(open={P0: COMMITTED, P1: ABORTED, P2: ABORTED})
    ends = target.ends()
    assert ends.close({P0: NEWEST, P1: NEWEST, P2: None}) == set()
    assert target.ended == [("commit", {P0}), ("abort", {P1, P2})]


def test_what_nobody_knows_is_left_and_says_how_to_end_it() -> None:
    """Records that were routed: no position says whether their transaction was committed."""
    target = Target(open={P0: COMMITTED, P1: ABORTED})
    ends = target.ends()
    assert ends.close({P0: None, P1: None, P2: None}, {P0, P2}) == {P0}
    assert target.ended == [("abort", {P1})]
    assert ends.unsure(P0)
    assert not ends.unsure(P2)
    halt = ends.unknown(P0)
    assert halt.retriable
    assert f"abort --topic {P0.topic} --partition {P0.partition}" in halt.reason
    del target.open[P0]
    assert ends.close({P0: None}, {P0}) == set()


def test_a_partition_that_is_added_may_have_records_of_any_slot() -> None:
    """Within an epoch, no planner has closed what another slot left open there."""
    target = Target()
    target.others = [OpenTransaction(90, 8, 0, 3)]
    ends = target.ends()
    assert ends.close({P0: None, P1: None}) == set()
    assert ends.close({P0: None, P1: None}, added={P1}) == {P1}
    assert not ends.unsure(P0)
    halt = ends.unknown(P1)
    assert (halt.retriable, halt.code) == (True, "CONCURRENT_TRANSACTIONS")
    assert "producer id 8" in halt.reason
    target.others = []
    assert ends.close({P1: None}, added={P1}) == set()


@pytest.mark.parametrize(
    "written",
    [None, CommittedRecords(8, 3, 10), CommittedRecords(7, 2, 10), CommittedRecords(7, 3, 9)],
    ids=["nothing known", "another producer", "another epoch", "fewer records"],
)
def test_only_the_very_records_of_the_position_count(written: CommittedRecords | None) -> None:
    assert COMMITTED.counts(NEWEST)
    assert not COMMITTED.counts(written)


def test_sequences_begin_again() -> None:
    assert OpenTransaction(1, 7, 3, 4).counts(CommittedRecords(7, 3, (1 << 31) + 5))


def test_a_marker_that_is_left_out_again_is_written_again() -> None:
    target = Target(open={P0: ABORTED})
    target.skips = 2
    assert target.ends().close({P0: NEWEST}) == set()
    assert target.ended == [("abort", {P0})] * 3


def test_a_partition_without_a_leader_is_left_and_not_touched() -> None:
    target = Target(open={P0: ABORTED, P1: COMMITTED})
    del target.leaders[P0]
    target.leaderless = {P0: 5}
    ends = target.ends()
    assert ends.close({P0: NEWEST, P1: NEWEST}) == {P0}
    assert target.ended == [("commit", {P1})]
    assert ends.unsure(P0)


def test_what_the_slot_before_left_open_is_not_written_on() -> None:
    target = Target(open={P0: ABORTED})
    target.others = [
        OpenTransaction(80, 6, 1, 4),
        OpenTransaction(85, 9, 0, 0),
    ]  # 9 is somebody else's
    ends = target.ends()
    assert ends.close({P0: CommittedRecords(6, 1, 5), P1: NEWEST}) == {P0}
    assert ends.foreign == {P0: target.others[0]}
    assert ends.unknown(P0).code == "CONCURRENT_TRANSACTIONS"
    assert "target offset 80 on" in ends.unknown(P0).reason
    assert ("abort", {P0}) in target.ended, "our own is closed all the same"
    target.others = []
    assert ends.close({P0: CommittedRecords(6, 1, 5)}) == set()
    assert not ends.foreign


@pytest.mark.parametrize(
    ("leads", "leaderless", "reachable", "code"),
    [
        (False, {P0: 5}, True, "LEADER_NOT_AVAILABLE"),
        (False, {}, True, "UNKNOWN_TOPIC_OR_PARTITION"),
        (False, {}, False, "LEADER_NOT_AVAILABLE"),
        (True, {}, True, "LEADER_NOT_AVAILABLE"),
    ],
    ids=["no leader", "no topic", "no cluster", "no answer"],
)
def test_why_a_partition_waits(leads: bool, leaderless: Any, reachable: bool, code: str) -> None:
    target = Target()
    target.ask = lambda *_: {}  # type: ignore[method-assign]
    target.leaderless, target.reachable = leaderless, reachable
    if not leads:
        del target.leaders[P0]
    ends = target.ends()
    assert ends.close({P0: NEWEST}) == {P0}
    halt = ends.unknown(P0)
    assert (halt.code, halt.retriable) == (code, True)
    assert str(P0) in halt.reason


def test_a_leader_that_never_answers_is_waited_for_only_so_long() -> None:
    target = Target()
    target.ask = lambda *_: {}  # type: ignore[method-assign]
    assert target.ends().close({P0: NEWEST}) == {P0}


def test_a_new_leader_may_have_missed_a_marker() -> None:
    target = Target()
    ends = target.ends()
    ends.close({P0: None})
    leader = target.leaders.pop(P0)
    assert not ends.unsure(P0), "who leads is not known: nothing can be asked"
    target.leaders[P0] = Leader(leader.node, leader.epoch + 2)
    assert ends.unsure(P0)


@pytest.mark.parametrize(
    "metadata",
    [
        *("", "{", "[]", "1", "null", "{}", '"x"'),
        '{"producer_id": 1, "producer_epoch": 2}',
        '{"producer_id": 1, "producer_epoch": 2, "producer_records": -1}',
        '{"producer_id": true, "producer_epoch": 2, "producer_records": 3}',
        '{"producer_id": 1, "producer_epoch": "2", "producer_records": 3}',
        "[" * 100_000,
    ],
)
def test_foreign_metadata_says_nothing(metadata: str) -> None:
    assert written_before(metadata) is None


def _row(*producers: tuple[int, int, int, int], code: int = 0) -> SimpleNamespace:
    names = "producer_id", "producer_epoch", "last_sequence", "current_txn_start_offset"
    active = [SimpleNamespace(**dict(zip(names, row, strict=True))) for row in producers]
    return SimpleNamespace(partition_index=0, error_code=code, active_producers=active)


class Asked:
    """Connections to one leader that answers ``row``."""

    def __init__(self, row: SimpleNamespace, versions: dict[int, tuple[int, int]]) -> None:
        topic = SimpleNamespace(name="t", partitions=[row])
        answer = SimpleNamespace(topics=[topic])
        self._connection = SimpleNamespace(api_versions=versions, request=lambda _, highest: answer)

    def query_leaders(self, partitions: list[TopicPartition], ask: Any) -> Any:
        return ask(self._connection, partitions)


@pytest.mark.parametrize(
    ("row", "versions", "found"),
    [
        (_row((8, 0, 1, -1), (7, 3, 9, 90)), {61: (0, 0)}, {P0: (COMMITTED,)}),
        (_row((7, 3, 9, -1)), {61: (0, 0)}, {P0: ()}),
        (_row(), {61: (0, 0)}, {P0: ()}),
        (_row(code=6), {61: (0, 0)}, {}),
        (_row(code=29), {61: (0, 0)}, {P0: ()}),
        (_row((7, 3, 9, 90)), {}, {P0: ()}),
    ],
    ids=["open", "closed", "unknown", "another leads", "denied", "too old to say"],
)
def test_what_a_leader_says(row: SimpleNamespace, versions: Any, found: Any) -> None:
    assert find_open_transactions(cast(ClusterConnections, Asked(row, versions)), [P0]) == found


def test_how_many_records_a_partition_will_have_is_known_before_they_are_acknowledged() -> None:
    queue = PartitionQueue(P0, transactional=True)
    batches = [QueuedBatch(memoryview(b""), count, None) for count in (3, 2, 4)]
    queue.pending.extend(batches)
    assert queue.records == 9
    batches[0].start, batches[1].start, queue.next_start = 0, 3, 5
    queue.in_flight.append(queue.pending.popleft())
    assert queue.records == 9
    # The second one shrinks to one record: what is behind it closes up.
    batches[1].records, queue.restart = 1, 3
    assert queue.records == 8
    queue.in_flight.clear()
    queue.renumber()
    assert queue.records == 8
    # And when none of it is left, the gap is closed only by the next batch.
    queue.pending.clear()
    queue.next_start, queue.restart = 5, 3
    assert queue.records == 3

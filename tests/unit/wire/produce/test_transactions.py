"""What a cluster's answers in a transaction mean, where its age decides."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from sparkmirror.errors import ClusterError, Fenced, TooSlow
from sparkmirror.model import TopicPartition
from sparkmirror.settings import ClusterClient
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.net.connection import ConnectionLost
from sparkmirror.wire.produce.transactions import Transactions

ORDERS = TopicPartition("orders", 0)


class Coordinator:
    """Answers what a transaction needs; says ``code`` at its end."""

    def __init__(self) -> None:
        self.code = 0
        self.now_s = 1_000.0
        client = ClusterClient("B", ("b:1",), "c")
        self.transactions = Transactions(
            cast(ClusterConnections, SimpleNamespace(client=client)),
            "mirror-0",
            timeout_ms=60_000,
            identity=(7, 0),
            clock=lambda: self.now_s,
        )

    def ask(self, _kind: int, _key: str, message: Any, *, highest: int) -> Any:
        if type(message).__name__ == "EndTxnRequest":
            return SimpleNamespace(error_code=self.code)
        part = SimpleNamespace(partition_index=0, partition_error_code=0)
        topic = SimpleNamespace(name="orders", results_by_partition=[part])
        return SimpleNamespace(results_by_topic_v3_and_below=[topic])


@pytest.fixture
def coordinator(monkeypatch: pytest.MonkeyPatch) -> Coordinator:
    one = Coordinator()
    monkeypatch.setattr(one.transactions, "_query", one.ask)
    return one


@pytest.mark.parametrize(
    ("code", "open_s", "kind", "words"),
    [
        (47, 59.0, Fenced, "another writer has taken over mirror-0"),
        (90, 59.0, Fenced, "another writer has taken over mirror-0"),
        (48, 59.0, Fenced, "no open transaction of mirror-0: another writer .* or an unclean"),
        (47, 61.0, TooSlow, "open for 61 s"),
        (90, 61.0, TooSlow, "open for 61 s"),
        (48, 61.0, TooSlow, "open for 61 s, longer than transaction.timeout.ms \\(60000 ms\\)"),
    ],
)
def test_another_writer_and_too_slow_are_told_apart(
    coordinator: Coordinator, code: int, open_s: float, kind: type[ClusterError], words: str
) -> None:
    transactions = coordinator.transactions
    for _ in range(2):  # time counts from the first partition of each transaction on
        assert transactions.add([ORDERS]) == {}
        assert transactions.began
        coordinator.now_s += open_s / 2
        transactions.add([ORDERS])
        coordinator.now_s += open_s / 2
        transactions.commit()
        assert not transactions.began
    transactions.add([ORDERS])
    coordinator.now_s += open_s
    coordinator.code = code
    with pytest.raises(kind, match=words) as raised:
        transactions.commit()
    assert ("B.producer.transaction.timeout.ms" in str(raised.value)) == (kind is TooSlow)


def test_who_writes_outside_of_a_transaction_was_replaced(coordinator: Coordinator) -> None:
    coordinator.now_s += 3_600
    coordinator.code = 47
    with pytest.raises(Fenced):
        coordinator.transactions.commit()


def test_the_time_counts_from_the_first_request_whose_answer_may_be_lost(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster had begun the transaction when the connection broke: nobody else has it."""
    answers = [False, True]

    def ask(*asked: Any, **more: Any) -> Any:
        if answers and not answers.pop(0):
            coordinator.now_s += 30.0  # the client waits for as long
            raise ConnectionLost("no answer")
        return coordinator.ask(*asked, **more)

    monkeypatch.setattr(coordinator.transactions, "_query", ask)
    monkeypatch.setattr(coordinator.transactions, "_sleep", lambda _: None)
    assert coordinator.transactions.add([ORDERS]) == {}
    coordinator.now_s += 31.0
    coordinator.code = 47
    with pytest.raises(TooSlow, match="open for 61 s"):
        coordinator.transactions.commit()


@pytest.mark.parametrize("code", [0, 47])
def test_a_topic_that_is_gone_keeps_no_other_position_up(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """And does not hide that another writer has taken over."""
    gone, asked = TopicPartition("gone", 0), list[float]()

    def ask(_kind: int, _key: str, message: Any, *, highest: int) -> Any:
        if not hasattr(message, "topics"):
            return SimpleNamespace(error_code=0)
        asked.append(coordinator.now_s)
        assert len(asked) < 1_000, "it is asked without end"
        coordinator.now_s += 0.1
        return SimpleNamespace(
            topics=[
                SimpleNamespace(
                    name=one.name,
                    partitions=[
                        SimpleNamespace(
                            partition_index=0, error_code=3 if one.name == "gone" else code
                        )
                    ],
                )
                for one in message.topics
            ]
        )

    transactions = coordinator.transactions
    monkeypatch.setattr(transactions, "_query", ask)
    monkeypatch.setattr(transactions, "_sleep", lambda _: None)
    offsets = {ORDERS: (5, ""), gone: (7, "")}
    if code:
        with pytest.raises(Fenced):
            transactions.add_offsets("g", offsets)
        return
    assert transactions.add_offsets("g", offsets) == {gone}
    # It may only not know the topic yet.
    assert 9.5 < asked[-1] - asked[0] < 10.5
    asked.clear()
    assert transactions.add_offsets("g", offsets, {gone}) == {gone}
    assert len(asked) == 1


def test_many_positions_are_added_in_several_requests(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them in one would be more than the coordinator can write as one batch."""
    asked: list[list[int]] = []

    def ask(_kind: int, _key: str, message: Any, *, highest: int) -> Any:
        rows = [part.partition_index for one in message.topics for part in one.partitions]
        asked.append(rows)
        coordinator.now_s += 0.1
        parts = [SimpleNamespace(partition_index=n, error_code=3 * (n == 2_999)) for n in rows]
        return SimpleNamespace(topics=[SimpleNamespace(name="t", partitions=parts)])

    transactions = coordinator.transactions
    monkeypatch.setattr(transactions, "join_group", lambda _: None)
    monkeypatch.setattr(transactions, "_query", ask)
    gone = TopicPartition("t", 2_999)
    offsets = {TopicPartition("t", n): (n, "m" * 400) for n in range(3_000)}
    assert transactions.add_offsets("g", offsets, {gone}) == {gone}
    assert sorted(n for rows in asked for n in rows) == list(range(3_000))
    assert max(map(len, asked)) * 480 < 600_000


def test_many_portions_of_deleted_topics_are_waited_for_once(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction has a timeout."""

    def ask(_kind: int, _key: str, message: Any, *, highest: int) -> Any:
        coordinator.now_s += 0.1
        rows = [part.partition_index for one in message.topics for part in one.partitions]
        parts = [SimpleNamespace(partition_index=n, error_code=3) for n in rows]
        return SimpleNamespace(topics=[SimpleNamespace(name="t", partitions=parts)])

    transactions = coordinator.transactions
    monkeypatch.setattr(transactions, "join_group", lambda _: None)
    monkeypatch.setattr(transactions, "_query", ask)
    monkeypatch.setattr(transactions, "_sleep", lambda _: None)
    offsets = {TopicPartition("t", n): (n, "m" * 400) for n in range(6_000)}
    began_s = coordinator.now_s
    assert transactions.add_offsets("g", offsets) == set(offsets)
    assert coordinator.now_s - began_s < 12

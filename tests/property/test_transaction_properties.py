"""Whatever coordinators answer, and whatever answers get lost: each transaction ends once.

`Coordinator` keeps Kafka's rules: one epoch at a time, an earlier transaction is ended before the
next one begins, a repeated request changes nothing. Which requests and answers get lost, and when
it has no time, is hypothesis's choice.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from sparkmirror.errors import Fenced
from sparkmirror.model import TopicPartition
from sparkmirror.settings import ClusterClient
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.net.connection import ConnectionLost
from sparkmirror.wire.produce.transactions import Transactions

PARTITIONS = [TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)]
CONCURRENT, LOADING, UNAVAILABLE, NOT_COORDINATOR = 51, 14, 15, 16
# To a writer whose epoch is over: coordinators before 2.7, those from 2.7 on (KIP-588), and those
# that have forgotten the id, which wrote nothing for ``transactional.id.expiration.ms``.
INVALID_PRODUCER_EPOCH, PRODUCER_FENCED, INVALID_PRODUCER_ID_MAPPING = 47, 90, 49

Trouble = str
troubles = st.lists(
    st.sampled_from(["", "", "request lost", "answer lost", "loading", "moved", "gone", "ending"]),
    max_size=40,
)


class Coordinator:
    """One transactional id. ``history``: what each ended transaction had, and how it ended.

    ``fenced``: what a writer is told whose epoch is over.
    """

    def __init__(self, fenced: int = PRODUCER_FENCED) -> None:
        self.fenced = fenced
        self.epoch = -1
        self.members: set[TopicPartition] = set()
        self.offsets: dict[TopicPartition, int] = {}
        self.open = False
        self.history: list[tuple[str, set[TopicPartition], dict[TopicPartition, int]]] = []
        self._ended_as: bool | None = None
        self._grouped = False

    def init(self) -> int:
        self.epoch += 1
        if self.open:
            self._end("aborted")
        self._ended_as = None
        return 0

    def expire(self) -> None:
        """``transaction.timeout.ms`` is over: aborted, and nothing more of this epoch is taken."""
        self.epoch += 1
        if self.open:
            self._end("aborted")

    def join(self, epoch: int, partitions: set[TopicPartition], *, group: bool = False) -> int:
        if epoch != self.epoch:
            return self.fenced
        self.open, self._ended_as = True, None
        self.members |= partitions
        self._grouped |= group
        return 0

    def take(self, epoch: int, offsets: dict[TopicPartition, int]) -> int:
        if epoch != self.epoch:
            return self.fenced
        assert self._grouped, "the group's partition was not added first"
        self.offsets |= offsets
        return 0

    def end(self, epoch: int, committed: bool) -> int:
        if epoch != self.epoch:
            return self.fenced
        if not self.open:
            return 0 if self._ended_as is committed else 48
        self._end("committed" if committed else "aborted")
        self._ended_as = committed
        return 0

    def _end(self, how: str) -> None:
        self.history.append((how, self.members, self.offsets))
        self.members, self.offsets, self.open, self._grouped = set(), {}, False, False


class SimTransactions(Transactions):
    """Asks a `Coordinator` through a network that loses what it is told to lose."""

    def __init__(self, coordinator: Coordinator, troubles: Iterator[Trouble]) -> None:
        connections = SimpleNamespace(client=ClusterClient("T", ("t:1",), "c"))
        super().__init__(
            cast(ClusterConnections, connections),
            "id",
            timeout_ms=1,
            clock=lambda: 0.0,
            sleep=lambda _: None,
        )
        self._coordinator = coordinator
        self._troubles = troubles

    def _query(self, kind: int, key: str, message: Any, *, highest: int) -> Any:
        trouble = next(self._troubles, "")
        early = {"loading": LOADING, "moved": NOT_COORDINATOR, "gone": UNAVAILABLE}.get(trouble)
        if trouble == "request lost":
            raise ConnectionLost(trouble)
        if trouble == "ending" and "EndTxn" not in message.name:
            early = CONCURRENT
        code = early if early is not None else self._do(message)
        if trouble == "answer lost":
            raise ConnectionLost(trouble)
        return self._answer(message, code)

    def _do(self, message: Any) -> int:
        coordinator, name = self._coordinator, message.name
        if name.startswith("InitProducerId"):
            return coordinator.init()
        if name.startswith("AddPartitions"):
            epoch = message.v3_and_below_producer_epoch
            return coordinator.join(epoch, _partitions(message))
        if name.startswith("AddOffsets"):
            return coordinator.join(message.producer_epoch, set(), group=True)
        if name.startswith("TxnOffsetCommit"):
            offsets = {
                TopicPartition(topic.name, part.partition_index): part.committed_offset
                for topic in message.topics
                for part in topic.partitions
            }
            return coordinator.take(message.producer_epoch, offsets)
        assert name.startswith("EndTxn")
        return coordinator.end(message.producer_epoch, message.committed)

    def _answer(self, message: Any, code: int) -> Any:
        if message.name.startswith("AddPartitions"):
            parts = [
                SimpleNamespace(
                    name=tp.topic,
                    results_by_partition=[
                        SimpleNamespace(partition_index=tp.partition, partition_error_code=code)
                    ],
                )
                for tp in _partitions(message)
            ]
            return SimpleNamespace(results_by_topic_v3_and_below=parts)
        part = SimpleNamespace(partition_index=0, error_code=code)
        return SimpleNamespace(
            error_code=code,
            producer_id=1,
            producer_epoch=self._coordinator.epoch,
            topics=[SimpleNamespace(name="t", partitions=[part])],
        )


def _partitions(message: Any) -> set[TopicPartition]:
    return {
        TopicPartition(topic.name, number)
        for topic in message.v3_and_below_topics
        for number in topic.partitions
    }


steps = st.lists(
    st.tuples(
        st.lists(st.sampled_from(PARTITIONS), min_size=1, max_size=3, unique=True),
        st.sampled_from(["commit", "commit", "abort", "take over", "expire"]),
    ),
    max_size=8,
)


@settings(max_examples=300, deadline=None)
@given(
    steps,
    troubles,
    st.sampled_from([PRODUCER_FENCED, INVALID_PRODUCER_EPOCH, INVALID_PRODUCER_ID_MAPPING]),
)
def test_each_transaction_ends_once_as_a_whole(
    script: list[tuple[list[TopicPartition], str]], lost: list[Trouble], fenced: int
) -> None:
    coordinator = Coordinator(fenced)
    network = iter(lost)
    transactions = SimTransactions(coordinator, network)
    transactions.fence()
    wanted = []
    position = 0
    for partitions, end in script:
        for tp in partitions:
            assert transactions.add([tp]) == {}
        position += 1
        offsets = dict.fromkeys(partitions, position)
        transactions.add_offsets("g", {tp: (at, "") for tp, at in offsets.items()})
        if end in ("take over", "expire"):
            before, transactions = transactions, SimTransactions(coordinator, network)
            if end == "take over":
                transactions.fence()
            else:
                coordinator.expire()
            for late in (before.commit, lambda old=before: old.add([TopicPartition("v", 0)])):
                try:
                    late()
                except Fenced:
                    continue
                raise AssertionError("a fenced writer was heard")
            if end == "expire":
                transactions.fence()
        else:
            getattr(transactions, end)()
        how = "committed" if end == "commit" else "aborted"
        wanted.append((how, set(partitions), offsets))
    assert coordinator.history == wanted
    assert not coordinator.open

"""A topic on three brokers that loses records: by unclean elections, or made anew."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from sparkmirror.internal_topics.gaps import GapKind
from sparkmirror.testing.clusters import KafkaCluster
from tests.kafka.clusters.faults import UNCLEAN, wait_in_sync
from tests.kafka.harness.mirror_process import wait_until
from tests.kafka.harness.support import (
    TIMEOUT_S,
    create_topic,
    delete_topic,
    set_topic_config,
    wait_for_topic,
)

__all__ = ["LOSSES", "PARTITIONS", "Election", "FragileTopic", "Loss", "Stroke"]

# Each pair of three brokers twice, each of them once as the preferred leader.
_PLACED = ((1, 2), (2, 3), (3, 1), (2, 1), (3, 2), (1, 3))
PARTITIONS = len(_PLACED)
_ANSWER_S = 10.0
_PAUSE_S = 0.2
_ELECTING = {
    KafkaError._TIMED_OUT,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
}


@dataclass(frozen=True)
class Loss:
    """A kind of loss: how often it comes beside the others, and how it must be told.

    ``stopped``: the mirror is stopped before and started after it. ``frozen``: the old leader
    stands still and comes back as it was. ``by_mirror``: the mirror makes the topic that we delete.
    """

    weight: int
    told: GapKind = GapKind.TARGET_TRUNCATED
    stopped: bool = False
    frozen: bool = False
    by_mirror: bool = False


LOSSES = {
    "unclean election, leader killed": Loss(3),
    "unclean election, leader frozen": Loss(2, frozen=True),
    "unclean election, mirror stopped": Loss(2, stopped=True),
    "made anew": Loss(1, GapKind.TARGET_RECREATED),
    "made anew by the mirror": Loss(1, GapKind.TARGET_RECREATED, by_mirror=True),
    "made anew, mirror stopped": Loss(1, GapKind.TARGET_RECREATED, stopped=True),
}


@dataclass(frozen=True)
class Stroke:
    """One loss, to which partitions, and what has to be done before and after it.

    ``strike`` ends when the target takes records again, or is ready for a mirror that makes the
    topic. ``after``: once the mirror runs. ``healed`` waits until everybody may read.
    """

    wounded: frozenset[int]
    strike: Callable[[], None]
    prepare: Callable[[], None] = lambda: None
    after: Callable[[], None] = lambda: None
    healed: Callable[[], None] = lambda: None


class FragileTopic:
    """A topic of two replicas of which either may lead, whatever it lacks."""

    def __init__(self, cluster: KafkaCluster, name: str) -> None:
        self.cluster, self.name = cluster, name

    def make(self) -> None:
        """Make it, unless the mirror was quicker."""
        try:
            create_topic(self.cluster, self.name, replicas=_PLACED, config=UNCLEAN)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
            self.wait_for_mirror()

    def wait_for_mirror(self) -> None:
        """Wait until the mirror has made it; its elections are then as in `make`."""
        wait_for_topic(self.cluster, self.name, PARTITIONS)
        set_topic_config(self.cluster, self.name, **UNCLEAN)

    def delete(self) -> None:
        """Delete it with all that it holds."""
        delete_topic(self.cluster, self.name)

    def seen_by(self, *nodes: int) -> Mapping[int, Any]:
        """Its partitions as one of these brokers knows them: others may not answer."""
        return self._client(nodes).list_topics(self.name, timeout=TIMEOUT_S).topics[
            self.name
        ].partitions  # fmt: skip

    def ends(self, *nodes: int) -> dict[int, int]:
        """Where each partition ends for a read_committed consumer; asked of these brokers first.

        A leader that is frozen while it is asked never answers, and during an election the brokers
        do not agree on who leads: whoever leads then is asked anew.
        """
        wanted = {TopicPartition(self.name, n): OffsetSpec.latest() for n in range(PARTITIONS)}
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            client = self._client(nodes or self.cluster.node_ids)
            found = client.list_offsets(
                wanted, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=_ANSWER_S
            )
            try:
                return {tp.partition: one.result(TIMEOUT_S).offset for tp, one in found.items()}
            except KafkaException as error:
                if error.args[0].code() not in _ELECTING or time.monotonic() > deadline:
                    raise
                time.sleep(_PAUSE_S)

    def _client(self, nodes: tuple[int, ...]) -> AdminClient:
        addresses = dict(
            zip(self.cluster.node_ids, self.cluster.bootstrap_servers.split(","), strict=True)
        )
        servers = ",".join(addresses[node] for node in nodes)
        return AdminClient({"bootstrap.servers": servers, "log_level": 0})


class Election:
    """One unclean election: `cut_off`, `elect`, and `heal` some seconds later; all within a block.

    ``leader`` and ``follower`` of the chosen partition; ``wounded``: all that only these two have.
    ``frozen``: the leader is not killed, and goes on for a moment as if it still led when it wakes.
    ``meanwhile`` is called again and again.
    """

    def __init__(
        self,
        topic: FragileTopic,
        partition: int,
        *,
        frozen: bool,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        self._topic, self._kafka, self._frozen = topic, topic.cluster, frozen
        self._meanwhile = meanwhile
        seen = topic.seen_by(*self._kafka.node_ids)
        chosen = seen[partition]
        self.leader = chosen.leader
        (self.follower,) = set(chosen.replicas) - {chosen.leader}
        (self._third,) = set(self._kafka.node_ids) - set(chosen.replicas)
        pair = set(chosen.replicas)
        self.wounded = frozenset(n for n, one in seen.items() if set(one.replicas) == pair)
        self._pool = ThreadPoolExecutor(2, "brokers")
        self._restarted: Future[None] | None = None
        self._healed: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Wait until the brokers are as before; a frozen one never stays so."""
        if error is None:
            self.wait_healed()
        elif self._frozen and self._restarted is not None:
            self._kafka.thaw(self.leader)
        self._pool.shutdown()
        if error is None:
            wait_in_sync(self._kafka)

    def cut_off(self, records: int) -> None:
        """Kill the follower; then each wounded partition gets so many offsets more without it."""
        self._kafka.kill(self.follower)
        rest = self.leader, self._third

        def alone() -> bool:
            self._meanwhile()
            seen = self._topic.seen_by(*rest)
            return all(list(seen[number].isrs) == [self.leader] for number in self.wounded)

        wait_until(alone, f"broker {self.leader} alone in sync with {sorted(self.wounded)}")
        before = self._topic.ends(*rest)

        def written() -> bool:
            self._meanwhile()
            now = self._topic.ends(*rest)
            return all(now[number] >= before[number] + records for number in self.wounded)

        wait_until(written, f"{records} more in each of {sorted(self.wounded)}")

    def elect(self) -> None:
        """Stop the leader and start the follower, which then leads without what it lacks."""
        (self._kafka.freeze if self._frozen else self._kafka.kill)(self.leader)
        # A broker is ready once it knows those that run, and a frozen one only when it is thawed.
        self._restarted = self._pool.submit(self._kafka.restart, self.follower)

        def elected() -> bool:
            self._meanwhile()
            seen = self._topic.seen_by(self._third)
            return all(seen[number].leader == self.follower for number in self.wounded)

        wait_until(elected, f"broker {self.follower} as the leader of {sorted(self.wounded)}")

    def heal(self, after_s: float) -> None:
        """Have the old leader back after so many seconds, while the caller goes on."""
        self._healed = self._pool.submit(self._heal, after_s)

    def wait_healed(self) -> None:
        """Wait until it is back, and knows that it leads no more."""
        assert self._healed is not None, "nobody heals the brokers"
        self._healed.result()

    def _heal(self, after_s: float) -> None:
        assert self._restarted is not None, "nobody was elected"
        time.sleep(after_s)
        if not self._frozen:
            self._restarted.result()
            self._kafka.restart(self.leader)
            return
        self._kafka.thaw(self.leader)
        self._restarted.result()

        def deposed() -> bool:
            seen = self._topic.seen_by(self.leader)
            return all(seen[number].leader != self.leader for number in self.wounded)

        wait_until(deposed, f"broker {self.leader} to know that it leads no more")

"""Partitions move between the slots of a running mirror, which is counted record by record."""

from __future__ import annotations

import random
import sys
import time
import uuid
from pathlib import Path

import pytest

from sparkmirror.internal_topics.commands import PROGRESS_PARTITION, decode_progress
from sparkmirror.testing.clusters import KafkaCluster
from tests.faults.harness import SINK, SOURCE, Counter, Mirror, write_config
from tests.faults.kinds import Scene, kill_worker
from tests.faults.numbered import Numbered
from tests.faults.report import UNCOMMITTED_S
from tests.kafka.harness import moving_command
from tests.kafka.harness.mirror_process import wait_until
from tests.kafka.harness.support import consume_all, create_topic
from tests.patience import others_per_core, patience

PARTITIONS = 6
_PER_S = 3_000
# What an epoch's end costs all partitions is half a second and more.
_STAYING_S_MAX = 1.5


class _Moves:
    """A mirror that moves four of six partitions every few seconds, and who counts its records."""

    def __init__(
        self, source: KafkaCluster, target: KafkaCluster, directory: Path, *flags: str
    ) -> None:
        self.alias = f"M{uuid.uuid4().hex[:6]}"
        topic = f"moved-{self.alias}"
        create_topic(source, topic, PARTITIONS)
        create_topic(target, f"{self.alias}.{topic}", PARTITIONS)
        file = write_config(
            directory / "mm2.properties", source, target, topic, alias=self.alias,
            **{"sparkmirror.epoch.seconds": "3600"},
        )  # fmt: skip
        command = (sys.executable, moving_command.__file__)
        self.mirror = Mirror(directory, file, *flags, command=command)
        self.traffic = Numbered(source, topic, PARTITIONS, per_s=_PER_S)
        self.counter = Counter(target, f"{self.alias}.{topic}", PARTITIONS)
        self._target = target

    def orders(self) -> int:
        """How often partitions were sent to another slot so far."""
        return self.mirror.output().count(moving_command.REASON)

    def wait_for_orders(self, more: int) -> None:
        wanted = self.orders() + more

        def given() -> bool:
            assert self.mirror.process.poll() is None, self.mirror.output()
            return self.orders() >= wanted

        wait_until(given, f"{more} more moves")

    def epochs(self) -> set[int]:
        """The epochs in which slots have reported."""
        records = consume_all(self._target, f"mm2-sparkmirror.{self.alias}.internal")
        found = [
            decode_progress(one.key, one.value)
            for one in records
            if one.partition == PROGRESS_PARTITION
        ]
        return {one.epoch for one in found if one is not None}

    def finish(self) -> None:
        """End the traffic, and the mirror once it has mirrored all of it."""
        there = self.counter.wait_for(self.traffic.finish(), patience())
        assert there, f"{self.counter.expected} of {self.traffic.sent}\n{self.mirror.output()}"
        assert self.mirror.drain(patience()) == 0, self.mirror.output()
        time.sleep(1.0)  # for what comes twice


@pytest.mark.more
@pytest.mark.parametrize(
    "flags",
    [pytest.param((), marks=pytest.mark.long), ("--exactly-once",)],
    ids=["at-least-once", "exactly-once"],
)
def test_partitions_move_back_and_forth_and_no_other_one_pauses(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    moves = _Moves(cluster_a, cluster_b, tmp_path, *flags)
    with moves.traffic, moves.counter as counter:
        try:
            assert counter.recovery_s(time.monotonic(), patience()) < patience()
            moves.wait_for_orders(1)
            silences = []
            for _ in range(6):
                counter.longest_s = [0.0] * PARTITIONS
                moves.wait_for_orders(1)
                silences.append(max(counter.longest_s[: moving_command.SLOTS]))
            epochs = moves.epochs()
            moves.finish()
        finally:
            moves.mirror.kill()
    assert (counter.lost, counter.duplicated, counter.first_wrong) == (0, 0, "")
    print(f"longest silence of each move: {[round(one, 2) for one in silences]}")
    assert len(epochs) == 1, "all of it within one epoch"
    # One pause of the machine is not a pause of the mirror: it would come with each move.
    assert sorted(silences)[2] < _STAYING_S_MAX * others_per_core()


@pytest.mark.more
@pytest.mark.parametrize(
    ("role", "flags"),
    [
        (SINK, ("--exactly-once",)),
        (SOURCE, ("--exactly-once",)),
        pytest.param(SINK, (), marks=pytest.mark.long),
    ],
    ids=["sink", "source", "sink, at-least-once"],
)
def test_a_worker_that_is_killed_while_partitions_move_loses_nothing(
    cluster_a: KafkaCluster,
    cluster_b: KafkaCluster,
    tmp_path: Path,
    role: str,
    flags: tuple[str, ...],
) -> None:
    """In exactly-once nothing comes twice; at-least-once only what was not committed yet."""
    moves = _Moves(cluster_a, cluster_b, tmp_path, *flags)
    chance, uncommitted = random.Random(role), 0
    scene = Scene(moves.mirror, cluster_a, cluster_b, chance)
    with moves.traffic, moves.counter as counter:
        try:
            assert counter.recovery_s(time.monotonic(), patience()) < patience()
            for _ in range(5):
                moves.wait_for_orders(1)
                time.sleep(chance.uniform(0.0, 0.4))  # from the order to the first records
                began = time.monotonic()
                kill_worker(role)(scene)
                uncommitted += 0 if flags else counter.received_since(began - UNCOMMITTED_S)
                assert counter.recovery_s(began, patience()) < patience(), moves.mirror.output()
            moves.wait_for_orders(2)
            moves.finish()
        finally:
            moves.mirror.kill()
    print(f"{counter.duplicated} came twice, {uncommitted} may")
    assert counter.lost == 0
    assert counter.duplicated <= uncommitted

"""Lags of consumer groups: what is asked of the source, how often, and what comes of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

import pytest

from sparkmirror.control.groups.group_lags import GroupLags
from sparkmirror.control.positions.record_times import RecordTimes
from sparkmirror.errors import Unreachable
from sparkmirror.model import TopicPartition
from sparkmirror.observe.figures.checkpoints import GroupRow
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.admin.record_times import RecordAt
from sparkmirror.wire.cluster.views import Committed

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class FakeSource:
    """Each record is as many seconds after 0 as its offset says."""

    def __init__(self, ends: dict[TopicPartition, int]) -> None:
        self.ends = ends
        self.starts: dict[TopicPartition, int] = {}
        self.fetched: list[tuple[TopicPartition, int]] = []
        self.away = False
        self.timeless: set[int] = set()

    def end_offsets(
        self, partitions: Iterable[TopicPartition], isolation: str
    ) -> dict[TopicPartition, int]:
        assert isolation == "read_committed"
        if self.away:
            raise Unreachable("no answer")
        return {tp: self.ends[tp] for tp in partitions if tp in self.ends}

    def earliest_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: self.starts.get(tp, 0) for tp in partitions}

    def records_at(
        self, positions: Mapping[TopicPartition, int], timeout_s: float
    ) -> dict[TopicPartition, RecordAt]:
        assert 0 < timeout_s <= 5
        self.fetched += positions.items()
        return {
            tp: RecordAt(at * 1000, 10.0) for tp, at in positions.items() if at not in self.timeless
        }


class World:
    """One flow's lags, whose clock the test turns."""

    def __init__(self, ends: dict[TopicPartition, int], *, fetches_max: int = 100) -> None:
        self.now_s = 1_000.0
        self.source = FakeSource(ends)
        self.lags = GroupLags(
            cast(Cluster, self.source),
            "read_committed",
            fetches_max=fetches_max,
            now_s=lambda: self.now_s,
            now_ms=lambda: int(self.now_s * 1000),
        )
        self.lags.rows()

    def look(self, **committed: dict[TopicPartition, int]) -> dict[str, list[object]]:
        """(records, seconds) by group, in the order of the partitions."""
        self.lags.offer(
            {
                group: {tp: Committed(offset) for tp, offset in offsets.items()}
                for group, offsets in committed.items()
            }
        )
        self.lags.step()
        found: dict[str, list[object]] = {}
        for row in self.lags.rows():
            found.setdefault(row.group, []).append((row.records, row.seconds))
        return found


def test_lag_in_records_and_in_seconds() -> None:
    world = World({T0: 900, T1: 50})
    found = world.look(slow={T0: 400, T1: 50}, quick={T0: 890}, beyond={T0: 901})
    assert found == {"slow": [(500, 600.0), (0, 0.0)], "quick": [(10, 110.0)]}
    assert world.lags.rows()[0] == GroupRow("quick", "t", 0, 10, 110.0)


def test_a_place_is_read_once() -> None:
    world = World({T0: 900})
    for _ in range(3):
        found = world.look(g={T0: 400}, same={T0: 400}, other={T0: 401})
        assert found["g"] == found["same"] == [(500, world.now_s - 400)]
        world.now_s += 60
    assert sorted(world.source.fetched) == [(T0, 400), (T0, 401)]
    world.look(g={T0: 450})
    assert world.source.fetched[2:] == [(T0, 450)]


def test_reads_of_a_look_are_bounded_and_everybody_has_a_turn() -> None:
    world = World({T0: 900}, fetches_max=2)
    at = {"a": 100, "b": 200, "c": 300}
    assert world.look(**{g: {T0: n} for g, n in at.items()})["c"] == [(600, None)]
    assert len(world.source.fetched) == 2
    # c has never been read, so it is the first; of the others one keeps where it was.
    found = world.look(**{g: {T0: n + 1} for g, n in at.items()})
    assert (T0, 301) in world.source.fetched
    assert found == {"a": [(799, 899.0)], "b": [(699, 800.0)], "c": [(599, 699.0)]}


def test_what_was_deleted_is_not_lag_and_a_record_without_time_has_no_seconds() -> None:
    world = World({T0: 900})
    world.source.starts[T0] = 700
    world.source.timeless.add(800)
    assert world.look(g={T0: 100}, h={T0: 800}) == {"g": [(200, 300.0)], "h": [(100, None)]}


def test_nothing_is_asked_without_a_scrape_or_too_often() -> None:
    source = FakeSource({T0: 900})
    lags = GroupLags(cast(Cluster, source), "read_committed")
    source.away = True
    lags.offer({"g": {T0: Committed(1)}})
    lags.step()
    lags.rows()
    lags.offer({"g": {T0: Committed(1)}})
    with pytest.raises(Unreachable):
        lags.step()

    world = World({T0: 900})
    slow = world.source.records_at

    def wait(
        positions: Mapping[TopicPartition, int], timeout_s: float
    ) -> dict[TopicPartition, RecordAt]:
        world.now_s += 3
        return slow(positions, timeout_s)

    world.source.records_at = wait  # type: ignore[method-assign]
    assert world.look(g={T0: 10})["g"] == [(890, 993.0)]
    world.now_s += 26
    assert world.look(g={T0: 20})["g"] == [(890, 993.0)], "a tenth of the time at most"
    world.now_s += 2
    assert world.look(g={T0: 20})["g"] == [(880, 1014.0)]


def test_who_has_been_behind_for_longest_is_read_before_those_who_come_and_go() -> None:
    times = RecordTimes(
        cast(Cluster, FakeSource({})), fetches_max=2, fetch_s_max=5, now_s=lambda: 0.0
    )
    stalled = ("flow", TopicPartition("stalled", 0))
    for turn in range(3):
        # Partitions that are read as fast as they are written: others at each look.
        busy = {("flow", TopicPartition(f"busy-{turn}", n)): 700 for n in range(3)}
        times.refresh({**busy, stalled: 100})
    assert times.time_ms(stalled) == 100_000
    times.refresh({})
    assert times.time_ms(stalled) is None, "it is behind no more"


def test_what_could_not_be_read_is_tried_again_later() -> None:
    source = FakeSource({})
    times = RecordTimes(cast(Cluster, source), fetches_max=2, fetch_s_max=5, now_s=lambda: 0.0)
    source.timeless.add(100)
    reader = ("flow", T0)
    for _ in range(5):
        times.refresh({reader: 100})
    assert len(source.fetched) == 1
    source.timeless.clear()
    for _ in range(15):
        times.refresh({reader: 100})
    assert times.time_ms(reader) == 100_000
    assert len(source.fetched) == 2

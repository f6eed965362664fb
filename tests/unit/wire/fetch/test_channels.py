"""Several requests under way at a broker that is far, and one at a broker that is near."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from sparkmirror.model import TopicPartition
from sparkmirror.records.records import decode_records
from sparkmirror.records.walk import walk_batches
from sparkmirror.settings import FetchSettings
from sparkmirror.wire.fetch.fetcher import Fetcher
from tests.property.simulated_source import SimConnection, SimSource, value

FAR_S, NEAR_S = 0.05, 0.001
NODE = 1
FOUR = [TopicPartition("t", number) for number in range(4)]


class Reader:
    """A fetcher before a simulated source; ``values`` of the records that it has read.

    ``channels_max``: as a slot has it. ``reread_bytes``: of the fetcher.
    """

    def __init__(
        self,
        source: SimSource,
        *,
        channels_max: int = 3,
        reread_bytes: int = 0,
        **settings: Any,
    ) -> None:
        self.source = source
        limits = {"fetch_max_bytes": 1200, "partition_fetch_bytes_max": 300} | settings
        self.fetcher = Fetcher(
            source,  # type: ignore[arg-type]
            FetchSettings(**limits),
            channels_max=channels_max,
            reread_bytes=reread_bytes,
            clock=lambda: source.time_s,
        )
        self.values: dict[TopicPartition, list[bytes]] = {tp: [] for tp in source.ends}
        for tp in source.ends:
            self.fetcher.assign(tp, 0)

    def under_way(self) -> list[SimConnection]:
        """Connections on which an answer is due, in the order of their numbers."""
        found = [one for one in self.source.connections.values() if one.waiting is not None]
        return sorted(found, key=lambda one: (one.node, one.number))

    def take(self, connection: SimConnection) -> None:
        """One answer comes, and what it brings is read."""
        self.source.answer(connection)
        self.receive(connection)

    def receive(self, connection: SimConnection) -> None:
        for part in self.fetcher.receive(connection):  # type: ignore[arg-type]
            offset = part.fetch_offset
            assert offset == self.fetcher.position(part.tp)
            for start, end in pairwise(walk_batches(part.records).starts):
                for record in decode_records(part.records[start:end]):
                    self.values[part.tp].append((record.value or b"").rstrip(b"."))
                    offset = record.offset + 1
            if offset > part.fetch_offset:
                self.fetcher.advance(part.tp, offset)

    def round(self, pause_s: float = FAR_S) -> None:
        """Ask, and a round trip later take all answers."""
        self.fetcher.send()
        asked = [tp for one in self.under_way() for tp in one.wanted]
        assert len(asked) == len(set(asked)), "nobody is asked for twice"
        self.source.time_s += pause_s
        for connection in self.under_way():
            self.take(connection)

    def until_whole(self, pause_s: float = FAR_S) -> int:
        """Rounds until everything is read."""
        for number in range(2000):
            if self.whole():
                return number
            self.round(pause_s)
        raise AssertionError("not everything comes")

    def whole(self) -> bool:
        """Whether everything is read; what is read must be in order, once."""
        for tp, values in self.values.items():
            assert values == [value(tp, at) for at in range(len(values))]
        return all(len(self.values[tp]) == end for tp, end in self.source.ends.items())


def busy_source(
    partitions: list[TopicPartition], trip_s: float, busy: list[TopicPartition] | None = None
) -> SimSource:
    source = SimSource(dict.fromkeys(partitions, NODE), trip_s)
    for tp in partitions if busy is None else busy:
        source.append(tp, 200)
    return source


def channels(reader: Reader) -> list[list[TopicPartition]]:
    reader.fetcher.send()
    return [sorted(one.wanted) for one in reader.under_way()]


def test_a_far_broker_with_four_busy_partitions_has_three_requests_under_way() -> None:
    reader = Reader(busy_source(FOUR, FAR_S))
    assert channels(reader) == [FOUR]
    for _ in range(5):
        reader.round()
    assert [len(one) for one in channels(reader)] == [2, 1, 1]
    assert sorted(tp for one in channels(reader) for tp in one) == FOUR
    reader.until_whole()
    assert reader.source.opened == [(NODE, 0), (NODE, 1), (NODE, 2)]
    assert reader.fetcher.errors == {}


def test_a_channel_opens_when_its_connection_is_there() -> None:
    """Connecting to a far broker takes longer than a response; nobody waits for it."""
    reader = Reader(busy_source(FOUR, FAR_S))
    reader.source.slow = {(NODE, 1), (NODE, 2)}
    for _ in range(8):
        reader.round()
    assert channels(reader) == [FOUR]
    reader.source.slow.clear()
    for _ in range(8):
        reader.round()
    assert len(channels(reader)) == 3, "it was not given up for a minute"
    reader.until_whole()


def test_a_near_broker_has_one_connection() -> None:
    reader = Reader(busy_source(FOUR, NEAR_S))
    reader.until_whole(NEAR_S)
    assert reader.source.opened == [(NODE, 0)]


def test_a_broker_that_moved_far_away_gets_more_channels() -> None:
    """Its node id is the same, its connection is another one."""
    source = busy_source(FOUR, NEAR_S)
    reader = Reader(source)
    for _ in range(5):
        reader.round(0.02)
    reader.fetcher.send()
    (near,) = reader.under_way()
    source.trip_s = FAR_S
    near.broken = True
    reader.receive(near)
    for _ in range(8):
        reader.round()
    assert len(channels(reader)) == 3
    assert source.opened == [(NODE, 0), (NODE, 0), (NODE, 1), (NODE, 2)]


def test_a_near_broker_whose_first_answer_was_late_has_one_connection() -> None:
    source = busy_source(FOUR, NEAR_S)
    source.trips[NODE, 0] = 0.2
    reader = Reader(source)
    reader.until_whole(NEAR_S)
    assert source.opened == [(NODE, 0)], "its answers came sooner"
    slow = Reader(busy_source(FOUR, NEAR_S))
    slow.source.trips[NODE, 0] = 0.2
    slow.until_whole(0.02)
    assert slow.source.opened == [(NODE, 0), (NODE, 1)], "the second connection tells"
    assert list(slow.source.connections) == [(NODE, 0)]


def test_whoever_wants_one_channel_has_one() -> None:
    reader = Reader(busy_source(FOUR, FAR_S), channels_max=1)
    reader.until_whole()
    assert reader.source.opened == [(NODE, 0)]


def test_a_partition_that_is_alone_has_one_channel() -> None:
    reader = Reader(busy_source(FOUR[:1], FAR_S))
    reader.until_whole()
    assert reader.source.opened == [(NODE, 0)]


def test_what_keeps_up_has_one_channel() -> None:
    source = SimSource(dict.fromkeys(FOUR, NODE), FAR_S)
    reader = Reader(source)
    for _ in range(50):
        for tp in FOUR:
            source.append(tp, 1)
        reader.round()
    assert source.opened == [(NODE, 0)]


def test_a_busy_partition_leaves_the_idle_ones() -> None:
    reader = Reader(busy_source(FOUR, FAR_S, busy=FOUR[2:3]))
    for _ in range(5):
        reader.round()
    assert channels(reader) == [[FOUR[0], FOUR[1], FOUR[3]], [FOUR[2]]]
    reader.until_whole()


def test_partitions_move_no_more_than_they_have_to() -> None:
    many = [TopicPartition("t", number) for number in range(40)]
    reader = Reader(busy_source(many, FAR_S))
    for _ in range(60):
        reader.round()
    before = channels(reader)
    assert sorted(map(len, before)) == [13, 13, 14]
    for _ in range(60):
        reader.round()
    assert channels(reader) == before


@pytest.mark.parametrize("room", [True, False])
def test_each_channel_has_a_session_of_its_own(room: bool) -> None:
    many = [TopicPartition("t", number) for number in range(60)]
    source = busy_source(many, FAR_S)
    source.room_for_sessions = room
    reader = Reader(source, fetch_max_bytes=6000)
    reader.until_whole()
    assert len(source.opened) == 3
    assert reader.fetcher.errors == {}
    for connection in source.connections.values():
        epochs = [epoch for _, epoch in connection.headers if epoch >= 0]
        assert len(epochs) > 5
        assert epochs == (list(range(len(epochs))) if room else [0] * len(epochs))
    ids = {one.headers[-1][0] for one in source.connections.values()}
    assert len(ids) == (3 if room else 1)


def test_a_channel_that_waits_for_data_holds_nobody_up() -> None:
    source = busy_source(FOUR, FAR_S)
    reader = Reader(source)
    for _ in range(5):
        reader.round()
    reader.fetcher.send()
    silent, *others = reader.under_way()
    for _ in range(5):
        for one in others:
            reader.take(one)
        source.time_s += FAR_S
        reader.fetcher.send()
        assert reader.under_way() == [silent, *others]


def test_a_channel_whose_connection_is_lost_gives_its_partitions_back() -> None:
    source = busy_source(FOUR, FAR_S)
    reader = Reader(source)
    for _ in range(5):
        reader.round()
    reader.fetcher.send()
    lost = reader.under_way()[1]
    lost.broken = True
    source.refused = {NODE}
    reader.receive(lost)
    assert lost.closed
    assert reader.fetcher.errors == {"CONNECTION_LOST": 1}
    reader.fetcher.send()
    assert [one.number for one in reader.under_way()] == [0, 2]
    source.refused = set()
    reader.until_whole()
    assert source.opened == [(NODE, 0), (NODE, 1), (NODE, 2)], "for a minute it has one less"


def test_a_channel_opens_again_after_a_while() -> None:
    source = busy_source(FOUR, FAR_S)
    reader = Reader(source)
    source.refused = {NODE}
    source.connections[NODE, 0] = SimConnection(source, NODE, 0, FAR_S)
    for _ in range(20):
        reader.round()
    assert len(reader.under_way()) == 0
    assert len(channels(reader)) == 1
    source.refused = set()
    for _ in range(20):
        reader.round()
    assert len(channels(reader)) == 1
    source.time_s += 60.0
    for tp in FOUR:
        source.append(tp, 200)
    for connection in reader.under_way():
        reader.take(connection)
    for _ in range(20):
        reader.round()
    assert len(channels(reader)) == 3


def test_a_channel_that_hangs_is_given_up_alone() -> None:
    source = busy_source(FOUR, FAR_S)
    reader = Reader(source)
    for _ in range(5):
        reader.round()
    reader.fetcher.send()
    first, hung, last = reader.under_way()
    source.time_s += 20.0
    for one in (first, last):
        reader.take(one)
    reader.fetcher.send()
    source.time_s += 11.0
    source.refused = {NODE}
    reader.fetcher.expire()
    assert [first.closed, hung.closed, last.closed] == [False, True, False]
    source.refused = set()
    reader.until_whole()


def test_a_quota_holds_for_all_channels() -> None:
    source = busy_source(FOUR, FAR_S)
    reader = Reader(source)
    for _ in range(5):
        reader.round()
    reader.fetcher.send()
    source.throttle_ms = 700
    reader.take(reader.under_way()[0])
    source.throttle_ms = 0
    for one in reader.under_way():
        reader.take(one)
    source.time_s += 0.6
    reader.fetcher.send()
    assert reader.under_way() == []
    source.time_s += 0.2
    reader.fetcher.send()
    assert len(reader.under_way()) == 3


def test_a_partition_whose_leader_has_moved_begins_in_the_first_channel_there() -> None:
    source = busy_source(FOUR, FAR_S)
    reader = Reader(source)
    for _ in range(5):
        reader.round()
    (moved,) = channels(reader)[1]
    source.true_leaders[moved] = NODE + 1
    for _ in range(3):
        reader.round()
    assert source.opened[3:] == [(NODE + 1, 0)]
    reader.until_whole()

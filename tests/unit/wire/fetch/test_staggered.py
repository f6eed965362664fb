"""Requests that wait for the same partitions of a far broker, each for a later record."""

from __future__ import annotations

import heapq
import itertools
import random
import statistics
from typing import Any

import pytest

from sparkmirror.data.read.intact_records import IntactRecords
from sparkmirror.model import TopicPartition
from sparkmirror.progress import Halt
from sparkmirror.records.selection import SelectRules
from sparkmirror.settings import FetchSettings
from sparkmirror.wire.fetch.channels import Channels
from sparkmirror.wire.fetch.partition_state import FetchState
from sparkmirror.wire.fetch.staggered import WAITING_MAX, Staggered
from sparkmirror.wire.fetch.throttle import Throttle
from tests.property.simulated_source import SimConnection, SimSource
from tests.property.simulated_throttle import limit
from tests.unit.wire.fetch.test_channels import FAR_S, NODE, Reader

ONE = TopicPartition("t", 0)
FEW = [TopicPartition("t", number) for number in range(3)]
MANY = [TopicPartition("t", number) for number in range(40)]
REREAD = 500_000


class Timeline:
    """A reader and its source, with the time that requests and responses travel.

    ``delays``: of each record that was read, from its append on, s.
    """

    def __init__(self, source: SimSource, reader: Reader, seed: int = 1) -> None:
        self.source, self.reader = source, reader
        self.random = random.Random(seed)
        self.events: list[tuple[float, int, Any]] = []
        self.numbers = itertools.count()
        self.known: dict[SimConnection, int] = {}
        self.at_broker: dict[SimConnection, float] = {}
        self.appended: dict[tuple[TopicPartition, int], float] = {}
        self.delays: list[float] = []
        self.seen = {tp: len(values) for tp, values in reader.values.items()}
        self.bytes = 0
        self.frozen: set[int] = set()

    def at(self, time_s: float, action: Any) -> None:
        heapq.heappush(self.events, (time_s, next(self.numbers), action))

    def append(self, tp: TopicPartition, padding: int) -> None:
        before = self.source.ends[tp]
        self.source.append(tp, 1, records=1, padding=b"." * padding)
        self.appended[tp, before] = self.source.time_s
        self.look()

    def look(self) -> None:
        """Brokers answer what they can."""
        for one, until in list(self.at_broker.items()):
            if one.closed or one.number in self.frozen:
                continue
            if self.source.has_news(one) or self.source.time_s >= until - 1e-9:
                del self.at_broker[one]
                self.source.answer(one)
                frame, one.frame = one.frame, b""
                self.at(
                    self.source.time_s + one.round_trip_s / 2,
                    lambda o=one, f=frame: self.arrive(o, f),
                )

    def arrive(self, one: SimConnection, frame: bytes) -> None:
        if one.closed:
            return
        one.frame = frame
        self.bytes += len(frame)
        self.reader.receive(one)
        for tp, values in self.reader.values.items():
            for offset in range(self.seen[tp], len(values)):
                if (tp, offset) in self.appended:
                    self.delays.append(self.source.time_s - self.appended[tp, offset])
            self.seen[tp] = len(values)

    def wait_at(self, one: SimConnection, correlation: int) -> None:
        if one.closed or one.correlation != correlation:
            return
        until = self.source.time_s + one.waiting.max_wait_ms / 1000
        self.at_broker[one] = until
        self.at(until, self.look)
        self.look()

    def send(self) -> None:
        self.reader.fetcher.send()
        for one in self.source.connections.values():
            if one.waiting is not None and self.known.get(one) != one.correlation:
                self.known[one] = one.correlation
                at = self.source.time_s + one.round_trip_s / 2
                self.at(at, lambda o=one, c=one.correlation: self.wait_at(o, c))

    def run(self, seconds: float) -> None:
        end = self.source.time_s + seconds
        self.send()
        while self.events and self.events[0][0] <= end:
            due = self.source.time_s + max(self.reader.fetcher.next_due_s(), 0.0005)
            if due < self.events[0][0]:
                self.source.time_s = due
            else:
                self.source.time_s, _, action = heapq.heappop(self.events)
                action()
            self.send()
        self.source.time_s = end

    def load(
        self,
        tps: list[TopicPartition],
        per_s: float,
        seconds: float,
        size: tuple[int, int] = (400, 500),
    ) -> None:
        """Appends at random times."""
        at = self.source.time_s
        end = at + seconds
        while (at := at + self.random.expovariate(per_s)) < end:
            tp, padding = self.random.choice(tps), self.random.randint(*size)

            def loaded(tp: TopicPartition = tp, padding: int = padding) -> None:
                self.append(tp, padding)

            self.at(at, loaded)


def _timeline(
    tps: list[TopicPartition], trip_s: float = FAR_S, seed: int = 1, **settings: Any
) -> Timeline:
    source = SimSource(dict.fromkeys(tps, NODE), trip_s)
    reader = Reader(
        source,
        fetch_max_bytes=1 << 20,
        partition_fetch_bytes_max=1 << 20,
        **{"reread_bytes": REREAD} | settings,
    )
    return Timeline(source, reader, seed)


def _running(
    tps: list[TopicPartition],
    per_s: float = 100,
    *,
    size: tuple[int, int] = (400, 500),
    seconds: float = 20,
    **ways: Any,
) -> Timeline:
    """One whose requests wait beside each other; there is load for ``seconds``."""
    line = _timeline(tps, **ways)
    line.load(tps, per_s, seconds, size)
    line.run(2)
    line.delays.clear()
    return line


def _helpers(line: Timeline) -> list[SimConnection]:
    return [one for one in line.reader.under_way() if one.number < 0]


def _asked(line: Timeline) -> int:
    return sum(len(one.headers) for one in line.source.connections.values())


def _all_comes(line: Timeline) -> None:
    """After the end of the load, all of it is read."""
    line.events = [event for event in line.events if event[2].__name__ != "loaded"]
    heapq.heapify(line.events)
    line.run(20)
    assert line.reader.whole()


@pytest.mark.parametrize(
    "tps",
    [
        pytest.param([ONE], id="one", marks=pytest.mark.more),
        pytest.param(FEW, id="few"),
        pytest.param(MANY, id="many", marks=pytest.mark.more),
    ],
)
@pytest.mark.parametrize("per_s", [pytest.param(25, marks=pytest.mark.more), 100])
@pytest.mark.parametrize("size", [(400, 500), (50, 1000)], ids=["even", "uneven"])
def test_most_records_take_one_way(
    tps: list[TopicPartition], per_s: float, size: tuple[int, int]
) -> None:
    medians, longest = {}, {}
    for reread in (0, REREAD):
        line = _timeline(tps, reread_bytes=reread)
        line.load(tps, per_s, 12, size)
        line.run(2)
        line.delays.clear()
        line.run(15)
        assert line.reader.whole()
        assert line.reader.fetcher.errors == {}
        medians[reread], longest[reread] = statistics.median(line.delays), max(line.delays)
    assert medians[0] > 0.8 * FAR_S
    assert medians[REREAD] < 0.55 * FAR_S
    assert longest[REREAD] < longest[0] + FAR_S, "a small batch does not wait for long"


def test_where_records_are_rare_one_request_waits() -> None:
    line = _timeline([ONE])
    line.load([ONE], 2, 30)
    line.run(30)
    assert line.source.opened == [(NODE, 0)]


def test_what_is_read_again_has_a_bound() -> None:
    for per_s in (100, 400, 3_000):
        line = _running([ONE], per_s, seconds=5)
        before = line.reader.fetcher._staggered.reread
        line.run(3)
        reread = line.reader.fetcher._staggered.reread - before
        assert reread / 3 < 1.1 * REREAD
        assert (reread > 0) == (per_s < 3_000)


@pytest.mark.parametrize(
    "ways", [{"reread_bytes": 0}, {"fetch_min_bytes": 2}, {"trip_s": 0.008}], ids=str
)
def test_without_need_or_leave_one_request_waits(ways: dict[str, Any]) -> None:
    line = _running([ONE], **ways)
    assert line.source.opened == [(NODE, 0)]


def test_a_near_broker_that_was_only_waited_for_has_one_request() -> None:
    line = _timeline([ONE], 0.001)
    for number in range(100):
        line.at(100.0 + number / 25, lambda: line.append(ONE, 400))
    line.run(5)
    assert line.source.opened == [(NODE, 0)]
    assert line.reader.whole()


def test_a_backlog_is_read_by_one_request() -> None:
    line = _running([ONE])
    line.source.append(ONE, 20_000, padding=b"." * 400)
    line.run(0.3)
    before = {one: len(one.headers) for one in line.source.connections.values()}
    line.run(0.3)
    assert [one.number for one, count in before.items() if len(one.headers) > count] == [0]


def test_when_records_stop_one_request_waits() -> None:
    line = _timeline([ONE])
    line.load([ONE], 100, 3)
    line.run(3)
    assert _helpers(line)
    line.run(5)
    asked = _asked(line)
    line.run(5)
    assert _helpers(line) == []
    assert _asked(line) - asked <= 11


def test_each_helper_has_a_session_of_its_own() -> None:
    line = _running(MANY)
    line.run(3)
    for one in line.source.connections.values():
        assert [epoch for _, epoch in one.headers] == list(range(len(one.headers)))
    assert len({one.headers[-1][0] for one in line.source.connections.values()}) == WAITING_MAX


def test_a_quota_ends_it_for_a_minute() -> None:
    line = _running([ONE])
    assert _helpers(line)
    line.source.throttle_ms = 100
    line.run(0.2)
    line.source.throttle_ms = 0
    line.run(5)
    assert _helpers(line) == []
    line.load([ONE], 40, 70)
    line.run(60)
    assert _helpers(line)
    _all_comes(line)


def test_beside_a_limit_one_request_waits() -> None:
    line = _running([ONE])
    throttle = Throttle()
    throttle.update([limit(1_000_000, "")], line.source.time_s)
    line.reader.fetcher.throttle = throttle
    line.run(3)
    assert _helpers(line) == []
    _all_comes(line)


def test_a_partition_that_is_left_out_is_not_asked_for() -> None:
    line = _running(FEW)
    line.reader.fetcher.left_out = {FEW[1]}
    line.run(2)
    assert _helpers(line)
    assert all(FEW[1] not in one.wanted for one in _helpers(line))
    line.reader.fetcher.left_out = set()
    _all_comes(line)


@pytest.mark.parametrize("number", [0, -1, pytest.param(-2, marks=pytest.mark.more)])
def test_a_connection_that_hangs_delays_little(number: int) -> None:
    """Half-open: nothing comes, and nobody is told. The other requests bring its records."""
    line = _running([ONE])
    line.frozen = {number}
    line.run(10)
    assert max(line.delays) < 5 * FAR_S
    assert statistics.median(line.delays) < 0.6 * FAR_S
    line.run(30)
    line.frozen = set()
    assert line.reader.fetcher.errors == {"CONNECTION_LOST": 1}
    _all_comes(line)


@pytest.mark.parametrize("number", [0, -1])
def test_a_connection_that_is_cut_costs_no_record(number: int) -> None:
    line = _running(FEW)
    cut = line.source.connections[NODE, number]
    cut.broken = True
    line.reader.receive(cut)
    line.run(5)
    assert line.reader.fetcher.errors == {"CONNECTION_LOST": 1}
    assert bool(_helpers(line)) == (number == 0), "after a helper's end there is none for a minute"
    _all_comes(line)


def test_a_broker_that_refuses_more_connections_is_asked_again_after_a_minute() -> None:
    line = _timeline([ONE])
    line.load([ONE], 30, 90)
    line.source.connection(NODE)
    line.source.refused = {NODE}
    line.run(10)
    line.source.refused = set()
    line.run(10)
    assert line.source.opened == [(NODE, 0)]
    line.run(60)
    assert _helpers(line)
    _all_comes(line)


def test_the_leader_changes_while_several_wait() -> None:
    line = _running(FEW)
    assert _helpers(line)
    line.source.true_leaders = dict.fromkeys(FEW, NODE + 1)
    line.run(5)
    assert {one.node for one in _helpers(line)} == {NODE + 1}
    _all_comes(line)


def test_what_was_read_and_is_deleted_meanwhile_is_no_loss() -> None:
    """Requests that wait begin before the log does by now."""
    line = _running([ONE])
    for _ in range(40):
        line.run(0.1)
        line.source.log_starts[ONE] = line.reader.fetcher.position(ONE)
        line.look()
    assert line.reader.fetcher.halts == {}
    assert line.reader.fetcher.errors == {}
    _all_comes(line)


def test_a_response_that_lists_aborted_transactions_is_used_whole_or_not() -> None:
    """The marker of one may be in the part that was read before."""
    line = _running([ONE])
    seen: list[int] = []
    receive = line.reader.fetcher.receive

    def receiving(connection: Any) -> Any:
        parts = receive(connection)
        for part in parts:
            if part.aborted and part.records:
                asked = connection.wanted[part.tp][0]
                seen.append(asked)
                assert part.fetch_offset == asked, "it begins where its request does"
        return parts

    line.reader.fetcher.receive = receiving  # type: ignore[method-assign]
    line.source.aborted = [(7, 0)]
    line.run(5)
    assert len(seen) > 50
    line.source.aborted = []
    _all_comes(line)


def test_after_news_of_a_partition_requests_under_way_are_void() -> None:
    line = _running(FEW)
    waiting = _helpers(line)
    assert waiting
    tp, offset = FEW[0], line.reader.fetcher.position(FEW[0])
    line.reader.fetcher.halt(tp, Halt("X", "y"))
    line.append(FEW[1], 400)
    for one in waiting:
        line.source.answer(one)
        assert line.reader.fetcher.receive(one) == []  # type: ignore[arg-type]
    assert line.reader.fetcher.position(tp) == offset


def test_nobody_waits_until_further_connections_are_open() -> None:
    line = _timeline([ONE])
    line.source.slow = {(NODE, -number) for number in range(1, WAITING_MAX)}
    line.load([ONE], 100, 20)
    line.run(5)
    assert line.source.waited_s == 0
    assert line.source.opened == [(NODE, 0)]
    line.source.slow = set()
    line.run(1)
    assert _helpers(line)
    _all_comes(line)


def _asked_at_one_place(line: Timeline) -> tuple[SimConnection, SimConnection]:
    """A helper and the channel's own connection whose requests wait for the next record."""
    main = line.source.connections[NODE, 0]
    for _ in range(5_000):
        line.run(0.002)
        at = line.reader.fetcher.position(ONE)
        asked = [one for one in line.at_broker if one.wanted[ONE][0] == at]
        helpers = [one for one in asked if one is not main]
        if helpers and main in asked and line.source.ends[ONE] == at:
            return helpers[0], main
    raise AssertionError("no helper asks for what the channel asks for")


def _answer(line: Timeline, *connections: SimConnection) -> list[Any]:
    """What the fetcher uses of responses that come one after the other."""
    used = []
    for one in connections:
        line.at_broker.pop(one)
        line.source.answer(one)
        used += line.reader.fetcher.receive(one)  # type: ignore[arg-type]
    return used


def test_an_offset_that_several_requests_find_out_of_range_is_asked_for_again() -> None:
    """A newly elected leader may not know its own end yet."""
    line = _running([ONE])
    fetcher = line.reader.fetcher
    both = _asked_at_one_place(line)
    line.source.log_starts[ONE] = fetcher.position(ONE) + 1
    assert _answer(line, *both) == []
    assert fetcher.halts == {}
    line.source.log_starts[ONE] = 0
    _all_comes(line)
    assert fetcher.errors == {"OFFSET_OUT_OF_RANGE": 1}


def test_many_partitions_are_not_looked_at_for_each_response(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    many = [TopicPartition("t", number) for number in range(300)]
    line = _timeline(many)
    line.load(many, 100, 5)
    line.run(2)
    looked: list[int] = []
    states = FetchState.__getattribute__

    def noting(self: FetchState, name: str) -> Any:
        if name == "cut_short":
            looked.append(1)
        return states(self, name)

    monkeypatch.setattr(FetchState, "__getattribute__", noting)
    line.run(1)
    monkeypatch.undo()
    assert _helpers(line) == []
    assert len(looked) < 300 * 10


def test_a_sudden_backlog_is_not_read_by_all_that_wait() -> None:
    line = _running([ONE])
    fetcher = line.reader.fetcher
    before = fetcher._staggered.reread
    line.source.append(ONE, 2_000, padding=b"." * 400)  # about 900 KB
    line.look()
    line.run(1)
    assert fetcher._staggered.reread - before < 2 * REREAD
    _all_comes(line)


def test_an_error_that_several_requests_find_is_counted_once() -> None:
    line = _running([ONE])
    both = _asked_at_one_place(line)
    line.source.true_leaders = {ONE: NODE + 1}
    assert _answer(line, *both) == []
    _all_comes(line)
    assert line.reader.fetcher.errors == {"NOT_LEADER_OR_FOLLOWER": 1}


def test_damage_that_several_requests_find_is_one_try() -> None:
    """Three tries halt the partition."""
    line = _running([ONE])
    both = _asked_at_one_place(line)
    fetcher = line.reader.fetcher
    intact = IntactRecords(fetcher, SelectRules())
    line.source.append(ONE, 1, records=1)
    first, whole = line.source.logs[ONE][-1]
    line.source.logs[ONE][-1] = first, whole[:-1] + b"?"
    for one in both:
        for part in _answer(line, one):
            assert intact.select(part, None) is None
    assert fetcher.errors == {"CORRUPT_BATCH": 1}
    line.source.logs[ONE][-1] = first, whole
    line.at(line.source.time_s + 2, line.look)  # nothing is under way until then
    _all_comes(line)


def test_records_past_the_end_that_several_requests_find_are_one_try() -> None:
    """A broker reads its high watermark before its log; four times in a row are damage."""
    line = _running([ONE])
    both = _asked_at_one_place(line)
    fetcher = line.reader.fetcher
    intact = IntactRecords(fetcher, SelectRules())
    line.source.append(ONE, 1, records=1)
    line.source.ends[ONE] -= 1
    tries = [intact.select(part, None) for one in both for part in _answer(line, one)]
    assert tries == [None]
    line.source.ends[ONE] += 1
    _all_comes(line)


def test_no_more_connections_are_begun_than_requests_are_missing() -> None:
    line = _timeline([ONE])
    line.source.slow = {(NODE, -number) for number in range(1, WAITING_MAX)}
    line.load([ONE], 15, 20)
    line.run(5)
    assert 1 <= len(line.source.begun) <= 3


def test_responses_come_no_more_often_than_those_of_a_near_broker() -> None:
    """Each is a row through Spark. `pacing` has the interval of a near broker's."""
    line = _running([ONE], 450, trip_s=0.012, size=(20, 40), seconds=5)
    before = _asked(line)
    line.run(3)
    assert _helpers(line)
    assert (_asked(line) - before) / 3 < 1.1 / 0.004
    _all_comes(line)


def test_what_is_read_again_has_one_bound_for_all_channels_of_a_broker() -> None:
    source: Any = SimSource({ONE: NODE}, FAR_S)
    channels = Channels(source, 3, WAITING_MAX - 1)
    channels.note_response((NODE, 0), source.connection(NODE), FAR_S)
    staggered = Staggered(channels, FetchSettings(), REREAD)
    mains = [(NODE, number) for number in range(3)]
    for main in mains:
        staggered.note_read(main, 100, REREAD // 5, 100.0)
    waiting = [staggered.missing(main, 100.0) for main in mains]
    assert min(waiting) > 1
    assert sum(number - 1 for number in waiting) * REREAD // 5 <= REREAD

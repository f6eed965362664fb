"""Requests that are sent again without a look at all partitions, when something happens beside."""

from __future__ import annotations

from sparkmirror.model import TopicPartition
from sparkmirror.progress import Halt
from sparkmirror.settings import FetchSettings
from sparkmirror.wire.fetch.fetcher import Fetcher
from tests.property.simulated_source import SimSource
from tests.property.test_fetch_properties import MANY
from tests.unit.wire.fetch.test_channels import Reader


def _reader(source: SimSource) -> Reader:
    return Reader(source, channels_max=1, fetch_max_bytes=1 << 20)


def test_a_connection_that_breaks_while_requests_are_repeated_ends_nothing() -> None:
    """The next of the answered requests is no longer one then."""
    leaders = {tp: (1 if number < len(MANY) // 2 else 2) for number, tp in enumerate(MANY)}
    source = SimSource(leaders, 0.001)
    reader = _reader(source)
    reader.until_whole()
    for _ in range(3):
        reader.round()
    fetcher = reader.fetcher
    source.time_s += 10
    for connection in list(source.connections.values()):
        if connection.waiting is not None:
            source.answer(connection)
            fetcher.receive(connection)
    assert fetcher._repeats.steady
    assert len(fetcher._repeats.answered) == 2
    first = source.connections[next(iter(fetcher._repeats.answered))]
    first.ended_idle = lambda: False  # type: ignore[method-assign]  # in use a moment ago
    first.broken = True
    fetcher.send()
    source.append(MANY[0], 1)
    source.append(MANY[-1], 1)
    reader.until_whole()
    assert reader.whole()


def test_a_time_that_has_passed_is_not_due_again_while_requests_only_expire() -> None:
    """A paused flow sends nothing: its loop must not go round and round."""
    source = SimSource(dict.fromkeys(MANY, 1), 0.001)
    reader = _reader(source)
    reader.until_whole()
    fetcher = reader.fetcher
    fetcher.retry_later(MANY[0], 0.1)
    source.time_s += 0.05
    fetcher.send()
    assert fetcher._repeats.steady
    assert 0 < fetcher.next_due_s() <= 0.05
    source.time_s += 0.2
    fetcher.expire()
    source.time_s += 0.01
    assert fetcher.next_due_s() > 0


def test_halts_of_partitions_that_another_fetcher_has_begun_are_known_at_once() -> None:
    extra = TopicPartition("x", 0)
    source = SimSource(dict.fromkeys([*MANY, extra], 1), 0.001)
    source.topics = set()
    reader = _reader(source)
    fetcher = reader.fetcher
    fetcher.unassign(extra)
    reader.round()
    reader.round()
    assert fetcher._repeats.steady
    assert fetcher.halts == {}
    other = Fetcher(source, FetchSettings(), clock=lambda: source.time_s)  # type: ignore[arg-type]
    other.assign(extra, 0)
    other.halt(extra, Halt("X", "y"))
    source.mark_stale = lambda *_: None  # type: ignore[method-assign]  # the search takes a while
    fetcher.take_from(other)
    assert set(fetcher.halts) == {extra}

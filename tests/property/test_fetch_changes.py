"""A request with the changes since the last one says what a look at all partitions would say."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkmirror.model import TopicPartition
from sparkmirror.progress import Halt
from sparkmirror.wire.fetch.fetcher import Fetcher
from sparkmirror.wire.fetch.sessions import FetchSession
from tests.property.simulated_source import SimSource
from tests.property.test_fetch_properties import FEW, MANY, NODES, Run, steps
from tests.unit.wire.fetch.test_channels import Reader

_numbers = st.integers(0, 39)
events = st.one_of(
    steps,
    st.tuples(st.just("halt"), _numbers, st.booleans()),
    st.tuples(st.just("later"), _numbers, st.floats(0.001, 3.0)),
    st.tuples(st.just("leave out"), st.lists(_numbers, max_size=3)),
    st.tuples(st.just("need"), _numbers, st.integers(1, 5_000)),
    st.tuples(st.just("stop"), _numbers),
    st.tuples(st.just("metadata")),
)


class AnyRun(Run):
    """A reader to which its owner does things, too."""

    def step(self, step: tuple[Any, ...]) -> None:
        fetcher = self.reader.fetcher
        match step:
            case "begin anew", number:
                # A partition that was stopped begins where its reader is.
                tp = self._partition(number)
                fetcher.assign(tp, 2 * (len(self.reader.values[tp]) // 2))
            case "halt", number, retriable:
                fetcher.halt(self._partition(number), Halt("X", "y", retriable=retriable))
            case "later", number, seconds:
                fetcher.retry_later(self._partition(number), seconds)
            case "leave out", numbers:
                fetcher.left_out = {self._partition(number) for number in numbers}
            case "need", number, size:
                fetcher.need_bytes(self._partition(number), size)
            case "stop", number:
                fetcher.unassign(self._partition(number))
            case ("metadata",):
                self.source.mark_stale()
            case _:
                super().step(step)

    def seen(self) -> object:
        """What the brokers were asked for, and when the fetcher wants to be called again."""
        connections = self.source.connections
        asked = {
            key: (one.waiting is not None, one.wanted, one.headers)
            for key, one in connections.items()
        }
        sizes = {
            key: (one.waiting.max_bytes, one.waiting.min_bytes, one.waiting.rack_id)
            for key, one in connections.items()
            if one.waiting is not None
        }
        fetcher = self.reader.fetcher
        return asked, sizes, fetcher.next_due_s(), fetcher.halts, fetcher.errors


def _thorough(fetcher: Fetcher) -> None:
    """Have ``fetcher`` look at all partitions each time."""
    send = fetcher.send

    def look_at_all() -> None:
        fetcher._repeats.steady = False
        send()
        fetcher._repeats.steady = False

    fetcher.send = look_at_all  # type: ignore[method-assign]


@pytest.mark.parametrize(
    "partitions",
    [pytest.param(FEW, id="few"), pytest.param(MANY, id="many", marks=pytest.mark.more)],
)
@settings(max_examples=75, deadline=None)
@given(did=st.lists(events, max_size=40), trip_s=st.sampled_from([0.001, 0.05]))
def test_changes_are_what_a_look_at_all_partitions_finds(
    partitions: list[TopicPartition], did: list[tuple[Any, ...]], trip_s: float
) -> None:
    quick, thorough = AnyRun(partitions, trip_s), AnyRun(partitions, trip_s)
    _thorough(thorough.reader.fetcher)
    for step in [("rounds", 2), *did, ("rounds", 3)]:
        for run in (quick, thorough):
            run.step(step)
        assert quick.seen() == thorough.seen(), step


def test_a_response_with_one_partitions_news_looks_at_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = SimSource(dict.fromkeys(MANY, NODES[0]), 0.001)
    reader = Reader(source, channels_max=1, fetch_max_bytes=1 << 20)
    reader.until_whole()
    reader.round()
    looked: list[int] = []
    known = Fetcher._send_all
    monkeypatch.setattr(Fetcher, "_send_all", lambda *a: (looked.append(1), known(*a))[1])
    for number in range(50):
        source.append(MANY[number % 7], 1)
        reader.round()
    assert reader.whole()
    assert looked == []
    reader.fetcher.halt(MANY[3], Halt("X", "y"))
    reader.round()
    assert looked == [1]


params = st.tuples(st.integers(0, 3), st.just(0), st.sampled_from([100, 200]))


@given(
    known=st.dictionaries(st.sampled_from(MANY), params, min_size=1),
    changes=st.lists(st.dictionaries(st.sampled_from(MANY), params), max_size=6),
)
def test_a_session_that_gets_changes_knows_the_same(
    known: dict[TopicPartition, Any], changes: list[dict[TopicPartition, Any]]
) -> None:
    one, other = FetchSession(), FetchSession()
    wanted = dict(known)
    for session in (one, other):
        session.next_request(dict(wanted))
        session.on_response(7)
    for change in changes:
        changed = {tp: values for tp, values in change.items() if tp in wanted}
        wanted |= changed
        listed, forgotten = other.next_request(dict(wanted))
        assert (dict(one.next_changes(changed)), []) == (listed, forgotten)
        assert one.known == other.known == wanted

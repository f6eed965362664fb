"""Whatever brokers do: every record is read, in order, exactly once, over however many channels."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkmirror.model import TopicPartition
from sparkmirror.wire.fetch.throttle import Throttle
from tests.property.simulated_source import SimSource
from tests.property.simulated_throttle import limit
from tests.unit.wire.fetch.test_channels import Reader

FEW = [TopicPartition(topic, number) for topic in ("t", "u") for number in range(3)]
MANY = [TopicPartition(topic, number) for topic in ("t", "u") for number in range(20)]
NODES = (1, 2)

_numbers = st.integers(0, 39)
_nodes = st.sampled_from(NODES)
steps = st.one_of(
    st.tuples(st.just("append"), _numbers, st.integers(1, 30)),
    st.tuples(st.just("send")),
    st.tuples(st.just("answer"), st.integers(0, 5)),
    st.tuples(st.just("rounds"), st.integers(1, 6)),
    st.tuples(st.just("break"), st.integers(0, 5)),
    st.tuples(st.just("refuse"), _nodes, st.booleans()),
    st.tuples(st.just("move"), _numbers, _nodes),
    st.tuples(st.just("forget"), _nodes),
    st.tuples(st.just("wait"), st.floats(0.001, 40.0)),
    st.tuples(st.just("begin anew"), _numbers),
    st.tuples(st.just("throttle"), st.sampled_from([0, 100])),
    st.tuples(st.just("trip"), st.sampled_from([0.001, 0.05])),
    st.tuples(st.just("limit"), st.sampled_from([0, 2_000, 20_000]), st.sampled_from(["", "t"])),
)


class Run:
    """A reader before a source to which things happen."""

    def __init__(self, partitions: list[TopicPartition], trip_s: float) -> None:
        self.partitions = partitions
        leaders = {tp: NODES[number % 2] for number, tp in enumerate(partitions)}
        self.source = SimSource(leaders, trip_s)
        for tp in partitions:
            self.source.append(tp, 20)
        self.reader = Reader(self.source)

    def step(self, step: tuple[Any, ...]) -> None:
        source, reader = self.source, self.reader
        match step:
            case "append", number, batches:
                source.append(self._partition(number), batches)
            case ("send",):
                reader.fetcher.send()
            case "answer", number:
                under_way = reader.under_way()
                if under_way:
                    reader.take(under_way[number % len(under_way)])
            case "rounds", count:
                for _ in range(count):
                    self._round()
            case "break", number:
                connections = list(source.connections.values())
                if connections:
                    broken = connections[number % len(connections)]
                    broken.broken = True
                    reader.receive(broken) if broken.waiting is not None else None
            case "refuse", node, refuses:
                (source.refused.add if refuses else source.refused.discard)(node)
            case "move", number, node:
                source.true_leaders[self._partition(number)] = node
            case "forget", node:
                source.lose_sessions(node)
            case "wait", seconds:
                source.time_s += seconds
            case "begin anew", number:
                tp = self._partition(number)
                reader.fetcher.assign(tp, reader.fetcher.position(tp))
            case "throttle", throttle_ms:
                source.throttle_ms = throttle_ms
            case "trip", trip_s:
                source.trip_s = trip_s
            case "limit", rate, topics:
                self._limit(rate, topics)

    def _limit(self, rate: int, topics: str) -> None:
        fetcher = self.reader.fetcher
        fetcher.throttle = fetcher.throttle or Throttle()
        fetcher.throttle.update([limit(rate, topics)] if rate else [], self.source.time_s)
        if not rate:
            fetcher.throttle = None

    def _partition(self, number: int) -> TopicPartition:
        return self.partitions[number % len(self.partitions)]

    def _round(self) -> None:
        self.reader.fetcher.send()
        self.source.time_s += 0.05
        for connection in self.reader.under_way():
            self.reader.take(connection)

    def heal(self) -> None:
        """All goes well from now on, and everything comes."""
        source = self.source
        source.refused, source.throttle_ms = set(), 0
        for connection in list(source.connections.values()):
            if connection.broken:
                self.reader.receive(connection)
        for _ in range(3000):
            if self.reader.whole():
                return
            self._round()
        raise AssertionError("not everything comes")


@pytest.mark.parametrize(
    "partitions",
    [pytest.param(FEW, id="few"), pytest.param(MANY, id="many", marks=pytest.mark.more)],
)
@settings(max_examples=60, deadline=None)
@given(did=st.lists(steps, max_size=40), trip_s=st.sampled_from([0.001, 0.05]))
def test_every_record_comes_in_order_and_once(
    partitions: list[TopicPartition], did: list[tuple[Any, ...]], trip_s: float
) -> None:
    run = Run(partitions, trip_s)
    for step in did:
        run.step(step)
        run.reader.whole()
    run.heal()


@settings(max_examples=60, deadline=None)
@given(
    order=st.permutations(FEW),
    busy=st.sets(st.sampled_from(FEW[:-1]), min_size=1),
    late_bytes=st.sampled_from([10, 800]),
    bytes_max=st.sampled_from([400, 1200]),
)
def test_each_partition_has_its_turn_beside_others_that_always_have_more(
    order: list[TopicPartition], busy: set[TopicPartition], late_bytes: int, bytes_max: int
) -> None:
    source, late = SimSource(dict.fromkeys(order, NODES[0]), 0.001), FEW[-1]
    reader = Reader(source, channels_max=1, fetch_max_bytes=bytes_max)
    for tp in busy:
        source.append(tp, 5 * len(FEW))
    source.append(late, 1, padding=b"." * late_bytes)
    for _ in FEW:
        reader.round(0.02)
    assert reader.values[late], "it waits until the others are read"

"""Sinks whose records go to any partition, against brokers that answer at once.

A position waits for all of them; an exactly-once sink writes them in one transaction with it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from sparkmirror.data.rows.rows import Chunk
from sparkmirror.data.transform.pack import Packed
from sparkmirror.data.write.slot_sink import SlotSink
from sparkmirror.internal_topics.gaps import decode_gap, gaps_topic
from sparkmirror.internal_topics.position_metadata import PositionMetadata, decode_metadata
from sparkmirror.model import TopicPartition
from sparkmirror.names.replication_policy import dead_letter_topic
from sparkmirror.records.records import Record, encode_batch
from sparkmirror.settings import FaultSettings, FlowSettings
from sparkmirror.transform_settings import TransformSettings
from tests.unit.data.write.test_exactly_once import (
    BILLS,
    ORDERS,
    REMOTE,
    SYNCS,
    Brokers,
    Source,
    _flow,
    _refuse_bad,
    simulated,
)
from tests.unit.data.write.test_slot_sink import Mirrored
from tests.unit.data.write.test_slot_sink import _flow as _plain_flow

EU, US = TopicPartition("eu", 0), TopicPartition("us", 1)
Sent = tuple[bytes, TopicPartition]


@pytest.fixture
def brokers() -> Iterator[Brokers]:
    with simulated() as found:
        yield found


class Routing(SlotSink):
    """A sink that gets chunks as a packer makes them."""

    def __init__(self, flow: FlowSettings) -> None:
        super().__init__(flow)
        self._packer = None

    def _take_message(self, batch: Any) -> None:
        if isinstance(batch, Packed):
            self._take_packed(batch)
        else:
            super()._take_message(batch)


class Routed(Mirrored):
    """The same for an at-least-once sink that is driven by hand."""

    def __init__(self, flow: FlowSettings) -> None:
        super().__init__(flow)
        self._packer = None


def _routes(*topics: str) -> dict[str, Any]:
    return {"transforms": (TransformSettings("route", topics, routes=True),)}


def _packed(source: TopicPartition, first: int, *sent: Sent) -> Packed:
    """A chunk of records from offset ``first`` on, each with its place on the target."""
    places = list(dict.fromkeys(place for _, place in sent))
    data, sources, targets = b"", [], []
    for place in places:
        values = [(first + n, value) for n, (value, where) in enumerate(sent) if where == place]
        index = len(sources)
        data += encode_batch([Record(index + n, 5, None, v) for n, (_, v) in enumerate(values)])
        sources += [offset for offset, _ in values]
        targets.append([*place])
    end = first + len(sent)
    chunk = Chunk(
        *(source.topic, 0, REMOTE[source].topic, first, end, len(sent), 5, 0, len(data)),
        targets=targets,
    )
    return Packed(chunk, memoryview(data), sources=np.array(sources, np.int64))


def _run(brokers: Brokers, flow: FlowSettings, *parts: Packed) -> Routing:
    mirrored = Routing(flow)
    mirrored.run(iter([*Source(brokers).rows, *parts]))
    return mirrored


def _at(brokers: Brokers, tp: TopicPartition) -> list[bytes | None]:
    return [record.value for record in brokers.committed[tp]]


def test_all_topics_and_the_position_are_one_transaction(brokers: Brokers) -> None:
    flow = _flow(**_routes("orders", "bills"), offset_syncs=SYNCS)
    _run(
        brokers,
        flow,
        _packed(ORDERS, 0, (b"1", EU), (b"2", US), (b"3", EU), (b"4", REMOTE[BILLS])),
        _packed(BILLS, 0, (b"a", EU), (b"b", US)),
        _packed(BILLS, 2, (b"c", REMOTE[ORDERS])),
    )
    # Before a partition is first written, an open transaction ends: something may be open there.
    assert brokers.commits[:3] == [set(), {"eu", "us", "A.bills"}, {"A.orders"}]
    assert _at(brokers, EU) == [b"1", b"3", b"a"]
    assert _at(brokers, US) == [b"2", b"b"]
    assert (_at(brokers, REMOTE[BILLS]), _at(brokers, REMOTE[ORDERS])) == ([b"4"], [b"c"])
    assert {REMOTE[one]: brokers.positions[REMOTE[one]] for one in REMOTE} == {
        **{REMOTE[ORDERS]: 4, REMOTE[BILLS]: 3}
    }
    for one in REMOTE:
        told = decode_metadata(brokers.metadata[REMOTE[one]])
        assert told == PositionMetadata(told.source)  # nothing about the target
    assert not [tp for tp in brokers.committed if "offset-syncs" in tp.topic]


def test_a_chunk_is_not_divided(brokers: Brokers) -> None:
    """Its batches are not in the source's order: no position is right between them."""
    flow = _flow(**_routes("orders"), transaction_bytes=60)
    sent = [(b"%d" % n, EU if n % 2 else US) for n in range(10)]
    _run(brokers, flow, _packed(ORDERS, 0, *sent), _packed(ORDERS, 10, (b"x", EU)))
    assert [one for one in brokers.commits if "eu" in one] == [{"eu", "us"}, {"eu"}]


def test_a_marker_that_is_missing_in_a_routed_partition(brokers: Brokers) -> None:
    """The task knows what it has committed there."""
    mirrored = Routing(_flow(**_routes("orders")))

    def rows() -> Iterator[Any]:
        yield from Source(brokers).rows
        yield _packed(ORDERS, 0, (b"1", EU), (b"2", US))
        brokers.unmarked = {EU}  # the next chunk ends the transaction
        yield _packed(ORDERS, 2, (b"3", TopicPartition("us", 0)))
        assert _at(brokers, EU) == []
        yield _packed(ORDERS, 3, (b"4", EU))

    mirrored.run(rows())
    assert _at(brokers, EU) == [b"1", b"4"]
    assert _at(brokers, US) == [b"2"]
    assert brokers.positions[REMOTE[ORDERS]] == 4


def test_what_an_earlier_task_left_open_stops_those_who_write_there(brokers: Brokers) -> None:
    flow = _flow(**_routes("orders", "bills"))

    def rows() -> Iterator[Any]:
        yield from Source(brokers).rows
        yield _packed(ORDERS, 0, (b"1", EU), (b"2", US))
        brokers.unmarked = {EU}

    Routing(flow).run(rows())
    assert (_at(brokers, EU), _at(brokers, US)) == ([], [b"2"])
    mirrored = _run(
        brokers,
        flow,
        _packed(ORDERS, 2, (b"3", US)),
        _packed(ORDERS, 3, (b"4", EU)),
        _packed(BILLS, 0, (b"a", US)),
    )
    assert (_at(brokers, EU), _at(brokers, US)) == ([], [b"2", b"3", b"a"])
    assert (brokers.positions[REMOTE[ORDERS]], brokers.positions[REMOTE[BILLS]]) == (3, 1)
    halt = mirrored._task.lanes[ORDERS].halt
    assert halt is not None
    assert "no position says whether it was committed" in halt.reason
    assert mirrored._task.lanes[BILLS].halt is None


def test_a_refusal_stops_the_partitions_that_go_there(brokers: Brokers) -> None:
    """Whole chunks before it stay; of the refused one, nothing does."""
    brokers.refuses = _refuse_bad
    mirrored = _run(
        brokers,
        _flow(**_routes("orders", "bills")),
        _packed(ORDERS, 0, (b"1", EU), (b"2", US)),
        _packed(BILLS, 0, (b"a", US)),
        _packed(ORDERS, 2, (b"3", US), (b"bad", EU), (b"4", US)),
        _packed(ORDERS, 5, (b"5", US)),
        _packed(BILLS, 1, (b"b", US)),
    )
    assert brokers.aborts == 1
    assert (_at(brokers, EU), _at(brokers, US)) == ([b"1"], [b"2", b"a", b"b"])
    assert _at(brokers, REMOTE[ORDERS]) == []
    assert (brokers.positions[REMOTE[ORDERS]], brokers.positions[REMOTE[BILLS]]) == (2, 2)
    assert mirrored._task.lanes[ORDERS].halt is not None
    assert mirrored._task.lanes[BILLS].halt is None


def test_an_aborted_transaction_whose_marker_is_missing(brokers: Brokers) -> None:
    """This task knows that it committed nothing there, and writes it again."""

    def refuse(tp: TopicPartition, record: Record) -> int:
        code = _refuse_bad(tp, record)
        if code:
            brokers.unmarked = {EU}
        return code

    brokers.refuses = refuse
    _run(
        brokers,
        _flow(**_routes("orders", "bills")),
        _packed(ORDERS, 0, (b"1", EU), (b"2", US)),
        _packed(BILLS, 0, (b"bad", US)),
    )
    # The second abort writes the marker.
    assert (brokers.aborts, brokers.unmarked) == (2, set())
    assert (_at(brokers, EU), _at(brokers, US)) == ([b"1"], [b"2"])
    assert brokers.positions[REMOTE[ORDERS]] == 2


@pytest.mark.parametrize("exact", [True, False])
def test_refused_records_are_told_of_by_their_source_offsets(
    brokers: Brokers, *, exact: bool
) -> None:
    brokers.refuses = lambda tp, one: _refuse_bad(tp, one) if tp in (EU, US) else 0
    faults = FaultSettings(bad_record="dead-letter")
    flow = _flow(**_routes("orders"), faults=faults, exactly_once=exact)
    part = _packed(
        *(ORDERS, 10, (b"1", EU), (b"2", US), (b"bad", EU), (b"bad2", US), (b"5", EU)),
        *((b"bad3", EU), (b"7", US)),
    )
    mirrored = Routing(flow)
    if not exact:
        mirrored._delivery._commits.coordinators.commit = lambda *_: None  # type: ignore[attr-defined]
    mirrored.run(iter([*Source(brokers).rows, part]))
    assert (_at(brokers, EU), _at(brokers, US)) == ([b"1", b"5"], [b"2", b"7"])
    letters = brokers.committed[TopicPartition(dead_letter_topic("A.orders"), 0)]
    told = {one.value: dict(one.headers)[b"sparkmirror.source.offset"] for one in letters}
    assert told == {b"bad": b"12", b"bad2": b"13", b"bad3": b"15"}
    gaps = [decode_gap(one.value) for one in brokers.committed[TopicPartition(gaps_topic(flow), 0)]]
    assert {(gap.first, gap.last) for gap in gaps if gap} == {(12, 12), (13, 13), (15, 15)}
    assert mirrored._task.lanes[ORDERS].position == 17


def test_a_position_waits_for_every_target_partition(brokers: Brokers) -> None:
    brokers.leaderless = {US}
    mirrored = Routed(_plain_flow(**_routes("orders", "bills")))
    mirrored.take(Source(brokers))
    for part in (
        _packed(ORDERS, 0, (b"0", EU)),
        _packed(ORDERS, 1, (b"1", EU), (b"2", US)),
        _packed(ORDERS, 3, (b"3", EU)),
    ):
        mirrored._take_packed(part)
        mirrored.delivery._settle(mirrored._task.producer.pump(0.0))
    lane = mirrored.lanes[ORDERS]
    _pump(mirrored)
    assert (_at(brokers, EU), _at(brokers, US)) == ([b"0", b"1", b"3"], [])
    assert lane.position == 1
    brokers.leaderless = set()
    _pump(mirrored)
    assert (_at(brokers, US), lane.position) == ([b"2"], 4)
    assert (lane.target_end, lane.log.topic_id) == (-1, "")


def _pump(mirrored: Routed) -> None:
    for _ in range(20):
        mirrored.delivery._settle(mirrored._task.producer.pump(0.0))
        time.sleep(0.005)


def test_a_topic_that_refuses_stops_only_those_that_go_there(brokers: Brokers) -> None:
    brokers.refuses = _refuse_bad
    mirrored = Routed(_plain_flow(**_routes("orders", "bills")))
    mirrored.take(Source(brokers))
    for part in (
        _packed(ORDERS, 0, (b"1", EU), (b"2", US)),
        _packed(ORDERS, 2, (b"bad", EU)),
        _packed(BILLS, 0, (b"a", US)),
        _packed(BILLS, 1, (b"b", US)),
    ):
        mirrored._take_packed(part)
        for _ in range(3):
            mirrored.delivery._settle(mirrored._task.producer.pump(0.0))
    orders, bills = mirrored.lanes[ORDERS], mirrored.lanes[BILLS]
    assert orders.halt is not None
    assert (orders.position, orders.blocked) == (2, (EU,))
    assert (bills.halt, bills.position) == (None, 2)
    # A lane that goes there later meets the same halt.
    mirrored._take_packed(_packed(BILLS, 2, (b"c", EU)))
    mirrored.delivery._settle(mirrored._task.producer.pump(0.0))
    assert bills.halt is not None
    assert bills.position == 2


def test_lanes_beside_a_routed_one_are_as_always(brokers: Brokers) -> None:
    source = Source(brokers)
    source.chunk(BILLS, [b"a", b"b"])
    flow = _flow(**_routes("orders"))
    mirrored = Routing(flow)
    mirrored.run(iter([*source.rows, _packed(ORDERS, 0, (b"1", EU))]))
    told = decode_metadata(brokers.metadata[REMOTE[BILLS]])
    assert told.written is not None
    assert _at(brokers, REMOTE[BILLS]) == [b"a", b"b"]

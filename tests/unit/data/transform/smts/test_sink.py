"""A whole sink with single message transforms on bytes, against brokers that answer."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from sparkmirror.config.files.properties import Entry
from sparkmirror.config.mm2.smts import smt_settings, smt_transforms
from sparkmirror.data.rows.rows import Chunk, build_row
from sparkmirror.data.write.slot_sink import SlotSink
from sparkmirror.internal_topics.gaps import decode_gap, gaps_topic
from sparkmirror.model import TopicPartition
from sparkmirror.names.replication_policy import dead_letter_topic
from sparkmirror.names.transforms import needs_spark
from sparkmirror.records.records import Record, encode_batch
from sparkmirror.settings import FaultSettings, FlowSettings, ProduceSettings, TopicSettings
from tests.unit.data.write.test_exactly_once import (
    BILLS,
    ORDERS,
    REMOTE,
    SYNCS,
    Brokers,
    Source,
    _flow,
    _refuse_bad,
    _syncs,
    simulated,
)

_CONFIG = {
    "transforms": "tests",
    "transforms.tests.type": "Filter",
    "transforms.tests.predicate": "test",
    "predicates": "test,orders",
    "predicates.test.type": "HasHeaderKey",
    "predicates.test.name": "test",
    "predicates.orders.type": "TopicNameMatches",
    "predicates.orders.pattern": "A.orders",
}
_TEST = ((b"test", b"1"),)


@pytest.fixture
def brokers() -> Iterator[Brokers]:
    with simulated() as found:
        yield found


def _smts(config: dict[str, str], *, exact: bool = True, bad_record: str = "pause") -> FlowSettings:
    conf = {key: Entry(key, value) for key, value in config.items()}
    smts = smt_settings(conf, "A->B")
    flow = _flow(
        topics=TopicSettings(smts=smts),
        transforms=smt_transforms(smts, conf, {}),
        faults=FaultSettings(bad_record=bad_record),
        exactly_once=exact,
    )
    assert not needs_spark(flow)
    return flow


def _chunk(source: Source, tp: TopicPartition, *batches: Sequence[Record], codec: int = 0) -> None:
    """A row of raw batches, as it comes through Spark in a flow without SQL."""
    data = b"".join(encode_batch(one, codec=codec) for one in batches)
    records = [each for one in batches for each in one]
    runs = [(one.offset, 1) for one in records]
    end = records[-1].offset + 1
    chunk = Chunk(
        tp.topic, 0, REMOTE[tp].topic, records[0].offset, end, len(records), 5, 0, len(data)
    )
    source.rows.append(build_row([replace(chunk, runs=runs)], memoryview(b""), [[data]]))


def _run(brokers: Brokers, flow: FlowSettings, source: Source) -> SlotSink:
    mirrored = SlotSink(flow)
    if not flow.exactly_once:
        mirrored._delivery._commits.coordinators.commit = lambda *_: None  # type: ignore[attr-defined]
    mirrored.run(iter(source.rows))
    return mirrored


@pytest.mark.parametrize("exact", [True, False])
def test_refused_records_have_their_source_offsets(brokers: Brokers, *, exact: bool) -> None:
    """In batches that pass as they are, and in those that are written again."""
    brokers.refuses = lambda tp, one: _refuse_bad(tp, one) if tp == REMOTE[ORDERS] else 0
    flow = _smts(_CONFIG, exact=exact, bad_record="dead-letter")
    bad = {5, 23, 41, 52}
    records = [
        Record(at, 5, None, (b"bad%d" if at in bad else b"%d") % at + b"." * 900, ())
        for at in range(60)
    ]
    for at in (*range(20, 40, 3), 44):
        records[at] = replace(records[at], headers=_TEST)
    kept = [one for one in records if not one.headers and one.offset not in bad]
    source = Source(brokers)
    # The first and the last batch pass as they are.
    _chunk(source, ORDERS, records[:20], records[20:40], records[40:48], records[48:])
    mirrored = _run(brokers, flow, source)
    assert brokers.values("A.orders") == [one.value for one in kept]
    letters = brokers.committed[TopicPartition(dead_letter_topic("A.orders"), 0)]
    told = {one.value: dict(one.headers)[b"sparkmirror.source.offset"] for one in letters}
    # The one with the header is left out before the target can refuse it.
    left_out = {at for at in bad if records[at].headers}
    assert told == {records[at].value: b"%d" % at for at in bad - left_out}
    gaps = [decode_gap(value) for value in brokers.values(gaps_topic(flow))]
    assert sorted((one.first, one.last) for one in gaps if one) == [
        (at, at) for at in sorted(bad - left_out)
    ]
    assert mirrored._task.lanes[ORDERS].position == 60


def test_a_partition_pauses_at_the_source_offset_of_a_refused_batch(brokers: Brokers) -> None:
    brokers.refuses = lambda tp, one: _refuse_bad(tp, one) if tp == REMOTE[ORDERS] else 0
    flow = _smts(_CONFIG)
    records = [Record(10 + at, 5, None, b"%d" % at + b"." * 900) for at in range(30)]
    records[3] = replace(records[3], headers=_TEST)
    records[25] = replace(records[25], value=b"bad")
    source = Source(brokers)
    _chunk(source, ORDERS, records[:10], records[10:20], records[20:])
    mirrored = _run(brokers, flow, source)
    wanted = [one.value for one in records[:20] if not one.headers]
    assert brokers.values("A.orders") == wanted
    assert mirrored._task.lanes[ORDERS].halt is not None
    assert brokers.positions[REMOTE[ORDERS]] == 30


def test_only_topics_that_a_chain_applies_to_are_looked_at(brokers: Brokers) -> None:
    by_name = {**_CONFIG, "transforms.tests.predicate": "orders"}
    source = Source(brokers)
    for tp in (ORDERS, BILLS):
        _chunk(source, tp, [Record(at, 5, None, b"%d" % at) for at in range(5)])
    flow = _smts(by_name)
    mirrored = _run(brokers, flow, source)
    assert brokers.values("A.orders") == []
    assert len(brokers.values("A.bills")) == 5
    assert brokers.positions[REMOTE[ORDERS]] == brokers.positions[REMOTE[BILLS]] == 5
    (counts,) = mirrored._task.reports.transforms
    assert (counts.records_in, counts.records_out, counts.filtered) == (5, 0, 5)


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.more) for seed in range(3, 10))]
)
def test_offsets_are_translated_past_what_is_left_out(brokers: Brokers, seed: int) -> None:
    rng = random.Random(seed)
    records: list[Record] = []
    at = 0
    for _ in range(200):
        headers = _TEST if rng.random() < 0.3 else ()
        records.append(Record(at, 5, None, b"v%d" % at + b"." * rng.choice((0, 500)), headers))
        at += rng.choice((1, 1, 1, 4))
    source, rest = Source(brokers), records
    while rest:
        batches = []
        for _ in range(rng.randint(1, 3)):
            count = rng.choice((1, 5, 30))
            if rest[:count]:
                batches.append(rest[:count])
                rest = rest[count:]
        _chunk(source, ORDERS, *batches, codec=rng.randrange(5))
    flow = _smts(_CONFIG)
    joined = ProduceSettings(join_bytes=rng.choice((0, 4096)))
    flow = replace(flow, produce=joined, offset_syncs=SYNCS)
    _run(brokers, flow, source)
    kept = [one for one in records if not one.headers]
    assert brokers.values("A.orders") == [one.value for one in kept]
    assert brokers.positions[REMOTE[ORDERS]] == records[-1].offset + 1
    by_offset = {one.offset: number for number, one in enumerate(kept)}
    syncs = [(source, target) for tp, source, target in _syncs(brokers, flow) if tp == ORDERS]
    assert syncs
    for old, new in syncs:
        if old in by_offset:
            assert new == by_offset[old]

"""What a sink says of records that a transform left gaps between, against brokers that answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from sparkmirror.data.coordination.slot_plan import plan_slots
from sparkmirror.data.read.slot_reader import SlotReader
from sparkmirror.data.read.target_loss import Verdict
from sparkmirror.data.rows.rows import FLUSH
from sparkmirror.data.transform.pack import Packed
from sparkmirror.data.transform.unpack import Unpacker
from sparkmirror.data.write.slot_sink import SlotSink
from sparkmirror.internal_topics.commands import SourcePartition
from sparkmirror.internal_topics.gaps import decode_gap, gaps_topic
from sparkmirror.internal_topics.position_metadata import TargetMark
from sparkmirror.model import TopicPartition
from sparkmirror.names.replication_policy import dead_letter_topic
from sparkmirror.records.records import Record, encode_batch
from sparkmirror.settings import FaultSettings, FlowSettings, ProduceSettings
from sparkmirror.transform_settings import TransformSettings
from sparkmirror.wire.fetch.fetcher import FetchedPartition
from tests.unit.data.transform.test_transforms import FAILED, USES, _planned, _row, _through
from tests.unit.data.write.test_exactly_once import (
    ORDERS,
    REMOTE,
    Brokers,
    Source,
    _flow,
    _refuse_bad,
    simulated,
)
from tests.unit.data.write.test_routed_records import Routing

CLEAN = (TransformSettings("clean", ("orders",), "true"),)


@pytest.fixture
def brokers() -> Iterator[Brokers]:
    with simulated() as found:
        yield found


def _packed(flow: FlowSettings, values: dict[int, bytes]) -> list[Packed]:
    """A chunk of records by source offset; ``gone`` is filtered, the SQL fails on ``fail…``."""

    def plan(row: dict[str, Any]) -> Any:
        if row["value"].startswith(b"fail"):
            return FAILED
        return None if row["value"].startswith(b"gone") else {}

    records = [Record(offset, 5, None, value) for offset, value in values.items()]
    found = _through([_row(("orders", records, 0)), FLUSH], plan, flow=flow)
    return [one for one in found if isinstance(one, Packed)]


def _run(brokers: Brokers, flow: FlowSettings, parts: list[Packed]) -> Routing:
    mirrored = Routing(flow)
    if not flow.exactly_once:
        mirrored._delivery._commits.coordinators.commit = lambda *_: None  # type: ignore[attr-defined]
    mirrored.run(iter([*Source(brokers).rows, *parts]))
    return mirrored


def _spans(brokers: Brokers, flow: FlowSettings) -> list[tuple[int, int | None]]:
    gaps = [decode_gap(value) for value in brokers.values(gaps_topic(flow))]
    return sorted((gap.first, gap.last) for gap in gaps if gap)


@pytest.mark.parametrize("exact", [True, False])
def test_refused_records_behind_filtered_ones_have_their_source_offsets(
    brokers: Brokers, *, exact: bool
) -> None:
    brokers.refuses = lambda tp, one: _refuse_bad(tp, one) if tp == REMOTE[ORDERS] else 0
    faults = FaultSettings(bad_record="dead-letter")
    flow = _flow(transforms=CLEAN, faults=faults, exactly_once=exact)
    values = {offset: b"gone" if offset % 3 else b"%d" % offset for offset in range(40)}
    values |= {12: b"bad12", 13: b"bad13", 33: b"bad33"}
    mirrored = _run(brokers, flow, _packed(flow, values))
    kept = [one for one in values.values() if not one.startswith((b"gone", b"bad"))]
    assert brokers.values("A.orders") == kept
    assert _spans(brokers, flow) == [(12, 13), (33, 33)]
    letters = brokers.committed[TopicPartition(dead_letter_topic("A.orders"), 0)]
    told = {one.value: dict(one.headers)[b"sparkmirror.source.offset"] for one in letters}
    assert told == {b"bad12": b"12", b"bad13": b"13", b"bad33": b"33"}
    assert mirrored._task.lanes[ORDERS].position == 40


def test_a_partition_pauses_at_the_source_offset_of_the_refused_batch(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the target took of the chunk before is kept, with its dead letters."""
    monkeypatch.setattr("sparkmirror.data.transform.pack._BATCH_BYTES_MIN", 1)
    brokers.refuses = lambda tp, one: _refuse_bad(tp, one) if tp == REMOTE[ORDERS] else 0
    flow = _flow(transforms=CLEAN, produce=ProduceSettings(join_bytes=0))
    values = {10: b"gone", 11: b"11", 12: b"gone", 13: b"gone", 14: b"14", 15: b"gone", 16: b"bad"}
    mirrored = _run(brokers, flow, _packed(flow, values))
    assert brokers.values("A.orders") == [b"11", b"14"]
    assert mirrored._task.lanes[ORDERS].halt is not None
    assert brokers.positions[REMOTE[ORDERS]] == 16


def test_no_position_passes_a_failed_record_before_its_gap_is_written(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk that is larger than a transaction is committed in parts, each with its gaps."""
    monkeypatch.setattr("sparkmirror.data.transform.pack._BATCH_BYTES_MIN", 1)
    flow = _flow(
        transforms=CLEAN,
        faults=FaultSettings(bad_record="dead-letter"),
        produce=ProduceSettings(join_bytes=0),
        transaction_bytes=1_000,
    )
    letters = TopicPartition(dead_letter_topic("A.orders"), 0)
    seen: list[tuple[int, int, int]] = []
    end = brokers.end

    def watched(identity: tuple[int, int], *, committed: bool) -> None:
        end(identity, committed=committed)
        position = brokers.positions.get(REMOTE[ORDERS], 0)
        gaps = len(brokers.values(gaps_topic(flow)))
        seen.append((position, gaps, len(brokers.committed[letters])))

    monkeypatch.setattr(brokers, "end", watched)
    failing = (0, 3, 11, 19)
    values = {
        offset: b"fail%d" % offset if offset in failing else b"%d" % offset * 400
        for offset in range(20)
    }
    _run(brokers, flow, _packed(flow, values))
    assert len(seen) > 3
    for position, gaps, dead in seen:
        passed = sum(offset < position for offset in failing)
        assert (gaps, dead) == (passed, passed), (position, seen)
    assert brokers.positions[REMOTE[ORDERS]] == 20
    assert len(brokers.values("A.orders")) == 16


def _answer(first: int, values: list[bytes]) -> FetchedPartition:
    batch = encode_batch([Record(first + n, 5, None, value) for n, value in enumerate(values)])
    end = first + len(values)
    return FetchedPartition(ORDERS, first, end, end, 0, [], memoryview(batch))


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("plan", [{}, None])
def test_a_position_moves_past_what_the_target_has_after_the_results_of_the_records_before(
    plan: dict[str, Any] | None, brokers: Brokers, *, exact: bool
) -> None:
    """Results take their time; the offsets that are left out have none."""
    brokers.positions[REMOTE[ORDERS]] = 5
    flow = _flow(transforms=CLEAN, exactly_once=exact)
    one = [SourcePartition("orders", 0, "A.orders")]
    (slot,) = plan_slots(one, slots_max=1, epoch=0, run_id="r", ends=None, control_offset=0)
    reader = SlotReader(flow, slot)
    reader._fetcher.assign(ORDERS, 5)
    reader._first(ORDERS, Verdict(5, TargetMark(there_first=6, there_end=20)))
    answers = [_answer(5, [b"5", b"6"]), _answer(20, [b"20"])]
    rows = [row for row in (reader._row([answer]) for answer in answers) if row is not None]
    messages = Unpacker(flow, USES, None).rows(iter([*rows, FLUSH]))
    table = _planned(messages, lambda _: plan, pa.struct([("kept", pa.bool_())]))
    mirrored = SlotSink(flow)
    if not exact:
        mirrored._delivery._commits.coordinators.commit = lambda *_: None  # type: ignore[attr-defined]
    mirrored.run(iter([*Source(brokers).rows, *table.combine_chunks().to_batches(1)]))
    assert mirrored._task.lanes[ORDERS].position == 21
    assert brokers.values("A.orders") == ([] if plan is None else [b"5", b"20"])

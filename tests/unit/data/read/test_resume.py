"""What a position remembers of the target, and when the target's log may be believed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import pytest

from sparkmirror.data.read import resume as resuming
from sparkmirror.data.read.resume import Resumed, _by_producer, _counting
from sparkmirror.data.write.chunk_offsets import ChunkOffsets
from sparkmirror.internal_topics.commands import SourcePartition
from sparkmirror.internal_topics.position_metadata import PositionMetadata
from sparkmirror.model import TopicPartition
from sparkmirror.records.header import CONTROL_BIT, HEADER_BYTES, stamp
from sparkmirror.records.records import Record, encode_batch
from sparkmirror.records.selection import AbortedTransaction, SelectRules
from sparkmirror.settings import ClusterClient, FlowSettings
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.fetch.fetcher import FetchedPartition

TP = TopicPartition("t", 0)


def _batch(offset: int, records: int, *, producer_id: int = 7, bits: int = 0) -> bytes:
    whole = encode_batch([Record(n, 1, None, b"v") for n in range(records)])
    head = bytearray(
        stamp(
            memoryview(whole),
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            transactional=False,
        )
    )
    head[:8] = offset.to_bytes(8, "big")
    head[22] |= bits
    return bytes(head) + whole[HEADER_BYTES:]


def _answer(batches: bytes, offset: int = 10) -> FetchedPartition:
    return FetchedPartition(TP, offset, 99, 99, 0, [], memoryview(batches))


@pytest.mark.parametrize(
    ("batches", "after"),
    [
        (_batch(10, 3) + _batch(13, 2), 15),
        (_batch(10, 3) + _batch(13, 9), 22),  # past the end: the caller compares
        (_batch(10, 3) + _batch(13, 2)[:70], 13),  # cut by the end of the answer
        (_batch(10, 3)[:70], 10),  # more bytes are needed
        (_batch(10, 3) + _batch(13, 2, producer_id=8), -1),
        (_batch(10, 3) + _batch(14, 2), -1),
        (_batch(8, 7), 15),  # joined from what was written before the position and after it
        (_batch(8, 4) + _batch(12, 3), 15),
        (_batch(8, 7, producer_id=8), -1),
        (_batch(8, 2) + _batch(10, 5), -1),  # that is no answer to a request from 10 on
        (_batch(10, 3) + _batch(12, 3), -1),
        (_batch(10, 1, bits=CONTROL_BIT), -1),
    ],
)
def test_only_batches_of_one_producer_without_a_gap_count(batches: bytes, after: int) -> None:
    assert _by_producer({TP: 7})(_answer(batches), 15) == after


def test_without_a_producer_id_nothing_counts() -> None:
    assert _by_producer({TP: -1})(_answer(_batch(10, 3, producer_id=-1)), 13) == -1


def _log(*offsets: int) -> bytes:
    return b"".join(encode_batch([Record(n, 1, None, b"v")], base_offset=n) for n in offsets)


def _marker(offset: int, *, commit: bool) -> bytes:
    batch = bytearray(
        encode_batch([Record(offset, 1, b"\0\0\0" + bytes([commit]), b"")], base_offset=offset)
    )
    batch[22] |= CONTROL_BIT | 0x10
    batch[43:51] = (7).to_bytes(8, "big")
    return bytes(batch)


def _at_epoch(batch: bytes, epoch: int) -> bytes:
    return batch[:12] + epoch.to_bytes(4, "big") + batch[16:]


def _part(batches: bytes, aborted: list[AbortedTransaction] | None = None) -> FetchedPartition:
    return FetchedPartition(TP, 10, 99, 99, 0, aborted or [], memoryview(batches))


@pytest.mark.parametrize(
    ("batches", "records", "found"),
    [
        (_log(10, 11, 12, 13), 3, 13),
        (_log(10, 11, 12, 13), 4, 14),
        (_log(9, 10, 11), 2, 12),
        # Compaction holes, and what stands before the position.
        (_log(9, 12, 20), 2, 21),
        (_log(10, 11) + _marker(12, commit=True) + _log(13), 3, 14),
        # The marker behind the last one is passed later.
        (_log(10, 11) + _marker(12, commit=True), 2, 12),
        (_log(10, 11), 3, None),
        (b"\0" * 100, 1, None),
    ],
)
def test_visible_records_are_counted_at_the_source(
    batches: bytes, records: int, found: int | None
) -> None:
    step, counted = _counting({TP: records}, SelectRules(check_crcs=False, join_below_bytes=0))
    after = step(_part(batches), 99)
    assert counted.get(TP) == (None if found is None else (found, -1))
    assert after == (12 if batches == _log(10, 11) else -1)


def test_aborted_records_count_only_where_they_are_mirrored() -> None:
    log = bytes(bytearray(_batch(10, 3, bits=0x10))) + _marker(13, commit=False) + _log(14, 15)
    for read_committed, found in ((True, 16), (False, 12)):
        rules = SelectRules(check_crcs=False, join_below_bytes=0, read_committed=read_committed)
        step, counted = _counting({TP: 2}, rules)
        step(_part(log, [AbortedTransaction(7, 10)]), 99)
        assert counted == {TP: (found, -1)}


def test_the_epoch_of_the_last_record_that_was_counted_is_known() -> None:
    log = b"".join(_at_epoch(batch, n) for n, batch in enumerate(map(_log, (10, 11, 12, 13)), 4))
    step, counted = _counting({TP: 3}, SelectRules(check_crcs=False, join_below_bytes=0))
    step(_part(log), 99)
    assert counted == {TP: (13, 6)}


@pytest.mark.parametrize(
    ("counted", "alike", "resumed"),
    [(15, False, 15), (20, True, 20), (20, False, None), (None, True, None)],
)
def test_behind_holes_both_logs_must_end_alike(
    monkeypatch: pytest.MonkeyPatch, counted: int | None, alike: bool, resumed: int | None
) -> None:
    p = SourcePartition("t", 0, "A.t")
    compared: list[object] = []

    def ends_alike(*spans: object) -> bool:
        compared.extend(spans[3:])
        return alike

    monkeypatch.setattr(resuming, "_walked", lambda *_: {p.target})
    monkeypatch.setattr(
        resuming, "_counted", lambda *_: {} if counted is None else {p.source: (counted, 6)}
    )
    monkeypatch.setattr(resuming, "ends_alike", ends_alike)
    ends = [ClusterClient(name, ("a:1",), "c") for name in "AB"]
    flow, connections = FlowSettings(*ends, *ends), ClusterConnections(ends[0])
    behind = {p: (PositionMetadata(target_end=5, producer_id=7), 10)}
    found = resuming._skip(
        flow, connections, connections, {p: (10, PositionMetadata())}, behind, 0.0
    )
    assert found == ({} if resumed is None else {p.source: Resumed(resumed, 10, 6)})
    assert compared == ([(10, 20), (5, 10)] if counted == 20 else [])


class _Target:
    """A cluster whose high watermark of ``A.t-0`` goes on with each look, up to ``last``."""

    def __init__(self, first: int, last: int) -> None:
        self.mark, self.last = first, last
        self.looks = 0

    def refresh_if_due(self) -> None:
        pass

    def list_offsets(self, wanted: Iterable[TopicPartition], *_: Any, **__: Any) -> dict[Any, int]:
        self.looks += 1
        found = dict.fromkeys(wanted, self.mark)
        self.mark = min(self.last, self.mark + 2)
        return found


@pytest.mark.parametrize(
    ("first", "last", "leaders_end", "producer_id", "counted", "looks"),
    [
        (10, 10, 10, 7, 10, 1),
        (5, 10, 10, 7, 10, 4),  # followers take a moment
        (5, 10, 10, -1, 5, 1),  # nothing can be skipped anyway
        (5, 5, -1, 7, 5, 1),  # a broker that does not tell
    ],
)
def test_what_only_the_leader_has_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
    first: int,
    last: int,
    leaders_end: int,
    producer_id: int,
    counted: int,
    looks: int,
) -> None:
    """Consumers cannot read it yet: it would be written again, and be there twice later."""
    p = SourcePartition("t", 0, "A.t")
    seen: dict[object, int] = {}

    def skip(*arguments: Any) -> dict[TopicPartition, Resumed]:
        seen.update({one: end for one, (_, end) in arguments[4].items()})
        return {}

    monkeypatch.setattr(resuming, "_skip", skip)
    monkeypatch.setattr(resuming.time, "sleep", lambda _: None)
    clients = [ClusterClient(name, ("a:1",), "c") for name in "AB"]
    flow, target = FlowSettings(*clients, *clients), _Target(first, last)
    position = {p: (3, PositionMetadata(target_end=4, producer_id=producer_id))}
    found = resuming.resume(
        *(flow, ClusterConnections(clients[0]), cast(ClusterConnections, target), position),
        {p.target: leaders_end},
    )
    assert seen == {p: counted}
    assert found == {p.source: Resumed(3, counted)}
    assert target.looks == looks


def test_a_leader_that_does_not_answer_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    p = SourcePartition("t", 0, "A.t")
    clients = [ClusterClient(name, ("a:1",), "c") for name in "AB"]
    target = ClusterConnections(clients[1])
    monkeypatch.setattr(target, "refresh_if_due", lambda: True)
    monkeypatch.setattr(target, "refresh", lambda: None)
    monkeypatch.setattr(target, "list_offsets", lambda *_, **__: {})
    flow = FlowSettings(*clients, *clients)
    position = {p: (3, PositionMetadata(target_end=4, producer_id=7))}
    assert resuming.resume(
        flow, ClusterConnections(clients[0]), target, position, {p.target: 9}
    ) == {p.source: Resumed(3)}
    assert "A.t-0: its leader does not respond" in caplog.text


def test_followers_that_hang_are_told_and_not_waited_for_without_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tp, now = TopicPartition("A.t", 0), [0.0]
    monkeypatch.setattr(resuming.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(resuming.time, "sleep", lambda s: now.__setitem__(0, now[0] + s))
    target = _Target(5, 5)
    found = resuming._followed(cast(ClusterConnections, target), {tp: 5}, {tp: 9})
    assert found == {tp: 5}
    assert resuming._FOLLOWERS_S <= now[0] < resuming._FOLLOWERS_S + 1
    assert "up to 4 records arrive again" in caplog.text


def test_the_end_of_a_chunk_is_known_only_with_its_last_batch() -> None:
    offsets = ChunkOffsets((), 5)
    assert offsets.target_end == -1
    offsets.acknowledged(3, 3, 100)
    assert offsets.target_end == -1
    offsets.acknowledged(5, 2, 103)
    assert offsets.target_end == 105
    unknown = ChunkOffsets((), 5)
    unknown.acknowledged(3, 3, 100)
    unknown.acknowledged(5, 2, -1)
    assert unknown.target_end == -1

"""Several requests wait for the same partitions: every record is read, in order, exactly once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkmirror.model import TopicPartition
from sparkmirror.records.header import base_offset
from sparkmirror.records.records import Record, encode_batch
from sparkmirror.records.selection import SelectRules, select
from sparkmirror.records.walk import unread
from tests.property.test_fetch_properties import FEW, MANY, NODES, Run, steps
from tests.unit.wire.fetch.test_channels import Reader

_numbers = st.integers(0, 39)
events = st.one_of(
    steps,
    st.tuples(st.just("trickle"), st.lists(st.integers(0, 9), min_size=5, max_size=40)),
    st.tuples(st.just("trickle"), st.lists(st.integers(0, 9), min_size=5, max_size=40)),
    st.tuples(st.just("delete"), _numbers),
    st.tuples(st.just("abort"), st.booleans()),
    st.tuples(st.just("go back"), _numbers, st.integers(0, 9)),
    st.tuples(st.just("fetch again"), _numbers, st.sampled_from([0.0, 0.01, 1.0])),
    st.tuples(st.just("leave out"), st.lists(_numbers, max_size=3)),
)


class Trickle(Run):
    """A reader before a source that gets records one by one; answers come in any order."""

    def __init__(self, partitions: list[TopicPartition]) -> None:
        super().__init__(partitions, 0.05)
        self.reader = Reader(
            self.source, reread_bytes=500_000, fetch_max_bytes=1 << 20,
            partition_fetch_bytes_max=1 << 20,
        )  # fmt: skip
        self.helped = False

    def step(self, step: tuple[Any, ...]) -> None:
        source, reader = self.source, self.reader
        match step:
            case "trickle", choices:
                for choice in choices:
                    reader.fetcher.send()
                    under_way = reader.under_way()
                    self.helped = self.helped or any(one.number < 0 for one in under_way)
                    if choice < 4:
                        source.append(self.partitions[choice % len(self.partitions)], 1)
                    source.time_s += 0.02
                    if under_way:
                        reader.take(under_way[choice % len(under_way)])
            case "delete", number:
                tp = self._partition(number)
                source.log_starts[tp] = max(source.log_starts[tp], 2 * len(reader.values[tp]) // 2)
            case "go back", number, batches:
                tp = self._partition(number)
                offset = max(source.log_starts[tp], reader.fetcher.position(tp) - 2 * batches)
                del reader.values[tp][offset:]
                reader.fetcher.assign(tp, offset)
            case "fetch again", number, delay_s:
                reader.fetcher.retry_later(self._partition(number), delay_s)
            case "abort", lists:
                source.aborted = [(7, 0)] if lists else []
            case "leave out", numbers:
                reader.fetcher.left_out = {self._partition(number) for number in numbers}
            case _:
                super().step(step)

    def heal(self) -> None:
        """All goes well from now on, and everything comes."""
        self.reader.fetcher.left_out = ()
        super().heal()


@pytest.mark.parametrize(
    "partitions",
    [pytest.param(FEW, id="few"), pytest.param(MANY, id="many", marks=pytest.mark.more)],
)
@settings(max_examples=60, deadline=None)
@given(did=st.lists(events, max_size=30))
def test_every_record_comes_in_order_and_once(
    partitions: list[TopicPartition], did: list[tuple[Any, ...]]
) -> None:
    run = Trickle(partitions)
    for _ in range(4):
        run._round()
    run.step(("trickle", list(range(10)) * 4))
    assert run.helped, "several requests wait"
    for step in did:
        run.step(step)
        run.reader.whole()
    run.heal()
    assert run.reader.fetcher.halts == {}
    assert set(NODES) >= {one.node for one in run.source.connections.values()}


_RULES = SelectRules(join_bytes=0, join_below_bytes=0)


@given(
    sizes=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3)), min_size=1, max_size=8),
    read=st.integers(0, 40),
    cut=st.integers(0, 30),
)
def test_what_was_read_is_cut_off_and_nothing_else(
    sizes: list[tuple[int, int]], read: int, cut: int
) -> None:
    """``sizes``: records of each batch, and offsets that compaction left out before it."""
    whole, offset = b"", 0
    for count, gap in sizes:
        offset += gap
        whole += encode_batch([Record(offset + n, 1, None, b"%d" % n) for n in range(count)])
        offset += count
    records = memoryview(whole)[: len(whole) - cut]
    found = unread(records, read)
    assert found is not None
    first, new = found
    if first == len(records):
        return
    assert first == 0 or base_offset(records[first:]) > 0
    wanted, cut_off = select(records, read, (), _RULES), select(records[first:], read, (), _RULES)
    assert b"".join(cut_off.pieces) == b"".join(wanted.pieces)
    assert (cut_off.next_offset, cut_off.runs) == (wanted.next_offset, wanted.runs)
    assert len(new) >= len(cut_off.runs)


def test_batches_that_are_not_in_order_are_not_cut() -> None:
    one, other = (encode_batch([Record(at, 1, None, b"v")]) for at in (5, 3))
    assert unread(memoryview(one + other), 5) is None
    assert unread(memoryview(other + one), 5) == (len(other), [len(one)])
    assert unread(memoryview(other + one), 6) == (len(other + one), [])

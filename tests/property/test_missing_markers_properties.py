"""Whichever markers are left out, and wherever a writer dies: each record counts once, in order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from sparkmirror.data.write.slot_sink import SlotSink
from sparkmirror.model import TopicPartition
from tests.unit.data.write.test_exactly_once import (
    BILLS,
    ORDERS,
    REMOTE,
    Brokers,
    Source,
    _flow,
    simulated,
)

_PARTITIONS = (ORDERS, BILLS)
# Of a row: which partition gets how many records; of which partitions the leader is away then.
_rows = st.tuples(
    st.sampled_from(_PARTITIONS),
    st.integers(1, 3),
    st.sets(st.sampled_from(_PARTITIONS)),
)
# An attempt: its rows, whether it dies after them, and who is away when the next one begins.
_attempts = st.tuples(
    st.lists(_rows, max_size=6), st.booleans(), st.sets(st.sampled_from(_PARTITIONS))
)


class _Died(Exception):
    """The writer was killed."""


def _attempt(
    brokers: Brokers, rows: list[tuple[TopicPartition, int, set[TopicPartition]]], dies: bool
) -> None:
    source = Source(brokers)
    for tp, count, _ in rows:
        source.chunk(tp, *[[b"%d" % n] for n in source.upcoming(tp, count)])
    hello, *chunks = source.rows

    def batches() -> Iterator[Any]:
        yield hello
        for (_, _, away), row in zip(rows, chunks, strict=True):
            brokers.unmarked = {REMOTE[tp] for tp in away}
            yield row
        if dies:
            raise _Died
        brokers.unmarked = set()

    try:
        # Some transactions end by their size, so that a run has several.
        SlotSink(_flow(transaction_bytes=200)).run(batches())
    except _Died:
        assert dies


@settings(max_examples=50, deadline=None)
@given(st.lists(_attempts, max_size=5))
def test_each_record_counts_once_and_in_order(
    attempts: list[tuple[list[Any], bool, set[TopicPartition]]],
) -> None:
    with simulated() as brokers:
        for rows, dies, away in attempts:
            _attempt(brokers, rows, dies)
            # The next writer's fencing aborts what is open, where somebody leads.
            brokers.unmarked = {REMOTE[tp] for tp in away}
            brokers.fence()
            brokers.unmarked = set()
        _attempt(brokers, [(tp, 2, set()) for tp in _PARTITIONS], False)
        for tp in _PARTITIONS:
            values = brokers.values(REMOTE[tp].topic)
            assert values == [b"%d" % n for n in range(len(values))]
            assert brokers.positions[REMOTE[tp]] == len(values)

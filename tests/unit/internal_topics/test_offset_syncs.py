"""When a sync is emitted and how syncs translate, against MirrorMaker 2's own classes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkmirror.internal_topics.offset_syncs import OffsetSyncStore, PartitionState
from sparkmirror.model import TopicPartition
from tests.vectors import load

T = TopicPartition("t", 0)
STORES: list[dict[str, Any]] = load("offset_sync_store")
STATES: list[dict[str, Any]] = load("partition_state")


@pytest.mark.parametrize("case", STATES, ids=lambda case: case["case"])
def test_partition_state_emits_as_java_does(case: dict[str, Any]) -> None:
    state = PartitionState(case["offset.lag.max"])
    for upstream, downstream, emitted in case["steps_[upstream,downstream,emit_now]"]:
        assert state.update(upstream, downstream) == emitted, (upstream, downstream)


@given(
    st.integers(-2, 12),
    st.lists(st.tuples(st.integers(0, 3), st.integers(-4, 3), st.integers(1, 40)), max_size=12),
)
def test_a_run_is_as_good_as_its_records(lag_max: int, steps: list[tuple[int, int, int]]) -> None:
    """``steps``: source offsets skipped, target offsets skipped (or gone back), records."""
    one_by_one, at_once = PartitionState(lag_max), PartitionState(lag_max)
    upstream = downstream = 0
    for skipped, moved, count in steps:
        upstream, downstream = upstream + skipped, max(0, downstream + moved)
        wanted = [i for i in range(count) if one_by_one.update(upstream + i, downstream + i)]
        found = [i for part in at_once.advance(upstream, downstream, count) for i in part]
        assert found == wanted
        upstream, downstream = upstream + count, downstream + count


def _store_of(mode: str) -> OffsetSyncStore:
    return OffsetSyncStore(must_read_to_end=mode.endswith("=true"))


@pytest.mark.parametrize("case", STORES, ids=lambda case: f"{case['case']}, {case['mode']}")
def test_the_store_keeps_and_translates_as_java_does(case: dict[str, Any]) -> None:
    store = _store_of(case["mode"])
    sequence = case["upstream_sequence"]
    half = len(sequence) // 2
    if case["mode"] == "read_to_end_before_feed":
        store.finish_reading()
    states = {step["i"]: step["state"] for step in case["steps"]}
    for number, upstream in enumerate(sequence):
        if case["mode"].startswith("half") and number == half:
            store.finish_reading()
        store.add(T, upstream, upstream // 2)
        if number in states:
            shown = [f"{slot}@{sync.upstream}:{sync.downstream}" for slot, sync in store.slots(T)]
            assert shown == states[number], number
    for entry in case["translations"]:
        assert store.translate(T, entry["upstream"]) == entry["translated"], entry


def test_nothing_is_translated_without_a_sync_or_before_the_topic_was_read() -> None:
    store = OffsetSyncStore(must_read_to_end=False)
    store.add(T, 100, 200)
    assert store.translate(T, 150) is None
    store.finish_reading()
    assert store.translate(T, 150) == 201
    assert store.translate(T, 99) == -1
    assert store.translate(TopicPartition("other", 0), 5) is None
    store.add(T, 50, 7)  # the source went back: what was known before is worth nothing
    assert store.translate(T, 150) == 8
    assert store.translate(T, 49) == -1


@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=300),
    st.lists(st.integers(0, 90_000), min_size=1, max_size=20),
)
def test_invariants_and_translation(steps: list[int], asked: list[int]) -> None:
    """Neither side of the store's rules breaks, and no translation passes the true place."""
    store = OffsetSyncStore(must_read_to_end=False)
    store.finish_reading()
    upstream = 0
    for step in steps:
        upstream += step
        store.add(T, upstream, upstream * 2)
    slots = store.slots(T)
    for at, (i, newer) in enumerate(slots):
        for j, older in slots[at + 1 :]:
            assert newer.upstream <= older.upstream + 2**j - 2**i
            assert newer.upstream >= older.upstream + 2 ** max(i - 2, 0)
    translated = [store.translate(T, offset) for offset in sorted(asked)]
    assert translated == sorted(translated, key=lambda value: -1 if value is None else value)
    for offset in asked:
        found = store.translate(T, offset)
        assert found is not None
        assert found <= offset * 2

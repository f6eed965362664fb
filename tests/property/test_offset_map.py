"""The exact offset map against a plain list of where every record went."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from sparkmirror.internal_topics.run_map import RUNS_MAX, OffsetMap, Run, extend_run

# Records skipped on the source, foreign records or markers on the target, records in the run.
STEPS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(1, 9)), max_size=60)


def _runs(steps: list[tuple[int, int, int]]) -> list[Run]:
    runs, source, target = [], 0, 0
    for skipped, foreign, length in steps:
        source, target = source + skipped, target + foreign
        runs.append(Run(source, target, length))
        source, target = source + length, target + length
    return runs


def _places(runs: list[Run]) -> dict[int, int]:
    """Target offset by source offset, the newest copy."""
    return {run.source + i: run.target + i for run in runs for i in range(run.length)}


@given(STEPS)
def test_a_map_that_forgets_nothing_is_exact(steps: list[tuple[int, int, int]]) -> None:
    runs = _runs(steps)
    places = _places(runs)
    known = OffsetMap(runs)
    for source in range(max(places, default=0) + 3):
        before = [places[s] for s in places if s < source]
        found = known.translate(source)
        if source in places:
            assert found == places[source]
        elif before:
            assert found == max(before) + 1, "right after the last record that was read"
        else:
            assert found is None


@given(STEPS, st.integers(4, 12))
def test_forgetting_repeats_but_never_skips(
    steps: list[tuple[int, int, int]], runs_max: int
) -> None:
    runs = _runs(steps)
    places = _places(runs)
    known = OffsetMap(runs, runs_max=runs_max)
    assert len(known.runs) <= runs_max
    translated = [known.translate(source) for source in range(max(places, default=0) + 3)]
    for source, found in enumerate(translated):
        unread = [places[s] for s in places if s >= source]
        if found is not None and unread:
            assert found <= min(unread)
    numbers = [-1 if found is None else found for found in translated]
    assert numbers == sorted(numbers), "monotonic"
    if runs:
        newest = runs[-1]
        assert known.translate(newest.source) == newest.target, "the newest run stays exact"


# Runs of one kind after another: their number, source offsets skipped, length.
BLOCKS = st.lists(
    st.tuples(st.integers(1, 400), st.integers(1, 3), st.integers(1, 20)), min_size=1, max_size=8
)


@settings(max_examples=50, deadline=None)
@given(BLOCKS, st.booleans(), st.data())
def test_a_group_that_lags_repeats_no_more_than_its_lag(
    blocks: list[tuple[int, int, int]], older_last: bool, data: st.DataObject
) -> None:
    """However many runs a map has had, and when the merged rows of older ones come last, too."""
    runs = _runs([(skipped, 0, length) for count, skipped, length in blocks for _ in range(count)])
    known = OffsetMap()
    newest = runs[len(runs) // 2 :] if older_last else runs
    for run in newest:
        known.add(run)
    if older_last:
        for run in OffsetMap(runs[: len(runs) // 2]).runs:
            known.add_older(run)
    assert len(known.runs) <= RUNS_MAX
    end = runs[-1].target_end
    for run in data.draw(st.lists(st.sampled_from(runs), min_size=1, max_size=50)):
        found = known.translate(run.source)
        assert found is not None
        assert 0 <= run.target - found <= end - run.target


@given(STEPS, st.integers(0, 200), st.integers(1, 30), st.integers(0, 40))
def test_what_is_written_again_is_found_at_its_newest_copy(
    steps: list[tuple[int, int, int]], again: int, length: int, foreign: int
) -> None:
    """After a crash source records from ``again`` on are written a second time."""
    runs = _runs(steps)
    end = max((run.target_end for run in runs), default=0)
    repeated = Run(again, end + foreign, length)
    known = OffsetMap([*runs, repeated])
    assert known.translate(again) == repeated.target
    assert known.translate(again + length) == repeated.target_end
    places = {s: t for s, t in _places(runs).items() if s < again}
    places |= _places([repeated])
    for source in range(again + length + 2):
        found = known.translate(source)
        unread = [places[s] for s in places if s >= source]
        assert found is None or not unread or found <= min(unread)


@given(STEPS, st.integers(0, 60), st.integers(0, 30))
def test_a_target_topic_made_anew_ends_what_was_known_beyond(
    steps: list[tuple[int, int, int]], target: int, more: int
) -> None:
    runs = _runs(steps)
    source = max((run.source_end for run in runs), default=0) + more
    known = OffsetMap([*runs, Run(source, target, 5)])
    for asked in range(source + 1):
        found = known.translate(asked)
        assert found is None or found <= target


@given(STEPS)
def test_the_order_of_a_map_is_its_own_history(steps: list[tuple[int, int, int]]) -> None:
    known = OffsetMap(_runs(steps))
    assert OffsetMap(known.runs).runs == known.runs
    merged: list[Run] = []
    for run in _runs(steps):
        extend_run(merged, run)
    assert known.runs == tuple(merged)


def test_a_coarser_guess_counts_within_the_bounds() -> None:
    known = OffsetMap([Run(100, 50, 10), Run(200, 70, 10)])
    assert known.translate(105, 60) == 55, "in a run nothing else counts"
    assert known.translate(150, 65) == 65
    assert known.translate(150, 40) == 60
    assert known.translate(150, 90) == 70, "never past a record that has not been read"
    assert known.translate(300, 95) == 95
    assert known.translate(212, 82) == 82
    assert known.translate(212, 83) == 80, "two source offsets on, at most two records were read"
    assert known.translate(210, 95) == 80
    assert known.translate(50, 20) == 20
    assert known.translate(50, 60) == 50
    assert known.translate(50) is None
    assert OffsetMap().translate(7) is None
    assert OffsetMap().translate(7, 3) == 3

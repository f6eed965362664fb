"""What the driver makes of the topics of runs and of offset syncs."""

from __future__ import annotations

from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from sparkmirror.control.compacted import TopicFollower
from sparkmirror.control.translation import PartitionRuns, Translation, plan_pruning
from sparkmirror.model import TopicPartition
from sparkmirror.offset_map import Run
from sparkmirror.wire.mirror_records import encode_offset_sync
from sparkmirror.wire.runs import decode_run, encode_run

T = TopicPartition("t", 0)


class Log:
    """A compacted topic, compacted as hard as a broker may: the last record of each key."""

    def __init__(self) -> None:
        self.records: dict[bytes, bytes | None] = {}
        self._given = 0

    def write(self, key: bytes, value: bytes | None) -> None:
        self.records.pop(key, None)
        self.records[key] = value

    def read(self) -> Any:
        yield from self.records.items()


def _known(log: Log) -> PartitionRuns:
    known = PartitionRuns()
    for key, value in log.records.items():
        row = decode_run(key, value)
        assert row is not None
        known.take(row)
    return known


# Source offsets skipped (or gone back), foreign target records, records, rows that it grows in.
STEPS = st.lists(
    st.tuples(st.integers(-3, 2), st.integers(0, 1), st.integers(1, 5), st.integers(1, 3)),
    max_size=60,
)


@given(STEPS, st.integers(0, 100))
def test_pruned_or_compacted_the_topic_says_the_same(
    steps: list[tuple[int, int, int, int]], pruned_at: int
) -> None:
    """Whoever reads the topic afterwards has the runs of whoever has read it all along."""
    log, reader = Log(), PartitionRuns()
    source = target = 100
    for number, (skipped, foreign, length, parts) in enumerate(steps):
        source, target = source + skipped, target + foreign
        if number == pruned_at:
            reader.rows = dict(reader.rows)
        for part in range(1, parts + 1):
            run = Run(source, target, -(-length * part // parts))
            log.write(*encode_run(T, run))
            row = decode_run(*encode_run(T, run))
            assert row is not None
            reader.take(row)
        if number % 20 == pruned_at % 20:
            for _, key, value in plan_pruning(T, reader):
                log.write(key, value)
                row = decode_run(key, value)
                assert row is not None
                reader.take(row)
        source, target = source + length, target + length
    later = _known(log)
    assert later.map.runs == reader.map.runs
    assert {s: r for s, r in later.rows.items() if s in reader.rows} == reader.rows


def test_a_partition_that_only_goes_on_needs_few_rows() -> None:
    log, reader = Log(), PartitionRuns()
    for epoch in range(500):
        run = Run(epoch * 10, epoch * 10 + 3, 10)
        log.write(*encode_run(T, run))
        reader.take(cast(Any, decode_run(*encode_run(T, run))))
        for _, key, value in plan_pruning(T, reader):
            log.write(key, value)
            reader.take(cast(Any, decode_run(key, value)))
    assert len(reader.rows) <= 20
    assert len([value for value in log.records.values() if value is not None]) <= 20
    assert _known(log).map.runs == (Run(0, 3, 5_000),)


def test_a_row_that_comes_while_rows_are_pruned_stands() -> None:
    """The driver merges what it has read; meanwhile a slot goes back and writes again."""
    reader, log = PartitionRuns(), Log()
    for epoch in range(30):
        row = encode_run(T, Run(epoch * 10, epoch * 10, 10))
        log.write(*row)
        reader.take(cast(Any, decode_run(*row)))
    plan = plan_pruning(T, reader)
    assert plan
    again = Run(155, 300, 60)
    log.write(*encode_run(T, again))
    for _, key, value in plan:
        log.write(key, value)
    assert _known(log).map.runs == (Run(0, 0, 155), again)


def _translation(syncs: list[tuple[int, int]], runs: list[Run]) -> Translation:
    sync_log, run_log = Log(), Log()
    translation = Translation(
        cast(TopicFollower, sync_log), cast(TopicFollower, run_log), must_read_to_end=False
    )
    for sync in syncs:
        translation.take_sync(*encode_offset_sync(T, *sync))
    for run in runs:
        translation.take_run(*encode_run(T, run))
    return translation


def test_runs_come_first_and_syncs_fill_what_they_do_not_know() -> None:
    translation = _translation([(100, 90), (500, 300)], [Run(1_000, 800, 50)])
    assert translation.translate(T, 1_020) is not None, "runs need no end of reading"
    assert translation.translate(T, 150) is None, "syncs count when the topic has been read"
    translation.catch_up()
    assert translation.translate(T, 1_020) == 820
    assert translation.translate(T, 500) == 300
    assert translation.translate(T, 700) == 301
    assert translation.translate(T, 2_000) == 850
    assert translation.translate(T, 50) is None, "older than anything known"
    assert translation.translate(TopicPartition("other", 1), 5) is None


def test_records_that_are_none_are_counted() -> None:
    translation = _translation([(0, 0)], [])
    translation.take_sync(b"x", b"y")
    translation.take_sync(encode_offset_sync(T, 0, 0)[0], None)
    translation.take_run(b"x", b"[1,2]")
    assert translation.skipped == 3
    translation.catch_up()
    assert translation.translate(T, 0) == 0

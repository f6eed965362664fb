"""What the driver makes of the topics of runs and of offset syncs."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkmirror.control.groups.checkpoints import (
    CheckpointRules,
    CheckpointStore,
    plan_checkpoints,
)
from sparkmirror.control.groups.translation import PartitionRuns, Translation, plan_pruning
from sparkmirror.control.topics.compacted import TopicFollower
from sparkmirror.errors import TopicError
from sparkmirror.internal_topics.mm2_records import encode_offset_sync
from sparkmirror.internal_topics.run_map import Run
from sparkmirror.internal_topics.runs import RunRow, decode_run, encode_run
from sparkmirror.model import TopicPartition
from sparkmirror.settings import ClusterClient, FlowSettings
from sparkmirror.wire.cluster.views import Committed

A, B = (ClusterClient(name, (f"{name}:1",), "c") for name in "AB")
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


@pytest.mark.parametrize("first_kept", [0, 1_500])
def test_pruned_or_compacted_a_group_that_lags_repeats_no_more_than_its_lag(
    first_kept: int,
) -> None:
    """Also whoever reads the topic afterwards, and where a former release kept the oldest runs."""
    log, reader = Log(), PartitionRuns()
    runs = [Run(11 * n, 10 * n, 10) for n in range(5_000)]
    rows = [(run, True) for run in runs[: min(first_kept, 60)]]
    rows += [(run, False) for run in runs[first_kept:]]
    for number, (run, merged) in enumerate(rows):
        write = encode_run(T, run, merged=merged)
        log.write(*write)
        reader.take(cast(Any, decode_run(*write)))
        if number % 50 == 0:
            for _, key, value in plan_pruning(T, reader):
                log.write(key, value)
                reader.take(cast(Any, decode_run(key, value)))
    assert len([value for value in log.records.values() if value is not None]) < 1_000
    later = _known(log)
    for run in runs[first_kept::7]:
        lag = runs[-1].target_end - run.target
        for known in (reader, later):
            assert run.target - lag <= (known.translate(run.source) or 0) <= run.target


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


class Flaky:
    """A topic that gives some records at each reading, and then may be lost."""

    def __init__(self, *readings: tuple[list[tuple[bytes, bytes]], bool]) -> None:
        self._readings = list(readings)
        self.begun = False

    def read(self) -> Any:
        records, lost = self._readings.pop(0)
        for record in records:
            self.begun = True
            yield record
        if lost:
            raise TopicError("it has no live leader")


def _of_topics(syncs: Flaky, runs: Flaky, *, must_read_to_end: bool = False) -> Translation:
    return Translation(
        cast(TopicFollower, syncs),
        cast(TopicFollower, runs),
        must_read_to_end=must_read_to_end,
    )


def test_each_topic_is_read_to_its_end_before_it_counts() -> None:
    """The topic of runs is away at first, while the other is read, and is lost again in between."""
    first, second = (encode_run(T, run) for run in (Run(0, 0, 10_000), Run(9_000, 0, 1_000)))
    runs = Flaky(([], True), ([first], True), ([second], False), ([], True))
    translation = _of_topics(Flaky(*[([], False)] * 4), runs)
    translation.catch_up()
    with pytest.raises(TopicError):
        translation.catch_up()
    translation.catch_up()
    assert translation.translate(T, 9_500) == 500
    translation.catch_up()
    assert translation.translate(T, 9_500) == 500, "a topic that was read may be away"


def test_syncs_that_were_away_at_first_count_when_they_are_read_to_their_end() -> None:
    """Earlier translations are unknown, so only the newest sync of the first reading counts."""
    old, new = (encode_offset_sync(T, at, at) for at in (100, 200))
    syncs = Flaky(([], True), ([old], True), ([new], False))
    translation = _of_topics(syncs, Flaky(*[([], False)] * 3), must_read_to_end=True)
    translation.catch_up()
    with pytest.raises(TopicError):
        translation.catch_up()
    translation.catch_up()
    assert (translation.translate(T, 150), translation.translate(T, 300)) == (None, 201)


def test_records_that_are_none_are_counted() -> None:
    translation = _translation([(0, 0)], [])
    translation.take_sync(b"x", b"y")
    translation.take_sync(encode_offset_sync(T, 0, 0)[0], None)
    translation.take_run(b"x", b"[1,2]")
    assert translation.skipped == 3
    translation.catch_up()
    assert translation.translate(T, 0) == 0


# --- a source topic that is deleted and made anew -----------------------------------------------

OLD, NEW = "old-topic-id", "new-topic-id"


def _take(translation: Translation, topic_id: str, *runs: Run) -> None:
    for run in runs:
        translation.take_run(*encode_run(T, run, topic_id=topic_id))


def test_what_is_known_of_a_topic_says_nothing_of_one_made_anew() -> None:
    translation = _translation([(0, 0), (999, 999)], [])
    _take(translation, OLD, Run(0, 0, 1_000))
    translation.catch_up()
    translation.topic_ids = {T.topic: OLD}
    assert translation.translate(T, 3) == 3
    translation.topic_ids = {T.topic: NEW}
    assert translation.translate(T, 3) is None, "nothing of the new one is mirrored yet"
    _take(translation, NEW, Run(5, 1_000, 10))
    translation.take_sync(*encode_offset_sync(T, 14, 1_009))
    assert translation.translate(T, 3) is None, "not the place of the old record 3"
    assert translation.translate(T, 7) == 1_002
    assert translation.translate(T, 15) == 1_010


def test_rows_of_the_old_topic_may_come_late() -> None:
    """Its slot had them in its backlog, or the driver merged what it had read before."""
    translation = _translation([], [])
    _take(translation, OLD, Run(0, 0, 1_000))
    _take(translation, NEW, Run(0, 1_050, 10))
    _take(translation, OLD, Run(1_000, 1_000, 50))
    translation.take_run(*encode_run(T, Run(0, 0, 1_000), merged=True, topic_id=OLD))
    translation.topic_ids = {T.topic: NEW}
    assert [translation.translate(T, at) for at in (0, 4, 10)] == [1_050, 1_054, 1_060]


def test_rows_of_a_topic_that_is_gone_are_forgotten() -> None:
    translation, log = _translation([], []), Log()
    for topic_id, start, target in ((OLD, 0, 0), (OLD, 60, 50), (NEW, 0, 100)):
        row = encode_run(T, Run(start, target, 50), topic_id=topic_id)
        log.write(*row)
        translation.take_run(*row)
    for told in (OLD, ""):
        translation.topic_ids = {T.topic: told}
        assert translation.pruning() == [], "a broker may not know the new topic yet"
    translation.topic_ids = {T.topic: NEW}
    pruned = translation.pruning()
    assert len(pruned) == 2
    assert translation.pruning() == []
    for _, key, value in pruned:
        log.write(key, value)
        translation.take_run(key, value)
    left = [decode_run(key, value) for key, value in log.records.items() if value is not None]
    assert left == [RunRow(T, 0, Run(0, 100, 50), topic_id=NEW)]
    assert translation.translate(T, 20) == 120


def test_rows_without_a_topic_id_go_on_in_those_that_have_one() -> None:
    """Brokers that were upgraded, or a leader that was away when an epoch began."""
    translation = _translation([], [Run(0, 5, 10)])
    translation.topic_ids = {T.topic: NEW}
    assert translation.translate(T, 4) == 9
    _take(translation, NEW, Run(10, 15, 10))
    _take(translation, "", Run(20, 25, 10))
    assert [translation.translate(T, at) for at in (4, 14, 24)] == [9, 19, 29]
    for part in range(30):
        _take(translation, NEW, Run(30 + part, 35 + part, 1))
    again = _translation([], [])
    for _, key, value in translation.pruning():
        again.take_run(key, value)
    assert again.translate(T, 4) == 9, "and merged under the id"


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 20), st.integers(1, 9)), max_size=40))
def test_topics_of_one_name_do_not_touch_each_other(rows: list[tuple[int, int, int]]) -> None:
    """However rows of several topics come mixed, each is known as if it were alone."""
    mixed, target = _translation([], []), 0
    alone = {f"id-{n}": _translation([], []) for n in range(3)}
    for number, start, length in rows:
        run, topic_id = Run(start, target, length), f"id-{number}"
        target += length
        for translation in (mixed, alone[topic_id]):
            _take(translation, topic_id, run)
    for topic_id, translation in alone.items():
        mixed.topic_ids = translation.topic_ids = {T.topic: topic_id}
        if rows and any(f"id-{number}" == topic_id for number, _, _ in rows):
            for at in range(31):
                assert mixed.translate(T, at) == translation.translate(T, at)


def test_a_target_that_lost_its_end_cuts_the_runs_there() -> None:
    known = PartitionRuns()
    grown = [Run(0, 0, 10), Run(0, 0, 20), Run(20, 20, 5), Run(20, 20, 30), Run(10, 60, 40)]
    for run in grown:  # the last one came twice, after a crash: further on at the target
        known.take(RunRow(T, run.source, run))
    assert known.cuts == []
    known.take(RunRow(T, 30, Run(30, 80, 5)))  # mirrored again where it was
    assert known.cuts == [80]
    assert known.map.translate(45) == 85, "what was there is not there yet"
    known.take(RunRow(T, 30, Run(30, 70, 5)))
    assert known.cuts == [80, 70]
    assert known.map.translate(33) == 73
    assert known.map.target_end == 75


def test_a_remote_topic_made_anew_cuts_all_runs_though_it_gets_the_same_offsets() -> None:
    known = PartitionRuns()
    known.take(RunRow(T, 0, Run(0, 0, 60), target_id="old"))
    known.take(RunRow(T, 0, Run(0, 0, 90), target_id="old"))
    known.take(RunRow(T, 0, Run(0, 0, 95)))  # a leader was away: nobody could tell the id
    assert known.cuts == []
    known.take(RunRow(T, 0, Run(0, 0, 10), target_id="new"))
    assert (known.cuts, known.map.translate(80)) == ([0], 10)
    known.take(RunRow(T, 0, Run(0, 0, 100), target_id="new"))
    assert (known.cuts, known.map.translate(80)) == ([0], 80)


def test_checkpoints_follow_a_target_that_is_filled_again() -> None:
    """None of them leads past the end of the log, or stays behind when all is there again."""
    rules, store = CheckpointRules(FlowSettings(A, B, A, B)), CheckpointStore()
    translation = _translation([], [])
    committed = {"g": {T: Committed(55)}}
    told: list[int] = []

    def take(target_id: str, *runs: Run) -> None:
        for run in runs:
            translation.take_run(*encode_run(T, run, target_id=target_id))
        for one in plan_checkpoints(
            committed, rules, translation.translate, store, translation.cuts
        ):
            store.put(one, len(translation.cuts(T)))
            told.append(one.downstream)

    take("old", Run(0, 0, 60))
    take("old", Run(40, 40, 5))  # an unclean election took the records from 40 on
    take("old", Run(40, 40, 20))
    take("new", Run(0, 0, 10))
    take("new", Run(0, 0, 60))
    assert told == [55, 45, 55, 10, 55]


@pytest.mark.parametrize("target_id", ["new", "old"], ids=["made anew", "cut"])
def test_syncs_from_before_a_loss_lead_past_no_unread_record(target_id: str) -> None:
    """The topic of offset syncs takes nothing for a while, and the source's offsets have gaps."""
    translation = _translation([(at, at) for at in range(0, 10_000, 100)], [])
    translation.take_run(*encode_run(T, Run(0, 0, 10_000), target_id="old"))
    translation.catch_up()
    assert translation.translate(T, 9_550) == 9_550
    first = 0 if target_id == "new" else 9_000
    again = [Run(9_000, first, 100), Run(9_200, first + 100, 100)]
    translation.take_run(*encode_run(T, again[0], target_id=target_id))
    assert translation.translate(T, 9_550) == first + 100, "no more is there yet"
    translation.take_run(*encode_run(T, again[1], target_id=target_id))
    assert translation.translate(T, 9_150) == first + 100
    assert translation.translate(T, 9_550) == first + 200
    assert translation.translate(T, 8_950) == (0 if first == 0 else 8_950)


def test_syncs_from_before_a_loss_that_is_forgotten_do_not_count_either() -> None:
    """The rows that told of it were pruned before this process began."""
    translation = _translation([(9_000, 9_000), (9_900, 9_900)], [Run(9_000, 0, 100)])
    translation.catch_up()
    assert translation.translate(T, 9_500) == 100


# --- under another name -------------------------------------------------------------------------


def _under(log: Log, syncs: Log, names: dict[str, str]) -> Translation:
    made = Translation(
        cast(TopicFollower, syncs),
        cast(TopicFollower, log),
        must_read_to_end=False,
        mapped=names.get,
    )
    made.catch_up()
    return made


def test_the_copies_of_a_topic_under_several_names_are_told_apart() -> None:
    log, syncs = Log(), Log()
    log.write(*encode_run(T, Run(0, 100, 50)))
    log.write(*encode_run(T, Run(0, 0, 50), remote="x"))
    log.write(*encode_run(T, Run(20, 7, 30), remote="y"))
    by_policy = _under(log, syncs, {})
    assert by_policy.translate(T, 30) == 130
    assert _under(log, syncs, {"t": "x"}).translate(T, 30) == 30
    assert _under(log, syncs, {"t": "y"}).translate(T, 30) == 17
    assert _under(log, syncs, {"t": "y"}).translate(T, 3) is None
    assert _under(log, syncs, {"t": "z"}).translate(T, 30) is None
    # None of them says that another one has lost anything.
    assert [*by_policy.cuts(T), *_under(log, syncs, {"t": "x"}).cuts(T)] == []


def test_syncs_count_for_the_copy_under_the_policys_name_alone() -> None:
    log, syncs = Log(), Log()
    syncs.write(*encode_offset_sync(T, 40, 140))
    assert _under(log, syncs, {}).translate(T, 40) == 140
    assert _under(log, syncs, {"t": "x"}).translate(T, 40) is None
    log.write(*encode_run(T, Run(0, 0, 10), remote="x"))
    assert _under(log, syncs, {"t": "x"}).translate(T, 40) == 10


def test_pruning_keeps_the_name() -> None:
    log, syncs = Log(), Log()
    for epoch in range(60):
        log.write(*encode_run(T, Run(epoch * 10, epoch * 10, 10), topic_id="i", remote="x"))
    log.write(*encode_run(T, Run(0, 500, 600), topic_id="i"))
    names = {"t": "x"}
    reader = _under(log, syncs, names)
    reader.topic_ids = {"t": "i"}
    for _, key, value in reader.pruning():
        log.write(key, value)
    rows = [decode_run(key, value) for key, value in log.records.items() if value is not None]
    assert len(rows) < 10
    after = _under(log, syncs, names)
    after.topic_ids = {"t": "i"}
    assert [after.translate(T, at) for at in (0, 5, 595)] == [0, 5, 595]
    plain = _under(log, syncs, {})
    assert plain.translate(T, 5) == 505

"""What a position says of the target's log, what is found lost, and where the mirror goes back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkmirror.data.read import resume_point as meeting
from sparkmirror.data.read import target_loss
from sparkmirror.data.read.loss_detection import LossWatch
from sparkmirror.data.read.resume_point import (
    KnownRuns,
    ResumePoint,
    filled_by_others,
    last_run,
    resume_point,
)
from sparkmirror.data.read.target_loss import TargetWatch, Verdict
from sparkmirror.data.write import target_ends
from sparkmirror.data.write.chunk_offsets import ChunkOffsets
from sparkmirror.data.write.partition_state import Lane, Pending
from sparkmirror.data.write.target_ends import TargetEnds
from sparkmirror.errors import Unreachable
from sparkmirror.internal_topics.commands import SourcePartition
from sparkmirror.internal_topics.position_metadata import (
    Mark,
    PositionMetadata,
    TargetMark,
    decode_metadata,
    encode_metadata,
)
from sparkmirror.internal_topics.run_map import Run
from sparkmirror.internal_topics.runs import decode_run, encode_run
from sparkmirror.model import TopicPartition as Tp
from sparkmirror.names.replication_policy import FaultPolicy
from sparkmirror.progress import Halt
from sparkmirror.records.records import Carried
from sparkmirror.settings import ClusterClient, FaultSettings, FetchSettings, FlowSettings
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.cluster.log_view import EndView, LogView
from sparkmirror.wire.cluster.metadata import Leader
from sparkmirror.wire.net.connection import ConnectionLost
from sparkmirror.wire.produce.backlog import Backlog
from sparkmirror.wire.produce.hanging_transactions import OpenTransaction

A, B = (ClusterClient(name, (f"{name}:1",), "c") for name in "AB")
FLOW = FlowSettings(A, B, A, B)
SOURCE, REMOTE = Tp("t", 0), Tp("A.t", 0)
NOW = TargetMark("cluster", "topic")
MARK = TargetMark("cluster", "topic", 5, 90, begin=7)


# -- what a position says ----------------------------------------------------------------------


@given(
    st.builds(
        TargetMark,
        st.text(max_size=9),
        st.text(max_size=9),
        st.integers(0, 9),
        st.integers(0, 99),
        st.integers(-1, 99),
        st.booleans(),
        st.integers(-1, 99),
        st.integers(0, 9),
        st.integers(10, 99),
    )
)
def test_marks_survive_the_metadata(mark: TargetMark) -> None:
    text = encode_metadata(PositionMetadata(Mark("c", "id", 3), mark))
    assert decode_metadata(text).target == mark
    assert len(text) < 4096  # offset.metadata.max.bytes


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "null", "[" * 9999, '{"source_topic_id": "x", "target_offset": 9}',
        '{"target_topic_id": 3, "target_leader_epoch": "4", "source_begin": -2, "seeded": 1}',
        '{"target_has": [5]}', '{"target_has": [9, 5]}', '{"target_has": ["1", true]}',
        '{"target_leader_epoch": 4}',
    ],
)  # fmt: skip
def test_metadata_of_others_and_of_earlier_releases_says_nothing(text: str) -> None:
    assert decode_metadata(text).target == TargetMark()


def test_a_run_tells_the_log_that_it_is_in_and_older_rows_are_read() -> None:
    run = Run(5, 9, 3)
    row = decode_run(*encode_run(SOURCE, run, topic_id="source", target_id="target"))
    assert row is not None
    assert (row.run, row.topic_id, row.target_id, row.merged) == (run, "source", "target", False)
    assert json.loads(encode_run(SOURCE, run)[1]) == [9, 3]
    merged = decode_run(*encode_run(SOURCE, run, merged=True))
    assert merged is not None
    assert (merged.merged, merged.target_id) == (True, "")


def test_the_more_careful_choice_wins() -> None:
    policy = FaultPolicy(
        FaultSettings(
            target_loss="record-and-continue",
            target_loss_fail=("pay.*",),
            target_loss_repair=("pay-test", "logs"),
            target_loss_continue=("logs", "x"),
        )
    )
    chosen = {name: policy.target_loss(name) for name in ("payments", "pay-test", "logs", "x", "y")}
    assert list(chosen.values()) == [
        "fail", "fail", "repair", "record-and-continue", "record-and-continue"
    ]  # fmt: skip
    assert FaultPolicy(FaultSettings()).target_loss("x") == "repair"


# -- where to go back to -----------------------------------------------------------------------


class Logs:
    """Both sides as lists of (offset, content); what is read of them instead of brokers.

    ``markers``: offsets at the target. ``aborted``: records there of transactions that failed.
    """

    def __init__(
        self,
        source: Mapping[int, bytes],
        target: Mapping[int, bytes],
        monkeypatch: Any,
        *,
        markers: Sequence[int] = (),
        aborted: Mapping[int, bytes] = MappingProxyType({}),
    ) -> None:
        self._sides = {"A": source, "B": target}
        self._markers, self._aborted = markers, aborted
        monkeypatch.setattr(meeting, "RecordStream", self._stream)
        monkeypatch.setattr(meeting, "_log_start", self._log_start)

    def _log_start(self, connections: ClusterConnections, _: Tp) -> int:
        return min(self._sides[connections.client.alias])

    def _stream(
        self,
        client: ClusterClient,
        settings: FetchSettings,
        tp: Tp,
        start: int,
        end: int,
        *_connections: ClusterConnections,
        note_markers: bool = False,
    ) -> Any:
        side = dict(self._sides[client.alias])
        if client.alias == "B" and settings.isolation_level == "read_uncommitted":
            side.update(self._aborted)
        records = [(n, v) for n, v in sorted(side.items()) if start <= n < end]
        noted = {n for n in self._markers if note_markers and start <= n < end}
        carried = Carried(offsets=[n for n, _ in records], rests=[v for _, v in records])
        chosen = SimpleNamespace(runs=[(n, 1) for n, _ in records], record_count=len(records))

        class Stream:
            markers = noted

            def __iter__(self) -> Any:
                return iter([carried])

            def selections(self) -> Any:
                return iter([chosen])

            def close(self) -> None:
                pass

        return Stream()


def _meet(
    runs: Sequence[Run], *, cut: int, position: int, end: int = 100, epoch_end: int = -1
) -> ResumePoint | None:
    return resume_point(
        FLOW, SOURCE, REMOTE, runs, source_start=0, position=position, recorded_end=end,
        start=0, cut=cut, epoch_end=epoch_end,
    )  # fmt: skip


def _records(offsets: Sequence[int]) -> dict[int, bytes]:
    return {offset: b"%d" % number for number, offset in enumerate(offsets)}


def test_the_last_run_before_a_cut() -> None:
    runs = [Run(0, 0, 10), Run(20, 10, 10)]
    assert last_run(runs, 0) is None
    assert last_run(runs, 5) == (runs[0], 5)
    assert last_run(runs, 10) == (runs[0], 10)
    assert last_run(runs, 11) == (runs[1], 1)
    assert last_run(runs, 99) == (runs[1], 10)


def test_exact_runs_name_the_record_behind_the_last_one_that_is_left(monkeypatch: Any) -> None:
    # The source has a hole (a marker, compaction) at 10 to 19.
    source = _records([*range(10), *range(20, 40)])
    Logs(source, _records(range(30)), monkeypatch)
    runs = [Run(0, 0, 10), Run(20, 10, 20)]
    for cut, position in ((5, 5), (10, 10), (11, 21), (25, 35)):
        found = _meet(runs, cut=cut, position=40)
        assert found is not None
        assert (found.position, found.exact, found.how) == (position, True, "by the exact runs")


def test_behind_the_last_run_records_are_counted_on_both_sides(monkeypatch: Any) -> None:
    source = _records([0, 1, 2, 5, 6, 9, 10])  # 3, 4, 7 and 8 hold nothing visible
    # Markers of the mirror's own transactions stand at 3 and 6.
    target = {0: b"0", 1: b"1", 2: b"2", 4: b"3", 5: b"4", 7: b"5", 8: b"6"}
    Logs(source, target, monkeypatch)
    for cut, position in ((3, 3), (4, 3), (5, 6), (6, 7), (7, 7), (8, 10)):
        found = _meet([Run(0, 0, 3)], cut=cut, position=11)
        assert found is not None
        assert (found.position, found.exact) == (position, True)


def test_without_runs_the_records_that_are_left_are_found_again(monkeypatch: Any) -> None:
    source = _records([*range(0, 60, 2)])
    Logs(source, {n: b"%d" % n for n in range(20)}, monkeypatch)
    found = _meet([], cut=20, position=60, end=30)
    assert found is not None
    assert (found.position, found.exact) == (39, True)


def test_what_cannot_be_told_apart_is_not_guessed(monkeypatch: Any) -> None:
    same = dict.fromkeys(range(100), b"same")
    Logs(same, same, monkeypatch)
    assert _meet([], cut=50, position=100) is None
    # Runs that lie (somebody else wrote there) are noticed, and only what they begin with counts.
    Logs(_records(range(100)), dict.fromkeys(range(50), b"other"), monkeypatch)
    found = _meet([Run(0, 0, 100)], cut=50, position=100)
    assert found is not None
    assert not found.exact


@pytest.mark.parametrize("epoch_end", [-1, 0, 30, 37])
@pytest.mark.parametrize("instead", ["marker", "markers", "records", "aborted"])
def test_what_stands_in_the_place_of_lost_records_is_none_of_them(
    monkeypatch: Any, epoch_end: int, instead: str
) -> None:
    """The log is cut at 37; under the next leader, something else got the offsets after it."""
    filled = range(37, 38 if instead == "marker" else 60)
    others = {n: b"other %d" % n for n in filled}
    there = {n: b"%d" % n for n in range(37)}
    Logs(
        {n: b"%d" % n for n in range(100)},
        there | (others if instead == "records" else {}),
        monkeypatch,
        markers=filled if "marker" in instead else [60],
        aborted=others if instead == "aborted" else {},
    )
    for runs in ([Run(0, 0, 100)], [Run(n, n, 5) for n in range(0, 100, 5)]):
        found = _meet(runs, cut=filled.stop, position=100, epoch_end=epoch_end)
        assert found is not None
        assert (found.position, found.exact) == (37, True)


def test_our_records_after_those_of_others_do_not_hide_what_is_lost(monkeypatch: Any) -> None:
    there = {n: b"%d" % n for n in range(60) if n != 37}
    Logs({n: b"%d" % n for n in range(100)}, there, monkeypatch, markers=[37])
    found = _meet([Run(0, 0, 100)], cut=60, position=100, epoch_end=37)
    assert found is not None
    assert (found.position, found.exact) == (37, False), "38 to 59 come twice, and this is told"


def test_what_cannot_be_compared_goes_back_to_where_the_leader_changed(monkeypatch: Any) -> None:
    """Nothing may be missing, even if the source no longer has what could be compared."""
    source = {n: b"%d" % n for n in range(100) if n != 36}
    Logs(source, {n: b"%d" % n for n in range(37)}, monkeypatch, markers=[37])
    found = _meet([Run(0, 0, 100)], cut=38, position=100, epoch_end=37)
    assert found is not None
    assert (found.position, found.exact) == (37, False)


@pytest.mark.parametrize(
    ("source", "there", "others"),
    [
        ({49: b"ours"}, {99: b"ours"}, False),
        ({49: b"ours"}, {99: b"theirs"}, True),
        # What the target refused was skipped behind it.
        ({48: b"ours", 49: b"refused"}, {99: b"ours"}, False),
        ({49: b"ours"}, {98: b"ours", 99: b"theirs"}, True),
        # Nothing to compare: compacted, or deleted.
        ({49: b"ours"}, {10: b"ours"}, False),
        ({10: b"ours"}, {99: b"theirs"}, False),
        # Behind the position, and behind what was acknowledged.
        ({49: b"ours", 50: b"next"}, {99: b"ours", 100: b"theirs"}, False),
    ],
)
def test_what_others_wrote_in_the_place_of_ours_is_told(
    monkeypatch: Any, source: dict[int, bytes], there: dict[int, bytes], *, others: bool
) -> None:
    Logs(source, there, monkeypatch)
    assert filled_by_others(FLOW, SOURCE, REMOTE, 50, 100) is others


def test_a_marker_in_the_place_of_our_last_record_is_told(monkeypatch: Any) -> None:
    source = {n: b"%d" % n for n in range(50)}
    there = {n + 50: b"%d" % n for n in range(49)}
    Logs(source, there, monkeypatch, markers=[99])
    assert filled_by_others(FLOW, SOURCE, REMOTE, 50, 100)
    assert filled_by_others(FLOW, SOURCE, REMOTE, 50, 100, 50)


@pytest.mark.parametrize(
    ("content", "source_end", "others"),
    [(49, 50, False), (48, 50, True), (48, 49, False), (48, -1, False), (7, 8, False)],
)
def test_the_record_that_was_acknowledged_last_has_to_be_there(
    monkeypatch: Any, content: int, source_end: int, others: bool
) -> None:
    """Another one of our records in its place is none of ours: it was written by somebody else."""
    Logs({n: b"%d" % n for n in range(50)}, {99: b"%d" % content}, monkeypatch)
    assert filled_by_others(FLOW, SOURCE, REMOTE, 50, 100, source_end) is others


# -- the verdict -------------------------------------------------------------------------------


class Watched:
    """A `TargetWatch` whose logs are what the test says."""

    def __init__(self, monkeypatch: Any, view: EndView, **options: Any) -> None:
        self.flow = replace(FLOW, **options)
        self.runs: dict[Tp, KnownRuns] = {}
        self.found: ResumePoint | None = ResumePoint(40, exact=True, how="")
        self.source_start = 0
        self.errors: dict[str, int] = {}
        self.others = False
        self.written: tuple[int, int, int] | None = None
        self.open: dict[Tp, tuple[OpenTransaction, ...]] = {REMOTE: ()}
        self.cuts: list[int] = []
        self._target = SimpleNamespace(
            cluster_id="cluster", topic_ids={"A.t": "topic"}, refresh_if_due=lambda: True
        )
        monkeypatch.setattr(target_loss, "describe_ends", lambda *_: {REMOTE: view})
        monkeypatch.setattr(
            target_loss, "describe_logs", lambda *_: {SOURCE: LogView(self.source_start, 999)}
        )
        monkeypatch.setattr(target_loss, "read_runs", lambda *_: self.runs)
        monkeypatch.setattr(target_loss, "resume_point", self._resume_point)
        monkeypatch.setattr(target_loss, "find_open_transactions", lambda *_: self.open)
        monkeypatch.setattr(target_loss, "filled_by_others", self._filled)

    def _filled(self, _: FlowSettings, *where: object) -> bool:
        assert where == (SOURCE, REMOTE, 50, 100, -1)
        return self.others

    def _resume_point(self, *_: object, cut: int, **__: object) -> ResumePoint | None:
        self.cuts.append(cut)
        return self.found

    def verdict(self, mark: TargetMark, end: int, position: int = 50) -> Verdict:
        losses = cast(LossWatch, SimpleNamespace(marks={SOURCE: Mark("c", "id", 1)}))
        self.watch = TargetWatch(self.flow, [SourcePartition("t", 0, "A.t")], losses)
        written = self.written or (-1, -1, -1)
        metadata = PositionMetadata(Mark(), mark, end, *written)
        connections = cast(ClusterConnections, self._target)
        found = self.watch.examine(
            connections, connections, {SOURCE: position}, {SOURCE: metadata}, self.errors
        )
        return found[SOURCE]

    @property
    def gaps(self) -> list[tuple[str, int, int | None, int | None]]:
        return [
            (one.gap.action, one.gap.first, one.gap.last, one.gap.resumed_at)
            for one in self.watch.gaps
        ]


CUT = EndView(0, 60, 60, 60, 6)


def test_a_repair_goes_back_and_the_sink_learns_it_with_the_gap(monkeypatch: Any) -> None:
    watched = Watched(monkeypatch, CUT)
    verdict = watched.verdict(MARK, 100)
    assert (verdict.position, verdict.lost, verdict.halt) == (40, True, None)
    # Until the gap record is acknowledged the position says what it said: the loss is still seen.
    assert (verdict.mark, verdict.end) == (MARK, 100)
    assert watched.gaps == [("repaired", 40, 49, 40)]
    (gap,) = watched.watch.gaps
    assert (gap.target_end, gap.target.epoch_offset, gap.target.leader_epoch) == (60, 60, 6)
    assert watched.errors == {"TARGET_TRUNCATED": 1}


@pytest.mark.parametrize(
    ("exactly_once", "written", "open_from", "cut"),
    [
        (True, (9, 2, 40), [], 60),
        # The log was cut within a transaction. Its rest will be aborted: it does not count.
        (True, (9, 2, 40), [(57, 9, 2, 36)], 57),
        (True, (9, 3, 4), [(57, 9, 2, 36)], 57),
        # Only the marker is gone: what was committed last will be committed again.
        (True, (9, 2, 40), [(57, 9, 2, 39)], 60),
        # Others have a transaction open: it is theirs to end it.
        (True, (9, 2, 40), [(51, 8, 0, 5)], 60),
        (True, None, [(57, 9, 2, 36)], 60),
        (False, (9, 2, 40), [(57, 9, 2, 36)], 60),
    ],
)
def test_the_rest_of_a_transaction_that_was_cut_is_lost_as_well(
    monkeypatch: Any,
    exactly_once: bool,
    written: tuple[int, int, int] | None,
    open_from: list[tuple[int, int, int, int]],
    cut: int,
) -> None:
    watched = Watched(monkeypatch, CUT, exactly_once=exactly_once)
    watched.written = written
    watched.open = {REMOTE: tuple(OpenTransaction(*one) for one in open_from)}
    assert watched.verdict(MARK, 100).position == 40
    assert watched.cuts == [cut]


def test_a_repair_waits_until_the_leader_reports_open_transactions(monkeypatch: Any) -> None:
    watched = Watched(monkeypatch, CUT, exactly_once=True)
    watched.written, watched.open = (9, 2, 40), {}
    with pytest.raises(Unreachable, match="reports open transactions"):
        watched.verdict(MARK, 100)


def test_what_the_source_lacks_as_well_is_another_gap(monkeypatch: Any) -> None:
    watched = Watched(monkeypatch, CUT)
    watched.source_start = 45
    assert watched.verdict(MARK, 100).position == 45
    assert watched.gaps == [("continued", 40, 44, 45), ("repaired", 45, 49, 45)]
    watched.source_start = 70
    assert watched.verdict(MARK, 100).position == 50
    assert watched.gaps == [("continued", 40, 49, 50)]


def test_what_is_not_exact_is_said(monkeypatch: Any) -> None:
    watched = Watched(monkeypatch, CUT)
    watched.found = ResumePoint(30, exact=False, how="offset 4 is the last one")
    watched.verdict(MARK, 100)
    assert "some of which may be there already (offset 4 is the last one)" in (
        watched.watch.gaps[0].gap.reason
    )


def test_nobody_guesses_where_nothing_is_known(monkeypatch: Any) -> None:
    watched = Watched(monkeypatch, CUT)
    watched.found = None
    verdict = watched.verdict(MARK, 100)
    assert verdict.halt is not None
    assert "is not known" in verdict.halt.reason
    assert watched.gaps == [("stopped", 50, None, None)]


def test_a_loss_without_records_is_none(monkeypatch: Any) -> None:
    watched = Watched(monkeypatch, CUT)
    watched.found = ResumePoint(50, exact=True, how="only markers were lost")
    verdict = watched.verdict(MARK, 100)
    assert (verdict.position, verdict.lost, verdict.end, watched.gaps) == (50, False, 60, [])


@pytest.mark.parametrize(
    ("now", "known", "source_ids", "position"),
    [
        ("anew", "topic", {"t": "id"}, 50),
        ("", "topic", {"t": "id"}, 50),  # it is away, and will be another one
        ("topic", "topic", {"t": "id"}, None),  # somebody deleted the position alone
        ("anew", "", {"t": "id"}, None),
        ("anew", "topic", {}, None),
    ],
)
def test_positions_that_went_with_their_topic(
    monkeypatch: Any, now: str, known: str, source_ids: dict[str, str], position: int | None
) -> None:
    watched = Watched(monkeypatch, EndView(0, 0, 0, -1, 0))
    watched.runs = {SOURCE: KnownRuns((Run(40, 90, 10),), known)}
    connections = SimpleNamespace(topic_ids={"A.t": now}, refresh=lambda: None)
    watch = TargetWatch(watched.flow, [SourcePartition("t", 0, "A.t")], cast(LossWatch, None))
    found = watch.remembered([SOURCE], source_ids, cast(ClusterConnections, connections))
    if position is None:
        assert found == {}
        return
    remote = TargetMark(topic_id="topic")
    expected = PositionMetadata(Mark(topic_id="id"), remote, 100)
    assert found == {SOURCE: (position, expected)}


@pytest.mark.parametrize("others", [False, True])
def test_a_log_that_others_filled_after_the_last_look(monkeypatch: Any, *, others: bool) -> None:
    """A later epoch may hold our own records: only what stands there tells."""
    watched = Watched(monkeypatch, EndView(0, 300, 300, 95, 6))
    watched.others = others
    verdict = watched.verdict(MARK, 100)
    assert verdict.lost is others
    assert watched.gaps == ([("repaired", 40, 49, 40)] if others else [])
    assert verdict.mark.leader_epoch == (5 if others else 6)


@pytest.mark.parametrize(
    ("begin", "reset", "runs", "position"),
    [
        (7, "latest", (), 7),
        (-1, "earliest", (), 0),
        (-1, "latest", (Run(12, 0, 5),), 12),
        (-1, "latest", (), None),
    ],
)
def test_a_topic_made_anew_gets_all_from_where_the_mirror_had_begun(
    monkeypatch: Any, begin: int, reset: str, runs: tuple[Run, ...], position: int | None
) -> None:
    view = EndView(0, 0, 0, -1, 0)
    watched = Watched(monkeypatch, view, fetch=FetchSettings(auto_offset_reset=reset))
    watched.runs = {SOURCE: KnownRuns(runs)}
    verdict = watched.verdict(replace(MARK, topic_id="old", begin=begin), 100)
    if position is None:
        assert verdict.halt is not None
    else:
        assert (verdict.position, verdict.halt) == (position, None)
        assert watched.watch.gaps[-1].target.begin == position


@pytest.mark.parametrize("choice", ["repair", "fail", "record-and-continue"])
def test_another_cluster_at_the_targets_addresses(monkeypatch: Any, choice: str) -> None:
    """It has the old one's positions, and whatever stands in a topic of the same name."""
    faults = FaultSettings(target_loss=choice)
    watched = Watched(monkeypatch, EndView(0, 300, 300, 300, 5), faults=faults)
    verdict = watched.verdict(replace(MARK, cluster_id="old", begin=7), 100)
    assert watched.errors == {"TARGET_REPLACED": 1}
    (gap,) = watched.watch.gaps
    assert gap.gap.kind == "target-replaced"
    assert "another cluster is at the target's addresses (cluster id cluster, it was old)" in (
        gap.gap.reason
    )
    assert (gap.target.cluster_id, gap.target.begin) == ("cluster", 7)
    told = {
        "repair": (("repaired", 7, 49, 7), 7),
        "fail": (("stopped", 7, 49, None), 50),
        "record-and-continue": (("continued", 7, 49, 50), 50),
    }
    assert (watched.gaps, verdict.position) == ([told[choice][0]], told[choice][1])
    assert (verdict.halt is not None) == (choice == "fail")


@pytest.mark.parametrize(
    ("view", "runs", "lost"),
    [
        (EndView(0, 100, 100), KnownRuns((Run(0, 0, 100),), "topic"), False),
        (EndView(0, 300, 300), KnownRuns((Run(0, 0, 100),), "old"), True),
        (EndView(0, 60, 60), KnownRuns((Run(0, 0, 100),), ""), True),
        # A Java MirrorMaker's: no runs, but its records are there, or were and are deleted.
        (EndView(0, 100, 100), KnownRuns(), False),
        (EndView(100, 100, 100), KnownRuns(), False),
        # No record was ever in that log.
        (EndView(0, 0, 0), KnownRuns(), True),
    ],
)
def test_a_position_from_connects_storage_belongs_to_the_log_that_the_runs_know(
    monkeypatch: Any, view: EndView, runs: KnownRuns, lost: bool
) -> None:
    watched = Watched(monkeypatch, view)
    watched.runs = {SOURCE: runs}
    verdict = watched.verdict(TargetMark(seeded=True), -1)
    assert verdict.lost is lost
    assert verdict.mark.seeded is lost, "the loss must be found again until it is written down"


# -- one sink ----------------------------------------------------------------------------------


def _pending(lane: Lane, source: int, records: int, at: int) -> Pending:
    offsets = ChunkOffsets([(source, records)], records)
    if at >= 0:
        offsets.acknowledged(records, records, at)
    pending = Pending(lane, source + records, records, 9, 1, 1, int(at < 0), offsets)
    lane.queue.append(pending)
    return pending


class Gated:
    """The gate of one lane that has 100 records at the target."""

    def __init__(self, monkeypatch: Any) -> None:
        self.lane = Lane(SOURCE, REMOTE, 50, 50, log=MARK, reached=100, target_end=100)
        self.time = 0.0
        self.view = EndView(0, 100, 100, 100, 5)
        self.looks = 0
        self.given_up: list[Tp] = []
        self.waits = True
        self.others: bool | Exception = False
        self.connections = SimpleNamespace(
            cluster_id="cluster",
            topic_ids={"A.t": "topic"},
            leaders={REMOTE: Leader(1, 5)},
            mark_stale=lambda: None,
            refresh_if_due=lambda: True,
        )
        self.ends = TargetEnds(FLOW, clock=lambda: self.time)
        self.ends.begin([self.lane])
        self.connections.refresh = self.connections.close = lambda: None
        monkeypatch.setattr(target_ends, "describe_ends", self._look)
        monkeypatch.setattr(target_ends, "ClusterConnections", lambda *_: self.connections)
        monkeypatch.setattr(target_ends, "filled_by_others", self._filled)
        monkeypatch.setattr(target_ends._Check, "start", target_ends._Check.run)

    def _look(self, _: object, asked: Mapping[Tp, int]) -> dict[Tp, EndView]:
        self.looks += 1
        return dict.fromkeys(asked, self.view)

    def _filled(self, _: FlowSettings, *where: object) -> bool:
        assert where == (SOURCE, REMOTE, 50, 100, self.lane.source_end)
        if isinstance(self.others, Exception):
            raise self.others
        return self.others

    def may_send(self) -> bool:
        return self.ends.may_send(cast(ClusterConnections, self.connections), REMOTE)

    def look(self) -> None:
        self.time += 1.0
        for _ in range(2):  # the second one takes in what the first one asked for
            self.ends.check(cast(ClusterConnections, self.connections))

    def settle(self, *, counts: bool = True) -> None:
        backlog = SimpleNamespace(
            under_way=lambda _: False,
            waiting=lambda tp: self.waits and tp not in self.given_up,
            give_up=lambda tp, _: self.given_up.append(tp),
        )
        self.ends.settle(cast(Backlog, backlog), counts=counts)


@pytest.fixture
def gated(monkeypatch: pytest.MonkeyPatch) -> Gated:
    return Gated(monkeypatch)


@pytest.mark.parametrize("what", ["epoch", "topic", "doubt"])
def test_nothing_is_sent_to_a_log_that_may_be_another_one_before_it_was_looked_at(
    gated: Gated, what: str
) -> None:
    assert gated.may_send()
    gated.look()
    assert gated.looks == 0
    if what == "epoch":
        gated.connections.leaders = {REMOTE: Leader(2, 6)}
        gated.view = replace(gated.view, leader_epoch=6)
    elif what == "topic":
        gated.connections.topic_ids = {"A.t": "anew"}
    else:
        gated.ends.recheck(REMOTE)
    assert not gated.may_send()
    gated.look()
    assert gated.looks == 1
    assert gated.may_send() is (what != "topic")
    gated.settle()
    assert gated.given_up == ([REMOTE] if what == "topic" else [])


def test_a_shorter_log_is_given_up_and_the_position_says_where_it_was_cut(gated: Gated) -> None:
    gated.connections.leaders = {REMOTE: Leader(2, 6)}
    gated.view = EndView(0, 60, 60, 60, 6)
    assert not gated.may_send()
    gated.look()
    gated.settle()
    assert gated.given_up == [REMOTE]
    assert gated.lane.log == replace(MARK, cut=60)
    assert gated.lane.due, "it has to be committed"
    assert not gated.may_send()


@pytest.mark.parametrize("others", [False, True])
def test_a_new_leader_whose_log_others_have_filled(gated: Gated, *, others: bool) -> None:
    gated.connections.leaders = {REMOTE: Leader(2, 6)}
    gated.view = EndView(0, 300, 300, 95, 6)
    gated.others = others
    assert not gated.may_send()
    gated.look()
    assert gated.may_send() is not others
    gated.settle()
    assert gated.given_up == ([REMOTE] if others else [])
    seen = replace(MARK, leader_epoch=6, epoch_offset=100)
    assert gated.lane.log == (replace(MARK, cut=95) if others else seen)


def test_what_cannot_be_compared_yet_is_looked_at_again(gated: Gated) -> None:
    """Nothing is sent meanwhile, and nothing is taken for certain."""
    gated.connections.leaders = {REMOTE: Leader(2, 6)}
    gated.view = EndView(0, 40, 300, 95, 6)  # consumers do not get it yet
    gated.others = AssertionError("not asked")
    assert not gated.may_send()
    gated.look()
    assert (gated.may_send(), gated.lane.log) == (False, MARK)
    gated.view = EndView(0, 300, 300, 95, 6)
    gated.others = ConnectionLost("gone")
    gated.look()
    assert (gated.may_send(), gated.lane.log) == (False, MARK)
    gated.others = False
    gated.look()
    assert gated.may_send()


def test_a_partition_that_cannot_be_compared_keeps_no_other_one_waiting(
    gated: Gated, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its source has no leader: the others' brokers are all there."""
    source, remote = SOURCE._replace(partition=7), REMOTE._replace(partition=7)
    gated.ends.begin([Lane(source, remote, 50, 50, log=MARK, reached=100, target_end=100)])
    gated.connections.leaders = dict.fromkeys((REMOTE, remote), Leader(2, 6))
    gated.view = EndView(0, 300, 300, 95, 6)
    asked: list[Tp] = []

    def filled(_: FlowSettings, tp: Tp, *_where: object) -> bool:
        asked.append(tp)
        if tp == SOURCE:
            raise Unreachable("no leader of t-0 responds")
        return False

    monkeypatch.setattr(target_ends, "filled_by_others", filled)
    connections = cast(ClusterConnections, gated.connections)
    assert not gated.may_send()
    gated.look()
    assert not gated.may_send()
    assert not gated.ends.may_send(connections, remote)
    gated.look()
    assert gated.ends.may_send(connections, remote)
    assert asked == [SOURCE, source, SOURCE], "what failed may take long again"
    assert caplog.text.count("no leader of t-0 responds") == 1, "each second would be a flood"


def test_what_was_looked_at_need_not_wait_for_a_comparison_that_lasts(
    gated: Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    gated.ends.recheck(REMOTE)
    assert not gated.may_send()
    monkeypatch.setattr(target_ends._Check, "is_alive", lambda _: True)
    gated.look()
    assert gated.may_send()


def test_all_are_looked_at_now_and_then(gated: Gated) -> None:
    gated.view = EndView(0, 60, 60, 60, 5)
    for _ in range(29):
        gated.look()
    assert (gated.looks, gated.ends.lost) == (0, {})
    gated.look()
    gated.settle()
    assert gated.looks == 1
    assert list(gated.ends.lost) == [gated.lane]


@pytest.mark.parametrize("who", ["halt", "source_halt"])
def test_a_partition_that_is_halted_ends_no_task_for_its_loss(gated: Gated, who: str) -> None:
    """With ``on.target.loss=fail`` the loss is what halts it, and its position stays before it."""
    setattr(gated.lane, who, Halt("TARGET_TRUNCATED", "cut off"))
    gated.view = EndView(0, 60, 60, 60, 5)
    gated.time = 31
    gated.look()
    gated.settle()
    assert (gated.looks, gated.ends.lost) == (0, {})
    # What is still to be sent there waits for an answer all the same.
    gated.view = EndView(0, 100, 100, 100, 5)
    gated.ends.recheck(REMOTE)
    assert not gated.may_send()
    gated.look()
    assert (gated.looks, gated.may_send()) == (1, True)
    # Once it goes on, it is looked at as before.
    setattr(gated.lane, who, None)
    gated.time += 31
    gated.look()
    assert gated.looks == 2


def test_a_partition_whose_source_is_in_trouble_is_looked_at(gated: Gated) -> None:
    """That may last for days, and the remote topic may be lost meanwhile."""
    gated.lane.source_halt = Halt("LEADER_NOT_AVAILABLE", "no leader", retriable=True)
    gated.view = EndView(0, 60, 60, 60, 5)
    gated.time = 31
    gated.look()
    gated.settle()
    assert gated.looks == 1
    assert list(gated.ends.lost) == [gated.lane]


@pytest.mark.parametrize("waits", [False, True])
def test_what_waits_for_a_partition_that_is_halted_is_given_up(gated: Gated, waits: bool) -> None:
    gated.waits = waits
    gated.lane.halt = Halt("MESSAGE_TOO_LARGE", "its gap record")
    gated.connections.leaders = {REMOTE: Leader(2, 6)}
    gated.view = EndView(0, 60, 60, 60, 6)
    assert not gated.may_send()
    gated.look()
    gated.settle()
    assert gated.ends.lost == {}
    assert gated.lane.log == replace(MARK, cut=60)
    assert gated.given_up == ([REMOTE] if waits else [])
    assert gated.lane.blocked == tuple(gated.given_up), "a retry writes there again"
    gated.lane.halt = None
    assert not gated.may_send()
    gated.look()
    gated.settle()
    assert list(gated.ends.lost) == [gated.lane]


def test_a_halted_partition_with_records_behind_its_loss_ends_its_task(gated: Gated) -> None:
    """Else exactly-once would commit them, and the repair would write them once more."""
    gated.lane.halt = Halt("TRANSFORM_FAILED", "x", retriable=True)
    gated.waits = False
    _pending(gated.lane, 50, 10, 80)
    assert gated.ends.note_going_back(gated.lane)
    gated.settle(counts=False)
    assert list(gated.ends.lost) == [gated.lane]
    assert gated.given_up == [REMOTE]


def _made_anew(gated: Gated) -> Pending:
    """The remote topic is another one; returns the gap in flight that says so."""
    gap = _pending(gated.lane, 50, 0, -1)
    gap.log, gap.log_end = replace(MARK, topic_id="anew", leader_epoch=0, epoch_offset=0), 0
    gated.connections.topic_ids = {"A.t": "anew"}
    gated.connections.leaders = {REMOTE: Leader(1, 0)}
    gated.view = EndView(0, 0, 0, 0, 0)
    return gap


def test_a_look_that_counted_on_a_gap_record_that_was_refused_opens_nothing(gated: Gated) -> None:
    connections = cast(ClusterConnections, gated.connections)
    _made_anew(gated)
    assert not gated.may_send()
    gated.time += 1
    gated.ends.check(connections)
    gated.lane.halt = Halt("MESSAGE_TOO_LARGE", "its gap record")
    gated.lane.queue.clear()
    gated.ends.check(connections)
    assert gated.looks == 1
    assert not gated.may_send()
    gated.look()
    gated.settle()
    assert (gated.given_up, gated.ends.lost) == ([REMOTE], {})


@pytest.mark.parametrize("exactly_once", [False, True])
def test_nothing_is_sent_to_a_new_log_before_its_gap_record_is_acknowledged(
    gated: Gated, *, exactly_once: bool
) -> None:
    """That may be refused yet. A transaction is aborted then, and looks at that at its end."""
    gated.ends.flow = replace(FLOW, exactly_once=exactly_once)
    gap = _made_anew(gated)
    assert not gated.may_send()
    gated.look()
    assert gated.looks == 1
    assert gated.may_send() is exactly_once
    gap.batches_left = 0
    gated.look()
    assert gated.may_send()


def test_a_high_watermark_may_lag_for_a_while(gated: Gated) -> None:
    gated.ends.recheck(REMOTE)
    gated.view = EndView(0, 60, leader_epoch=5)
    assert not gated.may_send()
    for _ in range(3):
        gated.look()
        gated.settle()
        assert not gated.given_up
        assert not gated.may_send()
    gated.view = EndView(0, 100, leader_epoch=5)
    gated.look()
    assert gated.may_send()


def test_an_acknowledgement_that_goes_back_moves_no_position(gated: Gated) -> None:
    """What was written since is there: it is not mirrored a second time."""
    _pending(gated.lane, 50, 10, 100)
    _pending(gated.lane, 60, 10, 80)
    _pending(gated.lane, 70, 5, 90)
    _pending(gated.lane, 75, 5, -1)
    gated.lane.settle()
    assert (gated.lane.position, gated.lane.stuck) == (60, True)
    assert gated.ends.note_going_back(gated.lane)
    assert not gated.may_send()
    gated.settle()
    assert gated.given_up == [REMOTE]
    log = gated.lane.log
    assert (log.cut, log.there_first, log.there_end) == (80, 60, 75)


def test_a_transaction_takes_back_what_was_written_behind_a_loss(gated: Gated) -> None:
    _pending(gated.lane, 50, 10, 80)
    assert gated.ends.note_going_back(gated.lane)
    gated.settle(counts=False)
    log = gated.lane.log
    assert (log.cut, log.there_first, log.there_end) == (80, -1, -1)


def test_acknowledgements_in_any_order_are_no_loss(gated: Gated) -> None:
    """A batch whose answer came late keeps its place in the log."""
    first = _pending(gated.lane, 50, 10, -1)
    _pending(gated.lane, 60, 10, 110)
    assert gated.lane.settle() == []
    assert not gated.ends.note_going_back(gated.lane)
    first.offsets.acknowledged(10, 10, 100)
    first.batches_left = 0
    assert len(gated.lane.settle()) == 2
    assert (gated.lane.position, gated.lane.reached) == (70, 120)


def test_behind_a_gap_that_says_so_the_log_is_shorter(gated: Gated) -> None:
    gap = _pending(gated.lane, 50, 0, -1)
    gap.log, gap.log_end = replace(MARK, topic_id="anew"), 10
    _pending(gated.lane, 40, 10, 10)
    assert not gated.ends.note_going_back(gated.lane)
    assert gated.lane.logged_ahead() == (gap.log, 10)
    gap.batches_left = 0
    gated.lane.settle()
    assert (gated.lane.reached, gated.lane.log) == (20, gap.log)


def test_what_a_transaction_will_have_written_is_expected_behind_its_last_marker() -> None:
    lane = Lane(SOURCE, REMOTE, 50, target_end=100, marker=1, log=MARK)
    _pending(lane, 50, 10, -1)
    _pending(lane, 60, 5, -1)
    assert lane.ahead(expected=True) == (MARK, 116)
    assert lane.ahead(expected=False) == (MARK, 100)
    lane.queue.clear()
    _pending(lane, 50, 10, 101)
    assert lane.ahead(expected=True) == lane.ahead(expected=False) == (MARK, 111)

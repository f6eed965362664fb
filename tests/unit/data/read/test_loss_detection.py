"""What counts as lost at the source, and how it is written down: all pure."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkmirror.cli.main import main
from sparkmirror.cli.shared.settings_options import since_ms
from sparkmirror.cli.verbs.gaps import report
from sparkmirror.data.read import loss_detection
from sparkmirror.data.read.loss_detection import LossWatch, judge
from sparkmirror.errors import ConfigError
from sparkmirror.internal_topics.commands import SourcePartition
from sparkmirror.internal_topics.gaps import (
    Gap,
    GapAction,
    GapKind,
    collect_gaps,
    decode_gap,
    encode_gap,
    gaps_topic,
)
from sparkmirror.internal_topics.position_metadata import (
    Mark,
    PositionMetadata,
    decode_metadata,
    encode_metadata,
)
from sparkmirror.model import MirrorMode, TopicPartition
from sparkmirror.names.replication_policy import FaultPolicy
from sparkmirror.settings import ClusterClient, FaultSettings, FlowSettings
from sparkmirror.wire.cluster.log_view import LogView, describe_logs
from sparkmirror.wire.cluster.metadata import Leader

TP = TopicPartition("t", 3)
MARK = Mark("cluster", "topic", 5)
NONE = Mark()
A, B = (ClusterClient(name, (f"{name}:1",), "c") for name in "AB")
FLOW = FlowSettings(A, B, A, B)


# -- judging -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("position", "mark", "view"),
    [
        (7, NONE, LogView(0, 10)),
        (10, NONE, LogView(0, 10)),
        (0, NONE, LogView(0, 0)),
        (7, MARK, LogView(7, 10, 5, 10)),
        # The epoch has ended since, behind the position.
        (7, MARK, LogView(0, 20, 5, 8)),
        # The log ends where the high watermark does not yet: the epoch knows better.
        (10, MARK, LogView(0, 8, 5, 10)),
        # The broker cannot tell.
        (7, MARK, LogView(0, 10, -1, -1)),
        # The records of that epoch are deleted, the next one begins at the position.
        (7, MARK, LogView(7, 10, 5, 7)),
    ],
)
def test_nothing_is_lost(position: int, mark: Mark, view: LogView) -> None:
    assert judge(TP, position, mark, Mark("cluster", "topic"), view) is None
    assert judge(TP, position, mark, NONE, view) is None  # unknown ids prove nothing


@pytest.mark.parametrize(
    ("position", "mark", "view", "kind", "first", "last", "count", "resume"),
    [
        (5, NONE, LogView(15, 25), "deleted", 5, 14, 10, 15),
        (5, MARK, LogView(15, 25, 5, 15), "deleted", 5, 14, 10, 15),
        (12, NONE, LogView(0, 10), "truncated", 10, 11, 2, 10),
        (20, MARK, LogView(0, 35, 5, 10), "truncated", 10, 19, 10, 10),
        # No record of our epoch is left in the leader's log.
        (20, MARK, LogView(0, 35, 4, 10), "truncated", 10, 19, 10, 10),
        # Truncated to before what is left.
        (20, MARK, LogView(12, 35, 4, 10), "truncated", 10, 19, 10, 12),
        (5, replace(MARK, topic_id="old"), LogView(0, 9), "recreated", 5, None, None, 0),
        (5, replace(MARK, cluster_id="old"), LogView(2, 9), "cluster-replaced", 5, None, None, 2),
        (5, Mark("old", "old", 1), LogView(7, 9), "cluster-replaced", 5, None, None, 7),
        # The log has never had that epoch; it may be as long as before, or longer.
        (20, MARK, LogView(1, 35, latest=2), "cluster-replaced", 20, None, None, 1),
        (20, MARK, LogView(1, 15, latest=2), "cluster-replaced", 20, None, None, 1),
        (
            20,
            Mark("cluster", "", 5),
            LogView(1, 35, latest=0),
            "cluster-replaced",
            20,
            None,
            None,
            1,
        ),
    ],
)
def test_losses(position, mark, view, kind, first, last, count, resume) -> None:  # type: ignore[no-untyped-def]
    loss = judge(TP, position, mark, Mark("cluster", "topic"), view)
    assert loss is not None
    assert (loss.kind, loss.first, loss.last, loss.count) == (kind, first, last, count)
    assert loss.resume_at == resume
    assert str(TP) in loss.text


def test_a_topic_without_an_id_that_was_recreated_is_known_by_its_epoch() -> None:
    """Brokers before 2.8 have no topic ids."""
    loss = judge(TP, 20, Mark("c", "", 5), Mark("c"), LogView(1, 35, latest=0))
    assert loss is not None
    assert (loss.kind, loss.first, loss.resume_at) == ("recreated", 20, 1)


_OFFSETS = st.integers(0, 50)


@given(_OFFSETS, _OFFSETS, _OFFSETS, st.integers(-1, 3), st.integers(-1, 3), st.integers(-1, 60))
def test_no_offset_is_jumped_over_in_silence(
    position: int, start: int, length: int, epoch: int, told: int, end: int
) -> None:
    view = LogView(start, start + length, told, end)
    loss = judge(TP, position, Mark("c", "t", epoch), Mark("c", "t"), view)
    if loss is None:
        assert start <= position
        assert position <= max(view.end, view.epoch_end)
        return
    assert view.start <= loss.resume_at <= max(view.end, position, view.start)
    assert loss.last is not None
    assert loss.count == loss.last - loss.first + 1 > 0
    if loss.kind is GapKind.DELETED:
        # Everything from the position on is either in the record or still to come.
        assert (loss.first, loss.last + 1) == (position, loss.resume_at)
    else:
        # Whatever the log holds now from there on is mirrored.
        assert loss.resume_at == max(loss.first, view.start)
        assert loss.first < position == loss.last + 1


@pytest.mark.parametrize(
    ("settled", "waits", "decides"), [(True, (), 101.2), (False, (101.2, 130.0), 136.0)]
)
def test_a_high_watermark_may_lag_behind_an_election(
    settled: bool, waits: tuple[float, ...], decides: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old brokers do not say so, for as long as a follower may take."""
    connections: Any = SimpleNamespace(cluster_id="c", topic_ids={})
    flow = FlowSettings(A, B, A, B)
    watch = LossWatch(flow, [SourcePartition("t", 3, "A.t")], connections, {})
    watch.marks[TP] = Mark("c", "", 5)
    view = LogView(0, 140, -1, -1, 6, settled=settled)
    monkeypatch.setattr(loss_detection, "describe_logs", lambda *_, **__: {TP: view})
    for now_s in (100.0, *waits):
        monkeypatch.setattr(loss_detection.time, "monotonic", lambda now_s=now_s: now_s)
        assert watch.examine({TP: 150}) == {}
    monkeypatch.setattr(loss_detection.time, "monotonic", lambda: decides)
    (found,) = watch.examine({TP: 150}).values()
    assert found.halt is not None


def test_a_leader_that_was_cut_off_has_time_to_be_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Until then it says that it leads, and knows no later epoch."""
    connections: Any = SimpleNamespace(cluster_id="c", topic_ids={"t": "topic"})
    views = {TP: LogView(0, 90, latest=4)}
    monkeypatch.setattr(loss_detection, "describe_logs", lambda *_, **__: views)
    now = [100.0]
    monkeypatch.setattr(loss_detection.time, "monotonic", lambda: now[0])
    for truth in (LogView(0, 90, 5, 50, 5), views[TP]):
        watch = LossWatch(
            FlowSettings(A, B, A, B), [SourcePartition("t", 3, "A.t")], connections, {}
        )
        watch.marks[TP] = Mark("c", "topic", 5)
        views[TP] = LogView(0, 90, latest=4)
        assert watch.examine({TP: 50}) == {}
        now[0] += 30.0
        assert watch.examine({TP: 50}) == {}
        assert not watch.may_resume(TP)
        views[TP] = truth
        now[0] += 6.0
        halt = watch.examine({TP: 50})[TP].halt
        assert (halt is None) == (truth.latest < 0)
    assert halt is not None
    assert (halt.code, halt.retriable) == ("CLUSTER_REPLACED", False)


@pytest.mark.parametrize(
    ("wanted", "told", "sure", "version", "latest"),
    [
        (5, (-1, -1), True, 3, 2),
        (2, (-1, -1), True, 3, -1),  # no epochs are known of an old format's log
        (5, (2, 9), True, 3, -1),  # the log has records of earlier epochs only: they tell where
        (5, (-1, -1), False, 3, -1),  # the leader's own epoch may be a later one
        (5, (-1, -1), True, 2, -1),  # not asked: before 2.3
        (-1, (-1, -1), True, 3, -1),
    ],
)
def test_a_log_without_the_epoch_is_known_by_what_its_leader_says(
    wanted: int, told: tuple[int, int], sure: bool, version: int, latest: int
) -> None:
    def row(**values: Any) -> SimpleNamespace:
        part = SimpleNamespace(partition_index=3, partition=3, error_code=0, **values)
        return SimpleNamespace(topics=[SimpleNamespace(name="t", topic="t", partitions=[part])])

    answers = [row(offset=0), row(offset=90), row(leader_epoch=told[0], end_offset=told[1])]
    connection = SimpleNamespace(
        api_versions={23: (0, version), 2: (0, 5)}, request_all=lambda asked: answers[: len(asked)]
    )
    connections: Any = SimpleNamespace(
        leaders={TP: Leader(1, 2, sure)}, query_leaders=lambda led, ask, **_: ask(connection, led)
    )
    (view,) = describe_logs(connections, {TP: wanted}).values()
    assert view.latest == latest
    assert (view.start, view.end, view.leader_epoch) == (0, 90, 2)


@pytest.mark.parametrize(
    ("view", "topic_id", "goes_on"),
    [
        (LogView(7, 10, 5, 10), "topic", True),
        (LogView(7, 10, 5, 10), "anew", False),
        (LogView(0, 10, 5, 3), "topic", False),
        (LogView(0, 10, 5, 10), "topic", True),  # nothing is lost
    ],
)
def test_only_behind_deleted_records_a_log_goes_on_as_it_was(
    view: LogView, topic_id: str, goes_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a position says of later offsets holds for no others."""
    connections: Any = SimpleNamespace(cluster_id="cluster", topic_ids={"t": topic_id})
    flow = FlowSettings(A, B, A, B, faults=FaultSettings(source_loss="record-and-continue"))
    watch = LossWatch(flow, [SourcePartition("t", 3, "A.t")], connections, {})
    watch.marks[TP] = MARK
    monkeypatch.setattr(loss_detection, "describe_logs", lambda *_, **__: {TP: view})
    (found,) = watch.examine({TP: 5}).values()
    assert found.halt is None
    assert found.log_goes_on == goes_on


def test_silence_after_an_error_is_no_error_that_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A halt says what the source returns; only one that is there stays for as long as it lasts."""
    connections: Any = SimpleNamespace(cluster_id="c", topic_ids={})
    watch = LossWatch(FLOW, [SourcePartition("t", 3, "A.t")], connections, {})

    def look(now_s: float, *codes: int, view: LogView | None = None) -> str:
        def described(*_: object, refused: dict[TopicPartition, int], **__: object) -> Any:
            refused.update(dict.fromkeys([TP] if codes else [], *codes))
            return {} if view is None else {TP: view}

        monkeypatch.setattr(loss_detection, "describe_logs", described)
        monkeypatch.setattr(loss_detection.time, "monotonic", lambda: now_s)
        found = watch.examine({TP: 5}).get(TP)
        return "" if found is None or found.halt is None else found.halt.code

    assert look(0.0, 6) == ""
    assert look(31.0) == ""
    assert look(32.0, 6) == "NOT_LEADER_OR_FOLLOWER"
    assert look(33.0) == "NOT_LEADER_OR_FOLLOWER"
    assert look(34.0, view=LogView(0, 9)) == ""
    assert look(35.0, 6) == ""
    assert look(66.0) == "", "the halt before was another one"
    watch.forget(TP)
    assert watch._refused == watch._unanswered == {}


def test_a_log_that_nobody_answers_for_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition that begins while its leader is out of reach would only be missing."""
    connections: Any = SimpleNamespace(cluster_id="c", topic_ids={})
    watch = LossWatch(FLOW, [SourcePartition("t", 3, "A.t")], connections, {})
    views: dict[TopicPartition, LogView] = {}
    monkeypatch.setattr(loss_detection, "describe_logs", lambda *_, **__: views)

    def look(now_s: float) -> str:
        monkeypatch.setattr(loss_detection.time, "monotonic", lambda: now_s)
        found = watch.examine({TP: 5}).get(TP)
        return "" if found is None or found.halt is None else found.halt.code

    assert [look(now_s) for now_s in range(0, 31, 5)] == [""] * 7
    assert [look(35.0), look(36.0)] == ["BROKER_NOT_AVAILABLE"] * 2
    assert look(336.0) == "", "the flow was paused, and nobody looked"
    views[TP] = LogView(0, 9)
    assert look(340.0) == ""
    del views[TP]
    assert look(341.0) == ""


def test_a_leader_whose_silence_makes_looks_long_is_told_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each look waits twice as long as the one before, at last for the request timeout."""
    connections: Any = SimpleNamespace(cluster_id="c", topic_ids={})
    watch = LossWatch(FLOW, [SourcePartition("t", 3, "A.t")], connections, {})
    now_s, look_s = 100.0, 1.0

    def silent(*_: object, **__: object) -> dict[TopicPartition, LogView]:
        nonlocal now_s, look_s
        now_s, look_s = now_s + look_s, min(30.0, 2 * look_s)
        return {}

    monkeypatch.setattr(loss_detection, "describe_logs", silent)
    monkeypatch.setattr(loss_detection.time, "monotonic", lambda: now_s)
    while not (found := watch.examine({TP: 5})):
        now_s += 0.5
        assert now_s < 170
    assert found[TP].halt is not None
    assert found[TP].halt.code == "BROKER_NOT_AVAILABLE"
    assert now_s > 130


# -- marks -------------------------------------------------------------------------------------


@given(st.builds(Mark, st.text(max_size=9), st.text(max_size=9), st.integers(-1, 9)))
def test_marks_survive_the_metadata(mark: Mark) -> None:
    assert decode_metadata(encode_metadata(PositionMetadata(mark))).source == mark


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"source_topic_id": 3, "source_leader_epoch": "4"}', "[" * 9999],
)
def test_metadata_of_others_says_nothing(text: str) -> None:
    assert decode_metadata(text).source == NONE


def test_the_metadata_of_earlier_releases() -> None:
    assert decode_metadata('{"source_topic_id": "x"}').source == Mark(topic_id="x")


# -- records -----------------------------------------------------------------------------------

GAP = Gap(
    flow="A->B",
    source=TP,
    remote_topic="A.t",
    kind=GapKind.DELETED,
    action=GapAction.CONTINUED,
    first=5,
    last=14,
    count=10,
    resumed_at=15,
    code="OFFSETS_DELETED",
    reason="gone",
    time_ms=1_700_000_000_000,
)


@pytest.mark.parametrize("gap", [GAP, replace(GAP, last=None, count=None, resumed_at=None)])
def test_gap_records_round_trip(gap: Gap) -> None:
    key, value = encode_gap(gap)
    assert decode_gap(value) == gap
    assert json.loads(key) == ["A->B", "t", 3, "deleted", 5]


@pytest.mark.parametrize("value", [None, b"", b"x", b"[]", b"3", b'{"flow": "f"}', b"\xff"])
def test_garbage_is_no_gap(value: bytes | None) -> None:
    assert decode_gap(value) is None


def test_the_newest_record_of_a_gap_counts() -> None:
    later = replace(GAP, action=GapAction.STOPPED, time_ms=GAP.time_ms + 1)
    other = replace(GAP, first=6)
    records = [encode_gap(gap) for gap in (GAP, other, later)]
    assert collect_gaps([(b"?", b"garbage"), *records]) == [other, later]
    assert collect_gaps([*records, (records[1][0], None)]) == [later]


def test_gap_topics_are_internal_ones_to_mirrormaker() -> None:
    assert gaps_topic(FLOW) == "mm2-sparkmirror-gaps.A.internal"
    old = replace(FLOW, mode=MirrorMode.MM1, group_id="g")
    assert gaps_topic(old).startswith("mm2-sparkmirror-gaps.mm1-")


# -- the choice --------------------------------------------------------------------------------


def test_the_more_careful_choice_wins() -> None:
    policy = FaultPolicy(
        FaultSettings(
            source_loss="record-and-continue",
            source_loss_fail=("pay.*",),
            source_loss_continue=("pay-test", "logs"),
        )
    )
    chosen = {name: policy.source_loss(name) for name in ("payments", "pay-test", "logs", "x")}
    assert chosen == {
        "payments": "fail",
        "pay-test": "fail",
        "logs": "record-and-continue",
        "x": "record-and-continue",
    }
    assert FaultPolicy(FaultSettings()).source_loss("x") == "fail"


# -- the command -------------------------------------------------------------------------------


def test_since() -> None:
    now_s = 1_000_000.0
    assert since_ms("90s", now_s) == 999_910_000
    assert since_ms("2h", now_s) == (1_000_000 - 7_200) * 1000
    assert since_ms(" 1d ", now_s) == (1_000_000 - 86_400) * 1000
    assert since_ms("1970-01-01T00:01:00Z", now_s) == 60_000
    midnight = datetime(2026, 1, 31).timestamp()
    assert since_ms("2026-01-31", now_s) == midnight * 1000
    for wrong in ("yesterday", "5", "5w", "2026-13-01", "-1h"):
        with pytest.raises(ConfigError, match="neither a duration nor a date"):
            since_ms(wrong, now_s)


def test_the_table() -> None:
    lines = report([GAP, replace(GAP, last=None, count=None, resumed_at=None)]).lines()
    assert lines[0].split()[:4] == ["TIME", "FLOW", "TOPIC", "PARTITION"]
    assert lines[1].split() == [
        *("2023-11-14T22:13:20Z", "A->B", "t", "3", "deleted", "continued"),
        *("5", "14", "10", "15", "gone"),
    ]
    assert lines[2].split()[6:10] == ["5", "-", "-", "-"]
    assert report([]).lines() == ["no gaps"]


def test_a_target_that_is_away(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    consumer, producer = tmp_path / "c", tmp_path / "p"
    consumer.write_text("bootstrap.servers=127.0.0.1:1\ngroup.id=g\n")
    producer.write_text("bootstrap.servers=127.0.0.1:1\nrequest.timeout.ms=1000\nlinger.ms=0\n")
    files = ["--consumer.config", str(consumer), "--producer.config", str(producer)]
    assert main(["gaps", *files]) == 3
    assert "Traceback" not in capsys.readouterr().err

"""What happened to a flow: what is noted, what is kept, and how it is shown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkmirror.cli.main import main
from sparkmirror.cli.verbs import history as verb
from sparkmirror.control.coordination.control_topic import ControlSignals, ControlTopicReader
from sparkmirror.control.flow import FlowControl
from sparkmirror.control.jobs import run_once
from sparkmirror.control.loop import ControlLoop
from sparkmirror.control.report.history import HaltWatch, History, read_history, standing_still
from sparkmirror.errors import Denied, MirrorError, Unreachable
from sparkmirror.internal_topics.commands import (
    PROGRESS_PARTITION,
    Command,
    CommandKind,
    control_topic,
)
from sparkmirror.internal_topics.driver_report import DriverReport, encode_driver_report
from sparkmirror.internal_topics.gaps import Gap, GapAction, GapKind, encode_gap
from sparkmirror.internal_topics.history import (
    KEPT_MAX,
    RUN_MAX,
    Event,
    EventKind,
    decode_event,
    encode_event,
    is_event_key,
)
from sparkmirror.internal_topics.reports import decode_halted, decode_planned, decode_progress
from sparkmirror.model import TopicPartition
from sparkmirror.progress import Halt, PartitionProgress, SlotProgress
from sparkmirror.settings import FlowSettings
from sparkmirror.wire.admin.cluster import Cluster
from tests.unit.config_files import BASE, load_flow, write

FLOW = "A->B"
NOW = 1_700_000_000_000
HOUR_S = 3_600
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Target:
    """A cluster with a control topic that keeps the newest record of each key, and gap records."""

    def __init__(self, *, topic: bool = True) -> None:
        self.log: list[tuple[int, bytes | None, bytes | None]] = []
        self.gaps: list[Gap] = []
        self.away = self.hides_gaps = False
        self._topic = topic
        self.refuses: MirrorError | None = None

    def topics(self, names: Sequence[str]) -> dict[str, object]:
        return dict.fromkeys(names, object()) if self._topic else {}

    def literal_errors(self, names: Sequence[str], *, operation: str) -> dict[str, MirrorError]:
        return {name: self.refuses for name in names if self.refuses and operation == "Read"}

    def read_compacted(
        self, topic: str, *, partitions: Sequence[int] = (0,), passes: bool = False
    ) -> list[tuple[int, bytes | None, bytes | None]]:
        if topic == "mm2-sparkmirror-gaps.A.internal":
            if self.hides_gaps:
                raise Denied("Read is missing", where="cluster B", do="grant Read")
            return [(0, *encode_gap(gap)) for gap in self.gaps]
        assert topic.startswith("mm2-sparkmirror.")
        assert (list(partitions), passes) == ([PROGRESS_PARTITION], True)
        return list(self.log)

    def produce_many(self, topic: str, records: list[Any]) -> None:
        assert topic.startswith("mm2-sparkmirror.")
        if self.away:
            raise Unreachable("No broker answers.", where="cluster B")
        self.log += records


@pytest.fixture
def flow(tmp_path: Path) -> FlowSettings:
    return load_flow(tmp_path, BASE)


@pytest.fixture
def target() -> Target:
    return Target()


def _history(target: Target, flow: FlowSettings, run_id: str = "r2", at: int = NOW) -> History:
    return History(cast(Cluster, target), flow, run_id, now_ms=lambda: at)


def _read(target: Target, flow: FlowSettings) -> list[Event]:
    found = read_history(cast(Cluster, target), flow)
    assert found is not None
    return found


@given(
    st.builds(
        Event,
        st.just(FLOW),
        st.integers(0, 1 << 60),
        st.sampled_from(EventKind),
        st.text(max_size=50),
        st.text(max_size=5),
        st.just("run"),
        st.text(max_size=5),
    ),
    st.integers(0, 10_000),
)
def test_an_event_goes_round_and_is_nothing_else(event: Event, number: int) -> None:
    key, value = encode_event(event, number)
    assert decode_event(key, value) == event
    assert is_event_key(key)
    assert decode_progress(key, value) is None
    assert decode_planned(key, value) is None
    assert decode_halted(FLOW, 0, ("run", 0), key, value) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"{}"),
        (b"A->B/0", b"{}"),
        (b"A->B/driver", b"{}"),
        (b"A->B/history/run-1", b"{}"),
        (b"A->B/history/run-1", None),
        (b"A->B/history/run-1", b"[" * 100_000),
        (b"A->B/history/run-1", b'{"time_ms":1,"kind":"other","text":""}'),
        (b"A->B/history/run-1", b'{"time_ms":Infinity,"kind":"stop","text":""}'),
    ],
)
def test_what_is_no_event(key: bytes | None, value: bytes | None) -> None:
    assert decode_event(key, value) is None


def test_what_was_noted_is_read_in_the_order_of_the_topic(
    target: Target, flow: FlowSettings
) -> None:
    """The clock of the second host is an hour behind."""
    notes = _history(target, flow)
    notes.begin("1.0", 7, once=False)
    notes.note(EventKind.REPAIR, "t-0: 5 records written again", code="TARGET_TRUNCATED")
    notes.note_reason("stopped by SIGTERM")
    notes.note_reason("stopped by SIGTERM")
    notes.end(drained=True)
    _history(target, flow, "r1", NOW - HOUR_S * 1_000).end(drained=False)
    found = _read(target, flow)
    assert [(one.kind, one.text, one.code, one.run_id) for one in found] == [
        (EventKind.START, "sparkmirror 1.0 with 7 partitions", "", "r2"),
        (EventKind.REPAIR, "t-0: 5 records written again", "TARGET_TRUNCATED", "r2"),
        (EventKind.STOP, "stopped by SIGTERM; everything read was written", "", "r2"),
        (EventKind.STOP, "not drained", "", "r1"),
    ]
    assert all(one.host and one.flow == FLOW for one in found)


def test_what_could_not_be_written_waits(target: Target, flow: FlowSettings) -> None:
    notes = _history(target, flow)
    notes.note(EventKind.GAP, "one")
    target.away = True
    with pytest.raises(Unreachable):
        notes.flush()
    notes.note(EventKind.GAP, "two")
    target.away = False
    notes.flush()
    notes.flush()
    assert [one.text for one in _read(target, flow)] == ["one", "two"]


def test_losses_that_no_driver_has_noted_are_told_all_the_same(
    target: Target, flow: FlowSettings
) -> None:
    """It is killed before it looks, or there were too many at once for a note of each."""
    lost = [
        Gap(
            FLOW, TopicPartition("t", n), "A.t", GapKind.TARGET_TRUNCATED, GapAction.REPAIRED,
            3, 8, 6, 3, "TARGET_TRUNCATED", f"t-{n} was truncated", NOW + n,
        )
        for n in range(40)
    ]  # fmt: skip
    skipped = replace(lost[0], kind=GapKind.REFUSED, code="RECORD_SKIPPED", time_ms=NOW + 1)
    target.gaps = [replace(lost[0], time_ms=NOW - 1, first=1), *lost, skipped]
    assert _read(target, flow) == [], "of a release that kept no history"
    notes = _history(target, flow)
    notes.begin("1.0", 40, once=False)
    for gap in lost[:10]:
        notes.note_gap(gap)
    notes.flush()
    found = _read(target, flow)
    told = [one.text for one in found if one.kind is EventKind.REPAIR]
    assert sorted(told) == sorted(f"t-{n} was truncated (repaired at offset 3)" for n in range(40))
    assert len(found) == 41, "records that were left out are for `gaps` to list"
    assert {one.host != "" for one in found[:11]} == {True}
    assert {(one.run_id, one.host) for one in found[11:]} == {("", "")}
    target.hides_gaps = True
    assert len(_read(target, flow)) == 11


@pytest.mark.parametrize("later_ms", [1, -HOUR_S * 1_000])
def test_a_history_is_bounded(target: Target, flow: FlowSettings, later_ms: int) -> None:
    """Whatever the clocks of the later runs' hosts say."""
    for run in range(6):
        notes = _history(target, flow, f"r{run}", NOW + run * later_ms)
        for number in range(RUN_MAX + 50):
            notes.note(EventKind.GAP, f"{run}/{number}")
            if number % 100 == 0:
                notes.flush()
        notes.flush()
    found = _read(target, flow)
    assert KEPT_MAX < len(found) <= KEPT_MAX + RUN_MAX
    assert found[-1].text == f"5/{RUN_MAX + 49}"
    assert not any(one.run_id == "r0" for one in found), "the oldest go first"


def _report(run_id: str, *, ago_s: int, ended: bool = False) -> tuple[int, bytes, bytes]:
    made = DriverReport(FLOW, run_id, "h:9", "1", 0, NOW - ago_s * 1_000, ended=ended)
    return (PROGRESS_PARTITION, *encode_driver_report(made))


@pytest.mark.parametrize("ago_s", [60, 5, HOUR_S, -HOUR_S])
@pytest.mark.parametrize(
    ("taken", "ended", "kind"),
    [
        ("", False, EventKind.LOST),
        ("", True, None),
        ("from run r1, host h:9, which has not reported for 10.2 s", False, EventKind.TAKEOVER),
        ("from run r1, host h:9, which had ended", True, EventKind.TAKEOVER),
    ],
)
def test_a_start_notes_what_became_of_the_run_before_whatever_clocks_say(
    target: Target, flow: FlowSettings, ago_s: int, taken: str, ended: bool, kind: EventKind | None
) -> None:
    # What this run has reported before it came to look is no other run's.
    target.log += [_report("r1", ago_s=ago_s, ended=ended), _report("r2", ago_s=1)]
    notes = _history(target, flow)
    notes.taken = taken
    notes.begin("1.0", 7, once=False)
    notes.flush()
    *found, start = _read(target, flow)
    assert start.kind is EventKind.START
    assert [one.kind for one in found] == ([] if kind is None else [kind])
    if kind is EventKind.LOST:
        assert "run r1 on h:9 ended without reporting its end" in found[0].text
        assert found[0].time_ms == NOW - ago_s * 1_000
    elif kind is not None:
        assert (found[0].text, found[0].time_ms) == (taken, NOW)


def test_a_partition_that_is_tried_again_and_again_stops_once(
    target: Target, flow: FlowSettings
) -> None:
    notes = _history(target, flow)
    watch = HaltWatch(notes)
    refused, denied = Halt("INVALID_RECORD", "no key"), Halt("DENIED", "no permission")
    for minute in range(10):
        watch.observe({T0: refused, T1: refused}, NOW + minute * 60_000, {T0, T1})
        watch.observe({T1: refused}, NOW + minute * 60_000 + 30_000, {T0, T1})  # it is tried again
    watch.observe({T1: denied}, NOW + 600_000, {T0, T1})
    watch.observe({T1: denied}, NOW + 800_000, {T0, T1})
    watch.observe({T1: denied}, NOW + 900_000, {T0, T1})
    notes.flush()
    assert [(one.kind.value, one.code, one.text) for one in _read(target, flow)] == [
        ("halt", "INVALID_RECORD", "t-0 stopped: no key"),
        ("halt", "INVALID_RECORD", "t-1 stopped: no key"),
        ("halt", "DENIED", "t-1 stopped: no permission"),
        ("goes-on", "", "t-0 is mirrored again"),
    ]


def test_thousands_that_stop_at_once_are_few_events(target: Target, flow: FlowSettings) -> None:
    notes = _history(target, flow)
    watch = HaltWatch(notes)
    many = {TopicPartition("t", n): Halt("DENIED", "no") for n in range(3_000)}
    watch.observe(many, NOW, many.keys())
    watch.observe({}, NOW + 1, many.keys())
    watch.observe({}, NOW + 600_000, many.keys())
    notes.flush()
    found = _read(target, flow)
    assert len(found) == 42
    assert [one.text for one in found if "more" in one.text] == [
        "2980 more partitions stopped",
        "2980 more partitions are mirrored again",
    ]


def test_the_newest_report_says_whether_a_partition_stands_still() -> None:
    """The last one of the latest epoch. Clocks of two hosts differ."""

    def report(slot: int, epoch: int, at: int, *rows: PartitionProgress) -> SlotProgress:
        return SlotProgress(FLOW, slot, "w", epoch, at, 1, 1, 1, partitions=rows)

    halt = Halt("X", "x")
    old = report(0, 1, 9, PartitionProgress("t", 0, 5, halt=halt))
    new = report(1, 1, 2, PartitionProgress("t", 0, 5), PartitionProgress("t", 1, 5, halt=halt))
    assert standing_still({}, [old, new]) == {T1: halt}
    later = report(2, 2, 1, PartitionProgress("t", 0, 5, halt=halt))
    assert standing_still({}, [later, old, new]) == {T0: halt, T1: halt}
    assert standing_still({T0: halt}, [new]) == {T0: halt, T1: halt}


# -- the driver --------------------------------------------------------------------------------


def test_a_drain_that_was_cut_short_has_not_written_everything(
    target: Target, flow: FlowSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = FlowControl(flow, "r2", lambda _: None, now_ms=lambda: NOW)
    monkeypatch.setattr(control.history, "_target", target)
    monkeypatch.setattr(control.reports, "write", lambda *, ended: None)
    control.published.draining = True
    control.write_last_report()
    assert [one.text for one in _read(target, flow)] == ["not drained"]
    control.close()


def test_a_run_notes_what_it_sees(
    target: Target, flow: FlowSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = FlowControl(flow, "r2", lambda _: None, now_ms=lambda: NOW)
    monkeypatch.setattr(control.history, "_target", target)
    monkeypatch.setattr(
        control, "drain", lambda *, again: setattr(control.published, "draining", True)
    )
    monkeypatch.setattr(control.reports, "write", lambda *, ended: None)
    row = PartitionProgress("t", 0, 5, halt=Halt("DENIED", "no permission"))
    told = SlotProgress(FLOW, 0, "w", 1, NOW, 1, 1, 1, partitions=(row,), run_id="r2", attempt=1)
    signals = ControlSignals(
        (
            Command(FLOW, CommandKind.PAUSE, "", NOW),
            Command(FLOW, CommandKind.DRAIN, "r2", NOW),
        ),
        progress=(told,),
    )
    reader = SimpleNamespace(poll=lambda _: signals, close=lambda: None)
    control.slots._reader = cast(ControlTopicReader, reader)
    lost = Gap(
        FLOW, T0, "A.t", GapKind.TARGET_RECREATED, GapAction.REPAIRED, 3, 8, 6, 3, "RECREATED",
        "made anew", NOW,
    )  # fmt: skip
    for one in (lost, replace(lost, action=GapAction.CONTINUED, resumed_at=9)):
        control.slots.gaps._take(one)
    control.slots.gaps._tell()
    run_once(control.slots)
    run_once(control.slots)
    control.end()
    control.write_last_report()
    assert [(one.kind.value, one.text) for one in _read(target, flow)] == [
        ("repair", "made anew (repaired at offset 3)"),
        ("gap", "made anew (continued at offset 9)"),
        ("halt", "t-0 stopped: no permission"),
        ("pause", "an operator asked for it"),
        ("drain", "an operator asked for it"),
        ("stop", "everything read was written"),
    ]
    control.close()


def test_who_takes_over_notes_no_gaps_of_the_time_when_it_stood_by(
    target: Target, flow: FlowSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner of then has noted them, with its host and the time."""
    clock = [NOW]
    control = FlowControl(flow, "r2", lambda _: None, now_ms=lambda: clock[0])
    monkeypatch.setattr(control.history, "_target", target)

    def away() -> None:
        raise Unreachable("No broker answers.", where="cluster A")

    monkeypatch.setattr(control.topics, "observe", away)
    clock[0] += HOUR_S * 1_000
    with pytest.raises(Unreachable):
        control.begin()
    gap = Gap(
        FLOW, T0, "A.t", GapKind.DELETED, GapAction.CONTINUED, 3, 8, 6, 9, "OFFSETS_DELETED",
        "while it stood by", NOW + 1,
    )  # fmt: skip
    for one in (gap, replace(gap, reason="since", time_ms=clock[0])):
        control.slots.gaps._take(one)
    control.slots.gaps._tell()
    control.history.flush()
    assert [one.text for one in _read(target, flow)] == ["since (continued at offset 9)"]
    control.close()


def test_events_are_no_strangers_records(target: Target, flow: FlowSettings) -> None:
    notes = _history(target, flow)
    notes.note(EventKind.START, "x")
    notes.flush()
    tail = SimpleNamespace(poll=lambda _: target.log)
    reader = ControlTopicReader(
        cast(Cluster, SimpleNamespace(tail=lambda *_, **__: tail)), control_topic(flow)
    )
    assert reader.poll().skipped == 0


def test_a_loop_tells_all_flows_why_it_ends(tmp_path: Path) -> None:
    from sparkmirror.config.mm2.load import load_mm2

    loop = ControlLoop(load_mm2(write(tmp_path, BASE)), once=False, run_id="r")
    loop.note_reason("stopped by SIGTERM")
    assert [flow.history._reasons for flow in loop._flows.values()] == [["stopped by SIGTERM"]]
    loop.stop()


# -- the verb ----------------------------------------------------------------------------------


def _shown(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    found: object,
    *arguments: str,
) -> str:
    path = write(tmp_path, BASE)
    monkeypatch.setattr(verb, "query_targets", lambda *_: ([(FLOW, found)], []))
    assert main(["history", str(path), *arguments]) == 0
    return capsys.readouterr().out


EVENTS = [
    Event(FLOW, NOW + n * 1_000, EventKind.HALT, f"t-{n} stopped", "DENIED", "r2", "h:1")
    for n in range(5)
]


def test_events_are_listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = _shown(monkeypatch, capsys, tmp_path, EVENTS, "--limit", "2")
    lines = text.splitlines()
    assert lines[0].split() == ["TIME", "FLOW", "EVENT", "HOST", "RUN", "CODE", "WHAT"]
    assert lines[1].split(maxsplit=6) == [
        "2023-11-14T22:13:23Z", FLOW, "halt", "h:1", "r2", "DENIED", "t-3 stopped",
    ]  # fmt: skip
    assert len(lines) == 3
    since = ("--since", "2023-11-14T22:13:24Z", "--format", "json")
    (event,) = json.loads(_shown(monkeypatch, capsys, tmp_path, EVENTS, *since))["events"]
    assert event == {
        "time_ms": NOW + 4_000, "flow": FLOW, "kind": "halt", "text": "t-4 stopped",
        "code": "DENIED", "run_id": "r2", "host": "h:1",
    }  # fmt: skip
    text = _shown(monkeypatch, capsys, tmp_path, EVENTS, "--since", "1s")
    assert "no events since then" in text


def test_a_host_whose_clock_is_behind_comes_after_the_one_that_it_took_over_from(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    behind = replace(EVENTS[0], time_ms=NOW - HOUR_S * 1_000, host="behind:1")
    text = _shown(monkeypatch, capsys, tmp_path, [*EVENTS, behind], "--limit", "2")
    assert [line.split()[3] for line in text.splitlines()[1:]] == ["h:1", "behind:1"]


def test_where_there_is_no_history_that_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert "A->B: never ran" in _shown(monkeypatch, capsys, tmp_path, None)
    text = _shown(monkeypatch, capsys, tmp_path, [])
    assert "A->B: its control topic is from a release without history" in text


def test_a_topic_that_is_not_there_has_no_history(flow: FlowSettings) -> None:
    assert read_history(cast(Cluster, Target(topic=False)), flow) is None


def test_a_topic_that_may_not_be_seen_is_not_one_that_is_not_there(flow: FlowSettings) -> None:
    target = Target(topic=False)
    target.refuses = Denied("no Describe", where="cluster B")
    with pytest.raises(Denied, match="no Describe"):
        read_history(cast(Cluster, target), flow)


def test_a_partition_whose_topic_is_gone_is_not_mirrored_again(
    target: Target, flow: FlowSettings
) -> None:
    notes = _history(target, flow)
    watch = HaltWatch(notes)
    watch.observe({T0: Halt("X", "x")}, NOW, {T0, T1})
    for later_ms in (1, 200_000):
        watch.observe({}, NOW + later_ms, {T1})
    notes.flush()
    assert [one.kind.value for one in _read(target, flow)] == ["halt"]

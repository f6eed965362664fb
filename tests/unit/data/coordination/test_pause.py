"""A sink that stood still writes nothing before it has looked who has the flow."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparkmirror.data.coordination import pause
from sparkmirror.data.coordination.pause import PauseWatch
from sparkmirror.data.coordination.slot_plan import encode_flow, plan_slots
from sparkmirror.data.read import slot_reader
from sparkmirror.data.read.slot_reader import SlotReader
from sparkmirror.data.rows.notes import Owner
from sparkmirror.data.rows.rows import read_row
from sparkmirror.data.spark_source import _Planner
from sparkmirror.errors import Fenced, MirrorError, Unreachable
from sparkmirror.internal_topics.commands import AssignmentDocument, SourcePartition
from sparkmirror.internal_topics.flow_claims import Claim
from sparkmirror.settings import ClusterClient, FlowSettings
from sparkmirror.ticks import ticks_s

A, B = (ClusterClient(name, (f"{name}:1",), "c") for name in "AB")
FLOW = FlowSettings(A, B, A, B, session_ms=10_000)
MINE, THEIRS = Claim(FLOW.name, "mine", 0), Claim(FLOW.name, "theirs", 0, "h2")


class Topic:
    """The claims at the target; ``away`` looks fail, the others take ``looks_s``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        self.looks_s: list[float] = []
        self.claim: Claim | None = MINE
        self.away = self.looks = 0
        self.cut_off = False
        self.started: list[tuple[int, int]] = []
        topic = self

        class Watch:
            def __init__(self, *_: object, offset: int, claim_term: int) -> None:
                topic.started.append((offset, claim_term))
                self.claim: Claim | None = None
                self.again = False

            def start(self) -> None:
                if topic.away:
                    topic.away -= 1
                    raise Unreachable("no answer")

            def read_to_end(self) -> bool:
                topic.looks += 1
                if topic.cut_off and not self.again:
                    self.again = True  # the next call begins with the log that is there
                    return False
                topic.now_s += topic.looks_s.pop(0) if topic.looks_s else 0.01
                self.claim = topic.claim
                return True

            def close(self) -> None:
                pass

        monkeypatch.setattr(pause, "ControlWatch", Watch)

    def watch(self) -> PauseWatch:
        return PauseWatch(FLOW, "mine", 7, 3, rest=lambda _: None, now_s=lambda: self.now_s)


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> Topic:
    return Topic(monkeypatch)


def test_a_sink_that_comes_round_asks_nobody(topic: Topic) -> None:
    watch = topic.watch()
    for _ in range(100):
        topic.now_s += 4.9
        watch.before_write()
        topic.now_s += 4.9
        watch.tick()
    assert topic.looks == 0


@pytest.mark.parametrize("noticed_by_tick", [False, True])
def test_after_half_a_session_it_looks_before_it_writes(
    topic: Topic, noticed_by_tick: bool
) -> None:
    watch = topic.watch()
    topic.now_s += 5.1
    if noticed_by_tick:
        watch.tick()
        assert topic.looks == 0
    watch.before_write()
    assert topic.looks == 1
    assert topic.started == [(7, 3)]
    watch.before_write()
    assert topic.looks == 1, "once for each pause"
    topic.now_s += 5.1
    topic.claim = THEIRS
    for _ in range(2):
        with pytest.raises(Fenced, match="run theirs, host h2"):
            watch.before_write()


def test_a_look_that_took_as_long_says_nothing(topic: Topic) -> None:
    """Somebody may have claimed the flow since its answer left the broker."""
    watch = topic.watch()
    topic.now_s += 60
    topic.looks_s = [6.0, 0.1]
    watch.before_write()
    assert topic.looks == 2


def test_a_target_that_is_away_is_waited_for(topic: Topic) -> None:
    watch = topic.watch()
    topic.now_s += 60
    topic.away = 3
    watch.before_write()
    assert (topic.looks, len(topic.started)) == (1, 4)


def test_a_topic_that_was_cut_off_is_read_from_its_beginning(topic: Topic) -> None:
    """Only the reader that has found that out does so; a new one would find it out once more."""
    watch = topic.watch()
    topic.now_s += 60
    topic.cut_off = True

    def rest(_: float) -> None:
        assert topic.looks < 5, "it never ends"

    watch._rest = rest
    watch.before_write()
    assert (topic.looks, len(topic.started)) == (2, 1)


def test_it_waits_no_longer_than_spark_does(topic: Topic) -> None:
    def rest(_: float) -> None:
        raise MirrorError("Spark has given up this attempt")

    watch = PauseWatch(FLOW, "mine", 7, 3, rest=rest, now_s=lambda: topic.now_s)
    topic.now_s += 60
    topic.away = 3
    with pytest.raises(MirrorError, match="given up"):
        watch.before_write()
    assert topic.looks == 0


def test_a_longer_session_is_more_patient(topic: Topic) -> None:
    flow = replace(FLOW, session_ms=60_000)
    watch = PauseWatch(flow, "mine", 7, 3, now_s=lambda: topic.now_s)
    topic.now_s += 29
    watch.before_write()
    assert topic.looks == 0
    topic.now_s += 31
    watch.before_write()
    assert topic.looks == 1


class _Control:
    """What the planner hears: an assignment of its run, and the newest claim."""

    paused, offset, command, limits, deal = False, 9, None, None, None

    def __init__(self, claim: Claim | None) -> None:
        self.claim = claim
        partition = SourcePartition("t", 0, "A.t")
        self.assignment = AssignmentDocument(FLOW.name, "mine", 1, (partition,))

    def catch_up(self) -> None:
        pass


def test_no_epoch_is_planned_of_a_flow_that_another_run_has() -> None:
    planner = _Planner({"flow": encode_flow(FLOW), "run_id": "mine", "once": "false"})
    for claim in (None, MINE):
        planner._watch = _Control(claim)  # type: ignore[assignment]
        assert len(planner.partitions({"epoch": 0}, {"epoch": 1})) == 1
    planner._watch = _Control(THEIRS)  # type: ignore[assignment]
    with pytest.raises(Fenced, match="run theirs, host h2"):
        planner.partitions({"epoch": 0}, {"epoch": 1})


def _reader(flow: FlowSettings) -> SlotReader:
    partition = SourcePartition("t", 0, "A.t")
    (plan,) = plan_slots(
        [partition], slots_max=1, epoch=1, run_id="mine", ends=None, control_offset=9, claim_term=4
    )
    return SlotReader(flow, plan)


def test_a_slot_that_hears_nothing_of_claims_fetches_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For three quarters of a session nobody can have taken the flow over; then somebody may."""
    for exactly_once, waits in ((False, True), (True, False)):
        reader = _reader(replace(FLOW, exactly_once=exactly_once))
        sent: list[str] = []
        monkeypatch.setattr(reader._fetcher, "send", lambda said=sent: said.append("fetch"))
        for silent_s in (7.0, 8.0):
            reader._watch.responded_s = ticks_s() - silent_s
            reader._send_fetches()
        assert len(sent) == (1 if waits else 2)
        reader._watch.responded_s = ticks_s()
        reader._send_fetches()
        assert len(sent) == (2 if waits else 3), "it goes on once it hears again"
        reader._watch.close()


@pytest.mark.parametrize("paused_s", [1.0, 60.0])
def test_after_a_long_pause_a_slot_waits_for_new_metadata_of_its_source(
    paused_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator's pause, or one in which nothing was heard of claims: nobody looked meanwhile."""
    now_s = ticks_s()
    monkeypatch.setattr(slot_reader, "ticks_s", lambda: now_s)
    reader = _reader(replace(FLOW, exactly_once=True))
    did: list[str] = []
    monkeypatch.setattr(reader._fetcher, "send", lambda: did.append("fetch"))
    monkeypatch.setattr(reader._fetcher, "await_metadata", lambda: did.append("look"))
    reader._send_fetches()
    for _ in range(2):
        reader._watch.paused = True
        now_s += paused_s
        reader._send_fetches()
        reader._watch.paused = False
        reader._send_fetches()
        reader._send_fetches()
    after = ["fetch", "fetch"] if paused_s < 10 else ["look", "fetch", "fetch"]
    assert did == ["fetch", *after, *after]
    reader._watch.close()


def test_a_slot_tells_its_sink_whose_flow_it_is() -> None:
    for exactly_once, owner in ((False, Owner("mine", 9, 4)), (True, None)):
        reader = _reader(replace(FLOW, exactly_once=exactly_once))
        notes = read_row(reader._hello({}), 0)[2]
        assert notes is not None
        assert notes.hello is not None
        assert notes.hello.owner == owner
        reader._watch.close()
        reader._frames.close()

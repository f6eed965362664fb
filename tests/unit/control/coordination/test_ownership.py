"""Processes of one file at one control topic: who begins, who stands by, who has to end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sparkmirror.control.coordination import claim, contest, ownership
from sparkmirror.control.coordination.ownership import Ownership, content_of
from sparkmirror.errors import ClusterError, Denied, Unreachable
from sparkmirror.internal_topics.commands import control_topic
from sparkmirror.internal_topics.driver_report import DriverReport, encode_driver_report
from sparkmirror.internal_topics.flow_claims import (
    Claim,
    Standby,
    claim_signer,
    decode_standby,
    encode_claim,
)
from sparkmirror.model import TopicPartition
from sparkmirror.settings import ClusterClient, FlowSettings, TopicSettings
from sparkmirror.wire.admin.cluster import Cluster

A, B = (ClusterClient(name, (f"{name}:1",), "c") for name in "AB")
FLOW = FlowSettings(A, B, A, B)
Record = tuple[int, bytes, bytes | None]


class Target:
    """A cluster with one control topic, and a clock that all processes of a test share."""

    def __init__(self) -> None:
        self.alias = "B"
        self.now_s = 100.0
        self.away = self.denied = self.unreadable = False
        self.records: list[Record] = []

    def end_offsets(self, wanted: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        if self.away:
            raise Unreachable("no answer", where="cluster B")
        if self.unreadable:
            raise Denied("Read is missing", where="cluster B", do="grant Read")
        return dict.fromkeys(wanted, len(self.records))

    def tail(self, topic: str, *, partitions: list[int], passes: bool) -> Tail:
        assert topic == control_topic(FLOW)
        self.end_offsets([])
        return Tail(self, partitions)

    def read_compacted(self, topic: str, **_: object) -> Iterator[Record]:
        return iter([one for one in self.records if one[0] == 0])

    def produce_many(self, topic: str, records: Iterable[Record]) -> None:
        if self.denied:
            raise Denied("Write is missing", where="cluster B", do="grant Write")
        self.end_offsets([])
        self.records += records

    def compact(self) -> None:
        """Leave the last record of each key; offsets stay."""
        last = {record[:2]: at for at, record in enumerate(self.records)}
        for at, record in enumerate(self.records):
            if last[record[:2]] != at:
                self.records[at] = (-1, b"", None)


class Tail:
    def __init__(self, target: Target, partitions: list[int]) -> None:
        self._target, self._partitions, self._at = target, partitions, 0

    def read_to_end(self) -> Iterator[Record]:
        return self.read_to({})

    def read_to(self, ends: Mapping[TopicPartition, int]) -> Iterator[Record]:
        new, self._at = self._target.records[self._at :], len(self._target.records)
        return iter([one for one in new if one[0] in self._partitions])

    def close(self) -> None:
        pass


class Process:
    """One process of the file, on a machine of its own."""

    def __init__(self, target: Target, name: str, flow: FlowSettings = FLOW, **more: Any) -> None:
        self.target, self.name, self.flow = target, name, flow
        self.now_ms: Callable[[], int] = lambda: 0
        self.said: list[str] = []
        self.own = Ownership(
            cast(Cluster, target), flow, name, self.said.append,
            file=f"/{name}.properties", release="1", now_s=lambda: target.now_s, **more,
        )  # fmt: skip
        self.own.contest._place = name

    def begins(self, **options: bool) -> bool:
        return self.own.at_start(
            once=options.get("once", False), take_over=options.get("take_over", False)
        )

    def report(self, *, ended: bool = False) -> None:
        now_ms = self.now_ms()
        told = DriverReport(
            FLOW.name, self.name, f"{self.name}:1", "1", now_ms, now_ms, ended=ended
        )
        self.target.produce_many("", [(1, *encode_driver_report(told))])

    def waits(self, seconds: int, *owners: Process) -> int:
        """Looks each second, while ``owners`` report; after how many it has the flow, else -1."""
        for second in range(seconds):
            self.target.now_s += 1
            for owner in owners:
                owner.report()
            if self.own.wait_turn():
                return second + 1
        return -1


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Target:
    made = Target()

    def sleep(seconds: float) -> None:
        made.now_s += seconds

    monkeypatch.setattr(ownership.time, "sleep", sleep)
    # All processes of a test are this one: each claims as if it ran elsewhere.
    monkeypatch.setattr("sparkmirror.control.coordination.claim.own_place", lambda: "")
    monkeypatch.setattr(contest, "is_gone", lambda _: False)
    return made


def test_the_second_process_stands_by_until_the_first_is_silent(target: Target) -> None:
    first, second = Process(target, "first"), Process(target, "second")
    assert first.begins()
    first.report()
    assert not second.begins()
    (line,) = second.said
    assert "standing by: run first, host first:1, file /first.properties" in line
    assert "does not report for 10 s" in line
    assert second.own.standing_by.startswith("standing by: run first")
    assert second.waits(60, first) == -1
    assert second.waits(60) == 10
    assert second.own.standing_by == ""
    assert "taken over from run first" in second.said[-1]
    who = "run first, host first:1, file /first.properties"
    assert second.own.taken == f"from {who}, which has not reported for 10.0 s"
    assert first.own.taken == "", "nobody had the flow before"
    first.own.watch()
    assert "(run second" in str(first.own.lost())
    second.own.watch()
    assert second.own.lost() is None


def test_it_takes_over_at_once_when_the_first_ends(target: Target) -> None:
    first, second, third = (Process(target, name) for name in ("first", "second", "third"))
    assert first.begins()
    first.report()
    assert not second.begins()
    assert not third.begins()
    first.report(ended=True)
    assert second.waits(60) == 1
    assert second.own.taken.endswith("/first.properties, which had ended")
    second.report()
    assert third.waits(30, second) == -1
    assert "run second" in third.said[-1]


@pytest.mark.parametrize("ahead_s", [3_600, -3_600])
def test_a_clock_that_is_off_by_an_hour_neither_costs_the_flow_nor_keeps_it(
    target: Target, ahead_s: int
) -> None:
    """Of claims, reports and what a standby says of itself: the order counts, never the time."""
    base_ms = 1_700_000_000_000

    def of(ahead: int) -> Any:
        return lambda: base_ms + int((target.now_s + ahead) * 1_000)

    first = Process(target, "first", now_ms=of(ahead_s))
    second = Process(target, "second", now_ms=of(0))
    first.now_ms, second.now_ms = of(ahead_s), of(0)
    assert first.begins()
    first.report()
    assert not second.begins()
    assert second.waits(60, first) == -1, "it lives, whatever time it says it is"
    assert second.waits(60) == 10
    second.report()
    first.own.watch()
    assert first.own.lost() is not None
    again = Process(target, "again", now_ms=of(ahead_s))
    assert not again.begins(), "an hour's difference makes no owner look dead"
    assert again.waits(60, second) == -1
    assert again.waits(60) == 10


def test_of_two_that_claim_at_once_one_begins(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Process(target, "first"), Process(target, "second")
    claim_flow = ownership.claim_flow
    begun: list[bool] = []

    def claim_both(cluster: Cluster, flow: FlowSettings, run_id: str, *rest: Any, **more: Any):
        if run_id == "first":  # the other one has looked just as late, and claims as well
            begun.append(second.begins())
        return claim_flow(cluster, flow, run_id, *rest, **more)

    monkeypatch.setattr(ownership, "claim_flow", claim_both)
    assert not first.begins(), "on a far target its look is long ago"
    assert begun == [True], "nobody else had claimed when it looked again"
    second.own.watch()
    assert second.own.lost() is None
    assert first.own.standing_by.startswith("standing by: run second")

    third, fourth = Process(target, "third"), Process(target, "fourth")
    sleep = ownership.time.sleep

    def claimed_meanwhile(seconds: float) -> None:
        sleep(seconds)
        monkeypatch.setattr(ownership.time, "sleep", sleep)
        claim_flow(cast(Cluster, target), FLOW, "fourth", 0)

    monkeypatch.setattr(ownership.time, "sleep", claimed_meanwhile)
    assert not third.begins(take_over=True), "a newer claim came before anything was begun"
    assert third.own.stands_by
    assert fourth.own.check() is contest.ClaimState.OURS


@pytest.mark.parametrize("secret", ["", "0123456789abcdef" * 2])
def test_an_earlier_claim_written_once_more_holds_nobody_up(target: Target, secret: str) -> None:
    """Without a secret it counts as a claim; with one it has an old term."""
    flow = replace(FLOW, control_secret=secret)
    first, second = Process(target, "first", flow), Process(target, "second", flow)
    assert first.begins()
    earlier = [one for one in target.records if one[1] == b"A->B/claim"]
    first.report(ended=True)
    assert second.begins()
    second.report()
    third = Process(target, "third", flow)
    target.records += earlier
    assert third.begins() is (not secret), "first has ended, second has not"
    if secret:
        second.report(ended=True)
        assert third.waits(60) == 1
    target.records.clear()  # somebody emptied the topic
    fourth = Process(target, "fourth", flow)
    assert fourth.begins()


SIGNED = replace(FLOW, control_secret="0123456789abcdef" * 2)


def _late(flow: FlowSettings = SIGNED) -> Record:
    """The claim of a process that waits, written long after it was made."""
    return (0, *encode_claim(Claim(FLOW.name, "late", 0, term=5), claim_signer(flow)))


@pytest.mark.parametrize(
    "record",
    [_late(), _late(FLOW), (0, b"A->B/claim", None), (0, b"A->B/claim", b"?")],
    ids=["earlier term", "no signature", "tombstone", "malformed"],
)
def test_what_counts_for_nothing_does_not_bury_the_owners_claim(
    target: Target, record: Record
) -> None:
    first = Process(target, "first", SIGNED, now_ms=lambda: 10**12)
    assert first.begins()
    first.report()
    target.records.append(record)
    first.own.watch()
    target.compact()
    third = Process(target, "third", SIGNED)
    assert not third.begins()
    assert third.waits(60, first) == -1
    first.own.watch()
    first.own.watch()
    claims = [value for _, key, value in target.records if key == b"A->B/claim"]
    assert len(claims) == 1, "written once"


def test_of_two_owners_the_one_with_the_earlier_term_ends(target: Target) -> None:
    """The topic was compacted before the first one looked. Its clock is ahead of the others'."""
    first = Process(target, "first", SIGNED, now_ms=lambda: 10**13)
    assert first.begins()
    target.records.append(_late())
    target.compact()
    third = Process(target, "third", SIGNED)
    assert not third.begins()
    assert third.waits(60) > 0
    for _ in range(2):
        first.own.watch()
        third.own.watch()
    assert first.own.lost() is None
    assert third.own.lost() is not None
    claims = [value for _, key, value in target.records if key == b"A->B/claim"]
    assert b'"first"' in (claims[-1] or b"")


def _claims(target: Target) -> list[bytes | None]:
    return [value for _, key, value in target.records if key == b"A->B/claim"]


def test_owners_with_different_secrets_report_each_other_and_do_not_race(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The secret was changed while the first one was frozen: neither accepts the other's claim."""
    silent = SimpleNamespace(runs={})
    monkeypatch.setattr(claim, "observe_status", lambda *_: silent)
    rotated = replace(SIGNED, control_secret="fedcba9876543210" * 2)
    first, second = Process(target, "first", SIGNED), Process(target, "second", rotated)
    assert first.begins()
    target.now_s += 40
    assert second.begins()
    for _ in range(10):
        first.own.watch()
        second.own.watch()
    assert first.own.lost() is None
    assert second.own.lost() is None
    assert len(_claims(target)) <= 4, "each has written its claim once more"
    for one, other in ((first, second), (second, first)):
        (line,) = one.said
        assert line.startswith("flow A->B: ")
        assert f"(run {other.name}, host " in line
        assert "give both the same sparkmirror.control.secret" in line
    target.records.append((0, b"A->B/claim", None))
    count = len(_claims(target))
    first.own.watch()
    assert len(_claims(target)) == count + 1, "what is no claim of another mirror is still buried"
    third = Process(target, "third", replace(SIGNED, control_secret="another secret, long enough!"))
    assert third.begins(), "nobody reports"
    first.own.watch()
    assert "(run third, host " in first.said[-1]


def test_a_forged_copy_of_the_owners_claim_is_no_other_owner(target: Target) -> None:
    first = Process(target, "first", SIGNED)
    assert first.begins()
    (own,) = _claims(target)
    for _ in range(3):
        target.records.append((0, b"A->B/claim", (own or b"").replace(b'"slots":', b'"slots":9')))
        first.own.watch()
        assert _claims(target)[-1] == own
    assert first.said == []


def test_without_a_secret_the_last_claim_counts(target: Target) -> None:
    first = Process(target, "first")
    assert first.begins()
    target.records.append(_late(FLOW))
    first.own.watch()
    assert first.own.lost() is not None
    assert target.records[-1] == _late(FLOW)


def test_take_over_asks_nobody(target: Target) -> None:
    first, second = Process(target, "first"), Process(target, "second")
    assert first.begins()
    first.report()
    assert second.begins(take_over=True)
    assert second.own.taken.endswith("/first.properties, as --take-over asked")
    first.own.watch()
    assert first.own.lost() is not None
    assert not first.own.holds()


def test_once_does_not_copy_what_another_mirrors(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Process(target, "first"), Process(target, "second")
    assert first.begins()
    reports = [True, True]

    def sleep(seconds: float) -> None:
        target.now_s += seconds
        if reports:
            reports.pop()
            first.report()

    monkeypatch.setattr(ownership.time, "sleep", sleep)
    with pytest.raises(ClusterError, match=r"run first, host first:1.* a second time") as refused:
        second.begins(once=True)
    assert "--take-over" in refused.value.do
    before_s = target.now_s
    reports.clear()
    third = Process(target, "third")
    assert third.begins(once=True), "nothing came for a session: it has died"
    assert 10 <= target.now_s - before_s < 13


def test_who_was_frozen_does_nothing_before_it_has_looked(target: Target) -> None:
    first, second = Process(target, "first"), Process(target, "second")
    done: list[str] = []
    assert first.begins()
    first.own.as_owner(lambda: done.append("round"))
    target.now_s += 30
    assert not first.own.holds()
    assert not second.begins()
    first.own.as_owner(lambda: done.append("still ours"))
    assert second.begins(take_over=True)
    target.now_s += 30
    first.own.as_owner(lambda: done.append("never"))
    assert done == ["round", "still ours"]
    target.away = True
    target.now_s += 30
    with pytest.raises(Unreachable):
        second.own.as_owner(lambda: done.append("never"))
    assert done == ["round", "still ours"]


def test_a_standby_without_permission_says_so_when_it_starts(target: Target) -> None:
    first, second = Process(target, "first"), Process(target, "second")
    assert first.begins()
    first.report()
    target.denied = True
    with pytest.raises(Denied, match="grant Write"):
        second.begins()


def test_a_standby_that_may_not_read_claims_begins_nothing(target: Target) -> None:
    """Neither when it starts, nor when the right is taken away while it waits."""
    first, second, third = (Process(target, name) for name in ("first", "second", "third"))
    assert first.begins()
    first.report()
    assert not second.begins()
    target.unreadable = True
    for option in ((), ("take_over",), ("once",)):
        with pytest.raises(Denied, match="grant Read"):
            third.begins(**dict.fromkeys(option, True))
    for _ in range(60):  # the owner goes on, and nobody hears it
        with pytest.raises(Denied, match="grant Read"):
            second.waits(1)
    target.unreadable = False
    claims = [value for _, key, value in target.records if key == b"A->B/claim"]
    assert len(claims) == 1
    assert second.waits(9) == -1, "what it did not hear is no silence"
    assert second.waits(30, first) == -1


def test_a_claim_of_an_older_release_is_respected(target: Target) -> None:
    """It tells neither a session, nor a place, nor a file: its reports come every ten seconds."""
    old = b'{"run_id":"old","slots":2,"host":"h9"}'
    target.produce_many("", [(0, b"A->B/claim", old)])
    told = DriverReport(FLOW.name, "old", "h9:1", "0.1", 0, 0)
    second = Process(target, "second")
    target.produce_many("", [(1, *encode_driver_report(told))])
    assert not second.begins()
    assert "standing by: run old, host h9:1 mirrors this flow" in second.said[0]
    assert "does not report for 30 s" in second.said[0]
    assert "something else" not in "".join(second.said)
    for _ in range(3):
        assert second.waits(29) == -1
        target.produce_many("", [(1, *encode_driver_report(told))])
    assert second.waits(60) == 31, "it hears the last report with its first look"


@pytest.mark.parametrize(
    "time_ms", [10**18, 253_402_300_799_000, 10**400], ids=["far", "last", "huge"]
)
def test_a_claim_with_a_date_that_no_calendar_has_ends_no_standby(
    target: Target, time_ms: int
) -> None:
    claim = b'{"run_id":"far","slots":2,"host":"h9","time_ms":%d}' % time_ms
    target.produce_many("", [(0, b"A->B/claim", claim)])
    second = Process(target, "second")
    assert not second.begins()
    assert second.own.standing_by.startswith("standing by: run far, host h9")
    assert second.own.standing_by.endswith(" mirrors this flow")


def test_a_target_that_was_away_does_not_cost_the_owner_the_flow(target: Target) -> None:
    first, second = Process(target, "first"), Process(target, "second")
    assert first.begins()
    assert not second.begins()
    assert second.waits(8) == -1
    target.away = True
    for _ in range(30):
        with pytest.raises(Unreachable):
            second.waits(1)
    target.away = False
    assert second.waits(9) == -1
    assert second.waits(30, first) == -1


def test_two_files_of_one_flow_are_told_apart(target: Target) -> None:
    wider = replace(FLOW, topics=replace(TopicSettings(), include=("other",)))
    first, second = Process(target, "first"), Process(target, "second", wider)
    assert first.begins()
    assert not second.begins()
    assert "/first.properties) configures this flow differently from ours (/second" in "".join(
        second.said
    )
    third = Process(target, "third")
    assert not third.begins()
    assert "differently" not in "".join(third.said)
    elsewhere = replace(FLOW, source=replace(A, bootstrap_servers=("a:2", "a:3")))
    assert content_of(elsewhere, "1") == content_of(FLOW, "1") != content_of(wider, "1")
    for option, differs in (
        ("client_rack", False), ("isolation_level", True), ("auto_offset_reset", True),
    ):  # fmt: skip
        other = replace(FLOW, fetch=replace(FLOW.fetch, **{option: "other"}))
        assert (content_of(other, "1") != content_of(FLOW, "1")) is differs


def test_a_flow_that_could_not_begin_is_waited_for_again(target: Target) -> None:
    """Others may have it meanwhile, and their reports count."""
    first, second = Process(target, "first"), Process(target, "second")
    assert first.begins()
    first.report(ended=True)
    first.own.stand_by()
    assert second.begins()
    assert first.waits(30, second) == -1
    assert first.waits(30) == 10


def test_who_ends_stands_by_no_longer(target: Target) -> None:
    first, second = Process(target, "first"), Process(target, "second")
    assert first.begins()
    assert not second.begins()
    (standby,) = [one for one in map(_standby, target.records) if one is not None]
    assert (standby.run_id, standby.file) == ("second", "/second.properties")
    second.own.close()
    assert target.records[-1] == (1, b"A->B/standby#second", None)


def _standby(record: Record) -> Standby | None:
    return decode_standby(*record[1:])

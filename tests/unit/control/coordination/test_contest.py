"""Who may mirror a flow: what a process that stands by makes of the control topic."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparkmirror.control.coordination.contest import ClaimState, Contest
from sparkmirror.control.coordination.place import is_gone, own_place
from sparkmirror.internal_topics.commands import Command, CommandKind, encode_command
from sparkmirror.internal_topics.driver_report import DriverReport, encode_driver_report
from sparkmirror.internal_topics.flow_claims import Claim, encode_claim
from sparkmirror.internal_topics.signing import Signer
from sparkmirror.settings import ClusterClient, FlowSettings

A, B = (ClusterClient(name, (f"{name}:1",), "c") for name in "AB")
FLOW = FlowSettings(A, B, A, B)
SECRET = "0123456789abcdef" * 2
HOUR_MS = 3_600_000
THEIRS = Claim(FLOW.name, "theirs", 0, "h2", file="/b.properties", session_ms=10_000)


class Table:
    """A contest of the run ``mine``; ``now_s`` is the clock, ``theirs_ms`` that of the owner."""

    def __init__(self, flow: FlowSettings = FLOW, gone: bool = False) -> None:
        self.contest = Contest(flow, "mine", gone=lambda _: gone)
        self.now_s = 1_000.0
        self.theirs_ms = 0

    def claim(self, claim: Claim, signer: Signer | None = None) -> None:
        self.contest.apply(0, *encode_claim(claim, signer), self.now_s)

    def report(self, run_id: str = "theirs", *, ended: bool = False) -> None:
        report = DriverReport(
            FLOW.name, run_id, "h2:7", "1", self.theirs_ms, self.theirs_ms, ended=ended
        )
        self.contest.apply(1, *encode_driver_report(report), self.now_s)

    def run(self, run_id: str) -> None:
        command = Command(FLOW.name, CommandKind.RUN, run_id, self.theirs_ms)
        self.contest.apply(0, *encode_command(command), self.now_s)

    def after(self, seconds: float) -> ClaimState:
        """The verdict after so long with a look each second."""
        for _ in range(int(seconds)):
            self.now_s += 1.0
            self.contest.read_finished(self.now_s)
        return self.claim_state()

    def claim_state(self) -> ClaimState:
        self.contest.read_finished(self.now_s)
        return self.contest.claim_state(self.now_s)


def test_a_flow_that_nobody_mirrors_is_free() -> None:
    table = Table()
    assert table.claim_state() is ClaimState.FREE
    table.claim(replace(THEIRS, run_id="mine"))
    assert table.claim_state() is ClaimState.OURS
    table.claim(THEIRS)
    assert table.claim_state() is ClaimState.HELD


@pytest.mark.parametrize("ahead_ms", [0, HOUR_MS, -HOUR_MS])
def test_silence_counts_from_what_arrives_whatever_clocks_say(ahead_ms: int) -> None:
    table = Table()
    table.theirs_ms = 1_000_000_000 + ahead_ms
    table.claim(THEIRS)
    table.report()
    assert table.claim_state() is ClaimState.HELD
    for _ in range(5):
        assert table.after(9) is ClaimState.HELD
        table.report()
    assert table.after(9) is ClaimState.HELD
    assert table.after(1) is ClaimState.FREE


def test_a_new_owner_has_a_session_for_its_first_report() -> None:
    """However long this process has stood by: nobody is silent before he has claimed."""
    table = Table()
    table.claim(THEIRS)
    for _ in range(3):
        table.report()
        table.after(9)
    table.claim(replace(THEIRS, run_id="third"))
    assert table.claim_state() is ClaimState.HELD
    assert table.after(9) is ClaimState.HELD
    assert table.after(1) is ClaimState.FREE
    # So has one that comes back.
    table.claim(THEIRS)
    assert table.claim_state() is ClaimState.HELD


def test_an_owner_that_says_that_it_ends_is_followed_at_once() -> None:
    table = Table()
    table.claim(THEIRS)
    table.report()
    assert table.claim_state() is ClaimState.HELD
    table.report("of a run before", ended=True)
    assert table.claim_state() is ClaimState.HELD
    table.report(ended=True)
    assert table.claim_state() is ClaimState.FREE


def test_a_process_that_ended_on_this_machine_is_followed_at_once() -> None:
    claim = replace(THEIRS, place="boot/ns/1/2")
    for gone, claim_state in ((False, ClaimState.HELD), (True, ClaimState.FREE)):
        table = Table(gone=gone)
        table.claim(claim)
        table.report()
        assert table.claim_state() is claim_state
    here = Table()
    here.claim(replace(THEIRS, place=own_place()))
    assert here.claim_state() is ClaimState.FREE, "what this process had before is its own"
    assert not is_gone(own_place())
    assert is_gone(own_place() + "0"), "another process of the same number"
    assert not is_gone("another/machine/1/2")
    assert not is_gone("")


def test_a_target_that_does_not_answer_takes_nothing_from_the_owner() -> None:
    """It could not report either: it has a whole session once the target is back."""
    table = Table()
    table.claim(THEIRS)
    assert table.after(8) is ClaimState.HELD
    table.contest.read_failed()
    table.now_s += 600
    assert table.claim_state() is ClaimState.HELD
    assert table.after(9) is ClaimState.HELD
    assert table.after(1) is ClaimState.FREE


def test_a_process_that_was_frozen_itself_waits_anew() -> None:
    table = Table()
    table.claim(THEIRS)
    assert table.after(3) is ClaimState.HELD
    assert table.contest.fresh(table.now_s)
    table.now_s += 60
    assert not table.contest.fresh(table.now_s), "who was frozen looks before it acts"
    assert table.claim_state() is ClaimState.HELD
    assert table.after(10) is ClaimState.FREE


def test_the_longer_session_of_two_counts() -> None:
    table = Table()
    table.claim(replace(THEIRS, session_ms=20_000))
    assert table.after(20) is ClaimState.HELD
    assert table.after(1) is ClaimState.FREE


def test_releases_without_sessions_report_every_ten_seconds() -> None:
    table = Table()
    table.claim(replace(THEIRS, session_ms=0))
    table.claim_state()
    assert table.after(29) is ClaimState.HELD
    assert table.after(1) is ClaimState.FREE


def test_a_run_of_a_release_without_claims_counts_until_somebody_claims() -> None:
    table = Table()
    table.run("old")
    table.report("old")
    assert table.claim_state() is ClaimState.HELD
    assert table.contest.describe_owner() == "run old, host h2:7"
    assert table.after(30) is ClaimState.FREE
    table.claim(replace(THEIRS, run_id="mine"))
    table.run("mine")
    assert table.claim_state() is ClaimState.OURS
    assert table.contest.stranger == ""
    table.run("old")
    assert table.claim_state() is ClaimState.OURS, "it takes nothing away,"
    assert table.contest.stranger == "old", "but it mirrors beside us"


def test_with_a_secret_only_signed_claims_count() -> None:
    table = Table(replace(FLOW, control_secret=SECRET))
    table.claim(THEIRS)
    table.run("anybody")
    assert table.claim_state() is ClaimState.FREE
    table.claim(replace(THEIRS, term=5), Signer(SECRET))
    assert table.claim_state() is ClaimState.HELD
    table.claim(replace(THEIRS, run_id="earlier", term=4), Signer(SECRET))
    assert table.contest.owner == "theirs", "an old one, written once more"
    open_one = Table()
    open_one.claim(replace(THEIRS, term=5), Signer(SECRET))
    assert open_one.contest.sealed


def test_another_file_is_told_by_what_it_says() -> None:
    contest = Table().contest
    contest.apply(0, *encode_claim(replace(THEIRS, content="1.0:aa")), 0.0)
    assert contest.other_content("1.0:bb")
    assert not contest.other_content("1.0:aa")
    assert not contest.other_content("1.1:bb"), "releases do not say the same of the same"
    contest.apply(0, *encode_claim(THEIRS), 0.0)
    assert not contest.other_content("1.0:bb")
    assert contest.describe_owner() == "run theirs, host h2, file /b.properties"


@pytest.mark.parametrize("value", [None, b"", b"{}", b"[]", b'{"host":1}', b"nonsense"])
def test_what_is_no_signal_changes_nothing(value: bytes | None) -> None:
    table = Table()
    for key in (b"A->B/claim", b"A->B/driver", b"A->B/standby#x", b"A->B", None, b"\xff"):
        for partition in (0, 1, 2):
            table.contest.apply(partition, key, value, table.now_s)
    assert table.claim_state() is ClaimState.FREE

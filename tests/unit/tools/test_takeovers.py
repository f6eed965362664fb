"""What a run with standbys has to complain of, and what processes say of themselves."""

from __future__ import annotations

import json
import signal

import pytest

from tests.faults.processes import Life
from tests.faults.takeovers import WARM, Event, Outcome, complaints, render

QUICK = Outcome(detected_s=1.0, written_s=0.1, first_s=3.0, all_s=3.2)
LATE = Outcome(detected_s=1.0, written_s=0.1, first_s=11.5, all_s=12.0)
FENCED = "another sparkmirror (run x, host y) has taken this flow over. This one has ended"


def _line(kind: str, message: str, second: int) -> str:
    said = {"type": kind, "time": f"2026-11-22T12:00:{second:02d}.000Z", "message": message}
    return json.dumps(said)


def test_a_quick_takeover_without_repeats_is_no_complaint() -> None:
    assert complaints([Event("owner killed", WARM, QUICK, 3.0)], lost=0) == []


def test_lost_records_and_repeats_beyond_the_bound_are() -> None:
    event = Event("owner frozen", WARM, QUICK, 3.0, allowed=10, twice=11)
    lost, twice = complaints([event], lost=4)
    assert lost == "4 records lost or out of order"
    assert twice.endswith("11 records twice, not 10")
    within = Event("owner frozen", WARM, QUICK, 3.0, allowed=11, twice=11)
    assert complaints([within], lost=0) == []


@pytest.mark.parametrize(
    ("name", "taker", "wrong"),
    [
        ("owner killed", WARM, 1),
        ("owner killed", "just starting, or not yet", 0),  # it has to start Spark
        ("owner ended", WARM, 0),
    ],
)
def test_a_ready_standby_takes_over_soon_after_a_kill(name: str, taker: str, wrong: int) -> None:
    assert len(complaints([Event(name, taker, LATE, 3.0)], lost=0)) == wrong


def test_the_page_has_median_and_worst_of_each_kind() -> None:
    events = [
        Event("owner killed", WARM, QUICK, 2.0),
        Event("owner killed", WARM, LATE, 9.0, twice=2),
        Event("standby frozen", "the owner went on", None, 0.3),
    ]
    page = render("exactly-once", "Head", events, lost=0, twice=2)
    assert "## 3 random events, 2 takeovers, exactly-once" in page
    assert "Head: **0 lost, 2 duplicated**." in page
    row = "| owner killed | ready | 2 | 1.0 / 1.0 | 7.2 / 11.5 | 6.2 / 10.5 | 7.6 / 12.0 |"
    assert f"{row} 0.1 / 0.1 | 5.5 / 9.0 | 2 |" in page
    assert "| standby frozen | the owner went on | 1 | 0.3 / 0.3 | 0 |" in page
    assert page.endswith("owner killed 3.0, owner killed 11.5, standby frozen.\n")


def test_a_process_tells_when_it_is_ready_and_when_the_flow_is_its_own() -> None:
    life = Life("one")
    life.hear("a line of Spark's")
    assert life.spoke
    life.hear(_line("phase", "standing by", 1))
    assert life.ready_s > 0
    assert life.owns_s == 0
    life.hear(_line("event", "A->B: taken over from run x, host y, of which", 3))
    life.hear(_line("phase", "mirroring", 9))
    assert life.taken_over
    assert life.owns_s - life.ready_s == 2


def test_the_first_owner_has_taken_nothing_over() -> None:
    life = Life("one")
    life.hear(_line("phase", "mirroring", 9))
    assert life.owns_s > 0
    assert not life.taken_over


@pytest.mark.parametrize(
    ("ordered", "frozen", "code", "output", "wrong"),
    [
        (signal.SIGKILL, False, -9, "", ""),
        (signal.SIGKILL, False, 1, "", "killed, but ended with 1"),
        (signal.SIGTERM, False, 0, "", ""),
        (signal.SIGTERM, False, 1, "", "asked to end, it ended with 1"),
        (None, True, 1, FENCED, ""),
        (None, True, 1, "Spark no longer responds", "ended with 1 by itself"),
        (None, True, 0, FENCED, "ended with 0 by itself"),
        (None, False, 1, FENCED, "was taken over from while it ran"),
    ],
)
def test_how_a_process_should_have_ended(
    ordered: signal.Signals | None, frozen: bool, code: int, output: str, wrong: str
) -> None:
    life = Life("one", ordered=ordered, frozen=frozen, code=code)
    assert life.wrong_end(output) == wrong

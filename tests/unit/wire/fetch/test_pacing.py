"""When a channel may send again."""

from __future__ import annotations

from sparkmirror.wire.fetch.pacing import Pace, Pauses

CHANNEL, OTHER = (1, 0), (1, 1)


def test_a_channel_waits_for_the_latest_of_its_pauses_alone() -> None:
    pauses = Pauses()
    assert pauses.over(CHANNEL, 0.0)
    pauses.wait(CHANNEL, 5.0)
    pauses.wait(CHANNEL, 3.0)
    assert not pauses.over(CHANNEL, 4.9)
    assert pauses.over(OTHER, 4.9)
    assert pauses.over(CHANNEL, 5.0)
    assert pauses.ends_after(4.9) == [5.0]
    assert pauses.ends_after(5.0) == []


def test_an_interval_counts_from_the_request_and_a_slow_response_needs_none() -> None:
    pauses, interval_s = Pauses(), Pace().interval_s
    pauses.pace(CHANNEL, 10.0, 10.0 + interval_s / 2)
    assert not pauses.over(CHANNEL, 10.0 + interval_s / 2)
    assert pauses.over(CHANNEL, 10.0 + interval_s)
    pauses.pace(OTHER, 10.0, 10.0 + 2 * interval_s)
    assert pauses.over(OTHER, 10.0 + 2 * interval_s)


def test_intervals_grow_where_their_ends_are_noticed_late() -> None:
    pauses = Pauses()
    now = 0.0
    for _ in range(200):
        pauses.pace(CHANNEL, now, now)
        now += 1.0  # long after its end
        assert pauses.over(CHANNEL, now)
    pauses.pace(CHANNEL, now, now)
    assert not pauses.over(CHANNEL, now + 2 * Pace().interval_s)
    assert pauses.over(CHANNEL, now + 0.011)

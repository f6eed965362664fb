"""When a query that ended is started again."""

from __future__ import annotations

import time

from sparkmirror.data.spark.restarts import (
    RESTARTS_MAX,
    RESTARTS_WITHIN_S,
    QueryRestart,
    RestartLimit,
)


def test_only_so_often_within_a_time():
    now = [0.0]
    revivals = RestartLimit(lambda: now[0])
    pauses_s = [revivals.allow("A->B", "gone") for _ in range(RESTARTS_MAX)]
    assert pauses_s == [0.0, 1.0, 2.0, 4.0, 8.0]
    assert revivals.allow("A->B", "gone") is None
    assert revivals.allow("A->C", "gone") == 0.0, "flows are counted apart"
    now[0] = RESTARTS_WITHIN_S + 1
    assert revivals.allow("A->B", "gone") == 0.0


def test_a_pause_holds_up_nobody_and_ends_with_the_run():
    began = time.monotonic()
    started = []
    later = QueryRestart(lambda: started.append(time.monotonic()), 0.3)
    never = QueryRestart(lambda: started.append(0.0), 600.0)
    assert time.monotonic() - began < 0.3
    assert not later.done
    assert never.cancel()
    while not (later.done and never.done):
        time.sleep(0.01)
    assert len(started) == 1
    assert started[0] - began >= 0.3
    assert not later.cancel(), "too late"

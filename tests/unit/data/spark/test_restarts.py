"""When a query that ended is started again."""

from __future__ import annotations

from sparkmirror.data.spark.restarts import RESTARTS_MAX, RESTARTS_WITHIN_S, RestartLimit


def test_only_so_often_within_a_time():
    now = [0.0]
    revivals = RestartLimit(lambda: now[0])
    assert [revivals.allow("A->B", "gone") for _ in range(RESTARTS_MAX)] == [True] * RESTARTS_MAX
    assert not revivals.allow("A->B", "gone")
    assert revivals.allow("A->C", "gone"), "flows are counted apart"
    now[0] = RESTARTS_WITHIN_S + 1
    assert revivals.allow("A->B", "gone")

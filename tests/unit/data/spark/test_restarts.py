"""When a query that ended is started again."""

from __future__ import annotations

from sparkmirror.data.spark.restarts import REVIVALS_MAX, REVIVALS_WITHIN_S, Revivals


def test_only_so_often_within_a_time():
    now = [0.0]
    revivals = Revivals(lambda: now[0])
    assert [revivals.allow("A->B", "gone") for _ in range(REVIVALS_MAX)] == [True] * REVIVALS_MAX
    assert not revivals.allow("A->B", "gone")
    assert revivals.allow("A->C", "gone"), "flows are counted apart"
    now[0] = REVIVALS_WITHIN_S + 1
    assert revivals.allow("A->B", "gone")

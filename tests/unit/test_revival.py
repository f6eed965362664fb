"""When a query that ended is started again, and what is said of it."""

from __future__ import annotations

from pathlib import Path

from sparkmirror.data.revival import REVIVALS_MAX, REVIVALS_WITHIN_S, Revivals, failure, own_words

LOG = Path("/run/spark.log")
SPARKS_WORDS = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: broken pipe

=== Streaming Query ===
Identifier: A->B [id = 1, runId = 2]
Logical Plan:
~WriteToMicroBatchDataSource sparkmirror
+- ~StreamingDataSourceV2ScanRelation[head#0, records#1] sparkmirror
"""


def test_only_so_often_within_a_time():
    now = [0.0]
    revivals = Revivals(lambda: now[0])
    assert [revivals.allow("A->B", "gone") for _ in range(REVIVALS_MAX)] == [True] * REVIVALS_MAX
    assert not revivals.allow("A->B", "gone")
    assert revivals.allow("A->C", "gone"), "flows are counted apart"
    now[0] = REVIVALS_WITHIN_S + 1
    assert revivals.allow("A->B", "gone")


def test_our_own_errors_are_known_by_their_words():
    told = "Traceback …\nsparkmirror.errors.Fenced: another run has the flow.\n" + SPARKS_WORDS
    assert own_words(RuntimeError(told)) == "another run has the flow."
    assert str(failure(RuntimeError(told), "A->B", LOG)).endswith("another run has the flow.")


def test_sparks_plans_are_not_taken_for_the_reason():
    assert own_words(RuntimeError(SPARKS_WORDS)) == ""
    text = str(failure(RuntimeError(SPARKS_WORDS), "A->B", LOG))
    assert "broken pipe" in text
    assert "ScanRelation" not in text
    assert str(LOG) in text

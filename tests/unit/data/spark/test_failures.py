"""What is said of a query that Spark has ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkmirror.data.spark.failures import ended_for_repair, failure

LOG = Path("/run/spark.log")
SPARKS_WORDS = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: broken pipe
\tat org.apache.spark.Somewhere.run(Somewhere.scala:1)
\t... 14 more

=== Streaming Query ===
Identifier: A->B [id = 1, runId = 2]
Logical Plan:
~WriteToMicroBatchDataSource sparkmirror
+- ~StreamingDataSourceV2ScanRelation[head#0, records#1] sparkmirror
"""


def test_our_own_errors_are_known_by_their_words():
    told = "Traceback …\nsparkmirror.errors.Fenced: another run has the flow.\n" + SPARKS_WORDS
    text = str(failure(RuntimeError(told), "A->B", LOG))
    assert text.endswith("another run has the flow.")


@pytest.mark.parametrize(
    ("error", "mended"),
    [
        ("TargetLost: cluster B: the log was truncated", True),
        ("TooSlow: cluster B: the transaction was open for 61 s", True),
        ("Fenced: another run has the flow", False),
        ("PartitionError: cluster B: the target gives no producer id", False),
        ("TransactionError: cluster B: a batch is no longer accepted", True),
    ],
)
def test_only_what_an_attempt_mends_lets_a_query_begin_again(error: str, mended: bool) -> None:
    told = f"Task 0 in stage 3.0 failed 8 times …\nsparkmirror.errors.{error}\n{SPARKS_WORDS}"
    assert ended_for_repair(RuntimeError(told)) is mended
    assert not ended_for_repair(RuntimeError(SPARKS_WORDS))


def test_neither_plans_nor_places_in_javas_code_are_taken_for_the_reason():
    text = str(failure(RuntimeError(SPARKS_WORDS), "A->B", LOG))
    assert "broken pipe" in text
    assert "ScanRelation" not in text
    assert "14 more" not in text
    assert str(LOG) in text


ABORTED = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job aborted \
due to stage failure: Task 0 in stage 3.0 failed 8 times, most recent failure: Lost task 0.7 in \
stage 3.0 (TID 12) (host executor driver): \
org.apache.spark.SparkException: Python worker exited unexpectedly
\tat org.apache.spark.Somewhere.run(Somewhere.scala:1)
Caused by: java.io.EOFException
\tat java.base/java.io.DataInputStream.readInt(DataInputStream.java:398)
\t... 14 more

Driver stacktrace:
"""


def test_a_task_that_failed_without_an_error_of_python_says_what_the_jvm_knows():
    text = str(failure(RuntimeError(ABORTED + SPARKS_WORDS.partition("\n\n")[2]), "A->B", LOG))
    assert "SparkException: Python worker exited unexpectedly" in text
    assert "java.io.EOFException" in text
    assert "Driver stacktrace" not in text
    assert "most recent failure" not in text


def test_a_failure_without_a_cause_is_not_given_one():
    told = ABORTED.replace("Caused by: java.io.EOFException\n", "")
    text = str(failure(RuntimeError(told), "A->B", LOG))
    assert "the query failed: org.apache.spark.SparkException: Python worker exited unex" in text
    assert "caused by" not in text.lower()


def test_pythons_own_error_comes_before_what_the_jvm_makes_of_it():
    told = ABORTED.replace("Caused by", "ImportError: no module named that\n\nCaused by")
    text = str(failure(RuntimeError(told), "A->B", LOG))
    assert "the query failed: ImportError: no module named that" in text


@pytest.mark.parametrize(
    "named", ["pyarrow.lib.ArrowInvalid: Float value was truncated", "struct.error: too short"]
)
def test_an_error_of_python_is_known_by_its_traceback_not_by_its_name(named: str) -> None:
    told = ABORTED.replace(
        "org.apache.spark.SparkException: Python worker exited unexpectedly",
        "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
        '  File "worker.py", line 1, in main\n    process()\n' + named + "\n",
    )
    text = str(failure(RuntimeError(told), "A->B", LOG))
    assert f"the query failed: {named}" in text

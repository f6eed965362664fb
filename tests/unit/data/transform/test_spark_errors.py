"""Spark's message on one record, without the record's data."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sparkmirror.data.transform.plan import TransformPlan
from sparkmirror.data.transform.spark_errors import reason_of, table_of
from sparkmirror.records.records import Record
from sparkmirror.settings import ClusterClient, FlowSettings
from sparkmirror.transform_settings import TransformSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CLIENT = ClusterClient("A", ("localhost:1",), "test")
_TEXT = "CAST(value AS STRING)"
_SECRET = "4929-1111-card"


def _reason(spark: SparkSession, where: str, value: str = _SECRET) -> str:
    one = TransformSettings("clean", ("orders",), where)
    flow = FlowSettings(_CLIENT, _CLIENT, _CLIENT, _CLIENT, transforms=(one,))
    record = Record(5, 1_000, b"key", value.encode(), ((b"h", None),))
    table = table_of("orders", 1, [record])
    return reason_of(TransformPlan(spark, flow), 0, table)


@pytest.mark.parametrize(
    ("where", "said"),
    [
        (
            f"CAST({_TEXT} AS INT) > 5",
            '[CAST_INVALID_INPUT] The value … of the type "STRING" cannot be cast to "INT"',
        ),
        (f"1 / (length({_TEXT}) - 14) > 5", "[DIVIDE_BY_ZERO] Division by zero."),
        (f"CAST(raise_error({_TEXT}) AS BOOLEAN)", "[USER_RAISED_EXCEPTION] …"),
        pytest.param(
            f"parse_url(concat('ht tp://', {_TEXT}), 'HOST') = ''",
            "[INVALID_URL] The url is invalid",
            marks=pytest.mark.more,
        ),
        pytest.param(
            f"to_number({_TEXT}, '999') > 1",
            "[INVALID_FORMAT.MISMATCH_INPUT]",
            marks=pytest.mark.more,
        ),
        pytest.param(
            f"from_json({_TEXT}, 'a int', map('mode', 'FAILFAST')).a > 5",
            "[MALFORMED_RECORD_IN",
            marks=pytest.mark.more,
        ),
        pytest.param(
            f"length(unbase64(left({_TEXT}, 1))) = 1",
            "java.lang.IllegalArgumentException",
            marks=pytest.mark.more,
        ),
        ("mask_json(value, '$.card') IS NULL", "the value is no JSON: at byte 4"),
    ],
)
def test_the_message_names_the_error_and_never_the_value(
    where: str, said: str, spark: SparkSession, capfd: pytest.CaptureFixture[str]
) -> None:
    reason = _reason(spark, where)
    assert reason.startswith(said)
    printed = capfd.readouterr()
    for shown in (reason, printed.out, printed.err):
        assert _SECRET not in shown
        assert "4929" not in shown
    assert "\n" not in reason
    assert "\tat " not in reason


def test_the_part_of_the_sql_is_named_without_its_strings(spark: SparkSession) -> None:
    """A string in SQL may be a key."""
    reason = _reason(spark, f"CAST(concat('sesame', {_TEXT}) AS INT) = 1")
    assert reason.endswith(" In: CAST(concat('…', CAST(value AS STRING)) AS INT)")
    # A string with an r in front ends at a quote behind a backslash.
    reason = _reason(spark, f"CAST(concat(r'\\', {_TEXT}, 'sesame') AS INT) = 1")
    assert reason.endswith(" In: CAST(concat('…', CAST(value AS STRING), '…') AS INT)")


def test_a_record_that_succeeds_now_is_reported_as_such(spark: SparkSession) -> None:
    assert _reason(spark, "value IS NOT NULL") == (
        "the SQL succeeded on this record when it ran again"
    )


def test_every_column_is_there(spark: SparkSession) -> None:
    where = (
        "topic = 'orders' AND partition = 1 AND offset = 5 AND key = 'key' AND "
        "timestamp = TIMESTAMP '1970-01-01 00:00:01' AND headers[0].key = 'h' AND 1 / 0 > 1"
    )
    assert _reason(spark, where).startswith("[DIVIDE_BY_ZERO]")


def test_a_time_in_nanoseconds_does_not_hide_the_reason(spark: SparkSession) -> None:
    one = TransformSettings("clean", ("orders",), "year(timestamp) / 0 = 1")
    flow = FlowSettings(_CLIENT, _CLIENT, _CLIENT, _CLIENT, transforms=(one,))
    record = Record(5, 1_795_000_000_000_000_000, None, b"v")
    reason = reason_of(TransformPlan(spark, flow), 0, table_of("orders", 1, [record]))
    assert reason.startswith("[DIVIDE_BY_ZERO]")

"""The demo's proof: it must see every difference, and none where there is none."""

from __future__ import annotations

import pytest

from sparkmirror.demo.scenario import TOPICS, console_lines, metric_lines, payments
from sparkmirror.demo.verify import digests
from sparkmirror.model import TopicPartition
from sparkmirror.observe.figures.comparison_result import Reading, compare

LINES = [
    b"CreateTime:5\tPartition:0\tNO_HEADERS\tkey\tvalue\n",
    b"CreateTime:6\tPartition:1\th:1,h:2\t\x01null\tvalue\n",
    b"CreateTime:7\tPartition:0\tNO_HEADERS\tkey\t\x01null\n",
]


def test_counts_and_partitions() -> None:
    found = digests(LINES)
    assert {number: one.records for number, one in found.items()} == {0: 2, 1: 1}
    assert digests(LINES) == found
    assert digests([]) == {}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"CreateTime:5", b"CreateTime:4"),
        (b"\tkey\tvalue", b"\tkez\tvalue"),
        (b"\tkey\tvalue", b"\tkey\tvaluf"),
        (b"NO_HEADERS", b"h:1"),
        (b"\tkey\tvalue", b"\tkey\t\x01null"),
    ],
)
def test_any_change_of_a_record_changes_the_digest(old: bytes, new: bytes) -> None:
    changed = [LINES[0].replace(old, new), *LINES[1:]]
    assert digests(changed)[0] != digests(LINES)[0]
    assert digests(changed)[1] == digests(LINES)[1]


def test_order_and_repetition_count_and_kind_of_timestamp_does_not() -> None:
    first, other, second = LINES
    assert digests([second, other, first])[0] != digests(LINES)[0]
    assert digests([first, first, second])[0] != digests(LINES)[0]
    stamped = [line.replace(b"CreateTime", b"LogAppendTime") for line in LINES]
    assert digests(stamped) == digests(LINES)


def test_a_line_feed_in_a_value_belongs_to_its_record() -> None:
    whole = [b"CreateTime:5\tPartition:2\tNO_HEADERS\tk\ta\n", b"b\n"]
    found = digests(whole)
    assert found[2].records == 1
    assert found[2] != digests(whole[:1])[2]


def test_compare_pairs_partitions_by_remote_topic() -> None:
    one, two = Reading(1, "1"), Reading(2, "2")
    source = {TopicPartition("t", 0): one, TopicPartition("t", 1): two}
    target = {TopicPartition("A.t", 0): one, TopicPartition("A.u", 0): one}
    results = compare(source, target, "A.{}".format)
    assert [(r.topic, r.partition, r.equal) for r in results] == [
        ("A.u", 0, False),
        ("t", 0, True),
        ("t", 1, False),
    ]
    assert results[2].target is None


def test_the_scenario_has_every_kind() -> None:
    assert {topic.compression for topic in TOPICS} == {"none", "gzip", "snappy", "lz4", "zstd"}
    assert len({topic.partitions for topic in TOPICS}) >= 4
    assert sum(topic.share for topic in TOPICS) == pytest.approx(1.0)
    assert {"compact"} == {
        t.configs["cleanup.policy"] for t in TOPICS if "cleanup.policy" in t.configs
    }
    assert any("\tNULL" in line for line in console_lines("customers", 1, 20))
    fates = {payment.committed for payment in payments(1, 40, 3)}
    assert fates == {True, False}


@pytest.mark.parametrize("topic", ["orders", "customers", "invoices"])
def test_lines_fit_the_console_producer_and_follow_the_seed(topic: str) -> None:
    lines = list(console_lines(topic, 7, 10))
    assert lines == list(console_lines(topic, 7, 10))
    assert lines != list(console_lines(topic, 8, 10))
    assert lines != list(console_lines(topic, 7, 10, first=10))
    for line in lines:
        headers, key, value = line.split("\t")
        assert all(":" in header for header in headers.split(","))
        assert key
        assert value
    assert list(metric_lines(1, 5)) == list(metric_lines(1, 5))
    assert list(payments(1, 5, 3)) == list(payments(1, 5, 3))

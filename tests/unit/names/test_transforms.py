"""Whether a list of columns in SQL routes records, as far as the file alone shows it."""

from __future__ import annotations

import pytest

from sparkmirror.names.transforms import Transformed, constant_topic, names_topics, routes
from sparkmirror.settings import ClusterClient, FlowSettings
from sparkmirror.transform_settings import TransformSettings


@pytest.mark.parametrize(
    "select",
    [
        "concat('clean.', topic) AS topic",
        "key, 'a' AS topic, value",
        "NULL AS partition",
        "pmod(hash(key), 3) as `partition`",
        "concat('a, b', topic)AS topic",
        "header AS TOPIC -- where it goes\n",
        "/* one, two */ 'x' AS topic",
        "CASE WHEN array(1, 2)[0] = 1 THEN 'a' END\nAS\n topic, key",
    ],
)
def test_columns_that_route(select: str) -> None:
    assert routes(select)


@pytest.mark.parametrize(
    "select",
    [
        "",
        "topic, partition, key",
        "key, topic",
        "'x AS topic' AS value",
        'concat("y AS topic") AS value',
        "to_json(struct(topic AS topic, 1 AS partition)) AS value",
        "value AS topics",
        "value AS value -- , key AS topic",
    ],
)
def test_columns_that_do_not(select: str) -> None:
    assert not routes(select)


def test_topics_of_a_transform_that_routes() -> None:
    client = ClusterClient("A", ("a:1",), "c")
    flow = FlowSettings(
        *(client, client, client, client),
        transforms=(
            TransformSettings("one", ("orders.*",), routes=True),
            TransformSettings("two", ("carts",), "true"),
        ),
    )
    transformed = Transformed(flow)
    assert [transformed.routes(one) for one in ("orders.eu", "carts", "other")] == [
        *(True, False, False)
    ]


@pytest.mark.parametrize(
    ("select", "name"),
    [
        ("'clean' AS topic", "clean"),
        ('key, "clean.all" as `topic` , value', "clean.all"),
        ("concat('a, b', value) AS value, 'x-1' AS topic", "x-1"),
        ("concat('clean.', topic) AS topic", ""),
        ("CASE WHEN true THEN 'a' END AS topic", ""),
        ("'0' AS partition", ""),
        ("', \\'a\\' AS topic, ' AS value, key AS topic", ""),
        ("\", 'a' AS topic, \" AS value, key AS topic", ""),
        ("'a' AS value", ""),
        ("", ""),
    ],
)
def test_a_topic_that_is_the_same_for_all_records(select: str, name: str) -> None:
    assert constant_topic(select) == name
    assert names_topics(select) is ("topic" in select and "partition" not in select)

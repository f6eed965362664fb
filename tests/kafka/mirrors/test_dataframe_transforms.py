"""Transforms in Python in whole mirrors: the page's own example, failed records, refusals."""

from __future__ import annotations

import hashlib
import json
import os
import time
import uuid
from pathlib import Path

import pytest

from sparkmirror.testing.clusters import KafkaCluster
from tests.kafka.harness.mirror_process import MirrorProcess, wait_until, write_mm2
from tests.kafka.harness.pages import DOCS, blocks
from tests.kafka.harness.support import (
    Content,
    Sent,
    consume_all,
    contents,
    create_topic,
    produce,
    produce_transaction,
    topic_names,
)

_KEY = "A->B.sparkmirror.transform"
_FIRST_MS = int(time.time() * 1000) - 3_600_000  # what is older than a week, brokers delete
_AMOUNTS = """
from pyspark.sql import functions as F


def doubled(records):
    amount = F.col("value").cast("string").cast("int")
    return (
        records.withColumn("amount", amount)
        .filter("topic IS NOT NULL AND amount >= 10")
        .withColumn("value", (F.col("amount") * 2).cast("string"))
        .drop("amount")
    )


def counted(records):
    return records.groupBy("key").count()
"""


@pytest.fixture
def name() -> str:
    return f"functions-{uuid.uuid4().hex[:8]}"


def _sent(first: int, count: int) -> list[Sent]:
    """Documents, tombstones, and texts that are no documents."""
    made = []
    for n in range(first, first + count):
        region = "EU" if n % 3 == 0 else "US"
        value: bytes | None = b'{"n":%d,"region":"%s","card":"c-%d"}' % (n, region.encode(), n)
        value = {7: None, 8: b"no document"}.get(n % 20, value)
        headers = (("secret", b"s"), ("kept", None), ("kept", b"\xff")) if n % 2 else ()
        key = b"k%d" % (n % 5) if n % 4 else None
        made.append(Sent(value, key, headers, _FIRST_MS + n, n % 2))
    return made


def _expected(sent: list[Sent]) -> list[Content]:
    """What the page's function must make of ``sent``, computed without Spark."""
    found = []
    for one in sent:
        value = one.value
        if value is not None:
            if not value.startswith(b"{"):
                continue
            document = json.loads(value)
            if document["region"] == "EU":
                continue
            document["card"] = hashlib.sha256(document["card"].encode()).hexdigest()
            value = json.dumps(document, separators=(",", ":")).encode()
        headers = tuple(each for each in one.headers if each[0] != "secret")
        found.append(Content(one.partition or 0, one.timestamp_ms, one.key, value, headers))
    return sorted(found, key=lambda one: one.partition)


def _once(directory: Path, *arguments: str, code: int = 0) -> str:
    """A run whose modules are in ``directory``."""
    path = {"PYTHONPATH": os.pathsep.join([str(directory), os.environ.get("PYTHONPATH", "")])}
    command = ["run", *arguments, "--once", "--work-dir", str(directory / "work")]
    mirror = MirrorProcess(directory, command, environment=path)
    assert mirror.wait() == code, mirror.text()
    return mirror.text()


@pytest.mark.more
def test_the_function_of_the_page_and_one_that_fails_on_records(
    name: str, cluster_a: KafkaCluster, cluster_b: KafkaCluster, tmp_path: Path
) -> None:
    """Exactly-once: filtered, masked, dead letters, and a topic beside them that stays as it is."""
    orders, amounts, plain = f"{name}.orders", f"{name}.amounts", f"{name}.plain"
    create_topic(cluster_a, orders, 2)
    create_topic(cluster_a, amounts, 1)
    create_topic(cluster_a, plain, 1)
    stamped = [f"{name}.stamped.{kind}" for kind in ("CreateTime", "LogAppendTime")]
    for topic in stamped:
        create_topic(cluster_a, topic, 1, config={"message.timestamp.type": topic.split(".")[-1]})
        produce(cluster_a, topic, [Sent(b"%d" % n, timestamp_ms=_FIRST_MS) for n in range(50)])
    sent, rest = _sent(0, 1_500), [Sent(b"%d" % n) for n in range(300)]
    values = [b"%d" % n if n not in (40, 42) else b"x%d" % n for n in range(100)]
    produce(cluster_a, orders, sent[:700], compression="lz4")
    produce_transaction(cluster_a, orders, _sent(90_000, 50), commit=False)
    produce(cluster_a, orders, sent[700:], compression="lz4")
    produce(cluster_a, amounts, [Sent(one, b"k") for one in values])
    produce(cluster_a, plain, rest)
    wait_until(lambda: len(consume_all(cluster_a, orders)) == len(sent), "the marker")
    (code,) = [one for one in blocks(DOCS / "transforms.md", "python") if "def clean(" in one]
    (tmp_path / "orders.py").write_text(code)
    (tmp_path / "amounts.py").write_text(_AMOUNTS)
    extra = {
        "A->B.sparkmirror.transforms": "clean, doubled, stamped",
        f"{_KEY}.stamped.topics": f"{name}[.]stamped[.].*",
        f"{_KEY}.stamped.where": "timestampType = 1",
        f"{_KEY}.clean.topics": f"{name}[.]orders",
        f"{_KEY}.clean.python": "orders:clean",
        f"{_KEY}.doubled.topics": f"{name}[.]amounts",
        f"{_KEY}.doubled.python": "amounts:doubled",
        "A->B.sparkmirror.on.bad.record": "dead-letter",
        "A->B.source.consumer.isolation.level": "read_committed",
    }
    path = write_mm2(tmp_path / "mm2.properties", cluster_a, cluster_b, f"{name}.*", extra)
    _once(tmp_path, str(path), "--exactly-once")
    assert contents(consume_all(cluster_b, f"A.{orders}")) == _expected(sent)
    assert contents(consume_all(cluster_b, f"A.{plain}")) == contents(consume_all(cluster_a, plain))
    got = [one.value for one in consume_all(cluster_b, f"A.{amounts}")]
    assert got == [b"%d" % (2 * n) for n in range(10, 100) if n not in (40, 42)]
    letters = consume_all(cluster_b, f"A.{amounts}.dead-letter")
    assert [one.value for one in letters] == [b"x40", b"x42"]
    headers = dict(letters[0].headers)
    assert headers["sparkmirror.error.code"] == b"TRANSFORM_FAILED"
    assert [len(consume_all(cluster_b, f"A.{topic}")) for topic in stamped] == [0, 50]

    # The next run continues behind what was filtered.
    more = _sent(1_500, 100)
    produce(cluster_a, orders, more)
    _once(tmp_path, str(path), "--exactly-once")
    assert contents(consume_all(cluster_b, f"A.{orders}")) == _expected(sent + more)


@pytest.mark.more
@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("amounts:counted", "amounts:counted needs Spark's operator Aggregate"),
        pytest.param("nowhere:clean", "No module named 'nowhere'", marks=pytest.mark.long),
    ],
)
def test_a_function_is_refused_at_the_start_with_its_line(
    function: str,
    said: str,
    name: str,
    cluster_a: KafkaCluster,
    cluster_b: KafkaCluster,
    tmp_path: Path,
) -> None:
    create_topic(cluster_a, f"{name}.orders", 1)
    produce(cluster_a, f"{name}.orders", [Sent(b"1")])
    (tmp_path / "amounts.py").write_text(_AMOUNTS)
    extra = {
        "A->B.sparkmirror.transforms": "clean",
        f"{_KEY}.clean.topics": ".*",
        f"{_KEY}.clean.python": function,
    }
    path = write_mm2(tmp_path / "mm2.properties", cluster_a, cluster_b, f"{name}.*", extra)
    keys = [line.split(" = ")[0] for line in path.read_text().splitlines()]
    told = _once(tmp_path, str(path), code=2)
    assert said in told
    assert f"mm2.properties:{1 + keys.index(f'{_KEY}.clean.python')}: {_KEY}.clean.python" in told
    # Topics are created while Spark starts.
    remote = f"A.{name}.orders"
    assert remote not in topic_names(cluster_b) or not consume_all(cluster_b, remote)

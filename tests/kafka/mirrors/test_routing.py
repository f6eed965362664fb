"""Records that choose their topic and partition, in whole mirrors whose sinks are killed."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import threading
import time
import uuid
from collections import defaultdict
from pathlib import Path
from typing import Any

import psutil
import pytest

from sparkmirror.cli.main import main
from sparkmirror.testing.clusters import KafkaCluster
from tests.kafka.harness.mirror_process import MirrorProcess, wait_until, write_mm2
from tests.kafka.harness.support import (
    Ends,
    Received,
    Sent,
    consume_all,
    create_topic,
    grow_topic,
    produce,
    topic_names,
)
from tests.murmur2 import murmur2

EXACTLY_ONCE = ("--exactly-once",)
NAMES, ROUTE = "A->B.sparkmirror.transforms", "A->B.sparkmirror.transform.route"
TENANTS = ("eu", "us", "")
PARTITIONS = {"eu": 2, "us": 3, "": 3}
BY = {
    "header": "CAST(get(filter(headers, one -> one.key = 'tenant'), 0).value AS STRING)",
    "json": "get_json_object(CAST(value AS STRING), '$.tenant')",
}
_FRAMES = "memfd:sparkmirror-frames"


@pytest.fixture
def name() -> str:
    return f"route-{uuid.uuid4().hex[:8]}"


def _tenant(n: int) -> str:
    return TENANTS[n * 7 % 3]


def _sent(first: int, count: int) -> list[Sent]:
    """Records whose tenant is in a header and in the value; none for the remote topic."""
    made = []
    for n in range(first, first + count):
        tenant, key = _tenant(n), b"key-%d" % (n % 41)
        document = {"n": n, **({"tenant": tenant} if tenant else {})}
        headers = (("tenant", tenant.encode()),) if tenant else ()
        made.append(Sent(json.dumps(document).encode(), key, headers, 0, n % 41 % 3))
    return made


def _file(
    directory: Path, a: KafkaCluster, b: KafkaCluster, name: str, select: str, **more: str
) -> Path:
    extra = {NAMES: "route", f"{ROUTE}.topics": f"{name}[.]orders", f"{ROUTE}.select": select}
    return write_mm2(directory / "mm2.properties", a, b, f"{name}.*", extra | more)


def _run(directory: Path, *arguments: str) -> MirrorProcess:
    return MirrorProcess(directory, ["run", *arguments, "--work-dir", str(directory / "work")])


def _once(directory: Path, *arguments: str, code: int = 0) -> str:
    mirror = _run(directory, *arguments, "--once")
    assert mirror.wait() == code, mirror.text()
    return mirror.text()


def _asked(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    capsys.readouterr()
    assert main([*arguments, "--format", "json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def _sinks(mirror: MirrorProcess) -> list[psutil.Process]:
    """The workers that have a slot's memory open once: its owner has it open besides."""
    found = []
    for process in psutil.Process(mirror.process.pid).children(recursive=True):
        with contextlib.suppress(OSError):
            opened = [fd.readlink() for fd in Path(f"/proc/{process.pid}/fd").glob("*")]
            if sum(_FRAMES in str(one) for one in opened) == 1:
                found.append(process)
    return found


@pytest.mark.more
@pytest.mark.parametrize(
    ("by", "mode"),
    [
        ("header", EXACTLY_ONCE),
        pytest.param("json", (), marks=pytest.mark.long),
        pytest.param("json", EXACTLY_ONCE, marks=pytest.mark.long),
        pytest.param("header", (), marks=pytest.mark.long),
    ],
)
def test_three_topics_by_key_while_sinks_are_killed(
    by: str,
    mode: tuple[str, ...],
    name: str,
    cluster_a: KafkaCluster,
    cluster_b: KafkaCluster,
    tmp_path: Path,
) -> None:
    """0 are lost, each is where it belongs, and keys keep their order; exactly-once: 0 twice."""
    orders = f"{name}.orders"
    topics = {one: f"t.{name}.{one}" if one else f"A.{orders}" for one in TENANTS}
    create_topic(cluster_a, orders, 3)
    for tenant in ("eu", "us"):
        create_topic(cluster_b, topics[tenant], PARTITIONS[tenant])
    select = f"key, value, concat('t.{name}.', {BY[by]}) AS topic, NULL AS partition"
    path = _file(tmp_path, cluster_a, cluster_b, name, select)
    produce(cluster_a, orders, _sent(0, 1_000))
    mirror = _run(tmp_path, str(path), *mode)
    killed = 0
    sent, enough = [1_000], threading.Event()
    feeding = threading.Thread(target=_feed, args=(cluster_a, orders, sent, enough))
    try:
        wait_until(lambda: _ends(cluster_b, topics) > 0, "first records")
        feeding.start()
        rng = random.Random(7)
        while killed < 4:
            wait_until(lambda: bool(_sinks(mirror)), "a sink")
            time.sleep(rng.uniform(0.5, 2.5))
            sinks = _sinks(mirror)
            if sinks:
                with contextlib.suppress(psutil.NoSuchProcess):  # the pipeline has ended it
                    rng.choice(sinks).send_signal(signal.SIGKILL)
                    killed += 1
        enough.set()
        feeding.join()
        wait_until(lambda: _ends(cluster_b, topics) >= sent[0], "all records")
        wait_until(lambda: len(set(_arrived(cluster_b, topics))) == sent[0], "each record")
        assert mirror.drain()[0] == 0, mirror.text()
    finally:
        mirror.kill()
        enough.set()
        if feeding.ident is not None:
            feeding.join()
    assert killed == 4
    arrived, count = _arrived(cluster_b, topics), sent[0]
    if mode:
        assert len(arrived) == count
    assert set(arrived) == set(range(count))
    for tenant, topic in topics.items():
        found = defaultdict(list)
        for one in consume_all(cluster_b, topic):
            number = json.loads(one.value or b"")["n"]
            assert _tenant(number) == tenant
            assert one.partition == (murmur2(one.key or b"") & 0x7FFFFFFF) % PARTITIONS[tenant]
            found[one.key].append(number)
        for numbers in found.values():
            # What comes twice is a stretch that begins again.
            assert list(dict.fromkeys(numbers)) == sorted(set(numbers))


def _feed(cluster: KafkaCluster, topic: str, sent: list[int], enough: threading.Event) -> None:
    """Writes as long as sinks are killed; ``sent``: how many there are."""
    while sent[0] < 9_000 or not enough.is_set():
        produce(cluster, topic, _sent(sent[0], 250))
        sent[0] += 250
        time.sleep(0.3)


def _ends(cluster: KafkaCluster, topics: dict[str, str]) -> int:
    return sum(sum(Ends(cluster, topic).offsets().values()) for topic in topics.values())


def _arrived(cluster: KafkaCluster, topics: dict[str, str]) -> list[int]:
    there = topic_names(cluster)
    received: list[Received] = []
    for topic in topics.values():
        received += consume_all(cluster, topic) if topic in there else []
    return [json.loads(one.value or b"")["n"] for one in received]


@pytest.mark.more
@pytest.mark.parametrize("mode", [pytest.param((), marks=pytest.mark.long), EXACTLY_ONCE])
def test_a_topic_that_is_missing_stops_the_partition_until_it_is_there(
    mode: tuple[str, ...],
    name: str,
    cluster_a: KafkaCluster,
    cluster_b: KafkaCluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    orders, clean = f"{name}.orders", f"clean.{name}.orders"
    create_topic(cluster_a, orders, 2)
    produce(cluster_a, orders, [Sent(b"%d" % n, b"k", partition=n % 2) for n in range(100)])
    path = _file(
        tmp_path, cluster_a, cluster_b, name, "concat('clean.', topic) AS topic",
        **{"A->B.sparkmirror.routing.create.topics": "false"},
    )  # fmt: skip
    said = _once(tmp_path, str(path), *mode, code=1)
    assert f"the target has no topic '{clean}': create it with at least 1 partitions" in said
    assert clean not in topic_names(cluster_b)
    create_topic(cluster_b, clean)
    said = _once(tmp_path, str(path), *mode, code=1)
    assert f"topic '{clean}' has 1 partitions, and no partition 1" in said
    assert [one.value for one in consume_all(cluster_b, clean)] == [
        b"%d" % n for n in range(0, 100, 2)
    ]
    grow_topic(cluster_b, clean, 2)
    _once(tmp_path, str(path), *mode)
    got = consume_all(cluster_b, clean)
    assert [(one.partition, one.value) for one in got] == [
        (n % 2, b"%d" % n) for n in (*range(0, 100, 2), *range(1, 100, 2))
    ]
    assert consume_all(cluster_b, f"A.{orders}") == []
    (flow,) = _asked(capsys, "lag", str(path))["flows"]
    assert [one["records"] for one in flow["partitions"]] == [0, 0]


@pytest.mark.more
@pytest.mark.parametrize("mode", [(), pytest.param(EXACTLY_ONCE, marks=pytest.mark.long)])
def test_records_that_the_routed_topic_refuses(
    mode: tuple[str, ...],
    name: str,
    cluster_a: KafkaCluster,
    cluster_b: KafkaCluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """They and those with a wrong name are dead letters, with their offsets at the source."""
    orders, small = f"{name}.orders", f"small.{name}"
    create_topic(cluster_a, orders)
    create_topic(cluster_b, small, config={"max.message.bytes": "2000"})
    values = [b"%d" % n for n in range(20)]
    values[7], values[12], values[13] = random.Random(1).randbytes(5_000), b"bad name", b"__x"
    produce(cluster_a, orders, [Sent(one, b"k", partition=0) for one in values])
    odd = "CASE WHEN length(value) > 2 AND length(value) < 100 THEN CAST(value AS STRING) "
    odd += f"WHEN offset % 2 = 1 THEN '{small}' END AS topic"
    path = _file(
        tmp_path, cluster_a, cluster_b, name, odd,
        **{"A->B.sparkmirror.on.bad.record": "dead-letter"},
    )  # fmt: skip
    _once(tmp_path, str(path), *mode)
    assert [one.value for one in consume_all(cluster_b, f"A.{orders}")] == [
        values[n] for n in range(0, 20, 2) if n != 12
    ]
    assert [one.value for one in consume_all(cluster_b, small)] == [
        values[n] for n in range(1, 20, 2) if n not in (7, 13)
    ]
    letters = consume_all(cluster_b, f"A.{orders}.dead-letter")
    offsets = {int(dict(one.headers)["sparkmirror.source.offset"] or b"") for one in letters}
    assert offsets == {7, 12, 13}
    found = [one for one in _asked(capsys, "gaps", str(path))["gaps"] if one["topic"] == orders]
    spans = {(one["first_offset"], one["last_offset"], one["code"]) for one in found}
    assert {(12, 12, "TRANSFORM_FAILED"), (13, 13, "TRANSFORM_FAILED")} < spans
    assert {first for first, _, _ in spans} == {7, 12, 13}

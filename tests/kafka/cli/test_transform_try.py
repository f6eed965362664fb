"""``transform try`` on real brokers: it shows what a mirror makes, and writes nothing."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from sparkmirror.cli.main import main
from sparkmirror.testing.clusters import KafkaCluster
from sparkmirror.wire.admin.cluster import Cluster
from tests.kafka.harness.mirror_process import MirrorProcess, asked, write_mm2
from tests.kafka.harness.support import Sent, consume_all, create_topic, produce, topic_names

CLEAN = "A->B.sparkmirror.transform.clean"
WHERE = "value IS NULL OR CAST(CAST(value AS STRING) AS INT) % 2 = 0"
SELECT = (
    "concat('n', CAST(value AS STRING)) AS value, filter(headers, h -> h.key <> 's') AS headers"
)


def _file(directory: Path, a: KafkaCluster, b: KafkaCluster, name: str) -> Path:
    extra = {
        "A->B.sparkmirror.transforms": "clean",
        f"{CLEAN}.topics": f"{name}[.]orders",
        f"{CLEAN}.where": WHERE,
        f"{CLEAN}.select": SELECT,
        "A->B.sparkmirror.on.bad.record": "skip",
    }
    return write_mm2(directory / "mm2.properties", a, b, f"{name}.*", extra)


def _try(path: Path, *options: str, code: int = 0) -> tuple[Any, str]:
    command = ("transform", "try", str(path), "--format", "json", *options)
    out, err = asked(path.parent, *command, code=code)
    return (json.loads(out) if out else None), err


def _groups(cluster: KafkaCluster, path: Path) -> set[str]:
    from sparkmirror.config.mm2.load import load_mm2

    flow = load_mm2(path).flows[0]
    client = (
        flow.source if cluster.bootstrap_servers in flow.source.bootstrap_servers else flow.target
    )
    there = Cluster(client)
    try:
        return set(there.groups())
    finally:
        there.close()


@pytest.mark.more
def test_it_shows_what_the_mirror_makes_and_writes_nothing(
    cluster_a: KafkaCluster,
    cluster_b: KafkaCluster,
    tmp_path: Path,
) -> None:
    name = f"try-{uuid.uuid4().hex[:8]}"
    orders, remote = f"{name}.orders", f"A.{name}.orders"
    create_topic(cluster_a, orders, 2)
    values = [b"%d" % n if n != 6 else b"x6" for n in range(10)]
    produce(
        cluster_a,
        orders,
        [
            Sent(one, b"\xff%d" % n, (("s", b"1"), ("kept", None)), partition=n % 2)
            for n, one in enumerate(values)
        ],
        compression="lz4",
    )
    path = _file(tmp_path, cluster_a, cluster_b, name)
    before = [(topic_names(each), _groups(each, path)) for each in (cluster_a, cluster_b)]

    found, said = _try(path, "--from", "earliest", code=1)
    assert (found["read"], found["kept"], found["filtered"], found["failed"]) == (10, 4, 5, 1)
    assert found["transforms"] == {orders: "clean"}
    (failed,) = [one for one in found["records"] if one["outcome"] == "failed"]
    assert (failed["partition"], failed["offset"]) == (0, 3)
    assert "[CAST_INVALID_INPUT]" in failed["reason"]
    assert failed["before"]["value"] == {"text": "x6"}
    assert found["cost"]["raw_records_per_s"] > found["cost"]["transform_records_per_s"] > 0
    assert "Project" in found["spark_plan"]
    assert said == ""
    after = [(topic_names(each), _groups(each, path)) for each in (cluster_a, cluster_b)]
    assert after == before

    # One partition and offset; the newest ones; what cannot be read.
    some, _ = _try(path, "--topic", orders, "--from", "4", "--limit", "50")
    assert [(one["partition"], one["offset"]) for one in some["records"]] == [(0, 4), (1, 4)]
    newest, _ = _try(path, "--limit", "2")
    assert [(one["partition"], one["offset"]) for one in newest["records"]] == [(0, 4), (1, 4)]
    _, said = _try(path, "--topic", orders, "--from", "99", code=1)
    assert f"{orders} has no records from 99 on" in said
    _, said = _try(path, "--topic", f"{name}.plain", code=2)
    assert "no transform processes topic" in said
    wrong = tmp_path / "wrong.properties"
    wrong.write_text(path.read_text().replace(WHERE, "valu = 1"))
    _, said = _try(wrong, code=2)
    assert "wrong.properties:" in said
    assert "`valu` cannot be resolved" in said

    mirror = MirrorProcess(
        tmp_path, ["run", str(path), "--once", "--work-dir", str(tmp_path / "work")]
    )
    assert mirror.wait() == 0, mirror.text()
    kept = [one for one in found["records"] if one["outcome"] == "kept"]
    for partition in range(2):
        assert [
            (one.timestamp_ms, one.key, one.value, dict(one.headers))
            for one in consume_all(cluster_b, remote)
            if one.partition == partition
        ] == [
            (
                one["after"]["timestamp_ms"],
                bytes.fromhex(one["after"]["key"]["hex"]),
                one["after"]["value"]["text"].encode(),
                {"kept": None},
            )
            for one in kept
            if one["partition"] == partition
        ]


@pytest.mark.long
def test_a_record_goes_to_the_remote_topic_that_the_mirror_will_create(
    cluster_a: KafkaCluster,
    cluster_b: KafkaCluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Before its first run, as well as afterwards; other topics must be there.

    In this process, where the guard sees what the command and its JVM leave behind.
    """
    name = f"try-{uuid.uuid4().hex[:8]}"
    orders, remote, eu = f"{name}.orders", f"A.{name}.orders", f"{name}-eu"
    create_topic(cluster_a, orders, 2)
    create_topic(cluster_b, eu, 2)
    produce(cluster_a, orders, [Sent(one, partition=1) for one in (b"eu", b"us", b"nowhere")])
    select = f"CASE CAST(value AS STRING) WHEN 'eu' THEN '{eu}' WHEN 'nowhere' THEN 'no-{eu}' END"
    extra = {
        "A->B.sparkmirror.transforms": "clean",
        f"{CLEAN}.topics": orders,
        f"{CLEAN}.select": f"{select} AS topic",
        "A->B.sparkmirror.routing.create.topics": "false",
    }
    path = write_mm2(tmp_path / "mm2.properties", cluster_a, cluster_b, f"{name}.*", extra)
    assert main(["transform", "try", str(path), "--format", "json"]) == 1
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert printed.err == ""
    assert [(one["outcome"], one["target"]) for one in found["records"]] == [
        ("kept", [eu, 1]),
        ("kept", [remote, 1]),
        ("failed", None),
    ]
    assert f"the target has no topic 'no-{eu}'" in found["records"][2]["reason"]
    assert remote not in topic_names(cluster_b)

"""Values with schemas of a registry in whole mirrors, on one machine and on a cluster."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import sparkmirror
from sparkmirror.cli.main import main
from sparkmirror.data.spark.session import _end_gateway
from sparkmirror.java import find_java, java_environment
from sparkmirror.testing.clusters import KafkaCluster
from tests.kafka.clusters.spark_cluster import SparkCluster, closed_network, plain_python
from tests.kafka.harness.mirror_process import MirrorProcess, wait_until, write_mm2
from tests.kafka.harness.support import Sent, consume_all, create_topic, produce, wait_for_topic
from tests.registries import Avro, SchemaRegistry, basic, serving, wire

_PASSWORD = "a-password-that-no-log-shows"
_LOGIN = basic("mirror", _PASSWORD)
_KEY = "A->B.sparkmirror.transform"
_ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "card", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}


@pytest.fixture(scope="module")
def avro() -> Iterator[Avro]:
    """Avro's own library, as producers and consumers in Java use it."""
    from pyspark.java_gateway import launch_gateway

    os.environ.update(java_environment(find_java()))
    gateway = launch_gateway()
    # Otherwise an object that is collected during a call opens one more connection, in some test.
    gateway._gateway_client.gateway_property.enable_memory_management = False
    yield Avro(gateway.jvm)
    _end_gateway(gateway)


def _file(
    directory: Path, a: KafkaCluster, b: KafkaCluster, name: str, url: str
) -> tuple[Path, str, str]:
    """A mirror with a topic that becomes JSON, and one whose records are masked."""
    shown, masked = f"{name}.shown", f"{name}.masked"
    for topic in (shown, masked):
        create_topic(a, topic)
    extra = {
        "A->B.sparkmirror.transforms": "show, mask",
        "A->B.sparkmirror.registry.url": url,
        "A->B.sparkmirror.registry.basic.auth.user.info": f"mirror:{_PASSWORD}",
        "A->B.sparkmirror.on.bad.record.dead-letter.topics": masked,
        f"{_KEY}.show.topics": shown,
        f"{_KEY}.show.select": "decode_registry(value) AS value",
        f"{_KEY}.mask.topics": masked,
        f"{_KEY}.mask.where": "value IS NULL OR length(value) < 9 OR "
        "get_json_object(decode_registry(value), '$.id') <> '5'",
        f"{_KEY}.mask.select": "encode_registry(mask_json(decode_registry(value), '$.card'), value)"
        " AS value",
    }
    return write_mm2(directory / "mm2.properties", a, b, f"{name}.*", extra), shown, masked


def _order(n: int) -> str:
    card = "null" if n % 4 == 0 else f'{{"string":"4111-{n}"}}'
    return f'{{"id":{n},"card":{card},"at":{1_000 * n}}}'


@pytest.mark.parametrize("where", ["local", "cluster"])
def test_avro_becomes_json_or_stays_avro_with_a_masked_field(
    where: str,
    avro: Avro,
    cluster_a: KafkaCluster,
    cluster_b: KafkaCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Executors ask the registry with its login. No log and no plan shows the login."""
    registry = SchemaRegistry(_LOGIN)
    number = registry.add("orders", _ORDER)
    values: list[bytes | None] = [wire(number, avro.written(_ORDER, _order(n))) for n in range(20)]
    values[10] = None
    with serving(registry) as url:
        name = f"registry-{uuid.uuid4().hex[:8]}"
        path, shown, masked = _file(tmp_path, cluster_a, cluster_b, name, url)
        produce(cluster_a, shown, [Sent(one, b"k", partition=0) for one in values])
        produce(cluster_a, masked, [Sent(one, b"k", partition=0) for one in [*values, b"no avro"]])
        arguments = ["run", str(path), "--once", "--work-dir", str(tmp_path / "work")]
        if where == "local":
            mirror = MirrorProcess(tmp_path, arguments)
            assert mirror.wait() == 0, mirror.text()
        else:
            interpreter, lacking = plain_python(tmp_path / "python")
            monkeypatch.setenv("PYSPARK_PYTHON", str(interpreter))
            source = Path(sparkmirror.__file__).parent.parent
            monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (source, lacking))))
            monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
            with SparkCluster(tmp_path, workers=1, settings=closed_network()) as spark:
                mirror = MirrorProcess(tmp_path, [*arguments, "--master", spark.master])
                assert mirror.wait() == 0, mirror.text()
    documents = [one.value for one in consume_all(cluster_b, f"A.{shown}")]
    assert documents[3] == b'{"id":3,"card":"4111-3","at":"1970-01-01T00:00:03Z"}'
    assert documents[4] == b'{"id":4,"card":null,"at":"1970-01-01T00:00:04Z"}'
    assert [None if one is None else json.loads(one)["id"] for one in documents] == [
        None if n == 10 else n for n in range(20)
    ]
    read = []
    for one in consume_all(cluster_b, f"A.{masked}"):
        assert one.value is None or one.value[:5] == wire(number, b"")
        read.append(None if one.value is None else json.loads(avro.read(_ORDER, one.value[5:])))
    assert read == [
        None if n == 10 else {"id": n, "card": {"string": "***"}, "at": 1_000 * n}
        for n in range(20)
        if n != 5
    ]
    (letter,) = consume_all(cluster_b, f"A.{masked}.dead-letter")
    assert letter.value == b"no avro"
    reason = dict(letter.headers)["sparkmirror.error.reason"] or b""
    if where == "local":
        assert b": the value is not in the registry's format" in reason
    hidden = (_PASSWORD.encode(), _LOGIN.split()[1].encode())
    for log in [*tmp_path.rglob("*.log"), *(tmp_path / "work" / "checkpoints").rglob("*")]:
        for secret in hidden:
            assert not log.is_file() or secret not in log.read_bytes(), log
    assert not any(secret.decode() in mirror.text() for secret in hidden)


def test_an_outage_of_the_registry_pauses_what_needs_it(
    avro: Avro,
    cluster_a: KafkaCluster,
    cluster_b: KafkaCluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Known schemas are not asked for again. The mirror goes on by itself when it is over."""
    registry = SchemaRegistry(_LOGIN)
    known = wire(registry.add("orders", _ORDER), avro.written(_ORDER, _order(1)))
    with serving(registry) as url:
        name = f"registry-{uuid.uuid4().hex[:8]}"
        path, shown, _ = _file(tmp_path, cluster_a, cluster_b, name, url)
        produce(cluster_a, shown, [Sent(known)])
        mirror = MirrorProcess(tmp_path, ["run", str(path), "--work-dir", str(tmp_path / "work")])

        def arrived() -> int:
            return len(consume_all(cluster_b, f"A.{shown}"))

        def status() -> str:
            main(["status", str(path), "--format", "json"])
            return capsys.readouterr().out

        try:
            wait_for_topic(cluster_b, f"A.{shown}", 1)
            wait_until(lambda: arrived() == 1, "the first record")
            registry.status = 503
            produce(cluster_a, shown, [Sent(known)])
            wait_until(lambda: arrived() == 2, "a record with a known schema")
            number = registry.add("texts", '"string"')
            produce(cluster_a, shown, [Sent(wire(number, b"\x02x")), Sent(known)])
            said = f"the registry {url} is unavailable: HTTP 503"
            wait_until(lambda: said in " ".join(status().split()), said)
            assert arrived() == 2
            registry.status = 0
            wait_until(lambda: arrived() == 4, "the records after the outage")
            assert mirror.drain()[0] == 0, mirror.text()
        finally:
            mirror.kill()
    values = [one.value for one in consume_all(cluster_b, f"A.{shown}")]
    assert values[1:3] == [values[0], b'"x"']

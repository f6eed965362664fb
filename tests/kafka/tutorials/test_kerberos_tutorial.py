"""The page on Kerberos: its commands, from the mirror's principal to records on the target."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kafka.clusters.kerberized import Kerberized, kerberized
from tests.kafka.clusters.realm import HOST, REALM, realm, require_kerberos
from tests.kafka.harness.support import Sent, create_topic, produce, wait_until_equal
from tests.patience import patience

PAGE = Path(__file__).parents[3] / "docs" / "kerberos.md"
FACTORS = {"tasks.max": "1", **dict.fromkeys((
    *("replication.factor", "A.offset.storage.replication.factor"),
    *("B.offset.storage.replication.factor", "offset-syncs.topic.replication.factor"),
    *("checkpoints.topic.replication.factor", "heartbeats.topic.replication.factor"),
), "1")}  # fmt: skip


@pytest.fixture
def guarded_realm(tmp_path: Path) -> Iterator[Kerberized]:
    """A broker that lets its administrator in, and nobody else before the page has done so."""
    require_kerberos()
    with realm(tmp_path / "realm") as running:
        admin = running.keytab("admin.keytab", f"admin@{REALM}")
        more = {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS;User:admin",
        }
        found = kerberized("T", running, admin, tmp_path, more=more)
        with found.kafka:
            yield found


@pytest.mark.long
def test_the_commands_of_the_tutorial(guarded_realm: Kerberized, tmp_path: Path, topic_name: str):
    """As they stand on the page, with this machine's names."""
    kafka = guarded_realm.kafka
    create_topic(kafka, topic_name)
    sent = [Sent(value=b"v%d" % n, key=b"k", partition=0) for n in range(20)]
    produce(kafka, topic_name, sent)
    names = {
        "/etc/sparkmirror/mirror.keytab": str(tmp_path / "mirror.keytab"),
        "/etc/kafka/admin.keytab": str(guarded_realm.keytab),
        "/tmp/tickets-of-a-check": str(tmp_path / "tickets"),
        "broker1.example.com:9093": guarded_realm.server,
        "broker2.example.com:9093": guarded_realm.server,
        "broker1.example.com": HOST,
        "EXAMPLE.COM": REALM,
        "orders.*": topic_name,
    }
    page = PAGE.read_text()
    for name, here in names.items():
        page = page.replace(name, here)
    mirror, admin = re.findall(r"```properties\n(.+?)```", page, re.DOTALL)
    factors = "".join(f"{key} = {value}\n" for key, value in FACTORS.items())
    (tmp_path / "mm2.properties").write_text(mirror + factors)
    (tmp_path / "admin.properties").write_text(admin)
    commands = [
        line
        for block in re.findall(r"```sh\n(.+?)```", page, re.DOTALL)
        for line in block.splitlines()
    ]
    assert len(commands) == 10
    environment = guarded_realm.realm.environment | {
        "PATH": f"{_kafkas_tools(guarded_realm, tmp_path)}:{Path(sys.executable).parent}:"
        f"{os.environ['PATH']}:/usr/sbin:/sbin",
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }
    for command in commands:
        done = subprocess.run(
            ["bash", "-ec", command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=patience(),
            check=False,
        )
        told = f"{command}\n{done.stdout}{done.stderr}"
        assert done.returncode == 0, told
        assert "Grant" not in told or command.startswith("sparkmirror doctor")
    wait_until_equal(kafka, topic_name, kafka, f"A.{topic_name}", timeout_s=10)


def _kafkas_tools(cluster: Kerberized, directory: Path) -> Path:
    """A directory with ``kafka-acls.sh`` as Kafka ships it: its class, in a JVM of its own."""
    found = directory / "bin"
    found.mkdir()
    flags = ("-XX:TieredStopAtLevel=1", f"-Djava.security.krb5.conf={cluster.realm.conf}")
    command = cluster.kafka.tool_command("org.apache.kafka.tools.AclCommand", flags=flags)
    script = found / "kafka-acls.sh"
    script.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    script.chmod(0o755)
    return found

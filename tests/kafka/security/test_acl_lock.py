"""``sparkmirror acls lock``: nobody but the mirror writes to its remote topics."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from confluent_kafka import Producer

from sparkmirror.cli.main import main
from sparkmirror.testing.clusters import KafkaCluster
from tests.kafka.clusters.authorized import ADMIN, Authorized, password, properties, topic_acl
from tests.kafka.harness.mirror_process import write_mm2
from tests.kafka.harness.permissions import Pair, mm2, run_commands
from tests.kafka.harness.support import (
    TIMEOUT_S,
    create_topic,
)


@pytest.fixture
def alias() -> str:
    return f"S{uuid.uuid4().hex[:8]}"


def writes(cluster: Authorized, user: str, topic: str) -> str:
    """Produce one record as ``user``; the error's name, empty when it went well."""
    config = {"bootstrap.servers": cluster.login_servers, "security.protocol": "SASL_PLAINTEXT",
              "sasl.mechanism": "PLAIN", "sasl.username": user, "sasl.password": password(user),
              "message.timeout.ms": 10_000}  # fmt: skip
    failures = []
    producer = Producer(config)
    producer.produce(topic, b"x", on_delivery=lambda error, _: failures.append(error))
    producer.flush(TIMEOUT_S)
    return failures[0].name() if failures[0] is not None else ""


@pytest.mark.parametrize("apply", [pytest.param(False, marks=pytest.mark.more), True])
def test_a_lock_leaves_writing_to_the_mirror(
    authorized: Pair, alias: str, topic_name: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], apply: bool,
):  # fmt: skip
    """Printed commands, run with Kafka's own tool, do what --apply does."""
    target = authorized[1]
    remote = f"{alias}.{topic_name}"
    create_topic(target.kafka, remote)
    others = [
        topic_acl(remote, "ALL", "User:*"),
        topic_acl(alias, "WRITE", "User:other", pattern="PREFIXED"),
    ]
    target.allow(others)
    assert writes(target, "other", remote) == ""
    assert writes(target, "locked", remote) == ""
    off = {"heartbeats__replication__enabled": "false", "sync__topic__configs__enabled": "false"}
    path = mm2(authorized, "locked", alias, topic_name, tmp_path, **off)
    with path.open("a") as file:
        file.write("".join(f"B.admin.{key}={value}\n" for key, value in properties(ADMIN).items()))
    command = ["acls", "lock", str(path), f"{alias}->B", "--principal", "User:locked"]
    command += ["--reader", "User:reader"]
    capsys.readouterr()
    assert main([*command, *(["--apply"] if apply else [])]) == 0
    printed = capsys.readouterr().out
    assert ("# done: 7 ACLs added, 1 removed" in printed) == apply
    if not apply:
        assert set(target.acls(alias)) == set(others), "nothing is changed"
        run_commands(printed, target, tmp_path)
    mine = ("READ", "WRITE", "CREATE", "ALTER")
    assert target.acls(alias) == {
        others[1],
        topic_acl(remote, "READ", "User:*"),
        topic_acl(remote, "READ", "User:reader"),
        topic_acl(remote, "WRITE", "User:other", permission="DENY"),
        *(topic_acl(remote, operation, "User:locked") for operation in mine),
    }
    assert writes(target, "other", remote) == "TOPIC_AUTHORIZATION_FAILED"
    assert writes(target, "reader", remote) == "TOPIC_AUTHORIZATION_FAILED"
    assert writes(target, "locked", remote) == ""
    assert main(command) == 0
    assert "# nothing to do" in capsys.readouterr().out


def test_a_lock_is_refused_where_everybody_may_write_everything(
    authorized: Pair, alias: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    target = authorized[1]
    prefix = alias[:-3]
    wide = topic_acl(prefix, "WRITE", "User:*", pattern="PREFIXED")
    target.allow([wide])
    path = mm2(authorized, ADMIN, alias, "t", tmp_path)
    command = ["acls", "lock", str(path), f"{alias}->B", "--principal", "User:locked", "--apply"]
    assert main(command) == 1
    printed = capsys.readouterr().out
    run_commands(printed, target, tmp_path)
    assert target.acls(prefix) == set(), "the printed command removes it"
    assert main(["acls", "lock", str(path), "B->A"]) == 2
    assert f"Choose from: {alias}->B." in capsys.readouterr().err
    everything = mm2(authorized, ADMIN, alias, ".*", tmp_path,
                     replication__policy__class="IdentityReplicationPolicy")  # fmt: skip
    assert main(["acls", "lock", str(everything), f"{alias}->B"]) == 2
    assert "Name topics or prefixes" in capsys.readouterr().err


def test_without_an_authorizer_there_is_nothing_to_lock(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):  # fmt: skip
    path = write_mm2(tmp_path / "mm2.properties", cluster_a, cluster_b, "t")
    assert main(["acls", "lock", str(path), "A->B"]) == 1
    assert "the cluster has no authorizer" in capsys.readouterr().err


def test_certificates_need_a_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "mm2.properties"
    path.write_text(
        "clusters=A,B\nA.bootstrap.servers=a:1\nB.bootstrap.servers=b:1\nA->B.enabled=true\n"
        "B.security.protocol=SSL\nB.ssl.keystore.type=PEM\n"
        "B.ssl.keystore.certificate.chain=x\nB.ssl.keystore.key=y\n"
    )
    assert main(["acls", "needed", str(path)]) == 2
    assert "--principal 'B=User:NAME'" in capsys.readouterr().err

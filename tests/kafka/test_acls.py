"""Mirrors under exactly the permissions that ``sparkmirror acls`` names, and without one."""

from __future__ import annotations

import json
import logging
import shlex
import subprocess
import uuid
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer

from sparkmirror.cli.main import main
from sparkmirror.config.mm1 import Extras, load_mm1
from sparkmirror.config.mm2 import load_mm2
from sparkmirror.control.flow import FlowControl
from sparkmirror.control.loop import ControlLoop
from sparkmirror.data.exactly import ExactSink
from sparkmirror.data.plan import plan_slots
from sparkmirror.data.sink import SlotSink
from sparkmirror.data.slot import SlotReader
from sparkmirror.demo.clusters import KafkaCluster
from sparkmirror.errors import MirrorError
from sparkmirror.model import MirrorSettings, TopicPartition
from sparkmirror.wire.signals import CONTROL_PARTITIONS
from sparkmirror.wire.views import AclBinding
from tests.kafka.authorized import ADMIN, Authorized, password, properties, topic_acl
from tests.kafka.mirror_process import MirrorProcess, wait_until, write_mm2
from tests.kafka.support import (
    TIMEOUT_S,
    Received,
    Sent,
    admin,
    consume_all,
    create_topic,
    produce,
    topic_config,
    topic_names,
    wait_until_equal,
)

pytestmark = pytest.mark.timeout(240)
Pair = tuple[Authorized, Authorized]
TOOL = "org.apache.kafka.tools.AclCommand"


@pytest.fixture
def alias() -> str:
    return f"S{uuid.uuid4().hex[:8]}"


def login(pair: Pair, user: str, aliases: Iterable[str]) -> dict[str, str]:
    """The lines of a MirrorMaker 2 file that log ``user`` in on both sides."""
    lines = {}
    for alias, cluster in zip(aliases, pair, strict=True):
        lines[f"{alias}.bootstrap.servers"] = cluster.login_servers
        lines[f"{alias}.security.protocol"] = "SASL_PLAINTEXT"
        lines |= {f"{alias}.{key}": value for key, value in properties(user).items()}
    return lines


def mm2(pair: Pair, user: str, alias: str, topics: str, directory: Path, **extra: str) -> Path:
    more = {name.replace("__", "."): value for name, value in extra.items()}
    settings = {"tasks.max": "1", **login(pair, user, (alias, "B")), **more}
    source, target = (each.kafka for each in pair)
    path = directory / f"{alias}.properties"
    return write_mm2(path, source, target, topics, settings, source=alias)


def needed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[tuple[str, AclBinding]]:
    """What the verb names: cluster alias and binding."""
    capsys.readouterr()
    assert main(["acls", "needed", *arguments, "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    return [
        (row.pop("cluster"), AclBinding(**{key: row[key] for key in row if key != "why"}))
        for row in rows
    ]


def granted(pair: Pair, alias: str, found: list[tuple[str, AclBinding]]) -> None:
    for name, cluster in zip((alias, "B"), pair, strict=True):
        cluster.allow(binding for cluster_alias, binding in found if cluster_alias == name)


def run_commands(text: str, cluster: Authorized, directory: Path) -> list[AclBinding]:
    """Run the printed commands with Kafka's own tool, as a super user; four at once."""
    config = directory / "admin.properties"
    lines = {"security.protocol": "SASL_PLAINTEXT", **properties(ADMIN)}
    config.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    commands = [shlex.split(line) for line in text.splitlines() if line.startswith("kafka-acls.sh")]
    before = set(cluster.acls(""))

    def run(words: list[str]) -> subprocess.CompletedProcess[str]:
        told = [str(config) if word == "admin.properties" else word for word in words[1:]]
        return cluster.kafka.tool(TOOL, *told)

    with ThreadPoolExecutor(4) as pool:
        for done in pool.map(run, commands):
            assert done.returncode == 0, done.stdout + done.stderr
    return sorted(set(cluster.acls("")) - before)


# --- enough ---------------------------------------------------------------------------------


# User and more lines of the file, by mode; a transaction takes offset syncs on the target in.
MODES: dict[str, tuple[str, dict[str, str]]] = {
    "at-least-once": ("least", {}),
    "exactly-once": (
        "least5",
        {"B.exactly.once.source.support": "enabled", "offset-syncs.topic.location": "target"},
    ),
}


@pytest.mark.parametrize("mode", MODES)
def test_the_least_permissions_are_enough(
    authorized: Pair, alias: str, topic_name: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], mode: str,
):  # fmt: skip
    """The whole command with all features: topics made, grown and in step, records and groups."""
    source, target = authorized
    topics = [f"{topic_name}.{each}" for each in ("new", "grown")]
    for topic in topics:
        create_topic(source.kafka, topic, 2, config={"retention.ms": "123456789"})
        produce(source.kafka, topic, [Sent(value=b"v%d" % n, partition=n % 2) for n in range(50)])
    create_topic(target.kafka, f"{alias}.{topics[1]}", 1)
    source.allow([topic_acl(topics[0], "READ")])
    group = f"{alias}-group"
    with source.super_user() as cluster:
        cluster.commit_offsets(group, {TopicPartition(topics[0], 0): (10, "")})
    user, lines = MODES[mode]
    path = mm2(
        authorized, user, alias, f"{topic_name}\\\\..*", tmp_path, groups=f"{alias}.*",
        sync__group__offsets__enabled="true", emit__heartbeats__enabled="true",
        heartbeats__topic__replication__factor="1", **lines,
    )  # fmt: skip
    granted(authorized, alias, needed(capsys, str(path)))
    # What a plan names comes about below, and nothing of it now.
    wanted = topic_acl(f"{alias}.{topics[0]}", "READ")
    assert main(["plan", str(path), "--format", "json"]) == 0
    planned = [
        (one["cluster"], one["action"], one["subject"], one["acl"])
        for each in json.loads(capsys.readouterr().out)["flows"]
        for one in each["changes"]
        if "acl" in one
    ]
    assert planned == [("B", "add-acl", wanted.name, str(wanted))]
    assert target.acls(wanted.name) == set()
    assert wanted.name not in topic_names(target.kafka)

    run = MirrorProcess(tmp_path, ["run", str(path), "--once"])
    assert run.wait(150) == 0, run.text()
    for topic in topics:
        wait_until_equal(source.kafka, topic, target.kafka, f"{alias}.{topic}", timeout_s=10)
        assert topic_config(target.kafka, f"{alias}.{topic}")["retention.ms"] == "123456789"
    assert wanted in target.acls(wanted.name)
    remote = TopicPartition(f"{alias}.{topics[0]}", 0)
    with target.super_user() as cluster:
        assert cluster.committed_offsets(group, None)[remote].offset == 10
    for cluster in authorized:
        assert "heartbeats" in topic_names(cluster.kafka)
    syncs = f"mm2-offset-syncs.{alias}.internal" if lines else "mm2-offset-syncs.B.internal"
    assert consume_all((target if lines else source).kafka, syncs) != []
    assert consume_all(target.kafka, f"{alias}.checkpoints.internal") != []
    assert "not allowed" not in run.text()
    assert "Grant" not in run.text()


# --- one missing ----------------------------------------------------------------------------


def attempt(settings: MirrorSettings) -> list[str]:
    """All jobs of a run of one flow, without Spark; errors and notices."""
    (flow,) = settings.flows
    run_id = uuid.uuid4().hex
    loop = ControlLoop(settings, once=True, run_id=run_id)
    told: list[str] = []
    try:
        loop.prepare()
        share = loop._flows[flow.name].share
        if share is not None:
            share.step()  # nobody else is in the group, so it deals all partitions to us
            told += map(str, loop.failures())
        partitions = loop.assignment(flow.name).partitions
        ends = loop.frozen_ends(flow.name)
        member = loop._flows[flow.name]._member
        for plan in plan_slots(
            partitions, slots_max=1, epoch=0, run_id=run_id, ends=ends, control_offset=0,
            member=member,
        ):  # fmt: skip
            reader = SlotReader(flow, plan)
            sink = ExactSink(flow) if flow.exactly_once else SlotSink(flow)
            sink.run(reader.rows())
            told += [halt.reason for halt in reader._fetcher.halts.values()]
    except MirrorError as error:
        told.append(str(error))
    loop.finish(timeout_s=5)  # a member leaves its group
    for beats in loop._heartbeats:
        try:
            beats.beat()
        except MirrorError as error:
            told.append(str(error))
    told += loop.events()
    loop.stop()
    control = FlowControl(flow, run_id, told.append, once=True)
    control._assignment = loop.assignment(flow.name)
    for job in (control.look_at_progress, *(job.round for job in control.sync_jobs())):
        try:
            job()
        except MirrorError as error:
            told.append(str(error))
    control.close()
    return told


def names(line: str, binding: AclBinding, alias: str) -> bool:
    """Whether an error or notice says who lacks what, where, and the command that grants it.

    The resource of a prefix is one whose name begins with it.
    """
    operation = binding.operation.title().replace("_", "")
    cluster = binding.resource_type == "CLUSTER"
    resource = "the Cluster" if cluster else f"{binding.resource_type.title()} {binding.name}"
    name = binding.name.replace(">", "")  # it is quoted for a shell
    option = "--cluster" if cluster else f"--{binding.resource_type.lower()} {name}"
    return (
        f"Grant {binding.principal} {operation} on {resource}" in line
        and f" on cluster {alias}: kafka-acls.sh --bootstrap-server " in line
        and f" --allow-principal {binding.principal} --operation {operation} {option}"
        in line.replace("'", "").replace(">", "")
    )


def delete_topics(cluster: Authorized, names: Iterable[str]) -> None:
    """Those of ``names`` that exist; waits until they are gone."""
    gone = set(names) & topic_names(cluster.kafka)
    if gone:
        guard = admin(cluster.kafka)
        for future in guard.delete_topics(list(gone)).values():
            future.result(TIMEOUT_S)
        wait_until(lambda: not gone & topic_names(cluster.kafka), "topics are deleted")


def start_over(pair: Pair, alias: str, new: str, grown: str) -> None:
    """As before the first run: one remote topic is missing, the other is too small."""
    target = pair[1]
    delete_topics(target, [name for name in topic_names(target.kafka) if alias in name])
    create_topic(target.kafka, f"{alias}.{grown}", 1)
    with target.super_user() as cluster:
        copied = [one for one in cluster.topic_acls() or () if one.principal == "User:other"]
        cluster.delete_acls([one for one in copied if one.name == f"{alias}.{new}"])


def test_each_missing_permission_is_named(
    authorized: Pair, alias: str, topic_name: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture,
):  # fmt: skip
    source, target = authorized
    caplog.set_level(logging.WARNING)
    new, grown = f"{topic_name}.new", f"{topic_name}.grown"
    for topic in (new, grown):
        create_topic(source.kafka, topic, 2, config={"retention.ms": "123456789"})
        produce(source.kafka, topic, [Sent(value=b"v", partition=n) for n in (0, 1)])
    source.allow([topic_acl(new, "READ", "User:other")])
    off = {f"emit.{each}.enabled": "false" for each in ("offset-syncs", "checkpoints")}
    path = mm2(authorized, "least1", alias, f"{topic_name}.*", tmp_path, **off)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if not line.startswith("offset-syncs.")))
    settings = load_mm2(path)
    found = needed(capsys, str(path))
    granted(authorized, alias, found)
    # Without Read nobody would see the topic at all, and say so; this is the other case.
    seen = topic_acl(topic_name, "DESCRIBE", "User:least1", pattern="PREFIXED")
    source.allow([seen])
    silent = {}
    for cluster_alias, binding in found:
        cluster = source if cluster_alias == alias else target
        start_over(authorized, alias, new, grown)
        cluster.forbid([binding])
        caplog.clear()
        told = "\n".join([*attempt(settings), caplog.text])
        cluster.allow([binding])
        if not any(names(line, binding, cluster_alias) for line in told.splitlines()):
            silent[binding.operation, binding.name] = told
    assert silent == {}

    start_over(authorized, alias, new, grown)
    source.forbid([seen])
    assert not [line for line in attempt(settings) if "Grant" in line]
    assert len(consume_all(target.kafka, f"{alias}.{new}")) == 2
    (read,) = [one for _, one in found if one.operation == "READ" and one.name == topic_name]
    source.forbid([read])
    assert any("neither Read nor Describe" in line for line in attempt(settings))

    source.allow([read])
    storage = f"mm2-offsets.{alias}.internal"
    target.forbid(one for _, one in found if one.operation == "READ" and one.name == storage)
    guard = admin(target.kafka)
    positions = settings.flows[0].position_group
    guard.delete_consumer_groups([positions])[positions].result(TIMEOUT_S)
    assert any(f"Read on Topic {storage}" in line for line in attempt(settings))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", MODES)
def test_each_missing_permission_of_every_feature_is_named(
    authorized: Pair, alias: str, topic_name: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, mode: str,
):  # fmt: skip
    """With offset syncs, checkpoints, groups' offsets, heartbeats, dead letters, transactions."""
    source, target = authorized
    caplog.set_level(logging.WARNING)
    user, lines = {"at-least-once": "least3", "exactly-once": "least4"}[mode], MODES[mode][1]
    new, grown = f"{topic_name}.new", f"{topic_name}.grown"
    group = f"{alias}-group"
    for topic in (new, grown):
        create_topic(source.kafka, topic, 2)
        produce(source.kafka, topic, [Sent(value=b"v", partition=n) for n in (0, 1)])
    with source.super_user() as cluster:
        cluster.commit_offsets(group, {TopicPartition(new, 0): (1, "")})
    path = mm2(
        authorized, user, alias, f"{new},{grown}", tmp_path, groups=group,
        emit__heartbeats__enabled="true", heartbeats__topic__replication__factor="1",
        sync__group__offsets__enabled="true", sync__topic__acls__enabled="false",
        sparkmirror__on__bad__record="dead-letter", **lines,
    )  # fmt: skip
    settings = load_mm2(path)
    found = needed(capsys, str(path))
    granted(authorized, alias, found)
    resources = {(one.resource_type, one.name) for _, one in found}

    def again() -> None:
        """As before the first run; the small remote topic takes no records without a key."""
        delete_topics(source, ["mm2-offset-syncs.B.internal"])
        names = topic_names(target.kafka)
        delete_topics(target, [name for name in names if alias in name or name == "heartbeats"])
        create_topic(target.kafka, f"{alias}.{grown}", 1, config={"cleanup.policy": "compact"})
        with target.super_user() as cluster:
            present = {group, settings.flows[0].position_group} & cluster.groups().keys()
        guard = admin(target.kafka)
        for each in present:
            guard.delete_consumer_groups([each])[each].result(TIMEOUT_S)

    silent = {}
    for cluster_alias, binding in found:
        cluster = source if cluster_alias == alias else target
        again()
        cluster.forbid([binding])
        caplog.clear()
        told = "\n".join([*attempt(settings), caplog.text])
        cluster.allow([binding])
        if not any(names(line, binding, cluster_alias) for line in told.splitlines()):
            silent[cluster_alias, binding.operation, binding.name] = told
    print(*resources, sep="\n")
    for key, told in silent.items():
        print("SILENT", key, told, sep="\n", end="\n\n")
    assert silent == {}
    again()
    assert not [line for line in attempt(settings) if "Grant" in line]


def mm1(pair: Pair, user: str, topic: str, directory: Path) -> tuple[list[str], MirrorSettings]:
    """MirrorMaker 1's options for a mirror of ``topic`` as ``user``, and what they say.

    By key or not makes no difference to permissions; without, no Spark is needed.
    """
    files = {}
    of_consumer = f"group.id=mm1-{uuid.uuid4().hex[:8]}\nauto.offset.reset=earliest\n"
    for side, cluster, more in zip(("consumer", "producer"), pair, (of_consumer, ""), strict=True):
        lines = {"bootstrap.servers": cluster.login_servers, "security.protocol": "SASL_PLAINTEXT"}
        lines |= properties(user)
        files[side] = directory / f"{side}.properties"
        files[side].write_text("".join(f"{k}={v}\n" for k, v in lines.items()) + more)
    options = [word for side, path in files.items() for word in (f"--{side}.config", str(path))]
    extras = Extras(keep_partitions=True)
    settings = load_mm1(files["consumer"], files["producer"], include=topic, extras=extras)
    return [*options, "--include", topic], settings


def test_the_least_permissions_of_mirrormaker_1(
    authorized: Pair, topic_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    source, target = authorized
    create_topic(source.kafka, topic_name, 2)
    produce(source.kafka, topic_name, [Sent(value=b"v", partition=n) for n in (0, 1)])
    arguments, _ = mm1(authorized, "least", topic_name, tmp_path)
    found = needed(capsys, *arguments)
    for side, cluster in (("source", source), ("target", target)):
        cluster.allow(binding for name, binding in found if name == side)
    mirror = MirrorProcess(tmp_path, arguments, command="kafka-mirror-maker")
    try:
        wait_until(lambda: len(arrived(target, topic_name)) == 2, "both records", 120)
        mirror.drain(40)
    finally:
        mirror.kill()
    assert "Grant" not in mirror.text()


def test_each_missing_permission_of_mirrormaker_1_is_named(
    authorized: Pair, topic_name: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture,
):  # fmt: skip
    source, target = authorized
    caplog.set_level(logging.WARNING)
    create_topic(source.kafka, topic_name, 2)
    produce(source.kafka, topic_name, [Sent(value=b"v", partition=n) for n in (0, 1)])
    # One of its own: ACLs of other tests' topics are not this one's.
    arguments, settings = mm1(authorized, "least2", topic_name, tmp_path)
    found = needed(capsys, *arguments)
    sides = {"source": source, "target": target}
    for name, binding in found:
        sides[name].allow([binding])
    silent = {}
    made = [topic_name, *{one.name for _, one in found if one.name.startswith("mm2-")}]
    for name, binding in found:
        delete_topics(target, made)
        produce(source.kafka, topic_name, [Sent(value=b"v", partition=n) for n in (0, 1)])
        sides[name].forbid([binding])
        caplog.clear()
        told = "\n".join([*attempt(settings), caplog.text])
        sides[name].allow([binding])
        if not any(names(line, binding, name) for line in told.splitlines()):
            silent[name, binding.operation, binding.name] = told
    assert len(found) > 8
    assert silent == {}

    # A topic that may be seen, but not read.
    read = next(one for name, one in found if one.name == topic_name and one.operation == "READ")
    source.allow([replace(read, operation="DESCRIBE")])
    source.forbid([read])
    assert any(names(line, read, "source") for line in attempt(settings))


def arrived(cluster: Authorized, topic: str) -> list[Received]:
    return consume_all(cluster.kafka, topic) if topic in topic_names(cluster.kafka) else []


# --- orders ---------------------------------------------------------------------------------


def test_only_who_may_write_to_the_control_topic_gives_orders(
    authorized: Pair, alias: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    target = authorized[1]
    control = f"mm2-sparkmirror.{alias}.internal"
    create_topic(target.kafka, control, CONTROL_PARTITIONS)
    group = AclBinding("GROUP", "*", "LITERAL", "User:other", "*", "DESCRIBE", "ALLOW")
    target.allow([topic_acl(control, "READ", "User:other"), group])
    path = mm2(authorized, "other", alias, "t", tmp_path)
    order = ["pause", str(path), f"{alias}->B", "--wait", "0"]
    assert main(order) == 3
    write = topic_acl(control, "WRITE", "User:other")
    told = capsys.readouterr().err.replace("\n", " ")
    assert names(told, write, "B"), told
    assert consume_all(target.kafka, control) == []
    target.allow([write])
    assert main(order) in (0, 1), "given, though nobody is there to obey"
    assert consume_all(target.kafka, control) != []
    target.forbid([group])


# --- lock -----------------------------------------------------------------------------------


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


@pytest.mark.parametrize("apply", [False, True])
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

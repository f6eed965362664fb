"""Mirrors under exactly the permissions that ``sparkmirror acls`` names, and without one."""

from __future__ import annotations

import json
import logging
import time
import uuid
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from sparkmirror.cli.main import main
from sparkmirror.config.mm2.load import load_mm2
from sparkmirror.control.coordination.control_topic import ControlTopicReader, ControlTopicWriter
from sparkmirror.control.coordination.orders_topic import orders_topic
from sparkmirror.control.loop import ControlLoop
from sparkmirror.doctor.quick_check import QuickCheck
from sparkmirror.errors import Denied
from sparkmirror.internal_topics.commands import (
    CONTROL_PARTITIONS,
    Command,
    CommandKind,
    control_topic,
    encode_command,
)
from sparkmirror.internal_topics.driver_report import DriverReport, encode_driver_report
from sparkmirror.internal_topics.gaps import gaps_topic
from sparkmirror.model import TopicPartition
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.cluster.views import AclBinding, GroupMember
from tests.kafka.clusters.authorized import ADMIN, HOST, Authorized, properties, topic_acl
from tests.kafka.harness.mirror_process import MirrorProcess, wait_until
from tests.kafka.harness.permissions import (
    MODES,
    Pair,
    arrived,
    attempt,
    delete_topics,
    granted,
    mm1,
    mm2,
    names,
    needed,
)
from tests.kafka.harness.support import (
    TIMEOUT_S,
    Sent,
    admin,
    consume_all,
    create_topic,
    produce,
    topic_config,
    topic_names,
    wait_until_equal,
)


@pytest.fixture
def alias() -> str:
    return f"S{uuid.uuid4().hex[:8]}"


# --- enough ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "mode", [pytest.param("at-least-once", marks=pytest.mark.long), "exactly-once"]
)
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
    user, lines = {"at-least-once": "least", "exactly-once": "least5"}[mode], MODES[mode]
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
    assert run.wait() == 0, run.text()
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


def start_over(pair: Pair, alias: str, new: str, grown: str) -> None:
    """As before the first run: one remote topic is missing, the other is too small."""
    target = pair[1]
    delete_topics(target, [name for name in topic_names(target.kafka) if alias in name])
    create_topic(target.kafka, f"{alias}.{grown}", 1)
    with target.super_user() as cluster:
        copied = [one for one in cluster.topic_acls() or () if one.principal == "User:other"]
        cluster.delete_acls([one for one in copied if one.name == f"{alias}.{new}"])


@pytest.mark.more
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


@pytest.mark.more
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
        wait_until(lambda: len(arrived(target, topic_name)) == 2, "both records")
        mirror.drain()
    finally:
        mirror.kill()
    assert "Grant" not in mirror.text()


@pytest.mark.more
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


# --- the doctor -----------------------------------------------------------------------------


def test_the_doctor_asks_each_principal_for_what_it_needs(
    authorized: Pair, alias: str, topic_name: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):  # fmt: skip
    """One principal reads and writes, another is the admin. The other way round nothing works."""
    source, target = authorized
    create_topic(source.kafka, topic_name)
    produce(source.kafka, topic_name, [Sent(value=b"v")])
    with target.super_user() as cluster:  # it may have had no group yet
        cluster.committed_offsets("any", [TopicPartition(topic_name, 0)])

    def file(data: str, other: str) -> Path:
        own = properties(other)["sasl.jaas.config"]
        admins = {f"{one}.admin.sasl.jaas.config": own for one in (alias, "B")}
        return mm2(authorized, data, alias, topic_name, tmp_path, **admins)

    path = file("least6", "least7")
    allowed = needed(capsys, str(path))
    granted(authorized, alias, allowed)
    rights = {"read", "describe-configs", "group", "create", "write", "commit", "internal-topics",
              "group-topics", "mirrors", "retention"}  # fmt: skip
    found = examined(capsys, path)
    assert rights <= found["ok"]
    assert "fail" not in found
    assert not rights & found.get("warn", set())

    assert not [line for line in attempt(load_mm2(path)) if "Grant" in line]
    assert len(arrived(target, f"{alias}.{topic_name}")) == 1
    found = examined(capsys, path)
    assert rights | {"alter", "alter-configs"} <= found["ok"]
    assert "fail" not in found
    # Of an internal topic that exists the admin needs no more than Create; a start takes longer.
    target.forbid(
        one
        for name, one in allowed
        if name == "B" and one.operation == "DESCRIBE" and one.name.startswith("mm2-")
    )
    found = examined(capsys, path)
    assert "fail" not in found
    assert "internal-topics" in found["warn"]

    wrong = examined(capsys, file("least7", "least6"))
    assert {"read", "write", "group", "internal-topics"} <= wrong["fail"]


def test_the_doctor_finds_what_commits_transactions_and_checkpoints_lack(
    authorized: Pair, alias: str, topic_name: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):  # fmt: skip
    """One permission is missing at a time; the last file has no login that reads checkpoints."""
    source, target = authorized
    create_topic(source.kafka, topic_name)
    more = {"sync.group.offsets.enabled": "true", **MODES["exactly-once"]}
    path = mm2(authorized, "least6", alias, topic_name, tmp_path, **more)
    allowed = needed(capsys, str(path))
    granted(authorized, alias, allowed)
    checks = {"write", "commit", "transactions", "group-topics"}
    found = examined(capsys, path)
    assert checks <= found["ok"]
    assert not checks & (found.get("warn", set()) | found.get("fail", set()))

    remote = f"{alias}.{topic_name}"
    for operation, name, check, level in (
        ("READ", remote, "commit", "fail"),
        ("WRITE", f"__mirror.{alias}->B-", "transactions", "fail"),
        ("READ", f"{alias}.checkpoints.internal", "group-topics", "warn"),
        ("READ", f"mm2-offset-syncs.{alias}.internal", "group-topics", "warn"),
    ):
        lacking = [one for _, one in allowed if (one.operation, one.name) == (operation, name)]
        assert len(lacking) == 1
        target.forbid(lacking)
        found = examined(capsys, path)
        lines: list[str] = []
        if name == remote:
            QuickCheck(load_mm2(path), lines.append, lambda: True).run()
        target.allow(lacking)
        assert check in found[level]
        assert found.get("fail", {check}) == {check}
        if name == remote:
            assert any(
                "lacks Read on 1 of 1 topics, so positions cannot be committed" in line
                and f"Read on Topic {remote}" in line
                for line in lines
            ), lines

    login = properties("least6")["sasl.jaas.config"].replace("secret", "wrong")
    more[f"{alias}->B.target.consumer.sasl.jaas.config"] = login
    found = examined(capsys, mm2(authorized, "least6", alias, topic_name, tmp_path, **more))
    assert found["fail"] == {"sasl"}
    assert "group-topics" in found["skip"]
    assert {"write", "commit", "transactions"} <= found["ok"]


def examined(capsys: pytest.CaptureFixture[str], path: Path) -> dict[str, set[str]]:
    """The doctor's checks of one flow, by level."""
    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patched:
        # A broker that pauses for some seconds is a finding of its own.
        patched.setattr("sparkmirror.doctor.examine._REQUEST_MS_MAX", 9_000)
        code = main(["doctor", str(path), "--format", "json"])
    (flow,) = json.loads(capsys.readouterr().out)["flows"]
    found: dict[str, set[str]] = {}
    for one in flow["findings"]:
        found.setdefault(one["level"], set()).add(one["check"])
    assert code == ("fail" in found)
    print(flow["findings"])  # pytest shows it with the failure
    return found


# --- orders ---------------------------------------------------------------------------------


def test_who_may_write_orders_gives_orders_and_does_nothing_else(
    authorized: Pair, alias: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    source, target = authorized
    create_topic(source.kafka, f"t.{alias}")
    path = mm2(authorized, ADMIN, alias, f"t.{alias}", tmp_path)
    loop = ControlLoop(load_mm2(path), once=False, run_id="run")
    try:
        loop.prepare()
        loop.start()
        (flow,) = load_mm2(mm2(authorized, "other", alias, f"t.{alias}", tmp_path)).flows
        write = topic_acl(orders_topic(flow), "WRITE", "User:other")
        target.allow([topic_acl(control_topic(flow), "READ", "User:other")])
        assert main(["status", str(path)]) in (0, 1), "it needs no other right"
        # A topic that may not be described is not one that does not exist.
        read = topic_acl(gaps_topic(flow), "READ", "User:other")
        capsys.readouterr()
        assert main(["gaps", str(path)]) == 3
        shown = capsys.readouterr()
        assert shown.out == ""
        assert names(shown.err.replace("\n", " "), replace(read, name=gaps_topic(flow)), "B"), shown
        target.allow([read])
        assert main(["gaps", str(path)]) == 0
        assert capsys.readouterr().out == "no gaps\n"
        before = len(consume_all(target.kafka, orders_topic(flow)))
        assert main(["pause", str(path), flow.name, "--wait", "0"]) == 3
        told = capsys.readouterr().err.replace("\n", " ")
        assert names(told, replace(write, name=orders_topic(flow)), "B"), told
        target.allow([write])
        assert main(["pause", str(path), flow.name]) == 0
        # The command is in the control topic; the loop reads it back a moment later.
        wait_until(lambda: loop.paused(flow.name), "the pause")
        command = Command(flow.name, CommandKind.DRAIN, "run", 1)
        with closing(Cluster(flow.target)) as operator:
            writer = ControlTopicWriter(operator, control_topic(flow))
            with pytest.raises(Denied):
                writer.command(command)
        assert main(["resume", str(path), flow.name, "--wait", "0"]) in (0, 1)
        wait_until(lambda: not loop.paused(flow.name), "the resume")
        assert main(["drain", str(path), flow.name, "--wait", "0"]) in (0, 1)
        wait_until(lambda: loop.draining(flow.name), "the drain")
        assert len(consume_all(target.kafka, orders_topic(flow))) == before + 3
    finally:
        loop.stop()
    # Nothing runs, and what the next run will do may not be read: it is ordered all the same.
    assert main(["pause", str(path), flow.name]) == 0
    assert "paused for the next run" in capsys.readouterr().out


def test_orders_go_to_the_control_topic_where_a_mirror_hears_no_others(
    authorized: Pair, alias: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """No topic of orders yet: the mirror that runs, if any, is an older one."""
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
    assert names(told, replace(write, name=f"mm2-sparkmirror-orders.{alias}.internal"), "B"), told
    assert consume_all(target.kafka, control) == []
    # One that runs, and has never heard of the topic.
    report = DriverReport(f"{alias}->B", "old", "h:1", "0.9", 1, int(time.time() * 1000))
    run = Command(f"{alias}->B", CommandKind.RUN, "old", 1)
    key, value = encode_driver_report(report)
    value = json.dumps({k: v for k, v in json.loads(value).items() if k != "orders"}).encode()
    with target.super_user() as cluster:
        cluster.produce_many(control, [(0, *encode_command(run)), (1, key, value)])
    assert main(order) == 3
    told = capsys.readouterr().err.replace("\n", " ")
    assert "the mirror (version 0.9) does not read" in told
    assert names(told, write, "B"), told
    create_topic(target.kafka, f"mm2-sparkmirror-orders.{alias}.internal")
    target.allow([write])
    assert main(order) in (0, 1), "given, though nobody is there to obey"
    with target.super_user() as cluster, closing(ControlTopicReader(cluster, control)) as reader:
        kinds = [command.kind for command in reader.read_to_end().commands]
    assert kinds == [CommandKind.RUN, CommandKind.PAUSE]
    target.forbid([group])


def test_owners_of_a_group_take_describe_on_every_topic_that_it_reads(
    authorized: tuple[Authorized, Authorized], topic_name: str
) -> None:
    """The broker shows a group of the consumer protocol as a whole, or not at all."""
    source, _ = authorized
    topics = [f"{topic_name}-{letter}" for letter in "ab"]
    for topic in topics:
        create_topic(source.kafka, topic)
    group = f"g-{topic_name}"
    who = "User:other"
    source.allow([AclBinding("GROUP", group, "LITERAL", who, "*", "DESCRIBE", "ALLOW"),
                  topic_acl(topics[0], "DESCRIBE", who)])  # fmt: skip
    options = {"bootstrap.servers": source.kafka.bootstrap_servers, "group.id": group}
    member = Consumer({**options, "group.protocol": "consumer", "client.id": "reader"})
    member.subscribe(topics)
    with closing(Cluster(source.client("V", "other"))) as cluster:
        wait_until(
            lambda: member.poll(0.2) is None and len(member.assignment()) == 2, "a whole share"
        )
        assert cluster.group_members(group) == (GroupMember("", ""),)
        with pytest.raises(Denied, match="topics that this client may not describe"):
            cluster.group_owners(group)
        source.allow([topic_acl(topics[1], "DESCRIBE", who)])
        wait_until(
            lambda: cluster.group_members(group) == (GroupMember("reader", HOST),), "the member"
        )
        assert {tp.topic for tp in cluster.group_owners(group)} == set(topics)
        member.close()
        assert cluster.group_members(group) == ()

"""Exactly-once where the target does not allow it: refused at the start, with what to change."""

from __future__ import annotations

import time
import uuid
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from sparkmirror.control.coordination import claim
from sparkmirror.control.coordination.claim import claim_flow, slots_ever
from sparkmirror.errors import ClusterError, Denied, TopicError, Unsupported
from sparkmirror.internal_topics.commands import Command, CommandKind, control_topic, encode_command
from sparkmirror.internal_topics.driver_report import DriverReport, encode_driver_report
from sparkmirror.internal_topics.gaps import gaps_topic
from sparkmirror.internal_topics.mm2_records import offset_syncs_topic
from sparkmirror.internal_topics.runs import runs_topic
from sparkmirror.settings import ClusterClient, FlowSettings, OffsetSyncSettings
from sparkmirror.testing.clusters import KafkaCluster
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.produce.transactions import Transactions
from tests.kafka.harness.mirror_process import MirrorProcess, wait_until, write_mm2
from tests.kafka.harness.support import admin, create_topic, set_topic_config
from tests.patience import patience

NOW_MS = int(time.time() * 1000)


def test_each_missing_permission_of_a_transaction_is_named(guarded, cluster_a):
    alias = f"E{uuid.uuid4().hex[:6]}"
    ends = [
        ClusterClient(name, tuple(one.bootstrap_servers.split(",")), "c")
        for name, one in ((alias, cluster_a), ("west", guarded))
    ]
    flow = FlowSettings(*ends, *ends, exactly_once=True, tasks_max=2)
    create_topic(guarded, control_topic(flow), 2)
    target = Cluster(flow.target)
    ids, group = f"__mirror.{alias}->west-", flow.position_group
    try:
        for kind, name, words in (
            (ResourceType.TRANSACTIONAL_ID, ids, f"Write on TransactionalId {ids} on cluster west"),
            (ResourceType.GROUP, group, f"Read on Group {group} on cluster west"),
        ):
            _deny(guarded, kind, name, deny=True)
            with pytest.raises(Denied) as refused:
                _claim_until_denied(flow)
            assert f"Grant User:ANONYMOUS {words}: kafka-acls.sh " in refused.value.do
            assert refused.value.where == "cluster west"
            _deny(guarded, kind, name, deny=False)
            _check_until_allowed(flow)
        assert slots_ever(target, flow) == 0
        _claim_until_allowed(target, flow)
        # A later run with fewer slots still fences those of the earlier one.
        claim_flow(target, replace(flow, tasks_max=1), "run-2", NOW_MS)
        assert slots_ever(target, flow) == 2
    finally:
        target.close()


def test_mirrors_with_different_secrets_do_not_run_side_by_side(cluster_a, cluster_b):
    """Neither would believe the other's claim, so the second does not start."""
    alias = f"E{uuid.uuid4().hex[:6]}"
    ends = [
        ClusterClient(name, tuple(one.bootstrap_servers.split(",")), "c")
        for name, one in ((alias, cluster_a), ("B", cluster_b))
    ]
    flow = FlowSettings(*ends, *ends, exactly_once=True, control_secret="1" * 32)
    create_topic(cluster_b, control_topic(flow), 2)
    target = Cluster(flow.target)
    try:
        assert claim_flow(target, flow, "run-1", NOW_MS) == NOW_MS
        # A mirror that does not run any more stands in nobody's way.
        assert claim_flow(target, replace(flow, control_secret="2" * 32), "run-2", NOW_MS) == NOW_MS
        assert claim_flow(target, flow, "run-3", NOW_MS - 5) == NOW_MS + 1, "clocks may go back"
        run = Command(flow.name, CommandKind.RUN, "run-3", NOW_MS)
        report = DriverReport(flow.name, "run-3", "h:1", "1", NOW_MS, NOW_MS)
        target.produce_many(
            control_topic(flow), [(0, *encode_command(run)), (1, *encode_driver_report(report))]
        )
        for secret, told in (("", "has none"), ("2" * 32, "has another one")):
            with pytest.raises(ClusterError, match=rf"\(run run-3, .* this one {told}") as refused:
                claim_flow(target, replace(flow, control_secret=secret), "run-4", NOW_MS)
            assert "2222" not in str(refused.value)
            assert "the same sparkmirror.control.secret" in refused.value.do
        # With the same one it is a takeover as ever.
        assert claim_flow(target, flow, "run-4", NOW_MS) == NOW_MS + 2
    finally:
        target.close()


def _claim_until_denied(flow: FlowSettings) -> None:
    """Brokers take a moment to hear of ACLs; `_check` has no effect on positions or records."""
    deadline = time.monotonic() + patience()
    while time.monotonic() < deadline:
        claim._check(flow)
        time.sleep(0.1)


def _check_until_allowed(flow: FlowSettings) -> None:
    deadline = time.monotonic() + patience()
    while True:
        try:
            claim._check(flow)
            return
        except Denied:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def _claim_until_allowed(target: Cluster, flow: FlowSettings) -> None:
    deadline = time.monotonic() + patience()
    while True:
        try:
            claim_flow(target, flow, "run-1", NOW_MS)
            return
        except Denied:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def _deny(cluster: KafkaCluster, kind: ResourceType, name: str, *, deny: bool) -> None:
    pattern = ResourcePatternType.PREFIXED
    kinds = (AclOperation.ALL, AclPermissionType.DENY)
    binding = AclBinding(kind, name, pattern, "User:ANONYMOUS", "*", *kinds)
    client = admin(cluster)
    if deny:
        client.create_acls([binding])[binding].result(20)
        return
    chosen = AclBindingFilter(kind, name, pattern, "User:ANONYMOUS", "*", *kinds)
    client.delete_acls([chosen])[chosen].result(20)


def test_a_run_without_permission_ends_at_once(guarded, cluster_a, topic_name, tmp_path: Path):
    alias = f"E{uuid.uuid4().hex[:6]}"
    create_topic(cluster_a, topic_name, 1)
    path = write_mm2(
        tmp_path / "mm2.properties", cluster_a, guarded, topic_name, source=alias, target="west"
    )
    ids = f"__mirror.{alias}->west-"
    ends = [
        ClusterClient(name, tuple(one.bootstrap_servers.split(",")), "c")
        for name, one in ((alias, cluster_a), ("west", guarded))
    ]
    _deny(guarded, ResourceType.TRANSACTIONAL_ID, ids, deny=True)
    try:
        with pytest.raises(Denied):
            _claim_until_denied(FlowSettings(*ends, *ends, exactly_once=True))
        mirror = MirrorProcess(tmp_path, ["run", str(path), "--exactly-once", "--once"])
        assert mirror.wait() == 3, mirror.text()
    finally:
        _deny(guarded, ResourceType.TRANSACTIONAL_ID, ids, deny=False)
    assert f" Write on TransactionalId {ids}" in mirror.text()


@pytest.mark.parametrize(
    "of",
    [
        pytest.param(gaps_topic, marks=pytest.mark.more),
        offset_syncs_topic,
        pytest.param(runs_topic, marks=pytest.mark.more),
    ],
)
def test_a_topic_of_our_own_that_takes_no_markers_is_named(cluster_a, cluster_b, of):
    """A transaction with that topic in it would never end."""
    alias = f"E{uuid.uuid4().hex[:6]}"
    ends = [
        ClusterClient(name, tuple(one.bootstrap_servers.split(",")), "c")
        for name, one in ((alias, cluster_a), ("B", cluster_b))
    ]
    syncs = OffsetSyncSettings(enabled=True, location="target")
    flow = FlowSettings(*ends, *ends, exactly_once=True, offset_syncs=syncs)
    create_topic(cluster_b, control_topic(flow), 2)
    create_topic(cluster_b, of(flow), 1, config={"max.message.bytes": "77"})
    target = Cluster(flow.target)
    try:
        with pytest.raises(TopicError, match="batches of at most 77 bytes") as refused:
            claim_flow(target, flow, "run-1", NOW_MS)
        assert refused.value.where == f"cluster B, topic {of(flow)}"
        assert "max.message.bytes" in refused.value.do
        # With room for a marker it is enough: what is too large then is left out.
        set_topic_config(cluster_b, of(flow), **{"max.message.bytes": "78"})
        wait_until(lambda: _claimed(target, flow), "the flow is claimed")
    finally:
        target.close()


def _claimed(target: Cluster, flow: FlowSettings) -> bool:
    """Claim it; the brokers may know the old limit for a moment."""
    try:
        claim_flow(target, flow, "run-1", NOW_MS)
    except TopicError:
        return False
    return True


@pytest.mark.parametrize(
    ("apis", "words"),
    [({3: (0, 2), 9: (0, 2)}, "no transactions"), ({9: (0, 6)}, "no stable offsets")],
)
def test_brokers_that_are_too_old_are_named(cluster_a, monkeypatch, apis, words):
    """0.10 has no transactions, 2.4 cannot tell stable offsets; neither is started for this."""
    connections = ClusterConnections(
        ClusterClient("B", tuple(cluster_a.bootstrap_servers.split(",")), "c")
    )
    old = connections.any_connection()
    known = dict(old.api_versions)
    if words == "no transactions":
        known = {key: versions for key, versions in known.items() if key < 19}
    old._versions = known | apis
    monkeypatch.setattr(connections, "any_connection", lambda: old)
    with pytest.raises(Unsupported, match=words) as refused:
        Transactions(connections, "id", timeout_ms=1_000).check_brokers()
    assert "brokers from 2.5 on" in refused.value.what
    assert "Upgrade the target" in refused.value.do

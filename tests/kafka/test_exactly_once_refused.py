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

from sparkmirror.control import claim
from sparkmirror.control.claim import claim_flow, slots_ever
from sparkmirror.demo.clusters import KafkaCluster
from sparkmirror.errors import Denied, Unsupported
from sparkmirror.model import ClusterClient, FlowSettings
from sparkmirror.wire.client import Cluster
from sparkmirror.wire.routes import Routes
from sparkmirror.wire.signals import control_topic
from sparkmirror.wire.transactions import Transactions
from tests.kafka.mirror_process import MirrorProcess, write_mm2
from tests.kafka.support import admin, create_topic


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
        assert slots_ever(target, flow) == 0
        _claim_until_allowed(target, flow)
        # A later run with fewer slots still fences those of the earlier one.
        claim_flow(target, replace(flow, tasks_max=1), "run-2")
        assert slots_ever(target, flow) == 2
    finally:
        target.close()


def _claim_until_denied(flow: FlowSettings) -> None:
    """Brokers take a moment to hear of ACLs; `_check` has no effect on positions or records."""
    for _ in range(50):
        claim._check(flow)
        time.sleep(0.1)


def _claim_until_allowed(target: Cluster, flow: FlowSettings) -> None:
    deadline = time.monotonic() + 10
    while True:
        try:
            claim_flow(target, flow, "run-1")
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
        assert mirror.wait(120) == 3, mirror.text()
    finally:
        _deny(guarded, ResourceType.TRANSACTIONAL_ID, ids, deny=False)
    assert f" Write on TransactionalId {ids}" in mirror.text()


@pytest.mark.parametrize(
    ("apis", "words"),
    [({3: (0, 2), 9: (0, 2)}, "no transactions"), ({9: (0, 6)}, "no stable offsets")],
)
def test_brokers_that_are_too_old_are_named(cluster_a, monkeypatch, apis, words):
    """0.10 has no transactions, 2.4 cannot tell stable offsets; neither is started for this."""
    routes = Routes(ClusterClient("B", tuple(cluster_a.bootstrap_servers.split(",")), "c"))
    old = routes.any_connection()
    known = dict(old.api_versions)
    if words == "no transactions":
        known = {key: versions for key, versions in known.items() if key < 19}
    old._versions = known | apis
    monkeypatch.setattr(routes, "any_connection", lambda: old)
    with pytest.raises(Unsupported, match=words) as refused:
        Transactions(routes, "id", timeout_ms=1_000).check_brokers()
    assert "brokers from 2.5 on" in refused.value.what
    assert "Upgrade the target" in refused.value.do

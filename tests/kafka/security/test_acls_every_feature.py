"""Each permission of a mirror with every feature, taken away in turn: the error names it."""

from __future__ import annotations

import logging
import uuid
from pathlib import Path

import pytest

from sparkmirror.config.mm2.load import load_mm2
from sparkmirror.model import TopicPartition
from tests.kafka.harness.permissions import (
    MODES,
    Pair,
    attempt,
    delete_topics,
    granted,
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
    topic_names,
)


@pytest.fixture
def alias() -> str:
    return f"S{uuid.uuid4().hex[:8]}"


@pytest.mark.parametrize(
    ("mode", "step"),
    [
        # Every fifth one: each takes a start and a look.
        pytest.param("exactly-once", 5, marks=pytest.mark.long),
        pytest.param("exactly-once", 1, marks=pytest.mark.matrix),
        pytest.param("at-least-once", 1, marks=pytest.mark.matrix),
    ],
)
def test_each_missing_permission_of_every_feature_is_named(
    authorized: Pair, alias: str, topic_name: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, mode: str, step: int,
):  # fmt: skip
    """With offset syncs, checkpoints, groups' offsets, heartbeats, dead letters, transactions."""
    source, target = authorized
    caplog.set_level(logging.WARNING)
    user, lines = {"at-least-once": "least3", "exactly-once": "least4"}[mode], MODES[mode]
    new, grown = f"{topic_name}.new", f"{topic_name}.grown"
    group = f"{alias}-group"
    for topic in (new, grown):
        create_topic(source.kafka, topic, 2, config={"retention.ms": "123456789"})
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
    # One remote topic has to be made, the other one to grow, to change, and to refuse records.
    not_needed = {
        ("CREATE", f"{alias}.{grown}"),
        ("ALTER", f"{alias}.{new}"),
        ("ALTER_CONFIGS", f"{alias}.{new}"),
        ("WRITE", f"{alias}.{new}.dead-letter"),
    }
    tried = [one for one in found if (one[1].operation, one[1].name) not in not_needed]
    assert len(tried) == len(found) - len(not_needed)

    def again() -> None:
        """As before the first run; the small remote topic takes no records without a key."""
        delete_topics(source, ["mm2-offset-syncs.B.internal", "heartbeats"])
        names = topic_names(target.kafka)
        delete_topics(target, [name for name in names if alias in name or name == "heartbeats"])
        create_topic(target.kafka, f"{alias}.{grown}", 1, config={"cleanup.policy": "compact"})
        with target.super_user() as cluster:
            present = {group, settings.flows[0].position_group} & cluster.groups().keys()
        guard = admin(target.kafka)
        for each in present:
            guard.delete_consumer_groups([each])[each].result(TIMEOUT_S)

    silent = {}
    for cluster_alias, binding in tried[::step]:
        cluster = source if cluster_alias == alias else target
        again()
        cluster.forbid([binding])
        caplog.clear()
        told = "\n".join([*attempt(settings), caplog.text])
        cluster.allow([binding])
        if not any(names(line, binding, cluster_alias) for line in told.splitlines()):
            silent[cluster_alias, binding.operation, binding.name] = told
    assert silent == {}
    again()
    assert not [line for line in attempt(settings) if "Grant" in line]
    # Or else a slot that did nothing would lack nothing.
    assert len(consume_all(target.kafka, f"{alias}.{new}")) == 2

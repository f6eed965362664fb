"""The dead-letter topics of a flow: made before a record may need them."""

from __future__ import annotations

from collections.abc import Mapping

from sparkmirror.model import FlowSettings
from sparkmirror.names.replication_policy import FaultPolicy, dead_letter_topic
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.cluster.views import NewTopic

# What was refused elsewhere for its size or its time must find a place here, and stay there.
_CONFIGS = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "message.timestamp.type": "LogAppendTime",
    "max.message.bytes": str(1 << 30),
}


def plan_dead_letter_topics(remote: Mapping[str, str], flow: FlowSettings) -> list[NewTopic]:
    """The dead-letter topics that the flow may need for ``remote`` (by source topic). Pure."""
    policy = FaultPolicy(flow.faults)
    return [
        NewTopic(dead_letter_topic(name), 1, flow.topics.replication_factor, _CONFIGS)
        for topic, name in remote.items()
        if policy.bad_record(topic) == "dead-letter"
    ]


def create_dead_letter_topics(
    target: Cluster, remote: Mapping[str, str], flow: FlowSettings
) -> list[str]:
    """Make those that are missing; one line per topic made, or not made and why.

    Raises `MirrorError` when the target does not answer.
    """
    wanted = plan_dead_letter_topics(remote, flow)
    present = target.topics([topic.name for topic in wanted])
    lines = []
    for name, outcome in target.create_topics(
        [topic for topic in wanted if topic.name not in present]
    ).items():
        if outcome.error is not None:
            lines.append(f"{flow.name}: no dead-letter topic: {outcome.error}")
        elif not outcome.existed:
            lines.append(f"{target.alias}: created dead-letter topic {name}")
    return lines

"""The dead-letter topics of a flow: created before they are needed."""

from __future__ import annotations

from collections.abc import Mapping

from sparkmirror.errors import MirrorError
from sparkmirror.names.replication_policy import FaultPolicy, dead_letter_topic
from sparkmirror.settings import FlowSettings
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.cluster.views import NewTopic

# Dead letters must be accepted whatever their size or timestamp, and must not expire.
_CONFIGS = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "message.timestamp.type": "LogAppendTime",
    "max.message.bytes": str(1 << 30),
}


def plan_dead_letter_topics(remote: Mapping[str, str], flow: FlowSettings) -> list[NewTopic]:
    """Dead-letter topics that the flow may need. ``remote``: remote topic by source topic. Pure."""
    policy = FaultPolicy(flow.faults)
    return [
        NewTopic(dead_letter_topic(name), 1, flow.topics.replication_factor, _CONFIGS)
        for topic, name in remote.items()
        if policy.bad_record(topic) == "dead-letter"
    ]


def create_dead_letter_topics(
    target: Cluster,
    remote: Mapping[str, str],
    flow: FlowSettings,
    *,
    patience_s: float | None = None,
) -> tuple[list[MirrorError], list[str]]:
    """Create missing dead-letter topics; returns errors, and a notice per topic created or not.

    ``patience_s``: see `Cluster.create_topics`. Raises `MirrorError` if the target does not
    respond.
    """
    wanted = plan_dead_letter_topics(remote, flow)
    present = target.topics([topic.name for topic in wanted])
    errors: list[MirrorError] = []
    lines = []
    for name, outcome in target.create_topics(
        [topic for topic in wanted if topic.name not in present], patience_s=patience_s
    ).items():
        if outcome.error is not None:
            errors.append(outcome.error)
            lines.append(f"{flow.name}: no dead-letter topic: {outcome.error}")
        elif not outcome.existed:
            lines.append(f"{target.alias}: created dead-letter topic {name}")
    return errors, lines

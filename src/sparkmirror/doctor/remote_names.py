"""Checks a map of topic names against the existing topics."""

from __future__ import annotations

from collections.abc import Mapping

from sparkmirror.control.topics.remote_names import refused_names
from sparkmirror.doctor.facts import SourceFacts
from sparkmirror.doctor.finding import Finding, Level, gathered, ok
from sparkmirror.errors import MirrorError
from sparkmirror.names.replication_policy import FlowTopics
from sparkmirror.settings import FlowSettings
from sparkmirror.wire.admin.cluster import Cluster

_CHECK = "topics-map"
_TRIED = "name the topics by the map or RegexRouter, and compare with the names on the target"


def look_at_names(
    target: Cluster, flow: FlowSettings, source: SourceFacts
) -> Mapping[str, MirrorError]:
    """Topics that a run would leave out because of their names, and why. Raises `MirrorError`."""
    return refused_names(target, flow, FlowTopics(flow), source.topics)


def judge_names(
    flow: FlowSettings, source: SourceFacts, refused: Mapping[str, MirrorError]
) -> list[Finding]:
    """Findings: topics that cannot have their names, and rules that match no topic. Pure."""
    names = FlowTopics(flow)
    found = [
        Finding(_CHECK, Level.FAIL, f"topic {topic}", _TRIED, error.what.rstrip("."), error.do)
        for topic, error in sorted(refused.items())
    ]
    used = {names.rule(topic) for topic in source.topics}
    found += [
        Finding(
            _CHECK,
            Level.WARN,
            f"flow {flow.name}",
            _TRIED,
            f"the rule '{rule.regex} => {rule.name}' matches no existing topic",
            "Check its regex, which must match whole names, and the rules before it.",
        )
        for index, rule in enumerate(flow.topics.map)
        if index not in used
    ]
    mapped = sum(names.mapped(topic) is not None for topic in source.topics)
    fine = f"{mapped} of {len(source.topics)} topics get their names from the map or RegexRouter"
    return gathered(found) or [ok(_CHECK, f"flow {flow.name}", _TRIED, fine)]

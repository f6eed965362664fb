"""What the doctor says of a map of topic names."""

from __future__ import annotations

from pathlib import Path

from sparkmirror.control.topics.remote_names import plan_names
from sparkmirror.doctor.facts import SourceFacts
from sparkmirror.doctor.finding import Finding, Level
from sparkmirror.doctor.remote_names import judge_names
from sparkmirror.names.replication_policy import FlowTopics
from sparkmirror.settings import FlowSettings
from sparkmirror.wire.cluster.views import ClusterView, TopicView
from tests.unit.config_files import load_flow

MAP = "A->B.sparkmirror.topics.map="


def judged(flow: FlowSettings, *topics: str) -> list[Finding]:
    views = {name: TopicView(name, "", 1, 1) for name in topics}
    facts = SourceFacts(ClusterView("", (), 1), views, {})
    refused = plan_names(topics, FlowTopics(flow), flow, ()).refused
    found = judge_names(flow, facts, refused)
    assert {one.check for one in found} == {"topics-map"}
    return found


def test_all_topics_have_names(tmp_path: Path) -> None:
    flow = load_flow(tmp_path, MAP + "eu[.](.+) => x.$1\n")
    (one,) = judged(flow, "eu.a", "eu.b", "c")
    assert one.level is Level.OK
    assert "2 of 3 topics get their names from the map" in one.found


def test_topics_without_a_name_and_idle_rules_are_told(tmp_path: Path) -> None:
    flow = load_flow(tmp_path, MAP + "(?:eu|us)[.](.*) => $1; q => r\n")
    same, empty, idle = judged(flow, "eu.a", "us.a", "eu.", "c")
    assert {same.level, empty.level} == {Level.FAIL}
    assert idle.level is Level.WARN
    told = " ".join(f"{one.subject} {one.found} {one.do}" for one in (same, empty))
    assert "us.a" in told
    assert "the copy of topic eu.a of A" in told
    assert "it is empty" in told
    assert "the rule 'q => r' matches no existing topic" in idle.found

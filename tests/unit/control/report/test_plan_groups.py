"""The plan of groups is what the next round of a running mirror does."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparkmirror.control.report import plan_groups
from sparkmirror.control.topics.observation import Observation
from sparkmirror.internal_topics.mm2_records import Checkpoint, encode_checkpoint
from sparkmirror.internal_topics.runs import runs_topic
from sparkmirror.model import TopicPartition
from sparkmirror.wire.cluster.views import Committed, GroupView
from tests.unit.config_files import load_flow

SOURCE, REMOTE = TopicPartition("t", 0), TopicPartition("A.t", 0)


def _cluster(**answers: Any) -> Any:
    return SimpleNamespace(
        topics=lambda names: dict.fromkeys(names, SimpleNamespace(topic_id="")), **answers
    )


@pytest.mark.parametrize("java", [False, True], ids=["our own", "a takeover from Java"])
@pytest.mark.parametrize(("cuts", "planned"), [([], []), ([50], [Checkpoint("g", REMOTE, 90, 40)])])
def test_a_checkpoint_beyond_a_loss_at_the_target_is_planned_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cuts: list[int],
    planned: list[Checkpoint],
    java: bool,
) -> None:
    """Java's MirrorMaker 2 leaves no topic of runs."""
    flow = load_flow(tmp_path, "topics=t\n")
    stored = encode_checkpoint(Checkpoint("g", REMOTE, 90, 80))
    read_by: dict[str, str] = {}

    def follower(cluster: Any, topic: str) -> Any:
        read_by[topic] = cluster.role
        return SimpleNamespace(read=lambda: [stored], close=lambda: None)

    translation = SimpleNamespace(
        catch_up=lambda: None, translate=lambda *_: 40, cuts=lambda _: cuts, close=lambda: None
    )
    monkeypatch.setattr(plan_groups, "TopicFollower", follower)
    monkeypatch.setattr(plan_groups, "Translation", lambda *_, **__: translation)
    source = _cluster(
        role="source",
        alias="A",
        groups=lambda: {"g": GroupView("g", "Stable")},
        committed_by_group=lambda _: {"g": {SOURCE: Committed(90)}},
    )
    look = Observation(
        flow,
        source,
        SimpleNamespace(
            role="target admin",
            topics=lambda names: {one: None for one in names if not java or "runs" not in one},
        ),  # type: ignore[arg-type]
        runs=_cluster(role="target"),
        checkpoints=_cluster(role="checkpoints"),
    )
    assert list(plan_groups.find_groups(look).new) == planned
    assert read_by[runs_topic(flow)] == "target", "as a run reads it, and as acls needed says"

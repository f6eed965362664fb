"""Which sync jobs a flow has, and how often they come round."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparkmirror.control.flows.clusters import FlowClusters
from sparkmirror.control.sync_jobs import sync_jobs
from sparkmirror.control.topics.sync import Assignment
from sparkmirror.names.replication_policy import FlowTopics
from sparkmirror.settings import FlowSettings
from tests.unit.config_files import load_flow
from tests.unit.control.mm1.test_membership import FLOW as MM1_FLOW


def intervals_s(flow: FlowSettings) -> dict[str, tuple[float, float]]:
    """By job: the pause after a round, and after one that failed."""
    published: Any = SimpleNamespace(assignment=lambda: Assignment(flow.name))
    jobs = sync_jobs(flow, FlowClusters(flow), FlowTopics(flow), published, lambda _: None)
    return {job.name: (job.pause_s(), job.failure_pause_s) for job in jobs}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {"acls-A->B": (600.0, 60.0), "configs-A->B": (600.0, 60.0)}),
        ("sync.topic.acls.enabled=false\n", {"configs-A->B": (600.0, 60.0)}),
        (
            "sync.topic.configs.enabled=false\nsync.topic.acls.interval.seconds=5\n",
            {"acls-A->B": (5.0, 5.0)},
        ),
    ],
)
def test_each_sync_that_is_on_has_a_job(
    tmp_path: Path, text: str, found: dict[str, tuple[float, float]]
) -> None:
    assert intervals_s(load_flow(tmp_path, text)) == found


def test_mirrormaker_1_syncs_nothing() -> None:
    assert intervals_s(MM1_FLOW) == {}

"""Heartbeats, and their topic."""

from __future__ import annotations

import pytest

from sparkmirror.control.topics import heartbeats
from sparkmirror.control.topics.heartbeats import HeartbeatJob
from sparkmirror.errors import ClusterError
from sparkmirror.settings import ClusterClient, HeartbeatSettings

B = ClusterClient("B", ("b:1",), "c")


def test_a_topic_that_was_deleted_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    gone: list[int] = []

    class Target:
        def __init__(self, _client: object) -> None: ...

        def close(self, **_: object) -> None: ...

        def produce_many(self, *_: object, **__: object) -> int:
            if gone:
                raise ClusterError("UNKNOWN_TOPIC_OR_PARTITION")
            return 1

    monkeypatch.setattr(heartbeats, "Cluster", Target)
    monkeypatch.setattr(heartbeats, "create_compacted", lambda *_: made.append(1) or "")
    job = HeartbeatJob(HeartbeatSettings("A", B, B), lambda _: None)
    job.beat()
    gone.append(1)
    with pytest.raises(ClusterError):
        job.beat()
    gone.clear()
    job.beat()
    assert len(made) == 2

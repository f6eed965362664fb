"""Positions in MirrorMaker 2's format: under which key the sink writes them."""

from __future__ import annotations

from typing import Any

import pytest

from sparkmirror.data.write.partition_state import Lane
from sparkmirror.data.write.sink_task import SinkTask
from sparkmirror.internal_topics.connect_offsets import encode_mapped_offset, encode_source_offset
from sparkmirror.model import TopicPartition
from sparkmirror.settings import ClusterClient, FlowSettings, TopicRule, TopicSettings
from sparkmirror.transform_settings import SmtSettings

A, B = (ClusterClient(alias, ("localhost:1",), "test") for alias in "AB")
SOURCE = TopicPartition("t", 0)
ROUTER = SmtSettings("r", "RegexRouter", "A[.](.*)", "new-$1")


@pytest.mark.parametrize(
    ("topics", "record"),
    [
        (TopicSettings(), encode_source_offset("A", SOURCE, 7)),
        (TopicSettings(smts=(ROUTER,)), encode_source_offset("A", SOURCE, 7)),
        (
            TopicSettings(map=(TopicRule("t", "new-t"),)),
            encode_mapped_offset("A", SOURCE, "new-t", 7),
        ),
    ],
)
def test_java_goes_on_from_positions_unless_a_map_gave_the_name(
    topics: TopicSettings, record: tuple[bytes, bytes | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same RegexRouter Java continues; of maps it knows nothing."""
    written: list[tuple[bytes, bytes | None]] = []

    def append(_task: SinkTask, _tp: TopicPartition, *what: Any) -> None:
        written.append(what[:2])

    monkeypatch.setattr(SinkTask, "_append_record", append)
    task = SinkTask(FlowSettings(A, B, A, B, topics=topics), 0)
    lane = task.index.add(Lane(SOURCE, TopicPartition("new-t", 0), 7))
    task.lanes[SOURCE] = lane
    assert task.save_connect_offsets() == 1
    assert written == [record]

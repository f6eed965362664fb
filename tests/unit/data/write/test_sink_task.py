"""Positions in MirrorMaker 2's format: under which key the sink writes them."""

from __future__ import annotations

import pytest

from sparkmirror.data.rows.notes import PartitionHello
from sparkmirror.data.write.partition_state import Lane
from sparkmirror.data.write.sink_task import SinkTask
from sparkmirror.internal_topics.connect_offsets import encode_mapped_offset, encode_source_offset
from sparkmirror.model import TopicPartition
from sparkmirror.records.records import Record, decode_records, encode_batch
from sparkmirror.settings import ClusterClient, FlowSettings, TopicRule, TopicSettings
from sparkmirror.transform_settings import SmtSettings

A, B = (ClusterClient(alias, ("localhost:1",), "test") for alias in "AB")
SOURCE = TopicPartition("t", 0)
ROUTER = SmtSettings("r", "RegexRouter", "A[.](.*)", "new-$1")


def _written(monkeypatch: pytest.MonkeyPatch) -> list[list[Record]]:
    """The records of each batch that a task of the mirror itself queues."""
    batches: list[list[Record]] = []

    def append(_task: SinkTask, _tp: TopicPartition, batch: memoryview, _token: object) -> None:
        batches.append(list(decode_records(batch)))

    monkeypatch.setattr(SinkTask, "append_beside", append)
    return batches


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
    written = _written(monkeypatch)
    task = SinkTask(FlowSettings(A, B, A, B, topics=topics), 0)
    lane = task.index.add(Lane(SOURCE, TopicPartition("new-t", 0), 7))
    task.lanes[SOURCE] = lane
    assert task.save_connect_offsets() == 1
    assert [(one.key, one.value) for batch in written for one in batch] == [record]


def test_a_task_writes_positions_that_nothing_moves_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another task had the partition, and perhaps ended before it wrote what it had committed."""
    written = _written(monkeypatch)
    task = SinkTask(FlowSettings(A, B, A, B), 0)
    task.add([PartitionHello(SOURCE, "A.t", 7, committed=7)])
    assert task.save_connect_offsets() == 1
    assert task.save_connect_offsets() == 0
    ((record,),) = written
    assert (record.key, record.value) == encode_source_offset("A", SOURCE, 7)


def test_positions_of_many_partitions_share_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch costs more than its records; a broker takes a megabyte at most."""
    written = _written(monkeypatch)
    task = SinkTask(FlowSettings(A, B, A, B, offset_storage_partitions=2), 0)
    topic = "t" * 249
    hellos = (
        PartitionHello(TopicPartition(topic, number), f"A.{topic}", 7, committed=7)
        for number in range(3_000)
    )
    task.add(hellos)
    assert task.save_connect_offsets() == 3_000
    saved = [(one.key, one.value) for batch in written for one in batch]
    assert sorted(saved) == sorted(
        encode_source_offset("A", TopicPartition(topic, number), 7) for number in range(3_000)
    )
    assert len(written) <= 3_000 / 200 + 2
    assert max(len(encode_batch(batch)) for batch in written) < 100_000
    assert [[one.offset for one in batch] for batch in written] == [
        list(range(len(batch))) for batch in written
    ]


def test_a_position_that_goes_back_to_the_beginning_is_written_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The topic was made anew, and is empty: Java would leave out what comes before the old one."""
    written = _written(monkeypatch)
    task = SinkTask(FlowSettings(A, B, A, B), 0)
    other = TopicPartition("t", 1)
    task.add(
        [
            PartitionHello(SOURCE, "A.t", 7, committed=7),
            PartitionHello(other, "A.t", 0, committed=0),
        ]
    )
    task.lanes[SOURCE].position = 0
    assert task.save_connect_offsets() == 1, "of the other one there is no position"
    ((record,),) = written
    assert (record.key, record.value) == encode_source_offset("A", SOURCE, 0)
    assert record.value is None

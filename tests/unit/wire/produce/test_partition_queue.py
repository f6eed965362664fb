"""The places of one partition's batches."""

from __future__ import annotations

from sparkmirror.model import TopicPartition
from sparkmirror.records.records import Record, encode_batch
from sparkmirror.wire.produce.partition_queue import NO_IDENTITY, PartitionQueue, QueuedBatch

TP = TopicPartition("t", 0)


def _batch(*values: bytes) -> bytes:
    return encode_batch([Record(index, 1, None, value) for index, value in enumerate(values)])


def test_without_idempotence_what_is_kept_of_a_batch_stays_in_order() -> None:
    """The last part has the token: the position must not pass a part that is not written."""
    queue = PartitionQueue(TP)
    queue.adopt(NO_IDENTITY)
    queue.pending.append(QueuedBatch(memoryview(_batch(b"0", b"bad", b"2")), 3, "token", "token"))
    queue.pending.append(QueuedBatch(memoryview(_batch(b"3")), 1, "next", "next"))
    item, _ = queue.take(0)
    queue.requeue(item)
    queue.replace(item, [_batch(b"0"), _batch(b"2")])
    parts = list(queue.pending)
    for part in parts:
        taken, _ = queue.take(0)
        queue.requeue(taken)
        assert queue.pending[0] is part, "it is sent again before those after it"
        queue.take(0)
        queue.acknowledge(part, 0.0)
    assert [part.token for part in parts] == [None, "token", "next"]
    assert queue.idle

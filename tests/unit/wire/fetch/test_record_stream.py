"""Reading one partition from one offset to another."""

from __future__ import annotations

from typing import Any

from sparkmirror.model import TopicPartition
from sparkmirror.records.records import Record, encode_batch
from sparkmirror.settings import ClusterClient, FetchSettings
from sparkmirror.wire.fetch.fetcher import FetchedPartition
from sparkmirror.wire.fetch.record_stream import RecordStream

TP = TopicPartition("t", 0)
BATCH = encode_batch([Record(5, 1, None, bytes(5_000))], base_offset=5)


def _part(fetch_offset: int, records: bytes) -> FetchedPartition:
    return FetchedPartition(TP, fetch_offset, 99, 99, 0, [], memoryview(records))


def test_a_batch_that_is_cut_is_asked_for_with_more_bytes(monkeypatch: Any) -> None:
    """Otherwise it would be cut each time, and reading would make no progress."""
    stream = RecordStream(ClusterClient("A", ("a:1",), "c"), FetchSettings(), TP, 5, 6)
    fetcher = stream._fetcher
    answers = [[_part(5, BATCH[:700])], [_part(5, BATCH)]]
    monkeypatch.setattr(fetcher, "send", lambda: None)
    monkeypatch.setattr(type(fetcher), "waiting", True)
    monkeypatch.setattr(fetcher, "ready", lambda _: [None])
    monkeypatch.setattr(fetcher, "receive", lambda _: answers.pop(0))
    list(stream._round())
    assert fetcher._states[TP].bytes_max >= len(BATCH)
    (chosen,) = stream._round()
    assert (chosen.next_offset, chosen.record_count) == (6, 1)
    assert fetcher.position(TP) == 6
    assert fetcher._states[TP].bytes_max == 0
    stream.close()

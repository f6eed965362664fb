"""What a slot's source end tells its sink, and what it costs to find out that nothing is new."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sparkmirror.data.read.notes_to_sink import NotesToSink
from sparkmirror.data.rows.notes import HaltNote
from sparkmirror.model import TopicPartition
from sparkmirror.progress import Halt

TP, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)
HALT = Halt("BROKER_NOT_AVAILABLE", "broker 1 cannot be reached", retriable=True)


def test_halts_are_compared_once_after_each_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    """With thousands of them, each row of the other partitions would wait for it."""
    fetcher = SimpleNamespace(errors={}, halts={}, throttle=None)
    nothing = SimpleNamespace(paused=False, take_gaps=list)
    notes = NotesToSink(*(cast(Any, one) for one in (fetcher, nothing, nothing, nothing)))
    compared, equal = [0], Halt.__eq__

    def counted(one: Halt, other: object) -> bool:
        compared[0] += 1
        return equal(one, other)

    monkeypatch.setattr(Halt, "__eq__", counted)
    fetcher.halts = {TP: HALT, OTHER: HALT}
    told = notes.take()
    assert told is not None
    assert told.halts == (HaltNote(TP, HALT), HaltNote(OTHER, HALT))
    compared[0] = 0
    for retries in range(1, 4):
        fetcher.halts = {TP: replace(HALT), OTHER: replace(HALT)}
        assert [notes.take() for _ in range(10)] == [None] * 10
        assert compared[0] == 2 * retries
    fetcher.halts = {OTHER: HALT}
    told = notes.take()
    assert told is not None
    assert told.halts == (HaltNote(OTHER, HALT), HaltNote(TP, None))

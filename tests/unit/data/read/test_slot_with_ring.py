"""The source end of a slot with a ring: what still goes through Spark, and what is released."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkmirror.data.coordination.slot_plan import plan_slots
from sparkmirror.data.read.slot_reader import SlotReader
from sparkmirror.data.rows.notes import SlotHello, SlotNotes
from sparkmirror.data.rows.ring import RingReader
from sparkmirror.data.rows.rows import decode_row, read_numbered
from sparkmirror.internal_topics.commands import SourcePartition
from sparkmirror.model import TopicPartition
from sparkmirror.records.records import Record, encode_batch
from sparkmirror.wire.fetch.fetcher import FetchedPartition
from tests.unit.config_files import BASE, load_flow

TP = TopicPartition("t", 0)


class Streamed:
    """A slot whose source answers at once, with one record each time, until ``over``."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch, ring: str) -> None:
        flow = load_flow(directory, f"{BASE}sparkmirror.ring.enabled = {ring}\n")
        partitions = [SourcePartition("t", 0, "A.t")]
        (plan,) = plan_slots(
            partitions, slots_max=1, epoch=0, run_id="r", ends=None, control_offset=0
        )
        self.reader = reader = SlotReader(flow, plan)
        reader._fetcher.assign(TP, 0)
        self.offset = 0
        self.over: Callable[[], bool] = lambda: False
        source = object()

        def wait(_timeout_s: float) -> list[Any]:
            time.sleep(0.001)
            return [source]

        monkeypatch.setattr(reader._any, "wait", wait)
        monkeypatch.setattr(reader._fetcher, "receive", self._receive)
        monkeypatch.setattr(reader, "_send_fetches", lambda: None)
        monkeypatch.setattr(reader, "_follow", lambda: None)
        monkeypatch.setattr(reader._watch.fetcher, "send", lambda: None)
        monkeypatch.setattr(reader, "_over", lambda _: self.over())
        monkeypatch.setattr(reader, "_start", dict)

    def _receive(self, _connection: object) -> list[FetchedPartition]:
        batch = memoryview(encode_batch([Record(self.offset, 1, None, b"v")]))
        self.offset += 1
        end = self.offset
        return [FetchedPartition(TP, self.offset - 1, end, end, 0, [], batch)]

    def rows(self, seconds: float) -> Iterator[Any]:
        """What goes through Spark; the first row is the one that says who the slot is."""
        until = time.monotonic() + seconds
        self.over = lambda: time.monotonic() >= until
        return self.reader.rows()


@pytest.fixture(params=["true"])
def streamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Streamed:
    return Streamed(tmp_path, monkeypatch, request.param)


def _hello(row: Any) -> SlotHello:
    notes: SlotNotes | None = read_numbered(row, 0).row[2]
    assert notes is not None
    assert notes.hello is not None
    return notes.hello


def _taken(sink: RingReader, number: int) -> list[int]:
    """The offsets of the records in the ring, from row ``number`` on."""
    found = []
    while (entry := sink.take(number)) is not None:
        found += [chunk.base_offset for chunk in decode_row(*entry).row[0]]
        number += 1
    return found


def test_a_busy_slot_gives_spark_an_account_twice_a_second(streamed: Streamed) -> None:
    """By these Spark notices that the slot lives, and the slot that Spark has given it up."""
    before = os.listdir("/proc/self/fd")
    rows = streamed.rows(1.3)
    note = _hello(next(rows)).ring
    assert note is not None
    sink = RingReader(note)
    sink.listen()
    numbers, offsets, taken, ended = [], [], 1, False
    for row in rows:
        number, last, (chunks, *_) = read_numbered(row, 0)
        if number is None:
            continue
        assert not ended
        ended = last
        assert not chunks, "small rows go through the ring"
        found = _taken(sink, taken)
        assert taken + len(found) == number, "an account says how many rows there were"
        offsets += found
        numbers.append(number)
        taken = number + 1
    assert ended
    assert 3 <= len(numbers) <= 4, "two accounts, and the last row"
    assert offsets == list(range(streamed.offset))
    while sink.silence():  # the source has closed the bell
        pass
    sink.close()
    assert len(os.listdir("/proc/self/fd")) <= len(before)


@pytest.mark.parametrize("streamed", ["false"], indirect=True)
def test_without_the_setting_spark_carries_all_rows(streamed: Streamed) -> None:
    rows = streamed.rows(0.1)
    assert _hello(next(rows)).ring is None
    offsets = []
    for row in rows:
        number, last, (chunks, *_) = read_numbered(row, 0)
        assert number is None
        assert not last
        offsets += [chunk.base_offset for chunk in chunks]
    assert offsets == list(range(streamed.offset))

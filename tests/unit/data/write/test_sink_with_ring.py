"""The sink end of a slot with a ring: what is in it is sent soon, and nothing of it is left."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Any

import pyarrow as pa
import pytest

from sparkmirror.data.rows import worker_pipes
from sparkmirror.data.rows.notes import PartitionHello, SlotHello, SlotNotes, Writer
from sparkmirror.data.rows.outlet import Outlet
from sparkmirror.data.rows.ring import RingWriter
from sparkmirror.data.rows.rows import Chunk
from sparkmirror.data.rows.shared_frames import Frames
from sparkmirror.data.write.slot_sink import SlotSink
from sparkmirror.records.records import Record, encode_batch
from sparkmirror.wire.net.connection import ConnectionLost
from tests.patience import patience
from tests.unit.data.write.test_exactly_once import ORDERS, Brokers, _flow, simulated

NOTHING = memoryview(b"")


@pytest.fixture
def brokers() -> Iterator[Brokers]:
    with simulated() as found:
        yield found


class Source:
    """The source end of a slot; a pipe stands for Spark."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, brokers: Brokers) -> None:
        self.frames = Frames(1 << 20)
        self.outlet = Outlet(self.frames, RingWriter())
        self.made = 0
        ready, self.carried = os.pipe()
        self.infile = os.fdopen(ready, "rb", 0)
        ends, rows = select.poll(), select.poll()
        ends.register(self.infile, 0)
        rows.register(self.infile, select.POLLIN)
        monkeypatch.setattr(worker_pipes, "_files", (self.infile, BytesIO()))
        monkeypatch.setattr(worker_pipes, "_input", ends)
        monkeypatch.setattr(worker_pipes, "_rows", rows)
        hello = SlotHello(
            0, 0, "A->B", "r", 0, None,
            (PartitionHello(ORDERS, "A.orders", 0, -1),), None, Writer(brokers.fence(), "r", 0),
            ring=self.outlet.note(),
        )  # fmt: skip
        self._spark: list[pa.RecordBatch] = []
        self.carry(self.outlet.first(SlotNotes(hello)))

    def make(self) -> bool:
        """Make a row of one record; returns whether it went through the ring."""
        data = memoryview(encode_batch([Record(self.made, 5, None, b"v" * 10)]))
        chunk = Chunk("orders", 0, "A.orders", self.made, self.made + 1, 1, 5, 0, len(data))
        row = self.outlet.pass_on([chunk], NOTHING, [[data]], None)
        self.made += 1
        if row is not None:
            self.carry(row)
        return row is None

    def carry(self, row: pa.RecordBatch) -> None:
        self._spark.append(row)
        os.write(self.carried, b"\0")

    def end(self) -> None:
        """The last row; after it Spark's rows end."""
        for row in self.outlet.last():
            self.carry(row)

    def messages(self) -> Iterator[pa.RecordBatch]:
        while self._spark:
            assert self.infile.read(1)
            yield self._spark.pop(0)

    def break_off(self) -> None:
        """Close Spark's end."""
        os.close(self.carried)
        self.carried = os.open(os.devnull, os.O_WRONLY)

    def close(self) -> None:
        self.outlet.close()
        self.frames.close()
        self.infile.close()
        os.close(self.carried)


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch, brokers: Brokers) -> Iterator[Source]:
    made = Source(monkeypatch, brokers)
    yield made
    made.close()


class Watched(SlotSink):
    """Calls ``after`` with each row's chunks once it is taken. ``rounds``: when there was one."""

    def __init__(self) -> None:
        super().__init__(_flow(transaction_interval_ms=100))
        self.after: Callable[[list[Chunk]], None] = lambda _: None
        self.rounds: list[float] = []
        self.unsent = self.most = 0

    def _take(self, chunks: list[Chunk], *rest: Any) -> None:
        super()._take(chunks, *rest)
        self.unsent += len(chunks)
        self.most = max(self.most, self.unsent)
        self.after(chunks)

    def _housekeep(self) -> None:
        self.unsent = 0
        self.rounds.append(time.monotonic())
        super()._housekeep()


def test_rows_are_sent_while_more_of_them_wait_in_the_ring(
    source: Source, brokers: Brokers
) -> None:
    """A sink that was busy for a moment finds the ring full."""
    sink = Watched()

    def fill(chunks: list[Chunk]) -> None:
        if not chunks and not source.made:  # the sink listens now
            while source.make():
                pass
            source.end()

    sink.after = fill
    sink.run(source.messages())
    assert source.made > 2_000
    assert len(brokers.values("A.orders")) == source.made
    assert sink.most < source.made / 2


def test_a_source_that_keeps_up_does_not_keep_the_sink_from_its_rounds(source: Source) -> None:
    """For each row that the sink takes, the next one is in the ring."""
    sink = Watched()
    began = time.monotonic()

    def go_on(_: list[Chunk]) -> None:
        if time.monotonic() < began + 1.0:
            assert source.make()
        elif source.made:
            source.end()
            sink.after = lambda _: None

    sink.after = go_on
    sink.run(source.messages())
    assert len(sink.rounds) > 10, "one in 5 ms was due, but for what a round costs"
    assert max(b - a for a, b in zip(sink.rounds, sink.rounds[1:], strict=False)) < 0.5 * patience()


@pytest.mark.parametrize("fails", [False, True])
def test_a_sink_leaves_nothing_of_the_ring_behind(source: Source, fails: bool) -> None:
    sink = SlotSink(_flow())

    before = len(os.listdir("/proc/self/fd"))
    if fails:
        source.break_off()
        with pytest.raises(ConnectionLost):
            sink.run(source.messages())
    else:
        source.end()
        sink.run(source.messages())
    assert worker_pipes.input_fd() == source.infile.fileno()
    assert len(os.listdir("/proc/self/fd")) <= before

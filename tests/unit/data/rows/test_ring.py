"""The ring beside Spark's rows: both ends in one process, or in two; order, loss and wakeups."""

from __future__ import annotations

import errno
import json
import os
import select
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkmirror.data.rows import worker_pipes
from sparkmirror.data.rows.arrivals import Arrivals
from sparkmirror.data.rows.notes import SlotHello, SlotNotes
from sparkmirror.data.rows.outlet import Outlet
from sparkmirror.data.rows.ring import (
    ENTRY_BYTES_MAX,
    RingReader,
    RingWriter,
    SharedRing,
    map_ring,
    new_ring,
)
from sparkmirror.data.rows.rows import ARROW_SCHEMA, FLUSH, Chunk, read_row
from sparkmirror.data.rows.shared_frames import FrameReader, Frames
from sparkmirror.errors import Defect
from sparkmirror.wire.net.connection import ConnectionLost
from sparkmirror.wire.net.poller import readable

NOTHING = memoryview(b"")


@pytest.fixture
def ring() -> Iterator[RingWriter]:
    made = RingWriter()
    yield made
    made.close()


@contextmanager
def listening(ring: RingWriter) -> Iterator[RingReader]:
    reader = RingReader(ring.note())
    reader.listen()
    try:
        yield reader
    finally:
        reader.close()


def _rings(reader: RingReader) -> bool:
    return bool(readable([reader.bell], 0))


# -- the ring ----------------------------------------------------------------------------------


def test_nothing_is_put_before_the_sink_listens(ring: RingWriter) -> None:
    assert not ring.put(0, b"{}", NOTHING)
    reader = RingReader(ring.note())
    assert not ring.put(0, b"{}", NOTHING)
    reader.listen()
    assert ring.put(0, b"{}", memoryview(b"records"))
    assert reader.take(0) == (b"{}", memoryview(b"records"))
    assert reader.take(1) is None
    reader.close()


def test_an_entry_waits_for_its_turn(ring: RingWriter) -> None:
    with listening(ring) as reader:
        assert ring.put(7, b"seven", NOTHING)
        assert reader.take(6) is None
        assert reader.take(8) is None
        assert reader.take(7) == (b"seven", NOTHING)
        assert reader.take(7) is None


def test_the_bell_rings_once_for_each_entry_until_it_is_silenced(ring: RingWriter) -> None:
    with listening(ring) as reader:
        assert not _rings(reader)
        assert reader.silence()  # nothing to silence is no end either
        for number in range(3):
            assert ring.put(number, b"x", NOTHING)
        assert _rings(reader)
        assert reader.silence()
        assert not _rings(reader)
        assert ring.put(3, b"x", NOTHING)
        assert _rings(reader)


def test_a_bell_that_nobody_hears_does_not_stop_the_source(ring: RingWriter) -> None:
    with listening(ring) as reader:
        for number in range(70_000):  # a pipe holds 64 KiB
            assert ring.put(number, b"x", NOTHING)
            assert reader.take(number) is not None
        assert reader.silence()


def test_an_entry_that_is_not_wholly_visible_is_not_there(ring: RingWriter) -> None:
    with listening(ring) as reader:
        assert ring.put(0, b"head", memoryview(b"records"))
        at = 4096 + 20 + 4  # behind the header, the entry's own and its head
        assert reader._area._map[at : at + 7] == b"records"
        reader._area._map[at : at + 7] = b"rec\0\0\0\0"
        assert reader.take(0) is None
        reader._area._map[at : at + 7] = b"records"
        assert reader.take(0) == (b"head", memoryview(b"records"))


def test_a_full_ring_and_a_large_row_are_refused(ring: RingWriter) -> None:
    with listening(ring) as reader:
        assert not ring.put(0, b"x", memoryview(bytes(ENTRY_BYTES_MAX)))
        piece = memoryview(bytes(60_000))
        put = 0
        while put < 20 and ring.put(put, b"x", piece):
            put += 1
        assert 4 <= put < 10
        assert reader.take(0) is not None
        assert ring.put(put, b"x", piece), "what was taken is free again"
        assert not ring.put(put + 1, b"x", piece)
        for number in range(1, put + 1):
            assert reader.take(number) == (b"x", piece)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 50_000), st.integers(0, 3)), min_size=1, max_size=60))
def test_what_is_put_comes_out_in_order_round_and_round(steps: list[tuple[int, int]]) -> None:
    ring = RingWriter()
    waiting: list[tuple[int, bytes, bytes]] = []
    number = 0
    try:
        with listening(ring) as reader:
            for size, takes in steps:
                head, records = b"%d" % number, os.urandom(64) * (size // 64)
                if ring.put(number, head, memoryview(records)):
                    waiting.append((number, head, records))
                    number += 1
                for _ in range(takes):
                    if not waiting:
                        assert reader.take(number) is None
                        break
                    first, *content = waiting.pop(0)
                    assert reader.take(first) == tuple(content)
            for first, *content in waiting:
                assert reader.take(first) == tuple(content)
    finally:
        ring.close()


def test_no_other_attempts_source_speaks_to_a_sink(ring: RingWriter) -> None:
    note, newer = ring.note(), RingWriter()
    try:
        for wrong in (
            note._replace(token="00" * 16),
            note._replace(memory=newer.note().bell),
            note._replace(memory=1_000_000),
            note._replace(bell=note.memory),
            note._replace(bell=newer.note().bell),
            note._replace(bell=1_000_000),
            note._replace(process=2**22 + 1),
        ):
            assert map_ring(wrong) is None
        assert map_ring(None) is None
    finally:
        newer.close()


def test_a_ring_leaves_no_descriptor_behind() -> None:
    before = os.listdir("/proc/self/fd")
    ring = new_ring()
    assert ring is not None
    with listening(ring):
        assert map_ring(ring.note()._replace(bell=1_000_000)) is None
        assert map_ring(ring.note()._replace(token="")) is None
    ring.close()
    assert os.listdir("/proc/self/fd") == before


def test_a_machine_without_such_memory_has_no_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    assert new_ring() is None


_SOURCE = """
    import sys, json
    from sparkmirror.data.rows.ring import RingWriter
    ring = RingWriter()
    print(json.dumps(ring.note()), flush=True)
    sys.stdin.readline()
    for number in range(int(sys.argv[1])):
        records = memoryview(b"%d " % number * (number % 997))
        while not ring.put(number, b"%d" % number, records):
            pass
    print("done", flush=True)
    sys.stdin.readline()
"""


def test_two_processes_pass_entries_and_a_dead_source_is_noticed() -> None:
    count = 20_000
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(_SOURCE), str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as source:
        assert source.stdin is not None
        assert source.stdout is not None
        reader = RingReader(SharedRing(*json.loads(source.stdout.readline())))
        reader.listen()
        print("go", file=source.stdin, flush=True)
        number = 0
        deadline = time.monotonic() + 60
        while number < count:
            assert readable([reader.bell], 20), f"no bell after {number}"
            assert reader.silence()
            while (entry := reader.take(number)) is not None:
                assert entry == (b"%d" % number, memoryview(b"%d " % number * (number % 997)))
                number += 1
            assert time.monotonic() < deadline
        source.kill()
        source.wait()
        while reader.silence():  # first what it has rung before
            assert readable([reader.bell], 20)
        reader.close()


# -- rows through both ways --------------------------------------------------------------------


class Slot:
    """Both ends of a slot without Spark: a pipe stands for the rows that Spark carries."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, ring: bool = True) -> None:
        self.frames = Frames(1 << 20)
        self.outlet = Outlet(self.frames, RingWriter() if ring else None)
        self.spark: list[pa.RecordBatch] = []
        self.ready, self.carried = os.pipe()
        self.given_up = False
        self.arrivals = Arrivals(self._check_spark)
        self.got: list[str] = []
        infile = os.fdopen(self.ready, "rb", 0)
        rows = select.poll()
        rows.register(infile, select.POLLIN)
        monkeypatch.setattr(worker_pipes, "_files", (infile, BytesIO()))
        monkeypatch.setattr(worker_pipes, "_rows", rows)
        self._infile = infile

    def _check_spark(self) -> None:
        if self.given_up:
            raise ConnectionLost("Spark has given up this attempt of the task")

    def begin(self) -> None:
        hello = SlotHello(0, 0, "c", "r", 0, self.frames.note(), ring=self.outlet.note())
        self.carry(self.outlet.first(SlotNotes(hello)))
        self.take_spark()
        FrameReader(hello.memory)  # type: ignore[arg-type]

    def make(self, name: str, size: int = 10) -> bool:
        """Make a row whose topic is ``name``; returns whether it went through the ring."""
        data = self.frames.view(size)
        data[:] = name[:1].encode() * size
        chunk = Chunk(name, 0, name, 0, 1, 1, 0, 0, size)
        row = self.outlet.pass_on([chunk], data, [[data]], None)
        if row is not None:
            self.carry(row)
        return row is None

    def carry(self, row: pa.RecordBatch) -> None:
        """Let Spark carry ``row``; it arrives when `take_spark` is called."""
        self.spark.append(row)
        os.write(self.carried, b"\0")

    def take_spark(self) -> None:
        self._infile.read(1)
        self._take(self.spark.pop(0))

    def take_ring(self) -> None:
        self._take(None)

    def _take(self, batch: pa.RecordBatch | None) -> None:
        for chunks, records, notes, reference in self.arrivals.rows(batch):
            for chunk in chunks:
                if reference is None:
                    assert bytes(records) == chunk.topic[:1].encode() * chunk.size
                self.got.append(chunk.topic)
            if notes is not None and notes.hello is not None:
                self.arrivals.begin(notes.hello.ring)

    def close(self) -> None:
        self.arrivals.close()
        self.outlet.close()
        self.frames.close()
        self._infile.close()
        os.close(self.carried)


@pytest.fixture
def slot(monkeypatch: pytest.MonkeyPatch) -> Iterator[Slot]:
    made = Slot(monkeypatch)
    yield made
    made.close()


def test_rows_go_through_spark_until_the_sink_has_the_ring(slot: Slot) -> None:
    assert not slot.make("before")
    slot.spark.clear()
    slot.outlet._made = 0
    os.read(slot._infile.fileno(), 1)
    slot.begin()
    assert slot.make("small")
    assert not slot.make("large", 100_000), "what fills a frame goes through Spark"
    assert slot.make("after")
    assert slot.spark[0].schema == ARROW_SCHEMA


def test_the_order_is_that_of_the_source_whichever_way_rows_come(slot: Slot) -> None:
    slot.begin()
    for name, size in (("a", 9), ("b", 90_000), ("c", 9), ("d", 9), ("e", 90_000), ("f", 9)):
        slot.make(name, size)
    slot.take_ring()
    assert slot.got == ["a"], "what was made after a row of Spark waits for it"
    slot.take_spark()
    assert slot.got == ["a", "b", "c", "d"]
    slot.take_ring()
    assert slot.got == ["a", "b", "c", "d"]
    slot.take_spark()
    assert slot.got == ["a", "b", "c", "d", "e", "f"]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["small", "large", "note", "account", "ring", "spark"])))
def test_no_row_is_lost_or_overtaken(steps: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        slot = Slot(patch)
        try:
            slot.begin()
            made: list[str] = []
            for step in steps:
                if step in ("small", "large"):
                    made.append(f"{step}-{len(made)}")
                    slot.make(made[-1], 9 if step == "small" else 50_000)
                elif step == "note":
                    row = slot.outlet.pass_on([], NOTHING, [], SlotNotes(paused=True))
                    assert row is None
                elif step == "account":
                    slot.carry(slot.outlet.account())
                elif step == "ring":
                    slot.take_ring()
                elif slot.spark:
                    slot.take_spark()
                assert slot.got == made[: len(slot.got)]
            (last,) = slot.outlet.last()
            slot.carry(last)
            while slot.spark:
                slot.take_spark()
            assert slot.got == made
        finally:
            slot.close()


def test_a_row_that_spark_lost_is_not_passed_over(slot: Slot) -> None:
    slot.begin()
    slot.make("large", 90_000)
    slot.make("after")
    slot.make("larger", 95_000)
    slot.spark.pop(0)
    with pytest.raises(Defect, match=r"row 3 of a slot came after row 0"):
        slot.take_spark()
    assert slot.got == []


@pytest.mark.parametrize("taken", [0, 1])
def test_nothing_of_the_ring_is_taken_once_spark_has_given_up(slot: Slot, taken: int) -> None:
    slot.begin()
    for name in "abc":
        slot.make(name)
    rows = slot.arrivals.rows(None)
    for _ in range(taken):
        next(rows)
    slot.given_up = True
    with pytest.raises(ConnectionLost):
        next(rows)


def test_an_account_is_sent_only_if_something_went_through_the_ring(slot: Slot) -> None:
    slot.begin()
    assert slot.outlet.account() is FLUSH
    slot.make("a")
    row = slot.outlet.account()
    assert row is not FLUSH
    assert read_row(row, 0)[0] == []
    assert slot.outlet.account() is FLUSH
    slot.make("large", 90_000)
    assert slot.outlet.account() is FLUSH


def test_rows_have_no_numbers_without_a_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    slot = Slot(monkeypatch, ring=False)
    try:
        slot.begin()
        assert not slot.make("a")
        assert b"number" not in slot.spark[0].column(0)[0].as_buffer().to_pybytes()
        assert slot.outlet.account() is FLUSH
        assert slot.outlet.last() == []
        slot.take_spark()
        assert slot.got == ["a"]
    finally:
        slot.close()


def test_a_worker_of_another_daemon_takes_all_rows_from_spark(
    slot: Slot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_pipes, "_files", None)
    slot.begin()
    assert not slot.make("a")


def test_a_worker_without_epoll_takes_all_rows_from_spark(
    slot: Slot, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(select, "epoll", none)
    slot.begin()
    assert not slot.make("a")
    assert worker_pipes.input_fd() == slot._infile.fileno()


# -- how the sink waits ------------------------------------------------------------------------


def _messages(slot: Slot) -> Iterator[Any]:
    def batches() -> Iterator[pa.RecordBatch]:
        while True:
            if not slot._infile.read(1):
                return
            yield slot.spark.pop(0)

    return slot.arrivals.messages(batches())


def _consumed(slot: Slot) -> threading.Thread:
    def consume() -> None:
        for message in _messages(slot):
            slot._take(message)
        slot.got.append("end")

    thread = threading.Thread(target=consume, daemon=True)
    thread.start()
    return thread


def _until(slot: Slot, names: list[str]) -> None:
    deadline = time.monotonic() + 20
    while slot.got != names and time.monotonic() < deadline:
        time.sleep(0.002)
    assert slot.got == names


def test_the_sink_is_woken_by_both_ways_and_ends_with_sparks_rows(slot: Slot) -> None:
    slot.begin()
    thread = _consumed(slot)
    for name, size in (("a", 9), ("b", 90_000), ("c", 9)):
        slot.make(name, size)
        _until(slot, slot.got if name in slot.got else [*slot.got, name])
    assert slot.got == ["a", "b", "c"]
    slot.carry(slot.outlet.last()[0])
    os.close(slot.carried)
    slot.carried = os.open(os.devnull, os.O_WRONLY)
    _until(slot, ["a", "b", "c", "end"])
    thread.join(20)


def test_a_row_that_comes_while_others_are_taken_wakes_the_sink(slot: Slot) -> None:
    slot.begin()
    messages = _messages(slot)
    slot.make("a")
    assert next(messages) is None
    slot.make("b")  # as if it came just after the sink had looked for the last time
    slot.take_ring()
    slot.make("c")
    assert readable([worker_pipes.input_fd()], 0)
    assert next(messages) is None
    slot.take_ring()
    assert slot.got == ["a", "b", "c"]


def test_the_next_task_of_a_worker_waits_for_its_own_input_alone() -> None:
    """A task that died left its ring watched."""
    ours, sparks = socket.socketpair()
    bell, ringing = os.pipe()

    def worker(infile: Any, _outfile: object) -> None:
        worker_pipes.watch_also(bell)
        assert worker_pipes.input_fd() not in (-1, infile.fileno())
        raise RuntimeError

    with ours, sparks, ours.makefile("rb") as infile, ours.makefile("wb") as outfile:
        with pytest.raises(RuntimeError):
            worker_pipes.watched(worker)(infile, outfile)  # type: ignore[arg-type]
        assert worker_pipes.input_fd() == -1
        seen: list[bool] = []
        next_task = worker_pipes.watched(
            lambda given, _: seen.append(worker_pipes.input_fd() == given.fileno())
        )
        next_task(infile, outfile)  # type: ignore[arg-type]
        assert seen == [True]
    os.close(bell)
    os.close(ringing)


def test_after_the_last_row_the_sink_waits_for_spark_alone(slot: Slot) -> None:
    """The end of Spark's rows may be in a buffer: nothing more would become readable."""
    slot.begin()
    slot.carry(slot.outlet.last()[0])
    ended = iter([slot.spark.pop(0)])
    for message in slot.arrivals.messages(ended):
        slot._take(message)
    assert not slot.arrivals._rings


def test_a_source_that_ended_leaves_what_is_behind_rows_that_spark_still_has(slot: Slot) -> None:
    slot.begin()
    thread = _consumed(slot)
    data = memoryview(b"l" * 90_000)
    chunk = Chunk("large", 0, "large", 0, 1, 1, 0, 0, len(data))
    late = slot.outlet.pass_on([chunk], data, [[data]], None)
    assert slot.make("after")
    last = slot.outlet.last()[0]
    slot.outlet.close()
    slot.outlet._ring = None
    deadline = time.monotonic() + 20
    while slot.arrivals._rings and time.monotonic() < deadline:
        time.sleep(0.002)
    assert slot.got == []
    for row in (late, last):
        slot.carry(row)
    _until(slot, ["large", "after"])
    os.close(slot.carried)
    slot.carried = os.open(os.devnull, os.O_WRONLY)
    _until(slot, ["large", "after", "end"])
    thread.join(20)


def test_a_source_that_died_leaves_only_what_spark_has(slot: Slot) -> None:
    slot.begin()
    thread = _consumed(slot)
    slot.outlet.close()
    slot.outlet._ring = None
    time.sleep(0.05)
    assert slot.got == []
    os.close(slot.carried)
    slot.carried = os.open(os.devnull, os.O_WRONLY)
    _until(slot, ["end"])
    thread.join(20)

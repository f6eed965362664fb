"""Rows, and the memory that source and sink share: both ends in one process, or in two."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from itertools import accumulate, pairwise

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkmirror.data.rows import worker_pipes
from sparkmirror.data.rows.notes import SlotNotes
from sparkmirror.data.rows.rows import FLUSH, Chunk, build_row, divided, in_frame, read_row
from sparkmirror.data.rows.shared_frames import (
    FRAMES,
    MESSAGE_BYTES_MAX,
    FrameReader,
    Frames,
    SharedMemory,
)

LARGE = 100_000


@pytest.fixture
def frames() -> Iterator[Frames]:
    made = Frames(1 << 20)
    yield made
    made.close()


def _note(frames: Frames) -> SharedMemory:
    note = frames.note()
    assert note is not None
    return note


def _received(frames: Frames, content: bytes) -> memoryview:
    view = frames.view(len(content))
    view[:] = content
    return view


def _chunk(partition: int, size: int) -> Chunk:
    return Chunk("t", partition, "A.t", 10, 20, 10, 1_234, 0, size)


def _sent(row: pa.RecordBatch) -> pa.RecordBatch:
    """The row as it comes out of Arrow's stream at the other end."""
    out = BytesIO()
    with pa.ipc.new_stream(out, row.schema) as writer:
        writer.write_batch(row)
    (batch,) = pa.ipc.open_stream(out.getvalue())
    return batch


# -- messages of the sink ----------------------------------------------------------------------


def test_a_message_of_the_sink_is_taken_once_and_makes_room_for_the_next(frames: Frames) -> None:
    assert frames.take_message() == b""
    sink = FrameReader(_note(frames))
    assert frames.take_message() == b""
    for message in (b"one", b"x" * MESSAGE_BYTES_MAX, b"two"):
        assert sink.may_send
        sink.send(message)
        assert not sink.may_send
        assert frames.take_message() == message
        assert frames.take_message() == b""


def test_a_message_that_is_not_wholly_visible_yet_is_taken_later(frames: Frames) -> None:
    sink = FrameReader(_note(frames))
    sink.send(b"wholly there")
    at = sink._message_at + 12  # behind flag, size and checksum
    sink._map[at : at + 6] = b"\0\0\0\0\0\0"
    assert frames.take_message() == b""
    assert not sink.may_send
    sink._map[at : at + 6] = b"wholly"
    assert frames.take_message() == b"wholly there"


def test_a_message_does_not_touch_frames_and_flags(frames: Frames) -> None:
    flagged = Frames(1 << 20, 5000)
    try:
        sink = FrameReader(_note(flagged))
        sink.hold_back(4999, held=True)
        content = os.urandom(LARGE)
        _received(flagged, content)
        reference = flagged.hand_over(0, LARGE)
        sink.send(b"\xff" * MESSAGE_BYTES_MAX)
        assert flagged.held_back() == [4999]
        assert bytes(sink.records(reference)) == content
    finally:
        flagged.close()


def test_no_other_attempts_sink_speaks_to_a_source(frames: Frames) -> None:
    """Each attempt of a task has a memory of its own."""
    zombie = FrameReader(_note(frames))
    newer = Frames(1 << 20)
    try:
        zombie.send(b"given up")
        assert newer.take_message() == b""
    finally:
        newer.close()


# -- shared memory -----------------------------------------------------------------------------


def test_memory_is_private_until_the_sink_has_mapped_it(frames: Frames) -> None:
    view = _received(frames, b"a" * LARGE)
    assert not frames.shared
    assert not frames.holds(view)
    FrameReader(_note(frames))
    assert frames.shared
    view = _received(frames, b"b" * LARGE)
    assert frames.holds(view)
    assert not frames.holds(memoryview(b"b" * LARGE))


def test_a_frame_is_free_again_when_the_last_view_of_it_is_gone(frames: Frames) -> None:
    reader = FrameReader(_note(frames))
    _received(frames, b"x" * LARGE)
    reference = frames.hand_over(5, 50_000)
    records = reader.records(reference)
    part = records[10:20]
    assert bytes(part) == b"x" * 10
    assert reader.leases == 1
    del records
    gc.collect()
    assert reader.leases == 1, "a slice still refers to the frame"
    # The next answer goes elsewhere meanwhile.
    second = _received(frames, b"y" * LARGE)
    assert frames.hand_over(0, LARGE)[0] != reference[0]
    assert bytes(part) == b"x" * 10
    del part, second
    gc.collect()
    assert reader.leases == 0


def test_without_a_free_frame_the_source_is_starved_and_copies(frames: Frames) -> None:
    reader = FrameReader(_note(frames))
    held = []
    for number in range(FRAMES):
        assert not frames.starved
        _received(frames, b"%x" % number * LARGE)
        held.append(reader.records(frames.hand_over(0, LARGE)))
    assert frames.starved
    view = _received(frames, b"z" * LARGE)
    assert not frames.holds(view)
    assert frames.store([b"z" * LARGE], LARGE) is None
    assert [bytes(one[:1]) for one in held] == [b"%x" % number for number in range(FRAMES)]
    held.pop(3)
    assert not frames.starved
    assert frames.holds(_received(frames, b"z" * LARGE))


def test_small_and_oversized_answers_stay_private(frames: Frames) -> None:
    FrameReader(_note(frames))
    assert not frames.holds(frames.view(1_000))
    assert not frames.holds(frames.view(frames.frame_bytes + 1))
    assert frames.holds(frames.view(frames.frame_bytes))


def test_a_reader_refuses_memory_that_is_not_the_one_told(frames: Frames) -> None:
    note = _note(frames)
    with pytest.raises(ValueError, match="another memory"):
        FrameReader(note._replace(token="00" * 16))
    with pytest.raises(ValueError, match="another file"):
        FrameReader(note._replace(frame_bytes=note.frame_bytes + 4096))
    with pytest.raises(ValueError, match="another file"):
        FrameReader(note._replace(partitions=1))
    with pytest.raises(OSError, match="No such file"):
        FrameReader(note._replace(descriptor=1_000_000))
    assert not frames.shared


@pytest.mark.parametrize("partitions", [1, 3, 4096, 10_000])
def test_the_source_sees_which_partitions_are_held_back(partitions: int) -> None:
    frames = Frames(1 << 20, partitions)
    reader = FrameReader(_note(frames))
    assert frames.held_back() == []
    content = bytes(range(256)) * 200
    _received(frames, content)
    reference = frames.hand_over(0, len(content))
    for number in {0, partitions // 2, partitions - 1}:
        reader.hold_back(number, True)
    assert frames.held_back() == sorted({0, partitions // 2, partitions - 1})
    reader.hold_back(0, False)
    assert frames.held_back() == sorted({partitions // 2, partitions - 1} - {0})
    assert bytes(reader.records(reference)) == content, "frames begin behind the last of them"
    frames.close()
    assert frames.held_back() == []


def test_another_process_reads_the_frames_and_hands_them_back(frames: Frames) -> None:
    script = """
        import json, sys
        from sparkmirror.data.rows.shared_frames import FrameReader
        reader = FrameReader(json.loads(sys.stdin.readline()))
        print("mapped", flush=True)
        for line in sys.stdin:
            records = reader.records(json.loads(line))
            print(len(records), set(bytes(records)), flush=True)
            del records
            print("freed", flush=True)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        print(str(list(_note(frames))).replace("'", '"'), file=other.stdin, flush=True)
        assert other.stdout.readline() == "mapped\n"
        for _ in range(2 * FRAMES):
            assert frames.holds(_received(frames, b"q" * LARGE))
            print(frames.hand_over(1, 70_000), file=other.stdin, flush=True)
            assert other.stdout.readline() == f"70000 {{{ord('q')}}}\n"
            assert other.stdout.readline() == "freed\n"
        other.stdin.close()
        assert other.wait(20) == 0


# -- rows --------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(0, 60_000), min_size=1, max_size=6),
    st.integers(0, 30_000),
    st.booleans(),
    st.booleans(),
)
def test_what_goes_into_a_row_comes_out(
    sizes: list[int], gap: int, shared: bool, in_pieces: bool
) -> None:
    """Views of the received answer, or pieces made anew; with and without shared memory."""
    frames = Frames(1 << 20)
    reader = FrameReader(_note(frames)) if shared else None
    answer = frames.view(sum(sizes) + gap * len(sizes))
    answer[:] = os.urandom(len(answer))
    pieces: list[list[memoryview | bytes]] = []
    position = 0
    for size in sizes:
        position += gap
        view = answer[position : position + size]
        half = size // 2
        made: list[memoryview | bytes] = [bytes(view[:half]), view[half:]] if in_pieces else [view]
        pieces.append(made if size else [])
        position += size
    wanted = [b"".join(parts) for parts in pieces]
    chunks = [_chunk(number, size) for number, size in enumerate(sizes)]
    said = SlotNotes(paused=True)
    row = _sent(build_row(chunks, answer, pieces, said, frames))

    assert row.num_rows == 2
    got, records, notes, reference = read_row(row, 0)
    if reference is not None:
        assert reader is not None
        records = reader.records(reference)
    assert notes == said
    assert [bytes(records[one.start : one.start + one.size]) for one in got] == wanted
    assert [replace(one, start=0) for one in got] == chunks
    assert read_row(row, 1) == ([], memoryview(b""), None, None)
    del records
    gc.collect()
    assert reader is None or reader.leases == 0
    del answer, view, made, pieces
    frames.close()


def test_large_rows_carry_no_record_bytes_once_memory_is_shared(frames: Frames) -> None:
    answer = frames.view(LARGE)
    private = build_row([_chunk(0, LARGE)], answer, [[answer]], frames=frames)
    FrameReader(_note(frames))
    answer = frames.view(LARGE)
    shared = build_row([_chunk(0, LARGE)], answer, [[answer]], frames=frames)
    assert private.nbytes > LARGE
    assert shared.nbytes < 1_000


def test_a_row_that_was_received_before_memory_was_shared_goes_into_a_frame(frames: Frames) -> None:
    content, notes = os.urandom(LARGE), SlotNotes(paused=True)
    chunks = [_chunk(0, 1_000), replace(_chunk(1, LARGE - 1_000), start=1_000)]
    pieces = [[content[:1_000]], [content[1_000:]]]
    row = build_row(chunks, memoryview(b""), pieces, notes, frames)
    assert in_frame(row, frames) is row  # nobody has mapped it
    reader = FrameReader(_note(frames))
    made = _sent(in_frame(row, frames))
    assert made.num_rows == row.num_rows
    found, records, told, reference = read_row(made, 0)
    assert (found, told, len(records)) == (chunks, notes, 0)
    assert reference is not None
    assert bytes(reader.records(reference)) == content
    small = build_row([_chunk(0, 3)], memoryview(b""), [[b"abc"]], None, frames)
    assert in_frame(small, frames) is small
    assert in_frame(FLUSH, frames) is FLUSH
    assert in_frame(row, None) is row


def test_a_flush_row_is_empty() -> None:
    assert FLUSH.num_rows == 2
    assert read_row(_sent(FLUSH), 0) == ([], memoryview(b""), None, None)


# -- outlet ------------------------------------------------------------------------------------


def test_rows_leave_when_flushed_and_not_before() -> None:
    into_worker, out_of_worker = os.pipe(), os.pipe()
    os.set_blocking(out_of_worker[0], False)

    def worker_main(infile: object, outfile: BytesIO) -> str:
        outfile.write(b"row")
        with pytest.raises(BlockingIOError):
            os.read(out_of_worker[0], 10)
        assert worker_pipes.flush()
        assert os.read(out_of_worker[0], 10) == b"row"
        assert worker_pipes.input_fd() == into_worker[0]
        outfile.write(b"end")
        return "done"

    with open(into_worker[0], "rb") as infile, open(out_of_worker[1], "wb") as outfile:
        assert worker_pipes.watched(worker_main)(infile, outfile) == "done"
        assert os.read(out_of_worker[0], 10) == b"end"
        assert not worker_pipes.flush(), "no worker runs"
        assert worker_pipes.input_fd() == -1
    os.close(into_worker[1])
    os.close(out_of_worker[0])


# -- parts of a chunk ----------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(
    batches=st.lists(st.tuples(st.integers(1, 900), st.integers(1, 4)), min_size=1, max_size=15),
    holes=st.lists(st.integers(0, 3), min_size=60, max_size=60),
    kept=st.integers(1, 20),
    limit=st.integers(1, 2_000),
)
def test_a_chunk_is_not_divided_where_its_offsets_are_unknown(
    batches: list[tuple[int, int]], holes: list[int], kept: int, limit: int
) -> None:
    """A chunk names only the last runs of its records; no position passes a record after it."""
    offsets = list(accumulate((1 + hole for hole in holes), initial=100))
    total = sum(records for _, records in batches)
    runs = [(offset, 1) for offset in offsets[:total]][-kept:]
    cuts, start = [], 0
    for size, records in batches:
        cuts.append((start, start + size, 0, records))
        start += size
    end = offsets[total - 1] + 1
    chunk = Chunk(*("t", 3, "A.t", offsets[0], end, total, 1_234, 7, start), runs=runs)
    for records in range(total + 1):
        after = chunk.after(records)
        assert after <= (end if records == total else offsets[records])
        assert after == chunk.base_offset or after > offsets[records - 1]

    parts = divided(chunk, cuts, limit)
    assert sum(part.size for part in parts) == start
    assert sum(part.record_count for part in parts) == total
    done = 0
    for part in parts:
        assert part.base_offset <= offsets[done]
        done += part.record_count
        assert offsets[done - 1] < part.next_offset
        assert part.next_offset <= (end if done == total else offsets[done])
        known = [at + n for at, count in part.source_runs for n in range(count)]
        assert known
        assert known == offsets[done - len(known) : done]


@given(
    batches=st.lists(st.tuples(st.integers(61, 500), st.integers(1, 5)), min_size=1, max_size=12),
    holes=st.lists(st.integers(0, 3), min_size=60, max_size=60),
    after=st.integers(0, 3),
    limit=st.integers(1, 2_000),
    dealt=st.booleans(),
)
def test_a_chunk_is_divided_between_batches(
    batches: list[tuple[int, int]], holes: list[int], after: int, limit: int, dealt: bool
) -> None:
    """Whatever is missing between its records, each keeps its offset, and none is left out."""
    offsets = list(accumulate((1 + hole for hole in holes), initial=100))
    total = sum(records for _, records in batches)
    runs: list[tuple[int, int]] = []
    for offset in offsets[:total]:
        if runs and sum(runs[-1]) == offset:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((offset, 1))
    cuts, start = [], 0
    for size, records in batches:
        cuts.append((start, start + size, 0, records))
        start += size
    chunk = Chunk(
        *("t", 3, "A.t", offsets[0], offsets[total - 1] + 1 + after, total, 1_234, 7, start),
        runs=() if len(runs) == 1 else runs,
        targets=list(range(len(batches))) if dealt else None,
    )
    parts = divided(chunk, cuts, limit)

    assert [part.start for part in parts] == [7, *(part.start + part.size for part in parts[:-1])]
    assert sum(part.size for part in parts) == start
    for part in parts:
        inside = [one for one in cuts if part.start <= one[0] + 7 < part.start + part.size]
        assert part.size <= limit or len(inside) == 1
        assert part.record_count == sum(one[3] for one in inside)
        first, *_ = found = [at + n for at, count in part.source_runs for n in range(count)]
        assert part.base_offset == first
        assert len(found) == part.record_count
        assert part.next_offset > found[-1]
    every = [at + n for part in parts for at, count in part.source_runs for n in range(count)]
    assert every == offsets[:total]
    assert all(one.next_offset <= two.base_offset for one, two in pairwise(parts))
    assert parts[-1].next_offset == chunk.next_offset
    if dealt:
        assert [one for part in parts for one in part.targets or ()] == chunk.targets
    else:
        assert all(part.targets is None for part in parts)

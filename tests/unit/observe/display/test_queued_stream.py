"""Streams whose readers may not read."""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import cast

import pytest

from sparkmirror.observe.display.line_view import LineDisplay
from sparkmirror.observe.display.queued_stream import (
    FULL_BYTES,
    WAITING_BYTES_MAX,
    QueuedStream,
    is_full,
    queued_streams,
)
from sparkmirror.observe.figures.meter import FlowView


class Pipe:
    """A pipe with such a stream at its end."""

    def __init__(self) -> None:
        reader, writer = os.pipe()
        self.reader = os.fdopen(reader, "rb", buffering=0)
        self.writer = os.fdopen(writer, "w", encoding="ascii", errors="replace")
        self.stream = QueuedStream(self.writer)

    def fill(self) -> None:
        """Until the stream is full, although the pipe holds some."""
        while not self.stream.full:
            self.stream.write("x" * 1_000 + "\n")

    def read_all(self) -> str:
        self.stream.end()
        self.writer.close()
        return self.reader.read().decode()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    one = Pipe()
    yield one
    one.reader.close()
    one.stream.end()


def test_text_arrives_in_order_in_the_encoding_of_the_stream(pipe: Pipe) -> None:
    for number in range(1_000):
        pipe.stream.write(f"{number} …\n")
    assert pipe.stream.encoding == "ascii"
    assert pipe.read_all() == "".join(f"{number} ?\n" for number in range(1_000))


def test_a_reader_far_behind_loses_progress_and_gets_the_rest(pipe: Pipe) -> None:
    now_s = [0.0]
    display = LineDisplay(cast(io.TextIOWrapper, pipe.stream), ticks_s=lambda: now_s[0])
    view = FlowView("A->B", partitions=1, partitions_reported=1)
    display.update([view])
    pipe.fill()
    now_s[0] = 6.0
    display.update([replace(view, flow="B->A")])
    display.notice("topic t: created A.t")
    text = b""
    while b"created A.t" not in text:
        text += os.read(pipe.reader.fileno(), 65_536)
    assert b"A->B" in text
    assert b"B->A" not in text
    now_s[0] = 12.0
    assert not is_full(pipe.stream)
    display.update([replace(view, flow="B->C")])
    assert "B->C" in pipe.read_all()


def test_what_waits_is_bounded_and_the_oldest_is_lost(pipe: Pipe) -> None:
    for number in range(3 * WAITING_BYTES_MAX // 1_000):
        pipe.stream.write(f"{number:999}\n")
    assert FULL_BYTES < pipe.stream.writer.waiting_bytes <= WAITING_BYTES_MAX
    pipe.stream.write("the last line\n")
    text = b""
    while b"the last line" not in text:
        text += os.read(pipe.reader.fileno(), 65_536)
    numbers = [int(line) for line in text.split(b"\n")[:-2]]
    assert numbers == sorted(numbers)
    assert numbers[-1] == 3 * WAITING_BYTES_MAX // 1_000 - 1
    assert len(numbers) < WAITING_BYTES_MAX // 1_000 + 100, "with what the pipe held"


def test_an_end_does_not_wait_for_a_reader_that_takes_nothing(pipe: Pipe) -> None:
    pipe.fill()
    began_s = time.monotonic()
    pipe.stream.end()
    assert 0.9 < time.monotonic() - began_s < 5
    assert pipe.stream.write("too late") == 8


def test_the_next_write_tells_that_the_reader_is_gone(pipe: Pipe) -> None:
    pipe.reader.close()
    deadline_s = time.monotonic() + 20
    pipe.stream.write("one\n")
    while pipe.stream.error is None:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    with pytest.raises(BrokenPipeError):
        pipe.stream.write("two\n")


def test_a_stream_that_does_not_block_is_waited_for(pipe: Pipe) -> None:
    os.set_blocking(pipe.writer.fileno(), False)
    pipe.fill()
    pipe.stream.write("the last line\n")
    text = b""
    while b"the last line" not in text:
        text += os.read(pipe.reader.fileno(), 65_536)


def test_streams_without_a_file_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    with queued_streams():
        assert sys.stdout is out
        assert isinstance(sys.stderr, QueuedStream) or sys.stderr is not None
    assert sys.stdout is out


def test_two_streams_of_one_file_keep_the_order_of_their_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As with ``2>&1``."""
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as out, os.fdopen(os.dup(writer), "w") as err:
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", err)
        with queued_streams():
            for number in range(1_000):
                print(number, file=sys.stderr if number % 3 else sys.stdout)
    with os.fdopen(reader) as stream:
        assert stream.read().split() == [str(number) for number in range(1_000)]

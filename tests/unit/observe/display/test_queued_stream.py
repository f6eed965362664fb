"""Streams whose readers may not read."""

from __future__ import annotations

import errno
import io
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from sparkmirror.observe.display import queued_stream
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


def test_what_waits_is_bounded_and_the_oldest_is_lost(
    pipe: Pipe, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    for number in range(3 * WAITING_BYTES_MAX // 1_000):
        pipe.stream.write(f"{number:999}\n")
    assert FULL_BYTES < pipe.stream.writer.waiting_bytes <= WAITING_BYTES_MAX
    pipe.stream.write("the last line\n")
    text = b""
    while b"the last line" not in text:
        text += os.read(pipe.reader.fileno(), 65_536)
    pipe.stream.end()
    numbers = [int(line) for line in text.split(b"\n")[:-2]]
    assert numbers == sorted(numbers)
    assert numbers[-1] == 3 * WAITING_BYTES_MAX // 1_000 - 1
    assert len(numbers) < WAITING_BYTES_MAX // 1_000 + 100, "with what the pipe held"
    lost = 1_000 * (3 * WAITING_BYTES_MAX // 1_000 - len(numbers))
    told = f"{lost} bytes of output are lost: nobody read them for too long"
    assert [record.getMessage() for record in caplog.records] == [told]


def test_an_end_does_not_wait_for_a_reader_that_takes_nothing(pipe: Pipe) -> None:
    pipe.fill()
    began_s = time.monotonic()
    pipe.stream.end()
    assert 0.9 < time.monotonic() - began_s < 5
    assert pipe.stream.write("too late") == 8


@pytest.mark.parametrize("blocking", [True, False])
def test_an_end_waits_for_a_reader_that_always_takes_some(blocking: bool, pipe: Pipe) -> None:
    """However often the writer looks in vain: one that does not block may find no room."""
    os.set_blocking(pipe.writer.fileno(), blocking)
    for number in range(4_000):
        pipe.stream.write(f"{number:99}\n")
    text = b""

    def read() -> None:
        nonlocal text
        while len(text) < 400_000:
            text += os.read(pipe.reader.fileno(), 16_384)
            time.sleep(0.02)

    reading = threading.Thread(target=read)
    reading.start()
    pipe.stream.end()
    assert pipe.stream.writer.waiting_bytes == 0
    reading.join(20)
    assert text.endswith(b" 3999\n")


def test_a_reader_that_takes_less_than_a_page_at_a_time_takes_some(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pipe has room only when all of a page is read."""
    monkeypatch.setattr(queued_stream, "QUIET_S", 2.0)
    pipe.stream.write("x" * 200_000)
    ends_s = time.monotonic() + 3.0

    def read() -> None:
        while time.monotonic() < ends_s:
            os.read(pipe.reader.fileno(), 512)
            time.sleep(0.3)

    threading.Thread(target=read, daemon=True).start()
    pipe.stream.end()
    assert time.monotonic() > ends_s


@contextmanager
def _standard_streams(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Both write to one pipe, as with ``2>&1``; its other end."""
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as out, os.fdopen(os.dup(writer), "w") as err:
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", err)
        yield reader
        os.close(reader)


def test_an_end_waits_once_for_a_reader_of_both_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queued_stream, "QUIET_S", 2.0)
    with _standard_streams(monkeypatch):
        with queued_streams():
            sys.stdout.write("x" * 200_000)
            began_s = time.monotonic()
        assert 1.9 < time.monotonic() - began_s < 3.8


def test_an_end_that_ctrl_c_cuts_short_changes_no_exit_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pressed = []

    def sleep(seconds: float) -> None:
        pressed.append(seconds)
        raise KeyboardInterrupt

    def run() -> int:
        with queued_streams():
            sys.stdout.write("x" * 200_000)
            return 42

    clock = SimpleNamespace(monotonic=time.monotonic, sleep=sleep)
    monkeypatch.setattr(queued_stream, "time", clock)
    with _standard_streams(monkeypatch):
        assert run() == 42
    assert len(pressed) == 1


def test_users_code_finds_what_other_streams_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "out").open("w", encoding="ascii") as out:
        monkeypatch.setattr(sys, "stdout", out)
        with queued_streams():
            assert (sys.stdout.name, sys.stdout.mode) == (out.name, "w")
            assert sys.stdout.buffer is out.buffer
            out.reconfigure(errors="replace")
            sys.stdout.reconfigure(encoding="utf-8", line_buffering=True)  # type: ignore[union-attr]
            sys.stdout.write("…")
            assert not hasattr(sys.stdout, "nonsense")
    assert (tmp_path / "out").read_text(encoding="utf-8") == "…"


def _failed(stream: QueuedStream) -> None:
    deadline_s = time.monotonic() + 20
    while stream.error is None:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


@pytest.mark.parametrize("later", [0, 1])
def test_a_disk_that_was_full_for_a_moment_takes_no_later_line(
    later: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``later``: lines that were written before the error was told."""
    fails = [OSError(errno.ENOSPC, "No space left on device")]
    written, failing, more = queued_stream._written, threading.Event(), threading.Event()

    def write(number: int, data: memoryview) -> int:
        if fails:
            failing.set()
            assert more.wait(20)
            raise fails.pop()
        return written(number, data)

    monkeypatch.setattr(queued_stream, "_written", write)
    with (tmp_path / "err").open("w") as err:
        stream = QueuedStream(err)
        stream.write("lost\n")
        assert failing.wait(20)
        for _ in range(later):
            stream.write("a line\n")
        more.set()
        if later:
            while stream.writer.waiting_bytes:
                time.sleep(0.01)
            stream.write("an error\n")
        else:
            _failed(stream)
            with pytest.raises(OSError, match="No space left"):
                stream.write("an error\n")
        stream.end()
    assert (tmp_path / "err").read_text() == "a line\n" * later + "an error\n"


def test_the_next_write_tells_that_the_reader_is_gone(pipe: Pipe) -> None:
    pipe.reader.close()
    pipe.stream.write("one\n")
    _failed(pipe.stream)
    assert pipe.stream.write("") == 0, "nothing is to be written"
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
    with _standard_streams(monkeypatch) as reader:
        with queued_streams():
            for number in range(1_000):
                print(number, file=sys.stderr if number % 3 else sys.stdout)
        text = os.read(reader, 65_536)
    assert text.decode().split() == [str(number) for number in range(1_000)]

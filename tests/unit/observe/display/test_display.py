"""What operators see: the live view as text, progress lines, JSON lines, the summary."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import sys
import termios
import tty
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console, Group

from sparkmirror.model import TopicPartition
from sparkmirror.observe.display.keys import Keys
from sparkmirror.observe.display.line_view import LineDisplay, flow_document, flow_line
from sparkmirror.observe.display.live_view import LiveDisplay, ViewState, draw, frame_svg
from sparkmirror.observe.display.summary import halt_lines, summary_table
from sparkmirror.observe.display.units import (
    clock_text,
    count_text,
    latency_text,
    megabytes_text,
    seconds_text,
    size_text,
)
from sparkmirror.observe.figures.meter import FlowView, TopicRow
from sparkmirror.observe.notice import Notice, named_places
from sparkmirror.progress import Halt

BUSY = FlowView(
    flow="A->B",
    records=123_456_789,
    bytes=12_345_678_900,
    batches=70_000,
    records_per_s=2_412_345.6,
    bytes_per_s=241_234_560.0,
    lag_records=12_345,
    lag_s=1.24,
    latency_ms_p50=2.12,
    latency_ms_p99=3.4,
    partitions=12,
    partitions_reported=12,
    errors={"NOT_LEADER": 3},
    topics=(
        TopicRow("orders", 8, 100_000_000, 10**10, 2_000_000.0, 2e8, 12_000, 1.24),
        TopicRow("payments", 4, 23_456_789, 2_345_678_900, 412_345.6, 41_234_560.0, 345, 0.3),
    ),
)
HALTED = FlowView(
    flow="B->A",
    partitions=1,
    partitions_reported=1,
    lag_records=7,
    halted={TopicPartition("logs", 3): Halt("CORRUPT_BATCH", "the checksum at offset 7 is wrong")},
    topics=(TopicRow("logs", 1, 0, 0, 0.0, 0.0, 7, None, halted=1),),
)
FRAME = ViewState(
    version="0.1.0",
    run_s=3_723,
    phase="mirroring",
    master="local[*]",
    log_dir="~/.local/state/sparkmirror/runs/20260131-120000-4711",
    views=(BUSY, HALTED),
    notices=((61, "topic orders: created A.orders with 8 partitions"),),
    keys=True,
)


def picture(frame: ViewState, width: int, height: int = 40) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, color_system=None)
    with console.capture() as capture:
        console.print(Group(*draw(frame, width, height)))
    return [line.rstrip() for line in capture.get().splitlines()]


def row(lines: list[str], start: str) -> list[str]:
    return next(line for line in lines if line.startswith(start)).split()


@pytest.mark.parametrize("width", [80, 100, 140, 200])
def test_the_view_shows_every_figure_uncut_at_any_usual_width(width: int) -> None:
    lines = picture(FRAME, width)
    assert all(len(line) <= width for line in lines)
    assert lines[0].startswith("sparkmirror 0.1.0  mirroring")
    assert lines[0].endswith("01:02:03")
    assert FRAME.log_dir in "\n".join(lines)
    assert "Spark local[*]" in "\n".join(lines)
    flow = row(lines, "A->B")
    assert flow[:10] == ["A->B", "2.41", "M", "241.2", "12.3", "k", "1.2", "s", "2.1", "3.4"]
    assert flow[10] == "3"
    assert "1 halted" in next(line for line in lines if line.startswith("B->A"))
    assert any("halted B->A logs-3: CORRUPT_BATCH: the checksum" in line for line in lines)
    assert any(line.startswith("00:01:01 topic orders: created A.orders") for line in lines)
    assert lines[-1] == "t topics   q or Ctrl+C drain and end"
    assert not any("…" in line for line in lines)


def test_totals_are_shown_where_there_is_room() -> None:
    assert row(picture(FRAME, 140), "A->B")[-5:] == ["123", "M", "12.3", "GB", "12"]
    assert "12.3 GB" not in "\n".join(picture(FRAME, 80))


@pytest.mark.parametrize(
    ("phase", "states", "shown"),
    [
        ("mirroring", ["mirroring", "mirroring"], "mirroring"),
        ("copying up to now", ["mirroring"], "copying up to now"),
        ("mirroring", ["paused", "paused"], "paused"),
        ("mirroring", ["waiting for the target B"], "waiting for the target B"),
        ("mirroring", ["mirroring", "paused"], "F0 mirroring, F1 paused"),
        ("mirroring", ["paused", *["mirroring"] * 4], "4 mirroring, 1 paused"),
        (
            "draining: everything read is written",
            ["paused"],
            "draining: everything read is written",
        ),
    ],
)
@pytest.mark.parametrize("width", [80, 140])
def test_the_headline_is_what_the_flows_do(
    phase: str, states: list[str], shown: str, width: int
) -> None:
    views = tuple(replace(BUSY, flow=f"F{n}", state=state) for n, state in enumerate(states))
    lines = picture(replace(FRAME, phase=phase, views=views), width)
    assert lines[0].startswith(f"sparkmirror 0.1.0  {shown}  ")
    for view in views:
        idle = view.state != "mirroring"
        # A narrow terminal has room for its beginning.
        beside = f"{view.flow} {view.state}"[: 9 if width == 80 else None]
        assert any(line.startswith(beside) for line in lines) is idle
        assert flow_line(view).startswith(f"{view.flow}  {view.state}  2.41") is idle


def test_json_lines_say_what_they_are_about() -> None:
    out, _, display = line_display(json_lines=True)
    display.notice(
        Notice(
            "ends-A->B: no answer", level="warning", code="UNREACHABLE", flow="A->B", cluster="A"
        )
    )
    display.notice("metrics on http://127.0.0.1:1/metrics")
    display.update([replace(BUSY, state="paused", source="A", target="B")])
    first, second, progress = map(json.loads, out.getvalue().splitlines())
    assert first["message"] == "ends-A->B: no answer"
    about = ("level", "code", "flow", "cluster")
    assert [first[name] for name in about] == ["warning", "UNREACHABLE", "A->B", "A"]
    assert [second[name] for name in about] == ["info", None, None, None]
    assert [progress[name] for name in ("level", "state", "source", "target")] == [
        "info", "paused", "A", "B",
    ]  # fmt: skip


def test_places_are_found_in_the_texts_of_errors() -> None:
    assert named_places("cluster A") == ("", "A")
    assert named_places("quick check: cluster west: its clock is 3 s behind") == ("", "west")
    assert named_places("flow A->B") == ("A->B", "")
    assert named_places("mm2.properties:5: tasks.max") == ("", "")


CATCHING_UP = replace(
    BUSY, lag_s=3_725.0, lag_bytes=1_234_567, to_go_s=95.0, latency_ms_p50=30_000.0
)


@pytest.mark.parametrize("width", [80, 140])
def test_what_passes_while_a_flow_catches_up_is_no_latency(width: int) -> None:
    lines = picture(replace(FRAME, views=(CATCHING_UP,)), width)
    assert "to go" in "\n".join(lines)
    flow = row(lines, "A->B")
    assert flow[4:12] == ["12.3", "k", "1h", "02m", "1m", "35s", "–", "–"]
    assert ("1.23 MB" in "\n".join(lines)) is (width == 140)
    text = flow_line(CATCHING_UP)
    assert "lag 12.3 k records, 1.23 MB (1h 02m), caught up in 1m 35s" in text
    assert "latency" not in text
    assert "latency p50 2.1 ms" in flow_line(BUSY)


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("halted", [1, 1_234])
def test_what_is_halted_is_uncut_while_a_flow_catches_up(width: int, halted: int) -> None:
    """There is one column more then."""
    halts = {TopicPartition("logs", number): Halt("X", "r") for number in range(halted)}
    view = replace(CATCHING_UP, state="catching up", halted=halts)
    lines = picture(replace(FRAME, views=(view,)), width)
    assert all(len(line) <= width for line in lines[:7])
    assert next(line for line in lines if line.startswith("A->B ")).endswith(f"{halted:,} halted")
    (heading,) = (line for line in lines if "to go" in line)
    assert heading.endswith("  errors")


@pytest.mark.parametrize("width", [80, 140])
def test_topics_are_shown_on_demand_furthest_behind_first(width: int) -> None:
    hidden = "\n".join(picture(FRAME, width))
    assert "payments" not in hidden
    lines = picture(replace(FRAME, show_topics=True), width)
    names = [line.split()[1] for line in lines if line.startswith(("A->B ", "B->A "))][2:]
    assert names == ["orders", "payments", "logs"]
    assert "t hide topics" in lines[-1]
    orders = next(line for line in lines if "orders" in line and "created" not in line)
    assert orders.split()[2:10] == ["2.00", "M", "200.0", "12.0", "k", "1.2", "s", "8"]


def test_topics_are_cut_to_the_height_of_the_terminal() -> None:
    topics = tuple(TopicRow(f"t{i:03d}", 1, i, i, float(i), float(i), i, 0.0) for i in range(200))
    frame = replace(FRAME, views=(replace(BUSY, topics=topics),), notices=(), show_topics=True)
    lines = picture(frame, 80, 30)
    assert len(lines) <= 30
    assert any(line.startswith("t199") for line in lines)
    assert any(line.startswith("… and ") and line.endswith(" topics more") for line in lines)


def test_before_the_first_report_the_view_says_what_is_being_done() -> None:
    frame = replace(FRAME, views=(FlowView("A->B"),), notices=(), phase="starting Spark", busy=True)
    lines = picture(frame, 80)
    assert "⠋ starting Spark" in lines[0]
    assert not any(line.startswith("flow") for line in lines)


def test_markup_in_names_is_shown_as_it_is() -> None:
    strange = replace(FRAME, notices=((0, "[bold]not markup[/bold]"),))
    assert any("[bold]not markup[/bold]" in line for line in picture(strange, 80))


def test_unknown_figures_are_dashes_not_zeros() -> None:
    lines = picture(replace(FRAME, views=(FlowView("A->B", partitions=3),)), 80)
    assert row(lines, "A->B") == ["A->B", "0", "0.00", "–", "–", "–", "–", "0"]


class Ticks:
    def __init__(self) -> None:
        self.s = 0.0

    def __call__(self) -> float:
        return self.s


def test_the_live_display_draws_only_what_changed() -> None:
    out = io.StringIO()
    ticks = Ticks()
    console = Console(file=out, width=100, height=30, force_terminal=True)
    display = LiveDisplay(
        version="0.1.0",
        master="local[*]",
        log_dir=Path("/tmp/run"),
        keys=True,
        console=console,
        ticks_s=ticks,
    )
    display.warning("key x is ignored")
    display.phase("mirroring")
    display.update([BUSY])
    size = len(out.getvalue())
    display.update([BUSY])
    assert len(out.getvalue()) == size
    ticks.s = 1.0
    display.update([BUSY])
    assert len(out.getvalue()) > size
    display.toggle_topics()
    assert "payments" in out.getvalue()
    display.summary([BUSY])
    display.notice("after the end")
    display.close()
    text = out.getvalue()
    assert text.index("key x is ignored") < text.index("mirroring")
    assert "mirrored in 00:00:01" in text
    assert text.rstrip().endswith("00:00:01 after the end")
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h")  # the cursor is shown again


def test_a_terminal_that_goes_away_does_not_end_the_run() -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(5, "Input/output error")

    console = Console(file=Gone(), width=80, height=30, force_terminal=True)
    display = LiveDisplay(version="0", master="m", log_dir=Path("/x"), keys=False, console=console)
    display.warning("first")
    display.update([BUSY])
    display.update([HALTED])
    display.notice("while it is open")
    display.toggle_topics()
    display.close()
    display.notice("after the end")
    display.summary([BUSY])


def test_a_terminal_that_goes_away_later_is_given_up_quietly() -> None:
    """Its last picture, the notices after it and the summary meet a stream that fails."""

    class Failing(io.StringIO):
        fails = False

        def write(self, text: str) -> int:
            if self.fails:
                raise OSError(5, "Input/output error")
            return super().write(text)

    out = Failing()
    console = Console(file=out, width=80, height=30, force_terminal=True)
    display = LiveDisplay(version="0", master="m", log_dir=Path("/x"), keys=False, console=console)
    display.update([BUSY])
    out.fails = True
    display.summary([BUSY])
    display.notice("after the end")
    out.fails = False
    display.notice("the view is given up, even if the terminal works again")
    assert "even if" not in out.getvalue()


def line_display(*, json_lines: bool) -> tuple[io.StringIO, Ticks, LineDisplay]:
    out, ticks = io.StringIO(), Ticks()
    display = LineDisplay(
        out, json_lines=json_lines, interval_s=5.0, ticks_s=ticks, now_s=lambda: 1_700_000_000.25
    )
    return out, ticks, display


def test_text_lines_golden() -> None:
    out, ticks, display = line_display(json_lines=False)
    display.warning("key x is ignored")
    display.phase("starting Spark")
    display.phase("starting Spark")
    display.update([FlowView("A->B", partitions=2)])
    ticks.s = 83.4
    display.update([BUSY, HALTED])
    display.notice("topic t: created A.t")
    ticks.s = 84.9
    display.update([BUSY])  # within the interval
    ticks.s = 85.0
    display.update([BUSY])
    assert out.getvalue().splitlines() == [
        "00:00:00 warning: key x is ignored",
        "00:00:00 starting Spark",
        "00:01:23 A->B  2.41 M records/s  241.2 MB/s  lag 12.3 k records (1.2 s)"
        "  latency p50 2.1 ms p99 3.4 ms  123 M records in total  retried errors: NOT_LEADER 3",
        "00:01:23 B->A  0 records/s  0.00 MB/s  lag 7 records  0 records in total"
        "  1 partition halted",
        "00:01:23 topic t: created A.t",
        "00:01:25 A->B  2.41 M records/s  241.2 MB/s  lag 12.3 k records (1.2 s)"
        "  latency p50 2.1 ms p99 3.4 ms  123 M records in total  retried errors: NOT_LEADER 3",
    ]


def test_json_lines_golden() -> None:
    out, ticks, display = line_display(json_lines=True)
    display.warning("key x is ignored")
    ticks.s = 5.5
    display.update([HALTED])
    display.summary([BUSY])
    warning, progress, summary = map(json.loads, out.getvalue().splitlines())
    head = {"time": "2023-11-14T22:13:20.250Z", "run_s": 0.0}
    about = {"level": "warning", "code": None, "flow": None, "cluster": None}
    assert warning == {"type": "warning", **head, "message": "key x is ignored", **about}
    assert progress == {
        "type": "progress",
        "time": "2023-11-14T22:13:20.250Z",
        "run_s": 5.5,
        "level": "info",
        "flow": "B->A",
        "state": "mirroring",
        "source": "",
        "target": "",
        "records": 0,
        "bytes": 0,
        "batches": 0,
        "records_per_s": 0.0,
        "bytes_per_s": 0.0,
        "lag_records": 7,
        "lag_bytes": None,
        "lag_s": None,
        "to_go_s": None,
        "latency_ms_p50": None,
        "latency_ms_p99": None,
        "partitions": 1,
        "partitions_reported": 1,
        "errors": {},
        "halted": [
            {
                "topic": "logs",
                "partition": 3,
                "code": "CORRUPT_BATCH",
                "reason": "the checksum at offset 7 is wrong",
                "retriable": False,
            }
        ],
    }
    assert summary["type"] == "summary"
    assert summary["topics"][1] == {
        "topic": "payments",
        "partitions": 4,
        "records": 23_456_789,
        "bytes": 2_345_678_900,
        "halted": 0,
    }


def test_every_json_field_is_documented() -> None:
    from sparkmirror.observe.display import line_view as lines

    assert lines.__doc__ is not None
    document = flow_document(HALTED, topics=True)
    halted = document["halted"]
    assert isinstance(halted, list)
    of_lines = ["type", "time", "run_s", "level", "message", "code", "cluster"]
    for name in [*document, *halted[0], *of_lines, "what", "where", "do"]:
        assert f"``{name}``" in lines.__doc__, name


def test_a_reader_that_goes_away_ends_the_lines_not_the_mirror(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream:
        display = LineDisplay(stream)
        display.notice("one")
        display.notice("two")


def test_lag_without_any_report_is_unknown() -> None:
    assert "lag unknown" in flow_line(FlowView("A->B"))
    assert "lag 0 " in flow_line(replace(BUSY, lag_records=0, lag_s=0.0))


def test_the_summary_names_flows_topics_rates_and_halts() -> None:
    out, ticks, display = line_display(json_lines=False)
    ticks.s = 10.0
    display.summary([BUSY, HALTED])
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert lines[0].strip() == "mirrored in 00:00:10"
    assert row(lines, "A->B") == [
        "A->B",
        "12",
        "123,456,789",
        "12.3",
        "GB",
        "10.0",
        "12.3",
        "M",
        "0",
    ]
    assert row(lines, "  orders") == ["orders", "8", "100,000,000", "10.0", "GB", "10.0", "M", "0"]
    assert row(lines, "  logs")[-1] == "1"


def test_long_summaries_are_cut_and_say_so() -> None:
    topics = tuple(TopicRow(f"t{i}", 1, i, i, 0.0, 0.0, 0, 0.0) for i in range(60))
    table = summary_table([replace(BUSY, topics=topics)], 0.0)
    assert table.row_count == 1 + 40 + 1
    halts = {TopicPartition("t", i): Halt("TOPIC", "gone") for i in range(30)}
    lines = halt_lines(replace(HALTED, halted=halts), 5)
    assert lines[0] == "t-0: TOPIC: gone"
    assert lines[-1] == "… and 25 partitions more"


def test_svg_of_a_frame(tmp_path: Path) -> None:
    path = tmp_path / "view.svg"
    frame_svg(FRAME, path)
    assert path.read_text(encoding="utf-8").startswith("<svg")
    assert [p.name for p in tmp_path.iterdir()] == ["view.svg"]


@pytest.mark.parametrize(
    ("shown", "wanted"),
    [
        (count_text(0), "0"),
        (count_text(9_999), "9,999"),
        (count_text(9_999.6), "10.0 k"),
        (count_text(999_499), "999 k"),
        (count_text(999_600), "1.00 M"),
        (count_text(2_412_345), "2.41 M"),
        (count_text(3e9), "3.00 G"),
        (megabytes_text(2_412_345), "2.41"),
        (megabytes_text(1_234_567_890), "1,234.6"),
        (size_text(512), "512 B"),
        (size_text(1_750_000_000), "1.75 GB"),
        (seconds_text(None), "–"),
        (seconds_text(0), "0 s"),
        (seconds_text(0.01), "0.1 s"),
        (seconds_text(12.3), "12 s"),
        (seconds_text(59.7), "1m 00s"),
        (seconds_text(7_800), "2h 10m"),
        (seconds_text(4 * 86_400 + 3 * 3_600), "4d 03h"),
        (latency_text(None), "–"),
        (latency_text(2.14), "2.1"),
        (latency_text(1_250), "1,250"),
        (clock_text(59.9), "00:00:59"),
        (clock_text(90_061), "1d 01:01:01"),
    ],
)
def test_units(shown: str, wanted: str) -> None:
    assert shown == wanted


def _in_a_job(use: Callable[[Keys], bool], *moves: bool) -> bool:
    """Whether ``use`` is true of entered keys, in a job that a shell began in the foreground.

    ``moves``: the shell gives the terminal to the job (True) or takes it back, before ``use``. A
    key waits from the beginning. False also if the job was stopped.
    """
    shell, keyboard = pty.fork()
    if shell:
        os.write(keyboard, b"t")
        _, status = os.waitpid(shell, 0)
        os.close(keyboard)
        return status == 0
    code = 1
    try:
        (asked, ask), (told, tell) = os.pipe(), os.pipe()
        mode = termios.tcgetattr(0)
        job = os.fork()
        if job == 0:
            os.setpgid(0, 0)
            sys.stdin = os.fdopen(0, closefd=False)
            _moved(ask, told)
            with Keys() as keys:
                for _ in moves:
                    _moved(ask, told)
                right = use(keys)
            code = int(not right)
            return False
        os.close(ask)
        # A shell may change the terminal in the background.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTOU])
        for to_job in (True, *moves):
            os.read(asked, 1)
            if not to_job:
                termios.tcsetattr(0, termios.TCSANOW, mode)
            os.tcsetpgrp(0, job if to_job else os.getpgrp())
            os.write(tell, b".")
        _, status = os.waitpid(job, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            os.kill(job, signal.SIGKILL)
        code = int(status != 0)
    finally:
        os._exit(code)


def _moved(ask: int, told: int) -> None:
    """Wait until the shell has made its next move."""
    os.write(ask, b".")
    os.read(told, 1)


def _by_line() -> bool:
    return bool(termios.tcgetattr(0)[tty.LFLAG] & termios.ICANON)


def test_keys_are_read_in_the_foreground() -> None:
    assert _in_a_job(lambda keys: keys.fileno == 0 and not _by_line() and keys.read() == "t")


def test_keys_do_not_stop_a_mirror_in_the_background() -> None:
    """As after Ctrl+Z and bg: a key waits when the loop reads, and the run ends."""
    assert _in_a_job(lambda keys: keys.read() is None and keys.fileno is None, False)
    assert _in_a_job(lambda keys: keys.close() is None and _by_line(), False)


def test_keys_work_again_in_the_foreground() -> None:
    """As after Ctrl+Z and fg, or bg and fg: the shell has set the mode that it needs."""

    def use(keys: Keys) -> bool:
        return _by_line() and keys.fileno == 0 and not _by_line() and keys.read() == "t"

    assert _in_a_job(use, False, True)

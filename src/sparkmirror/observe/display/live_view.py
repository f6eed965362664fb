"""The live view on a terminal; drawn from a frame of plain values, so tests need no terminal."""

from __future__ import annotations

import io
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from sparkmirror.observe.console import PrintableConsole
from sparkmirror.observe.display.queued_stream import is_full
from sparkmirror.observe.display.streams import discard
from sparkmirror.observe.display.summary import halt_lines, summary_table
from sparkmirror.observe.display.units import (
    clock_text,
    count_text,
    latency_text,
    megabytes_text,
    plural,
    seconds_text,
    size_text,
)
from sparkmirror.observe.figures.meter import FlowView, TopicRow

__all__ = ["LiveDisplay", "ViewState", "draw", "frame_svg"]

_log = logging.getLogger(__name__)

NOTICES_KEPT = 6
HALTS_SHOWN = 5
WIDE_COLUMNS = 110
GAP = 3  # blanks between two columns, where there is room
FIRST_MIN = 8
FLOWS_NAMED_MAX = 3
PHASES_AT_WORK = ("mirroring", "copying up to now")
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


@dataclass(frozen=True, slots=True)
class ViewState:
    """Everything that the live view shows at one moment; equal frames look the same.

    ``notices``: (run time in seconds, text), oldest first. ``tick``: the step of the spinner, which
    is shown while ``busy``.
    """

    version: str
    run_s: int
    phase: str
    master: str
    log_dir: str
    views: tuple[FlowView, ...] = ()
    notices: tuple[tuple[int, str], ...] = ()
    show_topics: bool = False
    keys: bool = False
    busy: bool = False
    tick: int = 0


def draw(frame: ViewState, width: int, height: int) -> list[Text]:
    """The lines of ``frame`` in ``width`` columns; topics are limited to fit ``height`` lines.

    Rich's tables are not used here because they take ten times as long. The view is drawn several
    times a second while the pipeline needs the processor.
    """
    lines = _header(frame, width)
    if any(view.partitions_reported or view.partitions for view in frame.views):
        lines += [Text(""), *_flows(frame.views, width)]
    halts = [
        Text.assemble(("halted ", "bold red"), f"{view.flow} {line}")
        for view in frame.views
        for line in halt_lines(view, HALTS_SHOWN)
    ]
    if halts:
        lines += [Text(""), *halts]
    if frame.show_topics:
        used = 12 + len(frame.views) + len(halts) + len(frame.notices)
        lines += _topics(frame.views, width, max(3, height - used))
    if frame.notices:
        lines.append(Text(""))
        lines += [
            Text.assemble((f"{clock_text(at_s)} ", "dim"), text) for at_s, text in frame.notices
        ]
    return [*lines, Text(""), _footer(frame)]


def _header(frame: ViewState, width: int) -> list[Text]:
    state = f"{SPINNER[frame.tick % len(SPINNER)]} {frame.phase}" if frame.busy else headline(frame)
    title = Text.assemble(("sparkmirror", "bold cyan"), (f" {frame.version}", "dim"), f"  {state}")
    lines = _sides(title, Text(clock_text(frame.run_s), style="bold"), width)
    logs = Text(f"logs in {frame.log_dir}", style="dim")
    return lines + _sides(logs, Text(f"Spark {frame.master}", style="dim"), width)


def headline(frame: ViewState) -> str:
    """The states of the flows once the run mirrors; before, the phase of the run."""
    if frame.phase not in PHASES_AT_WORK or not frame.views:
        return frame.phase
    doing = {"mirroring": frame.phase}
    states = Counter(doing.get(view.state, view.state) for view in frame.views)
    if len(states) == 1:
        return next(iter(states))
    if len(frame.views) <= FLOWS_NAMED_MAX:
        return ", ".join(f"{v.flow} {doing.get(v.state, v.state)}" for v in frame.views)
    return ", ".join(f"{count} {state}" for state, count in states.most_common())


def _sides(left: Text, right: Text, width: int) -> list[Text]:
    """One line with ``left`` and ``right`` at its ends, or two lines if they do not fit."""
    gap = width - left.cell_len - right.cell_len
    if gap < 2:
        return [left, right]
    return [Text.assemble(left, " " * gap, right)]


def _footer(frame: ViewState) -> Text:
    if not frame.keys:
        return Text("Ctrl+C: drain and end", style="dim")
    topics = "hide topics" if frame.show_topics else "topics"
    return Text.assemble(
        ("t", "bold"),
        (f" {topics}   ", "dim"),
        ("q", "bold"),
        (" or ", "dim"),
        ("Ctrl+C", "bold"),
        (" drain and end", "dim"),
    )


_Cell = tuple[str, str]  # text, style


def _grid(rows: Sequence[Sequence[_Cell]], width: int) -> list[Text]:
    """Rows as lines: the first row is the heading, the first column gets the remaining width."""
    count = len(rows[0])
    sizes = [max(cell_len(row[i][0]) for row in rows) for i in range(count)]
    room = width - sum(sizes[1:])
    gap = max(1, min(GAP, (room - FIRST_MIN) // (count - 1)))
    sizes[0] = max(FIRST_MIN, room - gap * (count - 1))
    lines = []
    for row in rows:
        line = Text(no_wrap=True, overflow="crop")
        for i, (text, style) in enumerate(row):
            if i == 0:
                cut = (
                    text if cell_len(text) <= sizes[0] else set_cell_size(text, sizes[0] - 1) + "…"
                )
                line.append(cut + " " * (sizes[0] - cell_len(cut)), style)
            else:
                line.append(" " * (gap + sizes[i] - cell_len(text)))
                line.append(text, style)
        lines.append(line)
    lines.insert(1, Text("─" * min(width, sum(sizes) + gap * (count - 1)), style="dim"))
    return lines


def _flows(views: Sequence[FlowView], width: int) -> list[Text]:
    wide = width >= WIDE_COLUMNS
    headings = ["flow", "records/s", "MB/s", "lag", "behind", "p50 ms", "p99 ms", "errors"]
    catching_up = any(view.catching_up for view in views)
    if catching_up:
        headings[5:5] = ["to go"]
    if wide:
        headings += ["lag data", "records", "data", "partitions"]
    rows: list[list[_Cell]] = [[(heading, "bold") for heading in headings]]
    for view in views:
        cells = [
            (view.flow if view.state == "mirroring" else f"{view.flow} {view.state}", "bold"),
            (count_text(view.records_per_s), "bold green" if view.records_per_s else ""),
            (megabytes_text(view.bytes_per_s), ""),
            _lag(view.lag_records),
            _behind(view.lag_s),
            # While a flow catches up, records are old, so their age is not a latency.
            (latency_text(None if view.catching_up else view.latency_ms_p50), ""),
            (latency_text(None if view.catching_up else view.latency_ms_p99), ""),
            _errors(sum(view.errors.values()), len(view.halted)),
        ]
        if catching_up:
            cells[5:5] = [(seconds_text(view.to_go_s), "")]
        if wide:
            cells += [
                ("–" if view.lag_bytes is None else size_text(view.lag_bytes), ""),
                (count_text(view.records), ""),
                (size_text(view.bytes), ""),
                (f"{view.partitions:,}", ""),
            ]
        rows.append(cells)
    return _grid(rows, width)


def _lag(records: int | None) -> _Cell:
    return ("–" if records is None else count_text(records), "")


def _behind(seconds: float | None) -> _Cell:
    late = seconds is not None and seconds >= 60
    return (seconds_text(seconds), "yellow" if late else "")


def _errors(retried: int, halted: int) -> _Cell:
    if halted:
        return (f"{halted:,} halted", "bold red")
    return (f"{retried:,}", "yellow" if retried else "")


def _topics(views: Sequence[FlowView], width: int, rows_max: int) -> list[Text]:
    """Topic rows, sorted by lag, then by rate."""
    several = len(views) > 1
    wide = width >= WIDE_COLUMNS
    topics: list[tuple[str, TopicRow]] = [(view.flow, row) for view in views for row in view.topics]
    topics.sort(
        key=lambda pair: (-(pair[1].lag_records or 0), -pair[1].records_per_s, pair[1].topic)
    )
    first = "flow / topic" if several else "topic"
    headings = [first, "records/s", "MB/s", "lag", "behind", "parts", "errors"]
    if wide:
        headings += ["records", "data"]
    rows: list[list[_Cell]] = [[(heading, "bold") for heading in headings]]
    for flow, row in topics[:rows_max]:
        cells = [
            (f"{flow} {row.topic}" if several else row.topic, ""),
            (count_text(row.records_per_s), ""),
            (megabytes_text(row.bytes_per_s), ""),
            _lag(row.lag_records),
            _behind(row.lag_s),
            (f"{row.partitions:,}", ""),
            _errors(0, row.halted),
        ]
        if wide:
            cells += [(count_text(row.records), ""), (size_text(row.bytes), "")]
        rows.append(cells)
    lines = [Text(""), *_grid(rows, width)]
    if len(topics) > rows_max:
        hidden = plural(len(topics) - rows_max, "topic")
        lines.append(Text(f"… and {hidden} more", style="dim"))
    return lines


class LiveDisplay:
    """Draws the live view on the terminal, only when it would look different.

    If the terminal is closed, the view ends, but the mirror continues: nothing here raises for it.
    """

    def __init__(
        self,
        *,
        version: str,
        master: str,
        log_dir: Path,
        keys: bool,
        console: Console | None = None,
        ticks_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console or PrintableConsole()
        self._ticks_s = ticks_s
        self._started_s = ticks_s()
        self._version = version
        self._master = master
        self._log_dir = _short_path(log_dir)
        self._keys = keys
        self._phase = "starting"
        self._views: tuple[FlowView, ...] = ()
        self._notices: deque[tuple[int, str]] = deque(maxlen=NOTICES_KEPT)
        self._show_topics = False
        self._tick = 0
        self._frame: ViewState | None = None
        self._shown: list[str] = []
        self._live: Live | None = None
        self._closed = False
        self._gone = False

    def phase(self, text: str) -> None:
        """Show ``text`` next to the name and redraw."""
        self._phase = text
        self._draw()

    def warning(self, text: str) -> None:
        """Print a warning permanently above the view."""
        self._print(Text.assemble(("warning: ", "bold yellow"), text))

    def notice(self, text: str) -> None:
        """Add a line to the recent notices."""
        if self._closed:
            self._print(Text(f"{clock_text(self._run_s())} {text}"))
            return
        self._notices.append((self._run_s(), text))
        self._draw()

    def update(self, views: Sequence[FlowView]) -> None:
        """Show the newest figures."""
        self._views = tuple(views)
        self._tick += 1
        self._draw()

    def toggle_topics(self) -> None:
        """Show or hide the topics below the flows."""
        self._show_topics = not self._show_topics
        self._draw()

    def summary(self, views: Sequence[FlowView]) -> None:
        """Keep the last view and print the summary below it."""
        run_s = self._ticks_s() - self._started_s
        self.close()
        self._print(summary_table(views, run_s))

    def close(self) -> None:
        """Keep the last view on the terminal and show the cursor again."""
        self._closed = True
        if self._live is not None:
            live, self._live = self._live, None
            self._on_terminal(live.stop)

    def _print(self, shown: RenderableType) -> None:
        console = self._live.console if self._live is not None else self._console
        self._on_terminal(lambda: console.print(shown, highlight=False))

    def _on_terminal(self, write: Callable[[], object]) -> None:
        """Call ``write``, which writes to the terminal, unless the terminal was closed."""
        if self._gone:
            return
        try:
            write()
        except OSError as error:
            _log.warning("the terminal was closed (%s); the mirror continues without it", error)
            self._gone = True
            discard(self._console.file)

    def _run_s(self) -> int:
        return int(self._ticks_s() - self._started_s)

    def _draw(self) -> None:
        if self._closed or self._gone or is_full(self._console.file):
            return
        busy = not any(view.partitions_reported for view in self._views)
        frame = ViewState(
            version=self._version,
            run_s=self._run_s(),
            phase=self._phase,
            master=self._master,
            log_dir=self._log_dir,
            views=self._views,
            notices=tuple(self._notices),
            show_topics=self._show_topics,
            keys=self._keys,
            busy=busy,
            tick=self._tick if busy else 0,
        )
        if frame == self._frame:
            return
        self._frame = frame
        width, height = self._console.size
        lines = draw(frame, width, height)
        shown = [line.plain for line in lines]
        if shown == self._shown:  # figures changed, but the text is the same
            return
        self._shown = shown
        self._on_terminal(lambda: self._show(Group(*lines)))

    def _show(self, picture: Group) -> None:
        if self._live is None:
            self._live = Live(
                picture,
                console=self._console,
                auto_refresh=False,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        self._live.update(picture, refresh=True)


def _short_path(path: Path) -> str:
    """The path with ``~`` for the home directory."""
    try:
        return f"~/{path.relative_to(Path.home())}"
    except (ValueError, RuntimeError):  # not below the home directory, or no home directory
        return str(path)


def frame_svg(frame: ViewState, path: Path, *, width: int = 100, height: int = 40) -> None:
    """Write the view of ``frame`` as an SVG file, for documentation."""
    console = PrintableConsole(
        record=True, width=width, height=height, file=io.StringIO(), force_terminal=True
    )
    console.print(Group(*draw(frame, width, height)))
    console.save_svg(str(path), title="sparkmirror run")

"""Control characters of others reach neither a terminal nor a text log."""

from __future__ import annotations

import io
import json
import logging
import re
import unicodedata
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

import sparkmirror
from sparkmirror.cli import connect_mirror_maker, kafka_mirror_maker
from sparkmirror.cli.shared.errors import show_error
from sparkmirror.cli.shared.tables import Table
from sparkmirror.errors import ClusterError
from sparkmirror.observe.console import PrintableConsole
from sparkmirror.observe.logs import close_logs, open_logs
from sparkmirror.text import echo, printable, printable_json

# Title, colours, a C1 sequence, a line of one's own, the other direction of writing.
EVIL = "a\x1b]0;x\x07\x1b[2J\x9b31m\r\nfake\u202etxt\u2028\x00\x7f"


def active(text: str) -> list[str]:
    return [one for one in text if unicodedata.category(one) in ("Cc", "Cf", "Cs", "Zl", "Zp")]


@given(st.text())
def test_nothing_active_is_left(text: str) -> None:
    assert active(printable(text)) == []
    assert printable(printable(text)) == printable(text)
    if not active(text):
        assert printable(text) == text


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_json_keeps_its_value(text: str) -> None:
    shown = printable_json(json.dumps({text: [text]}, ensure_ascii=False))
    assert active(shown) == []
    assert json.loads(shown) == {text: [text]}


def test_what_stays() -> None:
    assert printable("käse 日本 \u00a0 \U0001f600") == "käse 日本 \u00a0 \U0001f600"
    assert printable("a\nb\x1b", keep="\n") == "a\nb\\x1b"


def test_lines_and_tables(capsys: pytest.CaptureFixture[str]) -> None:
    columns = {"NAME": itemgetter(0), "OTHER": itemgetter(1)}
    echo(*Table(columns, [(EVIL, [EVIL]), ("b", 1)]).lines(), EVIL)
    echo(EVIL, error=True)
    told = capsys.readouterr()
    assert len(told.out.splitlines()) == 4
    assert active(told.out.replace("\n", "")) == active(told.err.replace("\n", "")) == []


@pytest.mark.parametrize("options", [{}, {"json_lines": True}, {"debug": True}], ids=repr)
@pytest.mark.parametrize("terminal", [False, True])
def test_errors(options: dict[str, bool], terminal: bool) -> None:
    stream = io.StringIO()
    stream.isatty = lambda: terminal  # type: ignore[method-assign]
    show_error(ClusterError(EVIL, where=EVIL, do=EVIL), stream=stream, **options)
    text = stream.getvalue()
    for own in ("\x1b[1;31m", "\x1b[31m", "\x1b[0m", "\n"):
        text = text.replace(own, "")
    assert active(text) == []
    assert "fake" in text


def test_the_live_views_console() -> None:
    stream = io.StringIO()
    console = PrintableConsole(file=stream, force_terminal=True, color_system=None)
    console.print(Text(EVIL), EVIL)
    assert active(stream.getvalue().replace("\n", "")) == []


@pytest.mark.parametrize("json_lines", [False, True])
def test_logs(tmp_path: Path, json_lines: bool) -> None:
    terminal = io.StringIO()
    path = tmp_path / "m.log"
    handlers = open_logs(path, json_lines=json_lines, terminal=terminal, debug=True)
    log = logging.getLogger("sparkmirror.test")
    try:
        log.warning("the topic %s\n2026-01-01 00:00:00,000 ERROR sparkmirror: forged", EVIL)
        try:
            raise ValueError(f"{EVIL}\n2026-01-01 00:00:00,000 ERROR sparkmirror: forged")
        except ValueError:
            log.exception("failed")
    finally:
        close_logs(handlers)
    for text in (path.read_text("utf-8", errors="strict"), terminal.getvalue()):
        assert active(text.replace("\n", "")) == []
        assert "forged" in text
        assert not [line for line in text.split("\n") if line.startswith("2026-01-01")]
        if not json_lines:
            assert "\n  Traceback (most recent call last)" in text
            assert "ValueError: a\\x1b]" in text


MM1 = ["--consumer.config", "x", "--producer.config", "x"]


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        (kafka_mirror_maker.main, ["--{}"]),
        (kafka_mirror_maker.main, ["{}"]),
        (kafka_mirror_maker.main, ["--num.streams", "{}"]),
        (kafka_mirror_maker.main, ["--consumer.config", "{}", *MM1[2:], "--include", "x"]),
        (kafka_mirror_maker.main, [*MM1, "--message.handler", "{}:x"]),
        (kafka_mirror_maker.main, [*MM1, "--abort.on.send.failure", "{}"]),
        (connect_mirror_maker.main, ["--{}"]),
        (connect_mirror_maker.main, ["{}"]),
        (connect_mirror_maker.main, ["x", "{}"]),
    ],
)
def test_the_old_commands_echo_arguments_printably(
    command: Callable[[list[str]], int], arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command([each.format(EVIL.replace("\0", "")) for each in arguments]) != 0
    told = capsys.readouterr()
    assert "\\x1b" in told.err
    assert active((told.out + told.err).replace("\n", "")) == []
    assert not any(line.startswith("fake") for line in (told.out + told.err).splitlines())


def test_every_console_lets_only_printable_text_through() -> None:
    """That of the demo too, which shows its directory, brokers' addresses and errors."""
    source = Path(sparkmirror.__file__).parent
    bare = [
        path.name
        for path in source.rglob("*.py")
        if re.search(r"(?<!class Printable)\bConsole\(", path.read_text("utf-8"))
    ]
    assert bare == []

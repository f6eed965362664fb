"""Logging: formats, masking, and the libraries' noise."""

from __future__ import annotations

import io
import json
import logging
import warnings
from pathlib import Path

import pytest

from sparkmirror.observe import logs
from sparkmirror.observe.logs import (
    SHOWN,
    close_logs,
    mask_secrets,
    open_logs,
    register_secret,
    spark_log4j2_properties,
)


@pytest.fixture(autouse=True)
def _no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_secrets", set())
    monkeypatch.setattr(logs, "_secret_pattern", None)


def test_text_log_masks_secrets_in_arguments_and_traces(tmp_path: Path) -> None:
    register_secret("hunter2hunter2")
    terminal = io.StringIO()
    handlers = open_logs(tmp_path / "m.log", terminal=terminal)
    log = logging.getLogger("sparkmirror.test")
    try:
        log.info("started")
        log.warning("password is %s", "hunter2hunter2")
        try:
            raise ValueError("bad hunter2hunter2")
        except ValueError:
            log.exception("failed")
        logging.getLogger("py4j").warning("noise of a library")
        logging.getLogger("py4j").info("chatter")
        warnings.warn("a Python warning", stacklevel=1)
    finally:
        close_logs(handlers)
    text = (tmp_path / "m.log").read_text(encoding="utf-8")
    assert "hunter2" not in text + terminal.getvalue()
    assert "WARNING sparkmirror.test: password is ***" in text
    assert "ValueError: bad ***" in text
    assert "noise of a library" in text
    assert "a Python warning" in text
    assert "chatter" not in text
    assert "started" in text
    assert "started" not in terminal.getvalue()
    assert "noise" not in terminal.getvalue()
    assert "password is ***" in terminal.getvalue()
    assert "ERROR sparkmirror.test: failed" in terminal.getvalue()
    assert "Traceback" not in terminal.getvalue()
    log.warning("after the end")
    assert "after the end" not in (tmp_path / "m.log").read_text(encoding="utf-8")


def test_json_log_is_one_object_per_line(tmp_path: Path) -> None:
    register_secret("geheim!")
    handlers = open_logs(tmp_path / "m.log", json_lines=True, debug=True)
    log = logging.getLogger("sparkmirror.test")
    try:
        log.debug("two\nlines with geheim! inside")
        try:
            raise KeyError("geheim!")
        except KeyError:
            log.exception("failed")
    finally:
        close_logs(handlers)
    first, second = map(json.loads, (tmp_path / "m.log").read_text("utf-8").splitlines())
    assert first["message"] == "two\nlines with *** inside"
    assert (first["type"], first["level"], first["logger"]) == ("log", "DEBUG", "sparkmirror.test")
    assert first["exception"] is None
    assert first["time"].endswith("Z")
    assert "KeyError: '***'" in second["exception"]


def test_what_the_terminal_gets_otherwise_is_logged_to_the_file_only(tmp_path: Path) -> None:
    terminal = io.StringIO()
    handlers = open_logs(tmp_path / "m.log", terminal=terminal, debug=True)
    try:
        logging.getLogger("sparkmirror.test").error("shown above", extra=SHOWN)
        logging.getLogger("sparkmirror.test").debug("detail")
    finally:
        close_logs(handlers)
    assert "shown above" in (tmp_path / "m.log").read_text(encoding="utf-8")
    assert "shown above" not in terminal.getvalue()
    assert "detail" in terminal.getvalue()


def test_longer_secrets_win_and_short_ones_need_word_borders() -> None:
    register_secret("pass")
    register_secret("password-of-a")
    register_secret("ab")
    register_secret("")
    assert mask_secrets("password-of-a, pass, ab, tab, cab") == "***, ***, ***, tab, cab"


def test_secrets_with_regex_characters() -> None:
    register_secret("a+b(c[d\\")
    assert mask_secrets("x=a+b(c[d\\;") == "x=***;"


def test_log_file_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        open_logs(tmp_path / "missing" / "m.log")


def test_spark_log4j2_properties_point_everything_to_the_file() -> None:
    text = spark_log4j2_properties(Path("/tmp/run/spark.log"))
    pairs = dict(line.split(" = ", 1) for line in text.splitlines())
    assert pairs["appender.file.fileName"] == "/tmp/run/spark.log"
    assert pairs["rootLogger.level"] == "warn"
    assert pairs["appender.file.policies.size.size"] == "50MB"
    assert "console" not in text.lower()

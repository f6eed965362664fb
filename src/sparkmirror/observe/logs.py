"""Logging as text or JSON, with secrets masked; messages of libraries only go to files.

A run's work directory has two log files: ``sparkmirror.log`` (everything that Python logs,
including warnings of py4j, PySpark and kafka-python) and ``spark.log`` (Spark's JVM, through the
log4j2 properties below). The terminal shows only our own warnings, and none during the live view.
"""

from __future__ import annotations

import copy
import json
import logging
import re
import time
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TextIO

from sparkmirror.text import printable, printable_json

__all__ = [
    "LOG_FILE_NAME",
    "SHOWN",
    "SPARK_LOG_FILE_NAME",
    "close_logs",
    "mask_secrets",
    "open_logs",
    "register_secret",
    "spark_log4j2_properties",
]

LOG_FILE_NAME = "sparkmirror.log"
SPARK_LOG_FILE_NAME = "spark.log"
LOG_BYTES_MAX = 50 * 1024 * 1024
LOG_FILES_KEPT = 3
MASK = "***"

# ``extra`` of a log call whose text is shown on the terminal in another way.
SHOWN = {"sparkmirror_shown": True}

_NOISY = ("py4j", "pyspark", "kafka", "urllib3")
_OURS = "sparkmirror"

_secrets: set[str] = set()
_secret_pattern: re.Pattern[str] | None = None


def register_secret(value: str) -> None:
    """Show ``value`` as ``***`` in every log line and error from now on."""
    global _secret_pattern  # noqa: PLW0603 - secrets are a property of the process
    if not value or value in _secrets:
        return
    _secrets.add(value)
    # Longest first, because one secret may be a part of another. Very short ones match only whole
    # words; otherwise large parts of the log would be masked.
    texts = sorted(_secrets, key=len, reverse=True)
    _secret_pattern = re.compile(
        "|".join(
            re.escape(text) if len(text) >= 4 else rf"(?<!\w){re.escape(text)}(?!\w)"
            for text in texts
        )
    )


def mask_secrets(text: str) -> str:
    """``text`` with every registered secret replaced by ``***``."""
    return text if _secret_pattern is None else _secret_pattern.sub(MASK, text)


class _TextFormatter(logging.Formatter):
    """``2026-01-31 12:00:00,123 WARNING sparkmirror.control.loop: text``, in UTC."""

    converter = staticmethod(time.gmtime)

    def __init__(self, *, traces: bool) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._traces = traces

    def format(self, record: logging.LogRecord) -> str:
        traced, stack = (record.exc_info, record.stack_info) if self._traces else (None, None)
        record = copy.copy(record)
        record.exc_info = record.exc_text = record.stack_info = None
        # Masked after formatting, because arguments and stack traces may contain secrets. A line
        # break in a name must not look like a new record: only stack traces have further lines,
        # all indented.
        lines = [super().format(record)]
        if traced:
            lines += self.formatException(traced).split("\n")
        if stack:
            lines += self.formatStack(stack).split("\n")
        return "\n  ".join(printable(mask_secrets(line)) for line in lines)


class _JsonFormatter(logging.Formatter):
    """One JSON object per line.

    Its fields are ``type`` (``log``), ``time``, ``level``, ``logger``, ``message`` and
    ``exception`` (a stack trace or null).
    """

    def __init__(self, *, traces: bool) -> None:
        super().__init__()
        self._traces = traces

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        traced = self._traces and record.exc_info
        trace = self.formatException(record.exc_info) if traced and record.exc_info else None
        document = {
            "type": "log",
            "time": when.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": mask_secrets(record.getMessage()),
            "exception": None if trace is None else mask_secrets(trace),
        }
        return printable_json(json.dumps(document, ensure_ascii=False))


class _ForTerminal(logging.Filter):
    """Accepts our own records, except those whose text is shown on the terminal anyway."""

    def filter(self, record: logging.LogRecord) -> bool:
        if getattr(record, "sparkmirror_shown", False):
            return False
        return record.name == _OURS or record.name.startswith(_OURS + ".")


def open_logs(
    log_file: Path,
    *,
    json_lines: bool = False,
    debug: bool = False,
    terminal: TextIO | None = None,
) -> tuple[logging.Handler, ...]:
    """Send all log records to ``log_file`` (and our warnings to ``terminal``, if given).

    Stack traces go to the file, and to the terminal only with ``debug``. The file is rotated at 50
    MiB; three old ones are kept. Returns the handlers for ``close_logs``. Raises ``OSError`` if the
    file cannot be opened.
    """
    formatter = _JsonFormatter if json_lines else _TextFormatter
    file = RotatingFileHandler(
        log_file, maxBytes=LOG_BYTES_MAX, backupCount=LOG_FILES_KEPT, encoding="utf-8"
    )
    file.setFormatter(formatter(traces=True))
    handlers: list[logging.Handler] = [file]
    if terminal is not None:
        shown = logging.StreamHandler(terminal)
        shown.setLevel(logging.DEBUG if debug else logging.WARNING)
        shown.setFormatter(formatter(traces=debug))
        shown.addFilter(_ForTerminal())
        handlers.append(shown)
    root = logging.getLogger()
    for handler in handlers:
        root.addHandler(handler)
    logging.getLogger(_OURS).setLevel(logging.DEBUG if debug else logging.INFO)
    for name in _NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)
    # Otherwise Python would print its warnings over the live view.
    logging.captureWarnings(True)
    return tuple(handlers)


def close_logs(handlers: tuple[logging.Handler, ...]) -> None:
    """Undo ``open_logs``."""
    logging.captureWarnings(False)
    root = logging.getLogger()
    for handler in handlers:
        root.removeHandler(handler)
        handler.close()


def spark_log4j2_properties(log_file: Path, *, level: str = "warn") -> str:
    """The text of a log4j2 properties file that sends all of Spark's log to ``log_file``.

    Spark's log is rotated like ours. Pass the properties file to the JVM with
    ``-Dlog4j2.configurationFile=file:…``.
    """
    path = str(log_file).replace("\\", "\\\\")
    return f"""\
status = error
rootLogger.level = {level}
rootLogger.appenderRef.file.ref = file
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {path}
appender.file.filePattern = {path}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss,SSS}} %p %c{{1}}: %m%n%ex
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = {LOG_BYTES_MAX // (1024 * 1024)}MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = {LOG_FILES_KEPT}
"""

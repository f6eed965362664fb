"""How commands end: with errors as one paragraph on stderr, and an exit code.

A stack trace is shown only with ``--debug``.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TextIO

from rich.text import Text

from sparkmirror.errors import MirrorError
from sparkmirror.observe.console import PrintableConsole
from sparkmirror.observe.display.streams import prepare_streams
from sparkmirror.observe.logs import mask_secrets
from sparkmirror.observe.notice import named_places
from sparkmirror.text import printable, printable_json

_log = logging.getLogger(__name__)

EXIT_START_FAILED = 3
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as in shells


def run_command(
    command: Callable[[list[str]], int], argv: Sequence[str] | None, *, defect_code: int = 1
) -> int:
    """Run ``command`` with ``argv`` (None: the process's); returns its exit code.

    130 after Ctrl+C, unless the command makes something else of it; ``defect_code`` after an error
    that is no message for the user. It is shown as one, because a stack trace may show secrets.
    """
    prepare_streams()
    try:
        return command(list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:
        show_error(error)
        return defect_code


def as_mirror_error(error: BaseException) -> MirrorError:
    """``error`` itself if it is a ``MirrorError``, else one that reports it as a defect."""
    if isinstance(error, MirrorError):
        return error
    trace = traceback.extract_tb(error.__traceback__)
    where = f"{trace[-1].filename}:{trace[-1].lineno}" if trace else ""
    text = str(error).strip().partition("\n")[0]
    detail = f": {text}" if text else ""
    translated = MirrorError(
        f"Unexpected {type(error).__name__}{detail}.",
        where=where,
        do="This is a defect in sparkmirror: run the command sparkmirror with --debug and report"
        " the stack trace.",
    )
    translated.__cause__ = error
    return translated


def error_text(error: MirrorError) -> str:
    """``where: what do`` as one paragraph, with secrets masked."""
    return printable(mask_secrets(str(error)))


def error_document(error: MirrorError) -> dict[str, object]:
    """The error as the fields of a JSON line of type ``error``."""
    when = datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="milliseconds")
    flow, cluster = named_places(error.where)
    return {
        "type": "error",
        "time": when.replace("+00:00", "Z"),
        "level": "error",
        "code": error.code,
        "flow": flow or None,
        "cluster": cluster or None,
        "what": mask_secrets(error.what),
        "where": mask_secrets(error.where),
        "do": mask_secrets(error.do),
    }


def show_error(
    error: BaseException,
    *,
    debug: bool = False,
    json_lines: bool = False,
    stream: TextIO | None = None,
) -> MirrorError:
    """Write ``error`` to ``stream`` (default: stderr), in red on a terminal.

    Returns it as a `MirrorError`.
    """
    shown = as_mirror_error(error)
    out = sys.stderr if stream is None else stream
    try:
        if debug:
            trace = "".join(traceback.format_exception(error))
            out.write(printable(mask_secrets(trace), keep="\n"))
        if json_lines:
            document = json.dumps(error_document(shown), ensure_ascii=False)
            out.write(f"{printable_json(document)}\n")
        elif out.isatty():
            PrintableConsole(file=out).print(
                Text.assemble(("error: ", "bold red"), (error_text(shown), "red")), soft_wrap=False
            )
        else:
            out.write(f"error: {error_text(shown)}\n")
        out.flush()
    except OSError as failure:
        # stderr is closed, like the terminal behind it; only the log file is left.
        _log.warning("the error could not be shown: %s", failure)
    return shown

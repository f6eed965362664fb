"""``run_mirror``: one run of the mirror, from checked settings to an exit code.

Exit codes: 0 ended as requested; 1 a query failed, a partition was halted at the end of ``--once``,
or a drain failed or timed out; 2 the configuration is wrong; 3 the start failed; 130 stopped at
once by a second signal (or by Ctrl+C while starting). An interrupted ``--once`` has not copied
everything, so it ends with 130 or 143.
"""

from __future__ import annotations

import atexit
import gc
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from sparkmirror.cli.run.figures import Figures
from sparkmirror.cli.run.loop import RunLoop
from sparkmirror.cli.run.os_signals import Signals
from sparkmirror.cli.run.parts import (
    ControlPart,
    FlowPart,
    NoFlows,
    Parts,
    RunOptions,
    check_master,
)
from sparkmirror.cli.run.quick_check import QuickCheckPart
from sparkmirror.cli.run.workdir import new_run_id, open_work_dir, work_dir_lock
from sparkmirror.cli.shared.errors import show_error
from sparkmirror.cli.shared.secrets import hide_secrets
from sparkmirror.errors import ConfigError, MachineError, MirrorError
from sparkmirror.observe.display.keys import Keys
from sparkmirror.observe.display.line_view import Display, LineDisplay
from sparkmirror.observe.display.live_view import LiveDisplay
from sparkmirror.observe.display.queued_stream import queued_streams
from sparkmirror.observe.display.streams import flush_or_discard
from sparkmirror.observe.logs import LOG_FILE_NAME, close_logs, open_logs
from sparkmirror.settings import MirrorSettings

_log = logging.getLogger(__name__)


def tool_version() -> str:
    """The installed version; ``0.0.0`` if the package is not installed."""
    try:
        return version("sparkmirror")
    except PackageNotFoundError:
        return "0.0.0"


def _open_display(options: RunOptions, live: bool, work_dir: Path, keys: Keys) -> Display:
    if live:
        return LiveDisplay(
            version=tool_version(),
            master=options.master,
            log_dir=work_dir,
            keys=keys.fileno is not None,
        )
    return LineDisplay(sys.stdout, json_lines=options.json_lines, interval_s=options.interval_s)


@contextmanager
def _metrics(
    settings: MirrorSettings, options: RunOptions, figures: Figures, display: Display
) -> Iterator[None]:
    """Serve metrics while the block runs, if they are configured. Raises `MirrorError`."""
    if not (options.metrics or settings.metrics.listen):
        yield
        return
    from sparkmirror.cli.run.metrics_server import serve_metrics  # noqa: PLC0415

    metrics_server = serve_metrics(
        settings.metrics,
        figures,
        listen=options.metrics,
        option=f"--{options.option_prefix}metrics",
        release=tool_version(),
    )
    try:
        _log.info("metrics on %s/metrics", metrics_server.url)
        display.notice(f"metrics on {metrics_server.url}/metrics")
        yield
    finally:
        metrics_server.close()


def run_mirror(
    settings: MirrorSettings, options: RunOptions | None = None, *, parts: Parts | None = None
) -> int:
    """Mirror as ``settings`` say until stopped; returns the exit code (listed above).

    Errors are printed to stderr, not raised. Call it from the main thread, which receives signals.
    """
    options = options or RunOptions()
    # A start loads modules and throws little away: looking for garbage would take a tenth of this
    # process's time. The loop turns it on again when the mirror runs.
    gc.disable()
    # Otherwise the interpreter would collect garbage for half a second at its end.
    atexit.register(gc.freeze)
    try:
        with queued_streams():
            try:
                return _run_shown(settings, options, parts)
            except Exception as error:
                # Logs or display could not be opened. The loop shows all later failures.
                shown = show_error(error, debug=options.debug, json_lines=options.json_lines)
                expected = isinstance(error, MirrorError) and not isinstance(error, ConfigError)
                return options.start_failure_exit_code if expected else shown.exit_code
    finally:
        gc.enable()
        flush_or_discard((sys.stdout, sys.stderr))


def _run_shown(settings: MirrorSettings, options: RunOptions, parts: Parts | None) -> int:
    hide_secrets(settings)
    named = options.spark_conf.get("spark.master")
    if named is None:
        check_master(options.master, option=f"--{options.option_prefix}master")
    else:
        check_master(named, option="--conf spark.master")
    run_id = new_run_id()
    work_dir = open_work_dir(options.work_dir, run_id, has_option=not options.option_prefix)
    with work_dir_lock(work_dir):
        return _run_in(work_dir, settings, options, parts, run_id)


def _run_in(
    work_dir: Path, settings: MirrorSettings, options: RunOptions, parts: Parts | None, run_id: str
) -> int:
    live = options.live
    if live is None:
        dumb = os.environ.get("TERM", "dumb") == "dumb"
        live = sys.stdout.isatty() and not options.json_lines and not dumb
    log_file = options.log_file or work_dir / LOG_FILE_NAME
    try:
        handlers = open_logs(
            log_file,
            json_lines=options.json_lines,
            debug=options.debug,
            terminal=None if live else sys.stderr,
        )
    except OSError as error:
        raise MachineError(
            f"The log file {log_file} cannot be written: {error.strerror}.",
            where="--log-file" if options.log_file else str(work_dir),
            do="Give a file in a directory that exists and that this user may write."
            if options.log_file
            else "Free some disk space there.",
        ) from error

    chosen = parts or Parts.real()

    def make_flow() -> FlowPart:
        if not settings.flows:
            return NoFlows()
        return chosen.flow(
            settings,
            master=options.master,
            once=options.once,
            spark_conf=options.spark_conf,
            work_dir=work_dir,
            run_id=run_id,
            ui=options.ui,
        )

    def make_control(flow: FlowPart) -> tuple[ControlPart, QuickCheckPart]:
        control = chosen.control(
            settings,
            once=options.once,
            run_id=run_id,
            take_over=options.take_over,
            release=tool_version(),
            key=flow.key,
            tables=flow,
        )
        return control, chosen.quick_check(settings)

    try:
        with Signals() as signals, Keys() as keys:
            display = _open_display(options, live, work_dir, keys)
            try:
                for warning in settings.warnings:
                    _log.info("configuration: %s", warning)
                    display.warning(warning)
                figures = Figures(settings)
                with _metrics(settings, options, figures, display):
                    loop = RunLoop(settings, options, display, signals, keys, figures)
                    return loop.run(make_flow, make_control)
            finally:
                display.close()
    finally:
        close_logs(handlers)

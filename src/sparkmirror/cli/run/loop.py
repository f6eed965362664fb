"""The loop of one run: start, mirror, drain, stop.

Everything that may block (connecting to clusters, starting Spark, asking its JVM, draining,
stopping) runs in its own thread, so this loop always handles signals and keys and refreshes the
view.
"""

from __future__ import annotations

import gc
import logging
import signal
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from sparkmirror.cli.run.background import Background
from sparkmirror.cli.run.figures import PHASE_DRAINING, PHASE_RUNNING, Figures
from sparkmirror.cli.run.os_signals import Signals, standard_terminals
from sparkmirror.cli.run.parts import END_S, ControlPart, FlowPart, RunOptions
from sparkmirror.cli.run.processes import child_processes, end_processes
from sparkmirror.cli.run.query_watch import QueryWatch
from sparkmirror.cli.run.quick_check import QuickCheckPart
from sparkmirror.cli.run.stopping import FLOW_STOP_S, end_start, stop_parts
from sparkmirror.cli.run.turns import DRAIN_ELSEWHERE_S, Turns
from sparkmirror.cli.shared.errors import EXIT_INTERRUPTED, show_error
from sparkmirror.errors import ConfigError, Defect, MirrorError
from sparkmirror.observe.display.keys import Keys
from sparkmirror.observe.display.line_view import Display
from sparkmirror.observe.display.live_view import LiveDisplay
from sparkmirror.observe.display.summary import halt_lines
from sparkmirror.observe.figures.meter import FlowView
from sparkmirror.observe.logs import SHOWN
from sparkmirror.observe.notice import Notice, named_places
from sparkmirror.settings import MirrorSettings

_log = logging.getLogger(__name__)

REFRESH_S = 0.25
# How often the loop draws while it waits for a background task, whose end wakes it.
AWAIT_STEP_S = 0.1
ENDS_INTERVAL_S = 1.0
# Part of a drain's time that is reserved for the last steps: stopping the control plane and killing
# remaining processes.
LAST_S = 2.5
# A stop signal that repeats within this time is ignored: a terminal and a parent process may both
# send it.
ECHO_S = 0.3
# The slots' last reports come through Kafka, so they arrive shortly after the queries have ended.
SETTLE_ONCE_S = 3.0
FINISH_ONCE_S = 30.0
FINISH_DRAIN_S = 3.0
SETTLE_DRAIN_S = 0.8
SETTLE_QUIET_S = 0.4

TERMINAL_GONE = "\x04"  # the character that a terminal sends for end of input

DRAINING = "draining: writing all records that were read … (Ctrl+C again stops at once)"


class _StoppedError(Exception):
    """The user stopped the run while it was starting, or sent a second stop signal."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


class RunLoop:
    """The state of one run; all methods are called from the main thread."""

    def __init__(
        self,
        settings: MirrorSettings,
        options: RunOptions,
        display: Display,
        signals: Signals,
        keys: Keys,
        figures: Figures | None = None,
    ) -> None:
        self._figures = figures or Figures(settings)
        self._mirrors = bool(settings.flows)
        self._options = options
        self._display = display
        self._signals = signals
        self._keys = keys
        self._children_before = child_processes()
        self._terminals = standard_terminals()
        self._control: ControlPart | None = None
        self._flow: FlowPart | None = None
        self._quick_check: QuickCheckPart | None = None
        self._collecting = False
        self._running = False
        self._stop_signal: int | None = None
        self._stop_signal_s = 0.0
        self._opening: Background | None = None
        # A run that has ended starts no Spark: modules may still be loading then.
        self._opens = threading.Lock()
        self._over = False
        self._turns: Turns | None = None
        self._watch: QueryWatch | None = None
        self._drain: Background | None = None
        self._drained_elsewhere = False
        self._refresh: Background | None = None
        self._ends_s = 0.0

    def run(
        self,
        make_flow: Callable[[], FlowPart],
        make_control: Callable[[FlowPart], tuple[ControlPart, QuickCheckPart]],
    ) -> int:
        """Start, mirror until the end or a signal, stop; returns the exit code.

        ``make_flow`` and ``make_control`` create the parts. Both load modules.
        """
        try:
            try:
                self._start(make_flow, make_control)
            except MirrorError as error:
                return self._failed([error], self._start_exit_code(error))
            return self._mirror()
        except _StoppedError as stopped:
            return stopped.exit_code
        except Exception as error:  # a failure while mirroring, or a defect
            return self._failed([error], 1)
        finally:
            self._stop_parts(at_once=True)

    def _start_exit_code(self, error: MirrorError) -> int:
        if isinstance(error, ConfigError):
            return error.exit_code
        return self._options.start_failure_exit_code

    def _start(
        self,
        make_flow: Callable[[], FlowPart],
        make_control: Callable[[FlowPart], tuple[ControlPart, QuickCheckPart]],
    ) -> None:
        def load() -> None:
            flow = make_flow()
            with self._opens:
                if self._over:
                    return
                self._flow = flow
                # Spark takes longest to start, and needs neither the clusters nor the control
                # plane.
                self._opening = self._beside(flow.open, "sparkmirror-open")
            self._control, self._quick_check = make_control(flow)

        self._display.phase("loading")
        self._await(self._beside(load, "sparkmirror-load"))
        if self._flow is None or self._opening is None:
            raise Defect("the run has no pipeline yet")
        if self._control is None:
            raise Defect("the run has no control plane yet")
        if self._quick_check is None:
            raise Defect("the run has no quick check yet")
        self._quick_check.begin()
        if self._options.take_over or self._opening.failed():
            # Whoever mirrors the flows now goes on unless this process can.
            self._await_spark(self._opening)
        self._display.phase("connecting to the clusters, creating topics")
        self._await(self._beside(self._control.prepare, "sparkmirror-prepare"))
        self._quick_check.topics_made()
        if self._opening.failed():  # meanwhile: whoever would claim flows now could not mirror them
            self._await(self._opening)
        self._await(self._beside(self._control.start, "sparkmirror-control"))
        self._collecting = True
        if not self._options.take_over:
            self._await_spark(self._opening)
        if self._flow.page:
            _log.info("Spark's page is on %s", self._flow.page)
            self._display.notice(f"Spark's page is on {self._flow.page}")
        self._turns = Turns(self._flow, self._control, self._control.owned, self._show_phase)
        self._await(self._beside(partial(self._flow.start, self._turns.begun), "sparkmirror-spark"))
        self._turns.stand_by(view.flow for view in self.views())

    def _await_spark(self, opening: Background) -> None:
        if self._mirrors:
            self._display.phase("starting Spark")
        self._await(opening)

    def _beside(self, call: Callable[[], object], name: str) -> Background:
        """Run ``call`` in a thread; its end wakes this loop, which need not look for it."""
        return Background(call, name, self._signals.wake)

    def _await(self, task: Background) -> None:
        """Run the loop until ``task`` is done; raises its error."""
        while not task.done:
            self._step(AWAIT_STEP_S)
        if task.error is not None:
            raise task.error

    def _mirror(self) -> int:
        if self._turns is None or self._flow is None:
            raise Defect("the run has no parts yet")
        gc.enable()
        self._watch = QueryWatch(self._flow)
        self._running, turns = True, self._turns
        self._figures.phase = PHASE_RUNNING
        self._show_phase(turns)
        while True:
            self._step(REFRESH_S)
            if self._drain is None:
                turns.take()
            errors, active = self._flow_state(turns)
            if self._drain is None and not active:
                return self._ended(errors)
            if self._drain is None and errors:
                # Noted now, because a flow's last event may be written before the run ends.
                for error in errors:
                    self._note_reason(str(error))
                self._begin_drain("a flow failed: writing what the other flows have read …")
            if self._drain is None and self._figures.drained:
                self._drained_elsewhere = True
                self._begin_drain("drain was ordered: writing all records that were read …")
            if self._drain is not None:
                return self._drained(errors)
            turns.hand_over()

    def _show_phase(self, turns: Turns) -> None:
        self._display.phase(self._phase(turns))

    def _phase(self, turns: Turns) -> str:
        if not self._mirrors:
            return "emitting heartbeats: no flow is enabled for this node"
        if not turns.begun:
            return "standing by, preparing the query" if turns.readying else "standing by"
        return "copying up to now" if self._options.once else "mirroring"

    def _waits(self, turns: Turns) -> bool:
        """Whether a flow may still start: this process stands by for it or is taking it over."""
        return self._drain is None and turns.may_begin(view.flow for view in self.views())

    def _flow_state(self, turns: Turns) -> tuple[list[MirrorError], bool]:
        """The errors of failed flows, and whether any query still runs or may start."""
        if self._watch is None:
            raise Defect("the run has no pipeline yet")
        if self._control is None:
            raise Defect("the run has no control plane yet")
        said = self._watch.look(waits=self._waits(turns))
        lost = [*self._control.failures(), *turns.failures]
        # Another process's claim ends both the flow and its query; report one failure.
        known = {one.where for one in lost}
        return [*(one for one in said.errors if one.where not in known), *lost], said.active

    def _step(self, timeout_s: float) -> None:
        """Wait up to ``timeout_s``, then handle signals and keys and collect figures."""
        received, pressed = self._signals.wait(timeout_s, self._keys.fileno)
        for number in received:
            self._on_signal(number)
        keys = self._keys.read() if pressed else None
        if keys is not None:
            self._on_keys(keys or TERMINAL_GONE)
        self._collect()

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGHUP:
            # The kernel sends SIGHUP when the terminal closes; users send it to request a refresh.
            if standard_terminals() != self._terminals:
                self._on_terminal_gone()
            else:
                self._begin_refresh()
            return
        now_s = time.monotonic()
        if self._stop_signal is not None:
            if now_s - self._stop_signal_s < ECHO_S:
                return
            _log.warning("second stop signal: stopping at once")
            self._display.phase("stopping at once: the next run reads unacknowledged records again")
            raise _StoppedError(EXIT_INTERRUPTED)
        self._stop_signal = number
        self._stop_signal_s = now_s
        self._note_reason(f"stopped by {signal.Signals(number).name}")
        if not self._running:
            self._display.phase("stopping")
            interrupted = number == signal.SIGINT
            raise _StoppedError(EXIT_INTERRUPTED if interrupted else self._stop_exit_code())
        self._begin_drain(DRAINING)

    def _on_keys(self, pressed: str) -> None:
        for key in pressed.lower():
            if key == "t" and isinstance(self._display, LiveDisplay):
                self._display.toggle_topics()
            elif key == "q":
                self._on_signal(signal.SIGINT)
            elif key == TERMINAL_GONE:
                self._on_terminal_gone()

    def _on_terminal_gone(self) -> None:
        """Drain, because the terminal has closed and nobody can press Ctrl+C any more.

        A closing terminal causes several events: SIGHUP, sometimes twice, and end of input. Only
        the first one counts, and none of them is a second stop signal.
        """
        if self._stop_signal is None:
            _log.info("the terminal was closed: draining")
            self._on_signal(signal.SIGTERM)

    def _begin_drain(self, text: str) -> None:
        if self._control is None:
            raise Defect("the run has no control plane yet")
        _log.info("%s", text)
        self._stop_signal_s = self._stop_signal_s or time.monotonic()
        self._figures.phase = PHASE_DRAINING
        self._display.phase(text)
        if self._stop_signal is None:
            self._note_reason(text.partition(":")[0])
        if self._drain is None:
            self._drain = self._beside(self._control.drain, "sparkmirror-drain")

    def _begin_refresh(self) -> None:
        if self._control is None or not self._running or self._drain is not None:
            return
        if self._refresh is None or self._refresh.done:
            self._display.notice("looking for new topics and partitions")
            self._refresh = self._beside(self._control.refresh, "sparkmirror-refresh")

    def _collect(self) -> None:
        """Feed the meters and the display."""
        self._figures.beat()
        for text in self._quick_check.lines() if self._quick_check is not None else ():
            flow, cluster = named_places(text)
            self._display.warning(Notice(text, level="warning", flow=flow, cluster=cluster))
        if not self._collecting:
            self._display.update(self.views())
            return
        if self._control is None:
            raise Defect("the run has no control plane yet")
        with_ends = time.monotonic() - self._ends_s >= ENDS_INTERVAL_S
        if with_ends:
            self._ends_s = time.monotonic()
        self._figures.take(self._control, with_ends=with_ends)
        if self._watch is not None:
            self._figures.queries = self._watch.figures
        for text in self._control.events():
            self._display.notice(text)
        if self._refresh is not None and self._refresh.failed():
            self._display.notice(Notice(f"refresh failed: {self._refresh.error}", level="warning"))
            self._refresh = None
        self._display.update(self.views())

    def views(self) -> list[FlowView]:
        """The present state of all flows."""
        return self._figures.views()

    def _settle(self, timeout_s: float) -> None:
        """Wait for the slots' last reports, until no flow lags or no more reports arrive."""
        deadline_s = time.monotonic() + timeout_s
        changed_s = time.monotonic()
        before = -1
        while time.monotonic() < deadline_s:
            self._ends_s = 0.0
            self._step(0.1)
            views = self.views()
            if all(view.lag_records == 0 for view in views):
                return
            records = sum(view.records for view in views)
            if records != before:
                before, changed_s = records, time.monotonic()
            elif time.monotonic() - changed_s > SETTLE_QUIET_S:
                return

    def _ended(self, errors: Sequence[MirrorError]) -> int:
        """Handle the end of all queries without a drain: ``--once`` is done, or they failed."""
        if errors:
            return self._failed(errors, 1)
        if not self._options.once:
            error = MirrorError(
                "The queries ended unexpectedly.",
                do="See spark.log in the work directory for the reason.",
            )
            return self._failed([error], 1)
        self._settle(SETTLE_ONCE_S)
        self._finish_groups(FINISH_ONCE_S)
        views = self._finish("done")
        halted = [f"{view.flow} {line}" for view in views for line in halt_lines(view)]
        if not halted:
            return 0
        error = MirrorError(
            "Not everything was copied. These partitions are halted: " + "; ".join(halted) + ".",
            do="Remove the causes and run the command again: each partition continues where it"
            " stopped.",
        )
        return self._failed([error], 1)

    def _drained(self, errors: Sequence[MirrorError]) -> int:
        """Wait until the queries have written what they had read, then stop Spark."""
        if self._drain is None:
            raise Defect("no drain has begun")
        if self._flow is None:
            raise Defect("the run has no pipeline yet")
        while not self._drain.done and self._drain_left_s() > 0:
            self._step(AWAIT_STEP_S)
        flow, grace_s = self._flow, max(0.0, self._drain_left_s())
        if self._drain.failed():
            grace_s = 0.0  # the queries were not told to end, so waiting would not help
        stop = self._beside(lambda: flow.stop(grace_s=grace_s), "sparkmirror-stop")
        while not (stop.done or flow.at_rest) and self._end_left_s() > 0:
            self._step(AWAIT_STEP_S)
        failures = list(errors)
        if stop.done or flow.at_rest:
            known = {str(error) for error in errors} | {error.where for error in errors}
            failures += [
                error
                for error in flow.errors()
                if str(error) not in known and (not error.where or error.where not in known)
            ]
        if self._drain.error is not None or not flow.at_rest:
            failures.append(self._drain_failure())
        if not failures:  # Spark is stopping meanwhile
            self._settle(min(SETTLE_DRAIN_S, self._end_left_s() / 2))
            self._finish_groups(min(FINISH_DRAIN_S, self._end_left_s()))
        # Whatever still runs in Spark no longer matters.
        deadline_s = time.monotonic() + min(FLOW_STOP_S, self._end_left_s())
        while not stop.done and time.monotonic() < deadline_s:
            self._step(AWAIT_STEP_S)
        self._flow = None
        self._finish("ended" if failures else "drained: all records that were read are written")
        asked = self._stop_signal is not None or self._drained_elsewhere
        code = self._stop_exit_code() if asked else 1
        return self._failed(failures, code or 1) if failures else code

    def _drain_left_s(self) -> float:
        return self._stop_signal_s + self._drain_s() - time.monotonic()

    def _end_left_s(self) -> float:
        """Seconds left for the drain and for stopping Spark."""
        return max(0.0, self._drain_left_s() + END_S - LAST_S)

    def _drain_s(self) -> float:
        """Seconds that a drain may take; longer if it was ordered by ``sparkmirror drain``."""
        from_elsewhere = self._drained_elsewhere and self._stop_signal is None
        return max(self._options.drain_s, DRAIN_ELSEWHERE_S if from_elsewhere else 0.0)

    def _drain_failure(self) -> MirrorError:
        cause = self._drain.error if self._drain is not None else None
        return MirrorError(
            f"The drain failed: {cause}"
            if cause is not None
            else f"The drain took longer than {self._drain_s():g} s and was cut short.",
            do="Nothing is lost: the next run reads again what the target had not acknowledged.",
        )

    def _finish_groups(self, timeout_s: float) -> None:
        """Write the last checkpoints and group offsets, now that all records are written."""
        if self._control is None:
            raise Defect("the run has no control plane yet")
        finish = partial(self._control.finish, timeout_s=timeout_s)
        finishing = self._beside(finish, "sparkmirror-finish")
        while not finishing.done:
            self._step(AWAIT_STEP_S)
        self._collect()  # the last notices
        if finishing.error is not None:
            _log.warning("the last checkpoints failed: %s", finishing.error)

    def _finish(self, phase: str) -> list[FlowView]:
        """Stop everything and show the summary."""
        views = self.views()
        self._stop_parts()
        self._display.update(views)
        _log.info("%s", phase)
        self._display.phase(phase)
        self._display.summary(views)
        return views

    def _stop_exit_code(self) -> int:
        if self._options.once:
            return 128 + (self._stop_signal or signal.SIGTERM)
        by_signal = self._stop_signal == signal.SIGTERM
        return self._options.sigterm_exit_code if by_signal else 0

    def _note_reason(self, reason: str) -> None:
        if self._control is not None:
            self._control.note_reason(reason)

    def _failed(self, errors: Sequence[Exception], code: int) -> int:
        for error in errors:
            self._note_reason(str(error))
        self._stop_parts(at_once=True)
        self._display.close()
        for error in errors:
            _log.error("%s", error, exc_info=error, extra=SHOWN)
            show_error(error, debug=self._options.debug, json_lines=self._options.json_lines)
        return code

    def _stop_parts(self, *, at_once: bool = False) -> None:
        """Stop Spark and the control plane, and kill remaining processes; bounded, idempotent."""
        self._collecting = self._running = False
        with self._opens:
            self._over = True
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()
        flow, self._flow = self._flow, None
        control, self._control = self._control, None
        if self._quick_check is not None:
            self._quick_check.end()
        stop_parts(flow, control, at_once=at_once)
        end_processes(self._children_before)
        opening, self._opening = self._opening, None
        if opening is not None:
            end_start(opening, self._children_before)

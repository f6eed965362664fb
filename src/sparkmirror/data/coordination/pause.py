"""A sink whose process was frozen checks who owns the flow before it writes again.

A standby takes over a flow if its owner has not reported for a session. A process that was stopped
for that long (a signal, a suspended machine, no processor time) does not know. So a sink that has
done no round for half a session reads the claims before its next request.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from sparkmirror.data.coordination.control_reader import ControlWatch
from sparkmirror.data.coordination.fencing import check_claim
from sparkmirror.errors import MirrorError
from sparkmirror.internal_topics.flow_claims import Claim
from sparkmirror.settings import FlowSettings
from sparkmirror.ticks import ticks_s
from sparkmirror.wire.net.connection import ConnectionLost

__all__ = ["PauseWatch"]

log = logging.getLogger(__name__)

_LOOK_AGAIN_S = 0.2


class PauseWatch:
    """Notes the rounds of its owner; one owner thread.

    ``start``: offset in the control topic from which the slot reads. ``term``: that of the run's
    claim. ``rest`` is called with the seconds between two tries to read the claims; an error that
    it raises ends the tries.
    """

    def __init__(
        self,
        flow: FlowSettings,
        run_id: str,
        start: int,
        term: int,
        *,
        rest: Callable[[float], None] = time.sleep,
        now_s: Callable[[], float] = ticks_s,
    ) -> None:
        self._flow = flow
        self._run_id = run_id
        self._start = start
        self._term = term
        self._rest = rest
        self._now_s = now_s
        self._pause_s = flow.session_ms / 2_000
        self._round_s = now_s()
        self._paused = False

    def tick(self) -> None:
        """Note a round of the sink."""
        now_s = self._now_s()
        self._paused = self._paused or now_s - self._round_s > self._pause_s
        self._round_s = now_s

    def before_write(self) -> None:
        """Call before anything is sent. Raises `Fenced` if another run owns the flow."""
        self.tick()
        while self._paused:
            check_claim(self._flow, self._newest(), self._run_id)
            self._paused = False
            self.tick()  # a check that took as long as a pause proves nothing

    def _newest(self) -> Claim | None:
        """The newest claim; waits until the target responds."""
        log.warning(
            "flow %s: this process was stopped for more than %g s; checking who owns the flow",
            *(self._flow.name, self._pause_s),
        )
        watch: ControlWatch | None = None
        try:
            while True:
                if watch is None:
                    watch = ControlWatch(
                        self._flow, self._run_id, offset=self._start, claim_term=self._term
                    )
                try:
                    watch.start()
                    # If the log was cut off before the offset, only the next call reads it.
                    if watch.read_to_end():
                        return watch.claim
                except (MirrorError, ConnectionLost, TimeoutError) as error:
                    log.warning("flow %s: the claims cannot be read: %s", self._flow.name, error)
                    watch.close()
                    watch = None
                self._rest(_LOOK_AGAIN_S)
        finally:
            if watch is not None:
                watch.close()

"""Which flows a run mirrors: it takes some over as a standby, and hands over those it drains."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from sparkmirror.cli.run.background import Background
from sparkmirror.cli.run.parts import ControlPart, FlowPart
from sparkmirror.errors import MirrorError

# How long a drain may take that was ordered by ``sparkmirror drain``.
DRAIN_ELSEWHERE_S = 30.0


class Turns:
    """The flows whose queries have begun here, of those that ``control`` owns.

    ``begun``: those that this process owned at the start. ``changed`` is called when a
    standby is ready, and when it begins flows. ``failures``: why queries of flows that were taken
    over did not start.
    """

    def __init__(
        self,
        flow: FlowPart,
        control: ControlPart,
        begun: frozenset[str],
        changed: Callable[[Turns], None],
    ) -> None:
        self.begun = begun
        self.failures: tuple[MirrorError, ...] = ()
        self._changed = changed
        self._flow = flow
        self._control = control
        self._readying: Background | None = None
        self._taking: Background | None = None
        self._given: set[str] = set()

    @property
    def readying(self) -> bool:
        """Whether the queries of a standby are being prepared."""
        return self._readying is not None

    def stand_by(self, flows: Iterable[str]) -> None:
        """Prepare the queries of those of ``flows`` that other processes mirror now."""
        waiting = frozenset(flows) - self.begun
        if waiting:
            stand_by = partial(self._flow.stand_by, waiting)
            self._readying = Background(stand_by, "sparkmirror-stand-by")

    def take(self) -> None:
        """Start the queries of flows that this standby has taken over.

        Raises the error of an earlier start, unless it is one of ``failures``.
        """
        if self._taking is not None and not self._taking.done:
            return
        error = None if self._taking is None else self._taking.error
        if isinstance(error, MirrorError):
            self.failures = (*self.failures, error)
        elif error is not None:
            raise error
        if self._readying is not None and self._readying.done:
            self._readying = None
            if not self.begun:
                self._changed(self)
        taken, self._taking = self._control.owned - self.begun, None
        if taken:
            self.begun |= taken
            self._changed(self)
            start = partial(self._flow.start, taken)
            self._taking = Background(start, "sparkmirror-take-over")

    def hand_over(self) -> None:
        """End and hand over flows that are drained alone, while other flows keep running."""
        flow, control = self._flow, self._control

        def give(name: str) -> None:
            given = False
            try:
                given = flow.end(name, grace_s=DRAIN_ELSEWHERE_S)
                if given:
                    control.hand_over(name)
            finally:
                if not given:  # its query may be starting, or starting again
                    self._given.discard(name)

        for name in (control.leaving & self.begun) - self._given:
            self._given.add(name)
            Background(partial(give, name), "sparkmirror-hand-over")

    def may_begin(self, flows: Iterable[str]) -> bool:
        """Whether one of ``flows`` may still start: this run stands by for it or takes it over."""
        # Until `take` has seen how it ended.
        starting = self._taking is not None
        return starting or any(flow not in self.begun for flow in flows)

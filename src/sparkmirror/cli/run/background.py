"""One call in its own thread; its error is kept."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Background:
    """One call in its own thread; ``error`` keeps its error until it is raised or shown."""

    def __init__(self, call: Callable[[], object], name: str) -> None:
        self.error: BaseException | None = None
        self._call = call
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._call()
        except BaseException as error:  # the run loop raises or shows it
            self.error = error

    @property
    def done(self) -> bool:
        """Whether the call has returned or failed."""
        return not self._thread.is_alive()

    def wait(self, timeout_s: float) -> bool:
        """Wait up to ``timeout_s``; returns whether the call is done."""
        self._thread.join(timeout_s)
        return self.done

    def failed(self) -> bool:
        """Whether the call has failed; then ``error`` is set."""
        return self.done and self.error is not None

"""One call in a thread of its own, whose error is not lost."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Background:
    """One call in a thread of its own; its error waits here to be raised or shown."""

    def __init__(self, call: Callable[[], object], name: str) -> None:
        self.error: BaseException | None = None
        self._call = call
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._call()
        except BaseException as error:  # it is raised or shown by the run loop
            self.error = error

    @property
    def done(self) -> bool:
        """Whether the call has returned or failed."""
        return not self._thread.is_alive()

    def wait(self, timeout_s: float) -> bool:
        """Whether it is done after so long at most."""
        self._thread.join(timeout_s)
        return self.done

    def failed(self) -> bool:
        """Whether it has failed, with ``error``."""
        return self.done and self.error is not None

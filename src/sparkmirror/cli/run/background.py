"""One call in its own thread; its error is kept."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Background:
    """One call in its own thread; ``error`` keeps its error until it is raised or shown.

    ``ended`` is called in that thread when the call is done.
    """

    def __init__(
        self, call: Callable[[], object], name: str, ended: Callable[[], object] = lambda: None
    ) -> None:
        self.error: BaseException | None = None
        self._call = call
        self._ended = ended
        self._over = threading.Event()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        try:
            self._call()
        except BaseException as error:  # the run loop raises or shows it
            self.error = error
        finally:
            self._over.set()
            self._ended()

    @property
    def done(self) -> bool:
        """Whether the call has returned or failed."""
        return self._over.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Wait up to ``timeout_s``; returns whether the call is done."""
        return self._over.wait(timeout_s)

    def failed(self) -> bool:
        """Whether the call has failed; then ``error`` is set."""
        return self.done and self.error is not None

"""How long brokers that could not be reached are left alone. No I/O."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from sparkmirror.settings import ClusterClient


class BrokerBackoff:
    """Pauses of one client's brokers, by node id. ``clock``: monotonic seconds."""

    def __init__(
        self, client: ClusterClient, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._clock = clock
        self._pauses: dict[int, tuple[float, float]] = {}  # end, and delay without its jitter
        self._random = random.Random()  # noqa: S311  (spreads load, guards nothing)

    def __contains__(self, node: int) -> bool:
        return node in self._pauses

    def lasts(self, node: int) -> bool:
        """Whether ``node`` is left alone now."""
        return self._clock() < self._pauses.get(node, (0.0, 0.0))[0]

    def failed(self, node: int, began: float) -> None:
        """Leave ``node`` alone for a while: an attempt that began at ``began`` failed."""
        now = self._clock()
        low = self._client.reconnect_backoff_ms / 1000
        high = self._client.reconnect_backoff_ms_max / 1000
        before_s = self._pauses.get(node, (0.0, 0.0))[1]
        delay_s = min(high, before_s * 2 if before_s else low)
        # An attempt that hangs delays the other brokers' partitions. So the pause is at least as
        # long as the attempt was.
        pause_s = max(delay_s * self._random.uniform(0.8, 1.2), now - began)
        self._pauses[node] = (now + pause_s, delay_s)

    def succeeded(self, node: int) -> None:
        """Begin with the shortest pause again when ``node`` fails next."""
        self._pauses.pop(node, None)

"""A slot's share of the limits that the driver has published."""

from __future__ import annotations

import logging
import time

from sparkmirror.errors import ConfigError
from sparkmirror.internal_topics.throttles import Limits
from sparkmirror.names.java_regex import compile_regex
from sparkmirror.wire.fetch.fetcher import Fetcher
from sparkmirror.wire.fetch.throttle import DEBT_S, Limit, Throttle

__all__ = ["SlotThrottle", "slot_limits"]

log = logging.getLogger(__name__)


class SlotThrottle:
    """Keeps ``fetcher`` within the limits of slot number ``slot``, one of ``slots``."""

    def __init__(self, fetcher: Fetcher, slot: int, slots: int) -> None:
        self._fetcher = fetcher
        self._slot, self._slots = slot, slots
        self._obeyed: Limits | None = None

    def obey(self, limits: Limits | None) -> None:
        """Apply ``limits`` if they are new; None for none."""
        if limits is self._obeyed:
            return
        self._obeyed = limits
        mine = () if limits is None else slot_limits(limits, self._slot, self._slots)
        if not mine:
            self._fetcher.throttle = None
            return
        if self._fetcher.throttle is None:
            self._fetcher.throttle = Throttle()
        self._fetcher.throttle.update(mine, time.monotonic())


def slot_limits(limits: Limits, slot: int, slots: int) -> tuple[Limit, ...]:
    """The limits of ``slot``, one of ``slots``. One with an invalid regex is logged and left out.

    How far current partitions may overdraw depends on the even share: an idle slot with a small
    share serves a sudden record at once, and the driver gives it more.
    """
    found: list[Limit] = []
    for one in limits.limits:
        try:
            topics = compile_regex(one.topics) if one.topics else None
        except ConfigError as error:
            log.warning("a limit in the control topic is ignored: %s", error)
            continue
        debt = one.bytes_s / max(1, slots) * DEBT_S
        share = one.share(slot, slots)
        found.append(Limit(one.topics, topics, share, float(one.bytes_s), debt))
    return tuple(found)

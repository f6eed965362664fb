"""Notices of repeated jobs: each problem is reported once, not in every round."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

log = logging.getLogger(__name__)

_SHOWN_MAX = 5


def first_few(names: Sequence[str]) -> str:
    """The first names of a list as text, and the number of the others."""
    shown = ", ".join(names[:_SHOWN_MAX])
    more = len(names) - _SHOWN_MAX
    return shown if more <= 0 else f"{shown} and {more} more"


class Notices:
    """The current problems, by key. ``notify`` gets those that are new or changed."""

    def __init__(self, notify: Callable[[str], None]) -> None:
        self._notify = notify
        self._holding: dict[str, str] = {}

    def replace(self, complaints: Iterable[tuple[str, str]]) -> None:
        """Set the problems, as (key, line), of the round that has just ended.

        Of many new ones the first few are shown; the others are only logged.
        """
        holding = dict(complaints)
        new = [line for key, line in holding.items() if self._holding.get(key) != line]
        for line in new[:_SHOWN_MAX]:
            self._notify(line)
        if len(new) > _SHOWN_MAX:
            self._notify(f"{len(new) - _SHOWN_MAX} more like this are in the log")
            for line in new[_SHOWN_MAX:]:
                log.warning("%s", line)
        self._holding = holding

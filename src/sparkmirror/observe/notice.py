"""A message for the user, with its facts for programs that read JSON lines."""

from __future__ import annotations

import re
from typing import Self

__all__ = ["Notice", "named_places"]

_FLOW = re.compile(r"[^\s:,]+->[^\s:,]+")
_CLUSTER = re.compile(r"\bcluster '?([^\s:,;']+)")


class Notice(str):
    """A message with facts; usable as plain text.

    ``level``: ``info``, ``warning`` or ``error``. ``code``: the code of the error (see
    ``errors``). ``flow``, ``cluster``: what the message concerns. Facts that do not exist are
    empty.
    """

    level: str
    code: str
    flow: str
    cluster: str

    def __new__(
        cls, text: str, *, level: str = "info", code: str = "", flow: str = "", cluster: str = ""
    ) -> Self:
        """Create a message from its text and facts."""
        made = super().__new__(cls, text)
        made.level, made.code, made.flow, made.cluster = level, code, flow, cluster
        return made

    def facts(self) -> dict[str, str | None]:
        """The fields that accompany the text in a JSON line."""
        return {
            "level": self.level,
            "code": self.code or None,
            "flow": self.flow or None,
            "cluster": self.cluster or None,
        }


def named_places(text: str) -> tuple[str, str]:
    """(flow, cluster) that the ``where`` of an error, or a message, names; empty for none."""
    flow, cluster = _FLOW.search(text), _CLUSTER.search(text)
    return flow[0] if flow else "", cluster[1] if cluster else ""
